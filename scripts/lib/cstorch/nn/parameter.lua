-- Parameters: tensors that a module registers and an optimizer changes.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local parameter = {}

local known = setmetatable({}, { __mode = "k" })

---A parameter over the memory of `tensor`.
---@param tensor cstorch.Tensor
---@param options? { requires_grad: boolean }   default true
---@return cstorch.Tensor
function parameter.new(tensor, options)
  local is_tensor = tensors.is_tensor(tensor)
  errors.check(is_tensor, "type", "nn.Parameter: expected a tensor, found %s; cstorch.tensor makes one", errors.show(tensor))
  options = keywords.complete("nn.Parameter", { requires_grad = true }, options)
  local p = tensor:detach()
  if options.requires_grad then p:requires_grad_(true) end
  known[p], session.parameters[p] = true, p
  tensors.mark_weight(p)
  return p
end

---@param value any
---@return boolean
function parameter.is(value) return known[value] == true end

return parameter
