-- Checkpoints of random weights, in which no two elements of a tensor are alike. Nothing is computed before it is compared.

local cbk = require "cbk"
local class_tensors = require "converters.engine.class_tensors"
local keys = require "converters.engine.keys"

local random = {}

local MOST = 2 ^ 26 -- elements, which are computed and compared in seconds
local VECTOR_STD = 0.5 -- matrices have that of their columns: so a model's scores, too, are large enough to count

---@param count number   of elements
---@return string|nil why   they are not tried
local function too_many(count)
  return count > MOST and ("%.3g elements are more than the %d that are tried"):format(count, MOST) or nil
end

---@param shape integer[]
---@param key string   decides the numbers
---@param dtype? string   default float32
local function tensor(shape, key, dtype)
  dtype = dtype or "float32"
  local seed = keys.seed_of(key, 0)
  if cbk.dtype(dtype).floating then
    local std = #shape > 1 and tonumber(shape[#shape]) ^ -0.5 or VECTOR_STD
    return cbk.randn(shape, { std = std, seed = seed, dtype = "float32" }):to(dtype)
  end
  return cbk.rand(shape, { low = 0, high = dtype == "bool" and 2 or 100, seed = seed, dtype = "float32" }):to("int32"):to(dtype)
end

---@param shape integer[]
local function count_of(shape)
  local out = 1
  for _, extent in ipairs(shape) do out = out * extent end
  return out
end

---All tensors of a class; a tied name has the same tensor. Nil and the reason if they are too large.
---@param list ClassTensors
---@return Dict|nil, string|nil why
function random.of_class(list)
  local out, count = cbk.dict(), 0
  for _, one in ipairs(list) do
    if not (one.buffer or one.optional or one.foreign) then
      local shape = class_tensors.shape(one)
      count = count + count_of(shape)
      if too_many(count) then return nil, too_many(count) end
      out[one.key] = one.tied_to and out[one.tied_to] or tensor(shape, one.key)
    end
  end
  return out
end

---Tensors with the names and dtypes of others, and with other shapes; tied ones stay tied. Nil and the reason if they are too large.
---@param tensors table<string, Tensor>
---@param order string[]
---@param shape_of fun(shape: integer[]): integer[]
---@return Dict|nil, string|nil why
function random.like(tensors, order, shape_of)
  local out, first, count = cbk.dict(), {}, 0
  for _, key in ipairs(order) do
    local own = tensors[key]
    count = count + count_of(shape_of(own:shape()))
    if too_many(count) then return nil, too_many(count) end
    local id = own:storage_id()
    local earlier = id and first[id]
    local is_tied = earlier and tensors[earlier]:same(own)
    out[key] = is_tied and out[earlier] or tensor(shape_of(own:shape()), key, own.dtype)
    if id and not earlier then first[id] = key end
  end
  return out
end

return random
