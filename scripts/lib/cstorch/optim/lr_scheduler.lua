-- cstorch.optim.lr_scheduler: schedules of learning rates.

local errors = require "cstorch.errors"
local family = require "cstorch.optim.schedules.family"
local Scheduler = require "cstorch.optim.schedules.scheduler"

---The base class of schedules of learning rates. A subclass defines `_get_closed_form_lr`, which computes a 0-dim tensor from
---`self.last_epoch` with tensor operations only.
---@class cstorch.optim.lr_scheduler.LRScheduler : cstorch.optim.Scheduler
local LRScheduler = Scheduler:subclass "LRScheduler"

LRScheduler.param_group_key = "lr"

---The rates written last, a number for each group; false for groups that are not targeted.
---@return (number|false)[]
function LRScheduler:get_last_lr() return self:get_last_value() end

---The current rates as tensors, for use within `step`.
function LRScheduler:get_lr()
  if not self._get_called_within_step then
    errors.warn "get_lr is meant for use within step; call get_last_lr to read the rates that were written last"
  end
  return self:_group_values()
end

return family.add({ LRScheduler = LRScheduler }, LRScheduler, "LR", {
  val = "learning_rate", vals = "learning_rates", initial_val = "initial_learning_rate", end_val = "end_learning_rate",
  base_val = "base_lr", max_val = "max_lr", adjustment_scalars = "lr_adjustment_scalars",
})
