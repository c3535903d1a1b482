-- ChainedScheduler (ChainedLR), ChainedWD: the product of schedules.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Scheduler = require "cstorch.optim.schedules.scheduler"
local composite = require "cstorch.optim.schedules.composite"

---f(t) = f1(t) times fk(t)/initial_k of each later member k.
local Chained = {
  name = "Chained", names = { LR = "ChainedScheduler" }, positional = 0,
  keywords = { schedulers = keywords.REQUIRED, total_iters = keywords.REMOVED },
  state_dict = composite.state_dict, load_state_dict = composite.load_state_dict,
}

function Chained:init(kw)
  self:_check_members(kw.schedulers)
  Scheduler.init(self, kw.schedulers[1].optimizer, kw)
end

function Chained:validate()
  for k = 2, #self.schedulers do
    local member = self.schedulers[k]
    errors.check(member.initial_val ~= nil, "value", "%s: schedule %d, a %s, has no initial value to divide by", self.class.name, k,
      member.class.name)
  end
  composite.adopt(self, self.schedulers)
  self:_set_clock(self.last_epoch)
end

function Chained:_set_clock(clock)
  Scheduler._set_clock(self, clock)
  for _, member in ipairs(self.schedulers) do Scheduler._set_clock(member, clock) end
end

function Chained:_get_closed_form()
  local value = self.schedulers[1]:_value()
  for k = 2, #self.schedulers do
    local member = self.schedulers[k]
    value = value * (member:_value() / member.initial_val)
  end
  return value
end

return Chained
