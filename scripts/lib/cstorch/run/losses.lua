-- Losses that are checked at the end of their step: NaN or infinity stops the run.

local errors = require "cstorch.errors"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local losses = {}

---Whether the run stops when a loss is NaN or infinite.
---@return boolean
local function is_wanted() return not session.configuration or session.configuration.check_loss_values end

---Checks the loss at the end of the step; for a traced step, at the end of every step.
---@param loss cstorch.Tensor   of one element
function losses.watch(loss)
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

local function is_finite(value) return value == value and math.abs(value) < math.huge end

local LONG = 10 -- steps without a finite loss

---What to try against a loss that is not finite.
---@type table<"train"|"eval", string>
local ADVICE = {
  train = "try a lower learning rate, gradient clipping (max_gradient_norm) or another loss scale",
  eval = "the weights may be the reason: `cbk check CHECKPOINT` finds those that are not finite",
}

---Warns about losses that are not finite for many steps.
---@param step integer
local function warn_if_lasting(step, least)
  local first = session.nan_since
  if not first or step - first + 1 < least then return end
  session.effects.is_nan = true
  errors.warn(("the loss is nan or infinite since step %d, and the steps since then train nothing: stop, and begin again with a lower "
    .. "learning rate, gradient clipping (max_gradient_norm) or another loss scale"):format(first))
end

---Fails if `value` is NaN or infinite, unless the run may continue.
---@param step integer   from 1
---@param value number
function losses.check_value(step, value)
  if is_finite(value) or not is_wanted() then return end
  local executor = session.executor
  local mode, advise = executor and executor.mode or "train", executor and executor.advise
  errors.raise("runtime", "the loss of %s %d is %s; %s", mode == "eval" and "the evaluation's batch" or "step", step, tostring(value),
    advise and advise() or ADVICE[mode])
end

---Checks what was watched in the step that ends.
---@param step integer
---@param mode "train"|"eval"
function losses.check(step, mode)
  local watched = session.losses
  if not next(watched) then return end
  session.losses = {}
  local are_finite = true
  for loss in pairs(watched) do
    local value = tensors.readable(true, loss.item, loss)
    losses.check_value(step, value)
    are_finite = are_finite and is_finite(value)
  end
  if mode == "eval" then return end -- which trains nothing
  local before = session.nan_before
  local continued = before and before.last == step - 1 and before.since or nil
  session.nan_since = not are_finite and (session.nan_since or continued or step) or nil
  warn_if_lasting(step, LONG)
end

---Warns at the end of a run if its last losses were not finite.
---@param step integer   the last one
---@param mode "train"|"eval"
function losses.end_run(step, mode)
  if mode == "eval" then return end
  warn_if_lasting(step, 1)
  session.nan_before, session.nan_since = session.nan_since and { since = session.nan_since, last = step } or nil, nil
end

return losses
