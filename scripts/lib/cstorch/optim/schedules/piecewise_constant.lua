-- PiecewiseConstantLR, PiecewiseConstantWD: a value for each stretch between milestones.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local tensors = require "cstorch.tensors"

---f(t) = vals[1 + number of milestones <= t].
local PiecewiseConstant = {
  name = "PiecewiseConstant",
  keywords = { vals = keywords.REQUIRED, milestones = keywords.REQUIRED, total_iters = keywords.REMOVED },
}

function PiecewiseConstant:validate()
  errors.check(#self.vals == #self.milestones + 1, "value", "%s: expected one value more than milestones, found %d and %d",
    self.class.name, #self.vals, #self.milestones)
end

function PiecewiseConstant:closed_form(t)
  local value = tensors.full_like(t, self.vals[1])
  for i, milestone in ipairs(self.milestones) do
    value = tensors.where(t:ge(milestone), tensors.full_like(t, self.vals[i + 1]), value)
  end
  return value
end

return PiecewiseConstant
