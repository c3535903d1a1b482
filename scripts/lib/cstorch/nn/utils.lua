-- Gradient clipping.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local namespace = require "cstorch.namespace"
local parameter_list = require "cstorch.parameter_list"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local utils = {}

local check, show = errors.check, errors.show

---Warns about gradients that a GradScaler has scaled, for which the limit is another one.
---@param has table<any, boolean>   parameters
local function check_unscaled(what, has)
  for optimizer in pairs(session.optimizers) do
    local is_scaled = false
    for p in (optimizer.scaler and optimizer:gradients() or function() end) do is_scaled = is_scaled or has[p] end
    if is_scaled then optimizer.scaler:_check_unscaled(optimizer, what, "call scaler:unscale_(optimizer) before") end
  end
end

--- The gradients of a parameter or a list of parameters.
local function gradients(what, params)
  local list, has = {}, {}
  for _, p in ipairs(parameter_list.of(what, params)) do list[#list + 1], has[p] = p.grad, true end
  check_unscaled(what, has)
  return list
end

local function total_norm(grads)
  local squares = tensors.to_device(tensors.zeros {})
  for _, grad in ipairs(grads) do
    squares = squares + (grad.dtype == "float64" and grad or grad:to "float32"):norm():square()
  end
  return squares:sqrt()
end

---Scales all gradients so that their common 2-norm is at most `max_norm`: g = g·min(1, max_norm/(norm + 1e-6)).
---@param params any         a parameter or a list of parameters
---@param max_norm number
---@return any total_norm    before clipping, a 0-dim tensor
function utils.clip_grad_norm_(params, max_norm, ...)
  keywords.none("clip_grad_norm_", ...)
  local is_number = type(max_norm) == "number" or tensors.is_tensor(max_norm)
  check(is_number, "type", "clip_grad_norm_: expected a number as max_norm, found %s", show(max_norm))
  check(type(max_norm) ~= "number" or max_norm >= 0, "value", "clip_grad_norm_: max_norm must be >= 0, not %s", show(max_norm))
  return tensors.no_grad(function()
    local grads = gradients("clip_grad_norm_", params)
    local total = total_norm(grads)
    local coefficient = (max_norm / (total + 1e-6)):clamp(nil, 1)
    for _, grad in ipairs(grads) do grad:mul_(coefficient) end
    return total
  end)
end

---Clamps the elements of all gradients to [-limit, limit].
---@param params any      a parameter or a list of parameters
---@param limit number
function utils.clip_grad_value_(params, limit, ...)
  keywords.none("clip_grad_value_", ...)
  check(type(limit) == "number", "type", "clip_grad_value_: expected a number as limit, found %s", show(limit))
  check(limit >= 0, "value", "clip_grad_value_: limit must be >= 0, not %s", show(limit))
  tensors.no_grad(function()
    for _, grad in ipairs(gradients("clip_grad_value_", params)) do grad:clamp_(-limit, limit) end
  end)
end

return namespace("cstorch.nn.utils", utils)
