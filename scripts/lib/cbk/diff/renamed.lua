-- Tensors with other keys but the same content, and how they are listed.

local extents = require "cbk.extents"
local fold = require "cbk.fold"

local renamed = {}

---@param row LeafRow
local function signature(row) return row.type .. " " .. extents.joined(row.shape, ",") end

---The numbers of tensors by dtype and shape.
local function by_signature(rows, list)
  local out = {}
  for _, i in ipairs(list) do
    local row = rows[i]
    if row.shape and not row.problem then
      local id = signature(row)
      out[id] = out[id] or {}
      table.insert(out[id], i)
    end
  end
  return out
end

---The numbers of tensors by content.
local function by_content(rows, list, on_read)
  local out = {}
  for _, i in ipairs(list) do
    local id = rows:value(i):scan().fingerprint
    on_read(rows:path(i), rows[i].bytes)
    out[id] = out[id] or {}
    table.insert(out[id], i)
  end
  return out
end

---Pairs of rows with equal dtype, shape and content, in the order of `a`. Tensors whose shape only one side has are not read.
---@param a LeafRows
---@param only_a integer[]
---@param b LeafRows
---@param only_b integer[]
---@param on_read fun(key: string, bytes: integer)
---@return table<integer, integer>   rows of `b` by rows of `a`
function renamed.pairs(a, only_a, b, only_b, on_read)
  local shapes_a, shapes_b, out = by_signature(a, only_a), by_signature(b, only_b), {}
  for id, list in pairs(shapes_a) do
    if shapes_b[id] then
      local contents_a, contents_b = by_content(a, list, on_read), by_content(b, shapes_b[id], on_read)
      for content, same_a in pairs(contents_a) do
        local same_b = contents_b[content] or {}
        for k = 1, math.min(#same_a, #same_b) do out[same_a[k]] = same_b[k] end
      end
    end
  end
  return out
end

---Renamed keys as lines: layers on one line, "a.{0..31}.w -> h.{0..31}.x".
---@param list { a: string, b: string }[]
---@return string[]
function renamed.lines(list)
  local groups, order, lines = {}, {}, {}
  for _, pair in ipairs(list) do
    local id = pair.a:gsub("%d+", "#") .. "\0" .. pair.b:gsub("%d+", "#")
    if not groups[id] then groups[id], order[#order + 1] = {}, id end
    table.insert(groups[id], pair)
  end
  local function folded(group, side)
    local entries = {}
    for i, pair in ipairs(group) do entries[i] = { path = pair[side] } end
    local names = fold.groups(entries)
    return #names == 1 and names[1].name or nil
  end
  for _, id in ipairs(order) do
    local group = groups[id]
    local from, to = folded(group, "a"), folded(group, "b")
    if #group > 1 and from and to then
      lines[#lines + 1] = ("%s -> %s"):format(from, to)
    else
      for _, pair in ipairs(group) do lines[#lines + 1] = ("%s -> %s"):format(fold.shown(pair.a), fold.shown(pair.b)) end
    end
  end
  return lines
end

---Whether a row is another name of a tensor: files that hold each tensor once lack it.
---@param rows LeafRows
---@param i integer
---@param is_matched table<string, boolean>   paths with a counterpart
function renamed.is_other_name(rows, i, is_matched)
  local row = rows[i]
  if row.tied_to then return is_matched[row.tied_to] == true end
  for _, key in ipairs((rows:ties(i, 20))) do
    if is_matched[key] then return true end
  end
  return false
end

return renamed
