-- Checkpoints of random weights, in which no two elements of a tensor are alike. Nothing is computed before it is compared.

local cbk = require "cbk"
local class = require "converters.engine.class"
local keys = require "converters.engine.keys"

local random = {}

---@param shape integer[]
---@param key string   decides the numbers
---@param dtype? string   default float32
local function tensor(shape, key, dtype)
  dtype = dtype or "float32"
  local seed = keys.seed_of(key, 0)
  if cbk.dtype(dtype).floating then return cbk.randn(shape, { std = 0.02, seed = seed, dtype = "float32" }):to(dtype) end
  return cbk.rand(shape, { low = 0, high = dtype == "bool" and 2 or 100, seed = seed, dtype = "float32" }):to("int32"):to(dtype)
end

---All tensors of a class; a tied name has the same tensor.
---@param list ClassTensors
---@return Dict
function random.of_class(list)
  local out = cbk.dict()
  for _, one in ipairs(list) do
    if not (one.buffer or one.optional or one.foreign) then
      out[one.key] = one.tied_to and out[one.tied_to] or tensor(class.shape(one), one.key)
    end
  end
  return out
end

---Tensors with the names and dtypes of others, and with other shapes; tied ones stay tied.
---@param tensors table<string, Tensor>
---@param order string[]
---@param shape_of fun(shape: integer[]): integer[]
---@return Dict
function random.like(tensors, order, shape_of)
  local out, first = cbk.dict(), {}
  for _, key in ipairs(order) do
    local own = tensors[key]
    local id = own:storage_id()
    local earlier = id and first[id]
    local is_tied = earlier and tensors[earlier]:same(own)
    out[key] = is_tied and out[earlier] or tensor(shape_of(own:shape()), key, own.dtype)
    if id and not earlier then first[id] = key end
  end
  return out
end

return random
