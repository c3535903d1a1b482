-- SequentialLR, SequentialWD: one schedule after the other.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Scheduler = require "cstorch.optim.schedules.scheduler"
local composite = require "cstorch.optim.schedules.composite"
local tensors = require "cstorch.tensors"

---The first schedule runs until milestones[1], the second from there until milestones[2], and so on, each on its own clock from 0.
local Sequential = {
  name = "Sequential",
  keywords = { schedulers = keywords.REQUIRED, milestones = keywords.REQUIRED, total_iters = keywords.REMOVED },
  state_dict = composite.state_dict, load_state_dict = composite.load_state_dict,
}

function Sequential:_check_values()
  local name, members = self.class.name, rawget(self, "schedulers")
  for i, milestone in ipairs(self.milestones) do
    local is_integer = type(milestone) == "number" and milestone == math.floor(milestone)
    errors.check(is_integer, "type", "%s: expected integers as milestones, found %s at position %d", name, errors.show(milestone), i)
  end
  if not members or #members == 0 then return end
  errors.check(#self.milestones == #members - 1, "value", "%s: expected %d milestones for %d schedules, found %d", name, #members - 1,
    #members, #self.milestones)
end

function Sequential:validate()
  composite.adopt(self, self.schedulers)
  self:_set_clock(self.last_epoch)
end

--- The clocks of the members; of a member that is sequential itself only its own, as in the reference.
function Sequential:_set_clock(clock)
  Scheduler._set_clock(self, clock)
  for k, member in ipairs(self.schedulers) do
    Scheduler._set_clock(member, (clock - (self.milestones[k - 1] or 0)):clamp(0, nil))
  end
end

function Sequential:_get_closed_form()
  local value = self.schedulers[1]:_value()
  for k, milestone in ipairs(self.milestones) do
    value = tensors.where(self.last_epoch:ge(milestone), self.schedulers[k + 1]:_value(), value)
  end
  return value
end

return Sequential
