-- PiecewiseConstantLR, PiecewiseConstantWD: a value for each stretch between milestones.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local composite = require "cstorch.optim.schedules.composite"
local Sequential = require "cstorch.optim.schedules.sequential"
local undo = require "cstorch.optim.schedules.undo"

---f(t) = vals[1 + number of milestones <= t]: constant schedules, one after the other, as state dicts have it.
local PiecewiseConstant = {
  name = "PiecewiseConstant",
  keywords = { vals = keywords.REQUIRED, milestones = keywords.REQUIRED, total_iters = keywords.REMOVED }, computed = { "schedulers" },
  _set_clock = Sequential._set_clock, _get_closed_form = Sequential._get_closed_form,
}

function PiecewiseConstant:_check_values()
  errors.check(#self.vals == #self.milestones + 1, "value", "%s: expected one value more in %s than milestones, found %d and %d",
    self.class.name, self:_own_name "vals", #self.vals, #self.milestones)
  Sequential._check_values(self)
end

function PiecewiseConstant:validate()
  local members, last = {}, 0
  for k, value in ipairs(self.vals) do
    local milestone = self.milestones[k]
    members[k] = self:_new_member("Constant", {
      val = value, total_iters = milestone and milestone - last or nil, param_group_tags = self.param_group_tags,
    })
    last = milestone
  end
  self.schedulers = members
  Sequential.validate(self)
end

function PiecewiseConstant:state_dict()
  local _, dict = composite.split(composite.state_dict(self), self:_own_name "vals")
  return dict
end

local function load(self, dict)
  composite.load_state_dict(self, dict)
  local name = self:_own_name "vals"
  local is_said = dict[name] ~= nil -- state dicts have the values in those of the members
  local values = {}
  for k, member in ipairs(self.schedulers) do
    if is_said then member.val = self.vals[k] end
    values[k] = member.val
  end
  self.vals = values
  if is_said and not self.is_member then self:_write() end
end

function PiecewiseConstant:load_state_dict(dict) undo.after_error(self, load, dict) end

return PiecewiseConstant
