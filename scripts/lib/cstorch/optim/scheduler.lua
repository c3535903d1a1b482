-- cstorch.optim.scheduler: schedules of any hyper-parameter. A subclass of one sets `param_group_key`.

local family = require "cstorch.optim.schedules.family"
local Scheduler = require "cstorch.optim.schedules.scheduler"

--- The generic classes get a base of their own, so that those of the other families are not among them.
local GenericScheduler = Scheduler:subclass "GenericScheduler"

return family.add({ Scheduler = Scheduler }, GenericScheduler, "Scheduler", {})
