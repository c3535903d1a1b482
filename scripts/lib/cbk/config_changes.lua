-- What differs between two configs, told in a few lines: fields that moved or got another name, that changed, that are new or gone.

local cbk = require "cbk"

local config_changes = {}

local function text_of(value)
  local text = cbk.json(value)
  return #text > 60 and text:sub(1, 57) .. "…" or text
end

local function leaves(config)
  local list, by_path = {}, {}
  for path, value in cbk.raw_leaves(config) do
    list[#list + 1] = path
    by_path[path] = text_of(value)
  end
  return list, by_path
end

local function parts_of(path)
  local out = {}
  for part in path:gmatch "[^.]+" do out[#out + 1] = part end
  return out
end

---How many parts two paths have in common at their ends; at least one part of each is left over.
local function common_end(a, b)
  local count = 0
  while count < #a - 1 and count < #b - 1 and a[#a - count] == b[#b - count] do count = count + 1 end
  return count
end

local function parent(path) return path:match "^(.*)%." or "" end

---True for "checkpoint_steps" and "steps".
local function ends_alike(a, b)
  return a:sub(-#b - 1) == "_" .. b or b:sub(-#a - 1) == "_" .. a
end

---Where a new field came from: the field of the same value with the longest common end, one beside it, or one with a like name.
local function origin(path, text, gone, before)
  local best, best_count
  local parts = parts_of(path)
  for _, old in ipairs(gone) do
    if before[old] == text then
      local old_parts = parts_of(old)
      local count = common_end(old_parts, parts)
      local fits = count > 0 or parent(old) == parent(path) or ends_alike(old_parts[#old_parts], parts[#parts])
      if fits and (not best or count > best_count) then best, best_count = old, count end
    end
  end
  return best, best_count
end

local function join(parts, first, last)
  local out = {}
  for i = first, last do out[#out + 1] = parts[i] end
  return table.concat(out, ".")
end

local function shorten(names)
  local shown = {}
  for i = 1, math.min(#names, 6) do shown[i] = names[i] end
  return table.concat(shown, ", ") .. (#names > #shown and (", … (%d fields)"):format(#names) or "")
end

---Lines for fields that moved together, and for renamed ones.
local function moves(pairs_of_paths, out)
  local groups, order = {}, {}
  for _, pair in ipairs(pairs_of_paths) do
    local old, new, count = parts_of(pair[1]), parts_of(pair[2]), pair[3]
    local head = ("%s -> %s"):format(join(old, 1, #old - count), join(new, 1, #new - count))
    if not groups[head] then
      groups[head] = {}
      order[#order + 1] = head
    end
    table.insert(groups[head], count > 0 and join(old, #old - count + 1, #old) or nil)
  end
  for _, head in ipairs(order) do
    out[#out + 1] = #groups[head] == 0 and head or ("%s: %s"):format(head, shorten(groups[head]))
  end
end

---@param before Dict
---@param after Dict
---@return string[] lines
function config_changes.lines(before, after)
  local old_list, old = leaves(before)
  local new_list, new = leaves(after)
  local gone, moved, added, changed, used = {}, {}, {}, {}, {}
  for _, path in ipairs(old_list) do
    if new[path] == nil then
      gone[#gone + 1] = path
    elseif new[path] ~= old[path] then
      changed[#changed + 1] = ("%s: %s -> %s"):format(path, old[path], new[path])
    end
  end
  for _, path in ipairs(new_list) do
    if old[path] == nil then
      local source, count = origin(path, new[path], gone, old)
      if source then
        moved[#moved + 1] = { source, path, count }
        used[source] = true
      else
        added[#added + 1] = ("new: %s = %s"):format(path, new[path])
      end
    end
  end
  local out = {}
  moves(moved, out)
  for _, line in ipairs(changed) do out[#out + 1] = line end
  for _, line in ipairs(added) do out[#out + 1] = line end
  for _, path in ipairs(gone) do
    if not used[path] then out[#out + 1] = ("gone: %s = %s"):format(path, old[path]) end
  end
  return out
end

return config_changes
