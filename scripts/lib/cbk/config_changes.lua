-- The differences between two configs in a few lines: fields that were moved, renamed, changed, added or removed.

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

---The number of equal parts at the ends of two paths; at least one part of each is left over.
local function common_end(a, b)
  local count = 0
  while count < #a - 1 and count < #b - 1 and a[#a - count] == b[#b - count] do count = count + 1 end
  return count
end

---The old path of a field in the new file. The moves are undone in reverse order.
---@param path string
---@param moves Moves
---@param count? integer   only the first ones
---@return string
function config_changes.origin(path, moves, count)
  for i = count or #moves, 1, -1 do
    local old, new = moves[i][1], moves[i][2]
    if path == new then
      path = old
    elseif path:sub(1, #new + 1) == new .. "." then
      path = old .. path:sub(#new + 1)
    end
  end
  return path
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
local function lines_of_moves(moved, out)
  local groups, order = {}, {}
  for _, pair in ipairs(moved) do
    local old, new = parts_of(pair[1]), parts_of(pair[2])
    local count = common_end(old, new)
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

---Values that became section names: `optimizer_type: AdamW` is now a section `AdamW`.
local function named_sections(moves, old, new, after, used)
  local out = {}
  for i, move in ipairs(moves) do
    local source = config_changes.origin(move[1], moves, i - 1)
    if old[source] and not new[source] and not used[source] and cbk.find(after, move[2]) ~= nil then
      used[source] = true
      out[#out + 1] = { source, move[2] }
    end
  end
  return out
end

---Whether an empty section has fields in the other file.
local function is_container_of(other, path, text) return (text == "{}" or text == "[]") and cbk.find(other, path) ~= nil end

---@param before Dict
---@param after Dict
---@param moves Moves   the known moves of fields; other fields do not count as moved
---@return string[] lines
function config_changes.lines(before, after, moves)
  local old_list, old = leaves(before)
  local new_list, new = leaves(after)
  local moved, changed, added, used = {}, {}, {}, {}
  for _, path in ipairs(new_list) do
    local source = config_changes.origin(path, moves)
    if not old[source] then
      if not is_container_of(before, path, new[path]) then added[#added + 1] = ("new: %s = %s"):format(path, new[path]) end
    elseif source ~= path and new[path] == old[source] then
      moved[#moved + 1] = { source, path }
    elseif source ~= path then
      changed[#changed + 1] = ("%s = %s -> %s = %s"):format(source, old[source], path, new[path])
    elseif new[path] ~= old[path] then
      changed[#changed + 1] = ("%s: %s -> %s"):format(path, old[path], new[path])
    end
    used[source] = true
  end
  for _, pair in ipairs(named_sections(moves, old, new, after, used)) do moved[#moved + 1] = pair end
  local out = {}
  lines_of_moves(moved, out)
  for _, line in ipairs(changed) do out[#out + 1] = line end
  for _, line in ipairs(added) do out[#out + 1] = line end
  for _, path in ipairs(old_list) do
    if not used[path] and not is_container_of(after, path, old[path]) then out[#out + 1] = ("gone: %s = %s"):format(path, old[path]) end
  end
  return out
end

return config_changes
