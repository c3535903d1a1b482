-- Losses that are checked at the end of their step: NaN or infinity stops the run.

local errors = require "cstorch.errors"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local losses = {}

---Whether the run stops when a loss is NaN or infinite.
---@return boolean
local function is_wanted() return not session.configuration or session.configuration.check_loss_values end

---Has the loss checked at the end of the step; that of a traced step at the end of every step.
---@param loss cstorch.Tensor   of one element
function losses.watch(loss)
  if not is_wanted() then return end
  local trace = session.trace
  if trace then
    trace.losses[loss] = true
  elseif session.executor then
    session.losses[loss] = true
  end
end

---Watches those results of a step that are losses: without dims, and either the first result, a field `loss` of a table, or computed
---from parameters. Returns them all.
function losses.watch_results(...)
  for i = 1, select("#", ...) do
    local result, is_loss = select(i, ...), i == 1
    if type(result) == "table" then result, is_loss = rawget(result, "loss"), true end
    if tensors.is_tensor(result) and result:dim() == 0 and (is_loss or result.requires_grad) then losses.watch(result) end
  end
  return ...
end

---Raises when `value` is NaN or infinite.
---@param step integer   from 1
---@param value number
function losses.check_value(step, value)
  local is_finite = value == value and math.abs(value) < math.huge
  errors.check(is_finite, "runtime",
    "the loss of step %d is %s; try a lower learning rate, gradient clipping (max_gradient_norm) or another loss scale", step,
    tostring(value))
end

---Checks what was watched in the step that ends.
---@param step integer
function losses.check(step)
  local watched = session.losses
  if not next(watched) then return end
  session.losses = {}
  for loss in pairs(watched) do losses.check_value(step, tensors.readable(true, loss.item, loss)) end
end

return losses
