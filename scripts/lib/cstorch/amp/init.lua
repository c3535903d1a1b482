-- cstorch.amp: mixed precision.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local GradScaler = require "cstorch.amp.grad_scaler"
local keywords = require "cstorch.keywords"
local losses = require "cstorch.run.losses"
local namespace = require "cstorch.namespace"
local Optimizer = require "cstorch.optim.optimizer"
local tensors = require "cstorch.tensors"
local utils = require "cstorch.nn.utils"

local check, show = errors.check, errors.show

local amp = { GradScaler = GradScaler }

local function as_list(optimizers)
  if class.is_a(optimizers, Optimizer) then return { optimizers } end
  local is_list = type(optimizers) == "table" and optimizers[1] ~= nil
  check(is_list, "type", "optimizer_step: expected an optimizer or a list of optimizers, found %s", show(optimizers))
  for i, optimizer in ipairs(optimizers) do
    check(class.is_a(optimizer, Optimizer), "type", "optimizer_step: item %d of the optimizers is %s", i, show(optimizer))
  end
  return optimizers
end

local function check_limit(name, value)
  check(value == nil or type(value) == "number", "type", "optimizer_step: expected a number as %s, found %s", name, show(value))
  check(value == nil or value >= 0, "value", "optimizer_step: %s must be >= 0, not %g", name, value or 0)
end

local function clip(optimizers, norm, value)
  check_limit("max_gradient_norm", norm)
  check_limit("max_gradient_value", value)
  check(not (norm and value), "value", "optimizer_step: max_gradient_norm and max_gradient_value exclude each other")
  if not (norm or value) then return end
  local params = {}
  for _, optimizer in ipairs(optimizers) do
    for p in optimizer:parameters() do params[#params + 1] = p end
  end
  if norm then utils.clip_grad_norm_(params, norm) else utils.clip_grad_value_(params, value) end
end

---One training step from the loss: backward, clipping, the optimizers' steps, and the removal of the gradients. In a
---loop over a loader, a loss that is NaN or infinite stops the run at the end of the step.
---@param loss any                 a tensor
---@param optimizers any           an optimizer or a list
---@param grad_scaler? cstorch.amp.GradScaler   nil: the loss is not scaled
---@param options? { max_gradient_norm: number, max_gradient_value: number }
function amp.optimizer_step(loss, optimizers, grad_scaler, options)
  check(tensors.is_tensor(loss), "value", "optimizer_step: expected a tensor as loss, found %s", show(loss))
  optimizers = as_list(optimizers)
  local is_scaler = grad_scaler == nil or class.is_a(grad_scaler, GradScaler)
  check(is_scaler, "type", "optimizer_step: expected a GradScaler or nil, found %s", show(grad_scaler))
  options = keywords.complete("optimizer_step",
    { max_gradient_norm = keywords.OPTIONAL, max_gradient_value = keywords.OPTIONAL, max_gradient_val = keywords.OPTIONAL }, options)

  losses.watch(loss)
  local scaled = grad_scaler and grad_scaler:scale(loss) or loss
  scaled:backward()
  for _, optimizer in ipairs(optimizers) do
    if grad_scaler then grad_scaler:unscale_(optimizer) end
  end
  clip(optimizers, options.max_gradient_norm, options.max_gradient_value or options.max_gradient_val)
  for _, optimizer in ipairs(optimizers) do
    if grad_scaler then grad_scaler:step(optimizer) else optimizer:step() end
  end
  if grad_scaler then grad_scaler:update() end
  for _, optimizer in ipairs(optimizers) do optimizer:zero_grad() end
end

return namespace("cstorch.amp", amp)
