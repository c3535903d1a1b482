-- How two checkpoints differ, for a report: tensors by name.

local cbk = require "cbk"
local extents = require "cbk.extents"
local numbers = require "cbk.numbers"
local scale = require "cbk.plot.scale"

local differences = {}

---@class TensorDifference
---@field key string
---@field text string
---@field rank number       the largest first
---@field max_abs? number
---@field max_rel? number

---@class Differences
---@field only_a string[]
---@field only_b string[]
---@field changed TensorDifference[]
---@field same integer

local function is_tensor(row) return row.shape ~= nil and not row.problem end

local function text_of(number) return type(number) == "number" and scale.text(number) or numbers.whole_text(number) end

local function of_tensors(key, a, b)
  local shape_a, shape_b = extents.shape(a:shape()), extents.shape(b:shape())
  if shape_a ~= shape_b then return { key = key, rank = math.huge, text = ("shape %s, %s"):format(shape_a, shape_b) } end
  if a.dtype:find "^complex" and not b.dtype:find "^complex" or b.dtype:find "^complex" and not a.dtype:find "^complex" then
    return { key = key, rank = math.huge, text = ("dtype %s, %s"):format(a.dtype, b.dtype) }
  end
  local d = a:compare(b)
  if d.different == 0 and a.dtype == b.dtype then return nil end
  local parts = {}
  if a.dtype ~= b.dtype then parts[1] = ("dtype %s, %s"):format(a.dtype, b.dtype) end
  if d.different > 0 then
    parts[#parts + 1] = ("%s of elements differ, max abs %s, max rel %s"):format(numbers.percent(d.different, d.numel), text_of(d.max_abs),
      text_of(d.max_rel or 0))
  end
  return { key = key, rank = d.different > 0 and tonumber(d.max_rel or 0) or -1, text = table.concat(parts, "; ") }
end

---@param a LeafRows
---@param b LeafRows
---@param show fun(key: string, bytes: integer)   called after each tensor
---@return Differences
function differences.find(a, b, show)
  local out = { only_a = {}, only_b = {}, changed = {}, same = 0 }
  for i = 1, #a do
    local row = a[i]
    local k = is_tensor(row) and b:find(row.path)
    if is_tensor(row) and not k then out.only_a[#out.only_a + 1] = row.path end
    if k and is_tensor(b[k]) then
      local found = of_tensors(row.path, a:value(i), b:value(k))
      if found then table.insert(out.changed, found) else out.same = out.same + 1 end
      show(row.path, row.bytes)
    end
  end
  for k = 1, #b do
    if is_tensor(b[k]) and not a:find(b:path(k)) then out.only_b[#out.only_b + 1] = b:path(k) end
  end
  local order = {}
  for i, one in ipairs(out.changed) do order[one] = i end
  table.sort(out.changed, function(x, y)
    if x.rank ~= y.rank then return x.rank > y.rank end
    return order[x] < order[y]
  end)
  return out
end

---Keys as few lines: "layers.{0..31}.bias".
---@param keys string[]
---@return string[]
function differences.folded(keys)
  local signatures, out = {}, {}
  for i in ipairs(keys) do signatures[i] = "" end
  for i, group in ipairs(cbk.fold_keys(keys, signatures)) do out[i] = group.name end
  return out
end

return differences
