-- cstorch.optim.weight_decay_scheduler: schedules of weight decay.

local family = require "cstorch.optim.schedules.family"
local Scheduler = require "cstorch.optim.schedules.scheduler"

---The base class of schedules of weight decay. A subclass defines `_get_closed_form`, which computes a 0-dim tensor from
---`self.last_epoch` with tensor operations only.
---@class cstorch.optim.weight_decay_scheduler.WeightDecayScheduler : cstorch.optim.Scheduler
local WeightDecayScheduler = Scheduler:subclass "WeightDecayScheduler"

WeightDecayScheduler.param_group_key = "weight_decay"

---The decays written last, a number for each group; false for groups that are not targeted.
---@return (number|false)[]
function WeightDecayScheduler:get_last_wd() return self:get_last_value() end

return family.add({ WeightDecayScheduler = WeightDecayScheduler }, WeightDecayScheduler, "WD", {})
