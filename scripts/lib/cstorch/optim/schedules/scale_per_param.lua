-- ScalePerParamLR, ScalePerParamWD: a schedule with a factor for each group.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Scheduler = require "cstorch.optim.schedules.scheduler"
local composite = require "cstorch.optim.schedules.composite"
local tags = require "cstorch.optim.tags"
local undo = require "cstorch.optim.schedules.undo"

---The value in a group is f(t) of the inner schedule times the group's `adjust_learning_rate` or `adjust_val`, or 1.
local ScalePerParam = {
  name = "ScalePerParam",
  keywords = { scheduler = keywords.REQUIRED, total_iters = keywords.REMOVED }, computed = { "adjustment_scalars" },
}

function ScalePerParam:validate()
  composite.adopt(self, { self.scheduler })
  local inner = self.scheduler.class.name
  errors.check(not inner:find "^Chained", "value", "%s: a %s cannot be scaled", self.class.name, inner)
  local scalars = {}
  for g, group in ipairs(self.optimizer.param_groups) do
    scalars[g] = group.adjust_learning_rate or group.adjust_val or 1
    errors.check(type(scalars[g]) == "number", "type", "%s: expected a number as factor of group %d, found %s", self.class.name, g,
      errors.show(scalars[g]))
  end
  self.adjustment_scalars = scalars
  self:_set_clock(self.last_epoch)
end

function ScalePerParam:_set_clock(clock)
  Scheduler._set_clock(self, clock)
  self.scheduler:_set_clock(clock)
end

function ScalePerParam:_get_closed_form() return self.scheduler:_value() end

function ScalePerParam:_group_values()
  local value, values, groups = self:_value(), {}, self.optimizer.param_groups
  local count = #self.adjustment_scalars
  errors.check(count == #groups, "value", "%s: expected a factor for each of %d groups, found %d", self.class.name, #groups, count)
  for g, group in ipairs(groups) do
    values[g] = tags.match(group.tags, self.param_group_tags) and value * self.adjustment_scalars[g]
  end
  return values
end

function ScalePerParam:state_dict()
  local dict = Scheduler.state_dict(self)
  dict._scheduler = self.scheduler:state_dict()
  return dict
end

local function load(self, dict)
  self:_check_state_dict(dict)
  local inner, rest = composite.split(dict, "_scheduler")
  if inner then self.scheduler:load_state_dict(inner) end
  Scheduler.load_state_dict(self, rest)
end

function ScalePerParam:load_state_dict(dict) undo.after_error(self, load, dict) end

return ScalePerParam
