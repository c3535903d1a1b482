-- A part of a tensor behind its key or a glob, as in NumPy: "w[5, 9]", "*.w[0:3, :]", "w[-1]". Positions count from 0.

local cbk = require "cbk"
local extents = require "cbk.extents"
local is_tensor = require("cbk.tensor_kinds").is_tensor

local key_part = {}

---@param text string   "5", "0:3", ":", "-1"
---@return { start: number|nil, stop: number|nil, is_index: boolean }|nil
local function range_of(text)
  local index = text:match "^%s*(-?%d+)%s*$"
  if index then return { start = tonumber(index), is_index = true } end
  local start, stop = text:match "^%s*(-?%d*)%s*:%s*(-?%d*)%s*$"
  if not start or start == "-" or stop == "-" then return nil end
  return { start = tonumber(start), stop = tonumber(stop), is_index = false }
end

---Divides "w[5, 0:3]"; nil if there are no brackets behind a key.
---@param text string
---@return string|nil key
---@return { start: number|nil, stop: number|nil, is_index: boolean }[]|nil ranges
function key_part.parse(text)
  local key, inside = text:match "^(.-)%s*%[([-%d:,%s]+)%]$"
  if not key then return nil end
  local ranges = {}
  for one in (inside .. ","):gmatch "([^,]*)," do
    ranges[#ranges + 1] = range_of(one)
    if not ranges[#ranges] or #ranges == 0 then return nil end
  end
  return key, ranges
end

---The part of a tensor; an index takes its dim away. Errors: `usage`, if there are more ranges than dims, or an index is outside.
---@param tensor Tensor
---@param key string
---@param ranges table[]
---@return Tensor
function key_part.of(tensor, key, ranges)
  local shape = tensor:shape()
  if #ranges > #shape then
    cbk.fail("usage", ("%s has %d dims, not %d"):format(cbk.quote(key), #shape, #ranges),
      { advice = "its shape is " .. extents.shape(shape) })
  end
  local part, dim = tensor, 0
  for n, range in ipairs(ranges) do
    local extent = tonumber(shape[n])
    if range.is_index then
      local index = range.start < 0 and range.start + extent or range.start
      if index < 0 or index >= extent then
        cbk.fail("usage", ("position %d is outside of dim %d of %s, which has %d"):format(range.start, n - 1, cbk.quote(key), extent),
          { advice = "positions count from 0" })
      end
      part = part:select(dim, index)
    else
      part = part:slice(dim, range.start or 0, range.stop or extent)
      dim = dim + 1
    end
  end
  return part
end

---@class TensorPart
---@field key string      "w[5, 9]"
---@field row integer
---@field tensor Tensor
---@field ranges table[]

---The parts that "w[5, 9]" or "*.w[0:3]" means; none if there are no brackets, or no tensor has such a key.
---@param rows LeafRows
---@param text string
---@return TensorPart[]
function key_part.find(rows, text)
  local key, ranges = key_part.parse(text)
  if not key then return {} end
  local exact, matches, out = rows:find(key), nil, {}
  if not exact then matches = cbk.glob(key) end
  for i = exact or 1, exact or #rows do
    local is_meant = exact or matches(rows:path(i))
    local tensor = is_meant and rows:value(i)
    if is_meant and is_tensor(tensor) then
      local own = rows:path(i)
      out[#out + 1] = { key = own .. text:sub(#key + 1), row = i, tensor = key_part.of(tensor, own, ranges), ranges = ranges }
    end
    if exact and not is_tensor(tensor) then cbk.fail("key", ("%s is not a tensor, but: %s"):format(cbk.quote(key), cbk.kind(tensor))) end
  end
  return out
end

---The same part in Lua, which counts from 1, where it is one element: "[6][10]"; nil for others.
---@param tensor Tensor
---@return string|nil
function key_part.in_lua(tensor, ranges)
  local shape, out = tensor:shape(), {}
  if #ranges ~= #shape then return nil end
  for n, range in ipairs(ranges) do
    if not range.is_index then return nil end
    out[n] = ("[%d]"):format((range.start < 0 and range.start + tonumber(shape[n]) or range.start) + 1)
  end
  return table.concat(out)
end

return key_part
