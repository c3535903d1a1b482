-- Lists of parameters, as optimizers and gradient clipping take them. A model, a state dict or a list with a hole would lose members
-- without a word.

local errors = require "cstorch.errors"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---The number of items of a plain list: a table without other keys, and without holes.
---@param what string   that asks for it, for messages: "clip_grad_norm_"
---@param list any
---@param of string     what is in it: "parameters"
---@return integer
local function length(what, list, of)
  local is_plain = type(list) == "table" and getmetatable(list) == nil
  check(is_plain, "type", "%s: expected a list of %s, found %s", what, of, show(list))
  local count = 0
  for key in pairs(list) do
    check(type(key) == "number", "type", "%s: expected a list of %s, found a table with the key '%s'", what, of, tostring(key))
    count = count + 1
  end
  for i = 1, count do check(list[i] ~= nil, "value", "%s: item %d of the list of %s is nil", what, i, of) end
  return count
end

local parameter_list = { length = length }

---The parameters of a list; one parameter is a list of itself.
---@param what string
---@param params any
---@return cstorch.Tensor[]
function parameter_list.of(what, params)
  if tensors.is_tensor(params) then return { params } end
  local out = {}
  for i = 1, length(what, params, "parameters") do
    check(tensors.is_tensor(params[i]), "type", "%s: item %d of the parameters is %s, not a tensor", what, i, show(params[i]))
    out[i] = params[i]
  end
  return out
end

return parameter_list
