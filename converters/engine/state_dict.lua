-- The keys, shapes and odd dtypes of a state dict, collected in one pass. Models have up to 100,000 tensors.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local quantised = require "cbk.quantised"

local state_dict = {}

---@class StateDict
---@field tensors Dict
---@field keys string[]                       the string keys, in the checkpoint's order
---@field shapes table<string, integer[]>     of the keys with tensors
---@field codes { key: string, dtype: string }[]   tensors of less than 16 bits, and of no floats: as weights, they are codes
---@field shape_of fun(key: string): integer[]|false|nil   false: it is no tensor, such as null

---@param tensors Dict
---@return StateDict
function state_dict.of(tensors)
  local keys, shapes, others, codes, is_code = {}, {}, {}, {}, {}
  for key, value in cbk.items(tensors) do
    local is_text = type(key) == "string"
    if is_text then keys[#keys + 1] = key end
    if is_text and kinds.is_tensor(value) then
      shapes[key] = value:shape()
      local dtype = value.dtype
      if is_code[dtype] == nil then is_code[dtype] = quantised.is_narrow(dtype) or not cbk.dtype(dtype).floating end
      if is_code[dtype] then codes[#codes + 1] = { key = key, dtype = dtype } end
    elseif is_text then
      others[key] = true
    end
  end
  local function shape_of(key) return shapes[key] or not others[key] and nil end
  return { tensors = tensors, keys = keys, shapes = shapes, codes = codes, shape_of = shape_of }
end

return state_dict
