-- A part of a tensor behind its key or a glob, as in NumPy: "w[5, 9]", "*.w[0:3, ::2]", "w[..., -1]". Positions count from 0.

local cbk = require "cbk"
local extents = require "cbk.extents"
local numbers = require "cbk.numbers"
local is_tensor = require("cbk.tensor_kinds").is_tensor

local key_part = {}

local BRACKETS = "^(.-)%s*%[([^%[%]]*)%]$"

---@class PartRange
---@field text string
---@field start? number      also the position of an index
---@field stop? number
---@field step? number
---@field is_index? boolean
---@field is_rest? boolean   "...": all dims that no other range is of

---@param text string   "5", "0:3", ":", "::2", "-1", "..."
---@return PartRange|nil
local function range_of(text)
  text = text:match "^%s*(.-)%s*$"
  if text == "..." then return { text = text, is_rest = true } end
  if text:find "^-?%d+$" then return { text = text, start = tonumber(text), is_index = true } end
  local start, stop, rest = text:match "^(-?%d*)%s*:%s*(-?%d*)%s*(.*)$"
  local step = rest and rest:match "^:%s*(%d*)$"
  if not start or start == "-" or stop == "-" or rest ~= "" and not step or tonumber(step) == 0 then return nil end
  return { text = text, start = tonumber(start), stop = tonumber(stop), step = tonumber(step) }
end

---Divides "w[5, 0:3]"; nil if there are no brackets behind a key, or there is anything else in them.
---@param text string
---@return string|nil key
---@return PartRange[]|nil ranges
function key_part.parse(text)
  local key, inside = text:match(BRACKETS)
  if not key then return nil end
  local ranges, rests = {}, 0
  for one in (inside .. ","):gmatch "([^,]*)," do
    local range = range_of(one)
    if not range then return nil end
    ranges[#ranges + 1] = range
    rests = rests + (range.is_rest and 1 or 0)
  end
  if rests > 1 then return nil end
  return key, ranges
end

---One range for each dim: "..." is as many as are left.
---@param ranges PartRange[]
---@return PartRange[]
local function of_each_dim(shape, key, ranges)
  local out, left = {}, #shape - #ranges
  for _, range in ipairs(ranges) do
    if range.is_rest then left = left + 1 end
  end
  if left < 0 then
    cbk.fail("usage", ("%s has %s, not %d"):format(cbk.quote(key), numbers.counted(#shape, "dim"), #shape - left),
      { advice = "its shape is " .. extents.shape(shape) })
  end
  for _, range in ipairs(ranges) do
    for _ = 1, range.is_rest and left or 1 do out[#out + 1] = range end
  end
  return out
end

---A position that may be beyond all integers, as near as it matters.
local function within(position, extent) return math.max(-extent, math.min(position, extent)) end

---The part of a tensor; an index takes its dim away. Errors: `usage`, if there are more ranges than dims, or an index or a
---whole range is outside.
---@param tensor Tensor
---@param key string
---@param ranges PartRange[]
---@return Tensor
function key_part.of(tensor, key, ranges)
  local shape = tensor:shape()
  local part, dim = tensor, 0
  for n, range in ipairs(of_each_dim(shape, key, ranges)) do
    local extent = tonumber(shape[n])
    if range.is_index then
      local index = range.start < 0 and range.start + extent or range.start
      if index < 0 or index >= extent then
        cbk.fail("usage", ("position %s is outside of dim %d of %s, which has %d"):format(range.text, n - 1, cbk.quote(key), extent),
          { advice = "positions count from 0" })
      end
      part = part:select(dim, index)
    else
      part = part:slice(dim, within(range.start or 0, extent), within(range.stop or extent, extent), within(range.step or 1, extent + 1))
      if extent > 0 and tonumber(part:shape()[dim + 1]) == 0 then
        cbk.fail("usage", ("'%s' selects nothing of dim %d of %s, which has %s"):format(range.text, n - 1, cbk.quote(key),
          numbers.counted(extent, "position")),
          { advice = "positions count from 0, and the end of a range is not in it" })
      end
      dim = dim + 1
    end
  end
  return part
end

---Keys for a text in which brackets are between the parts of a key, as in Python: "state[0]['lr']" means state.0.lr. Brackets at the
---end may also be a part of a tensor. None if there are no such brackets.
---@param text string
---@return string[]
function key_part.dotted(text)
  local function with_dots(own)
    return (own:gsub("%[(%d+)%]", ".%1"):gsub("%[(['\"])([^%]]*)%1%]", ".%2"):gsub("^%.", ""))
  end
  local out, key, part = {}, text:match "^(.*)(%[[^%[%]]*%])$"
  for _, one in ipairs { with_dots(text), key and with_dots(key) .. part } do
    if one ~= text then out[#out + 1] = one end
  end
  return out
end

---The rows of the tensors that a key or a glob means; an empty one means the only value, as of a .npy file.
---@return integer[]
local function tensor_rows(rows, key)
  local exact, out = rows:find(key), {}
  if key == "" and #rows == 1 then exact = 1 end
  local matches = not exact and cbk.glob(key)
  for i = exact or 1, exact or #rows do
    if (exact or matches(rows:path(i))) and is_tensor(rows:value(i)) then out[#out + 1] = i end
  end
  return out
end

---Fails if the brackets of "w[1.5]" can only be a part: 'w' is a tensor, and no key matches the text as a glob.
local function refuse_part(rows, text)
  local key, inside = text:match(BRACKETS)
  if not key or not pcall(cbk.glob, key) or #tensor_rows(rows, key) == 0 then return end
  local is_glob, matches = pcall(cbk.glob, text)
  for i = 1, is_glob and #rows or 0 do
    if matches(rows:path(i)) then return end
  end
  cbk.fail("usage", ("cannot read the part '[%s]' of %s: a part takes whole numbers, start:stop:step and '...'"):format(
    cbk.shown(inside), cbk.quote(key)), { advice = "steps are at least 1" })
end

---@class TensorPart
---@field key string      "w[5, 9]"
---@field row integer
---@field tensor Tensor
---@field ranges PartRange[]

---The parts that "w[5, 9]" or "*.w[0:3]" means; none if there are no brackets, or no tensor has such a key.
---@param rows LeafRows
---@param text string
---@return TensorPart[]
function key_part.find(rows, text)
  local key, ranges = key_part.parse(text)
  if not key then
    refuse_part(rows, text)
    return {}
  end
  local exact, out = rows:find(key), {}
  for n, i in ipairs(tensor_rows(rows, key)) do
    local tensor, own = rows:value(i), rows:path(i)
    out[n] = { key = own .. text:sub(#key + 1), row = i, tensor = key_part.of(tensor, own, ranges), ranges = ranges }
  end
  if exact and #out == 0 then cbk.fail("key", ("%s is not a tensor (%s)"):format(cbk.quote(key), cbk.kind(rows:value(exact)))) end
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
