-- Checks the elements of one tensor: NaN, infinities, a constant, numbers that another dtype cannot hold.

local cbk = require "cbk"
local extents = require "cbk.extents"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"

local values = {}

---@class CheckedTensor
---@field file string
---@field key string
---@field row LeafRow
---@field scan table          of Tensor:scan
---@field known? ClassTensor  its tensor in the model's class
---@field is_scale? boolean    part of a quantised weight: scales may be constant or equal to others, as are GPTQ's zero points

---The position of an element, for people: "row 17, at [17, 3]".
---@param index integer     in C order, from 0
---@param shape integer[]
---@return string
function values.place(index, shape)
  local position = {}
  for dim = #shape, 1, -1 do
    local extent = tonumber(shape[dim]) -- may be an int64
    position[dim] = index % extent
    index = math.floor(index / extent)
  end
  if #shape < 2 then return ("at %s"):format(extents.shape(position)) end
  return ("in row %d, at %s"):format(position[1], extents.shape(position))
end

---@param one CheckedTensor
local function strange(one, found, id, count, first, word)
  if count == 0 then return end
  local text = ("%s of %s %s"):format(numbers.grouped(count), numbers.counted(one.scan.numel, "element"),
    (count == 1 and "is " or "are ") .. word)
  if #one.row.shape > 0 then text = ("%s, the first %s"):format(text, values.place(first, one.row.shape)) end
  local is_mask = one.known and one.known.buffer or naming.last(one.key):find "mask" -- of attention: -inf on purpose
  found:add(id, one.file, one.key, text, { severity = is_mask and "note" or nil })
end

---Whether a constant is usual: biases of zeros, norms of ones, and the class's initial values.
---@param one CheckedTensor
---@param constant number
---@return boolean
function values.is_usual_constant(one, constant)
  local name, row = naming.last(one.key):match "^.*/(.*)$" or naming.last(one.key), one.row
  if one.is_scale or one.known and (one.known.buffer or one.known.init == constant) then return true end
  if name:find "mask" or name:find "bias" or name:find "beta" or name:find "running_" or name:find "position_ids" then return true end
  return #row.shape < 2 and constant == 1
end

---Whether a key belongs to an optimizer's state, which is 0 at first. TensorFlow stores it under the name of the weight.
---@param key string
---@return boolean
function values.is_state(key)
  local last
  for part in key:gmatch "[^./]+" do
    if part:find "^optim" or part:find "^state$" or part:find "^exp_avg" then return true end
    last = part
  end
  return last ~= nil and (last:find "^[Aa]dam" or last:find "^LAMB" or last:find "^Momentum" or last:find "^Adagrad") ~= nil
end

local function check_constant(one, found)
  local constant = one.scan.constant
  if type(constant) ~= "number" or constant ~= constant or math.abs(constant) == math.huge then return end
  if one.scan.numel < 2 or not cbk.dtype(one.row.type).floating or values.is_state(one.key) then return end
  if values.is_usual_constant(one, constant) then return end
  found:add("constant", one.file, one.key, ("all %s are %.6g"):format(numbers.counted(one.scan.numel, "element"), constant), {
    severity = #one.row.shape < 2 and constant ~= 0 and "note" or nil,
  })
end

local RANGES = { float16 = 65504, float8_e4m3fn = 448, float8_e5m2 = 57344, float8_e4m3fnuz = 240, float8_e5m2fnuz = 57344 }
local MUCH = 0.01 -- of the elements: a finding
local MOST = 0.5 -- of the elements: a warning, since the weight is useless

local function check_dtypes(one, found)
  for dtype, losses in pairs(one.scan.losses or {}) do
    local total = numbers.counted(one.scan.numel, "element")
    if losses.overflowed > 0 then
      local range = RANGES[dtype] and (", which ends at %s"):format(numbers.grouped(RANGES[dtype])) or ""
      found:add("overflow", one.file, one.key, ("%s of %s %s too large for %s%s; the largest is %.6g"):format(
        numbers.grouped(losses.overflowed), total, losses.overflowed == 1 and "is" or "are", dtype, range, one.scan.largest))
    end
    if losses.vanished > MUCH * one.scan.numel then
      local is_bad = losses.vanished > MOST * one.scan.numel and not values.is_state(one.key)
      found:add("underflow", one.file, one.key, ("%s of %s become 0 in %s"):format(numbers.grouped(losses.vanished), total, dtype),
        { severity = is_bad and "warning" or nil })
    end
  end
end

---The smallest element of a tensor that was scanned.
---@param scan table
---@param tensor Tensor
function values.least(scan, tensor) return scan.constant or scan.numel > 0 and tensor:stats().min or 0 end

---Reports a state of an optimizer that is never negative, and is.
local function check_sign(one, found)
  local least = one.least
  if type(least) ~= "number" or least >= 0 or least ~= least then return end
  found:add("state", one.file, one.key, ("it is never negative, and here its smallest element is %.6g"):format(least))
end

---@param one CheckedTensor
---@param found Findings
function values.check(one, found)
  check_sign(one, found)
  strange(one, found, "nan", one.scan.nan, one.scan.first_nan, "NaN")
  strange(one, found, "infinity", one.scan.inf, one.scan.first_inf, "infinite")
  check_constant(one, found)
  check_dtypes(one, found)
end

return values
