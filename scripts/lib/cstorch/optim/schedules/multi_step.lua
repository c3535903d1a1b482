-- MultiStepLR, MultiStepWD: a factor at each milestone.

local keywords = require "cstorch.keywords"
local tensors = require "cstorch.tensors"

---f(t) = initial·gamma^(number of milestones <= t).
local MultiStep = {
  name = "MultiStep",
  keywords = { initial_val = keywords.REQUIRED, gamma = keywords.REQUIRED, milestones = keywords.REQUIRED, total_iters = keywords.REMOVED },
}

function MultiStep:closed_form(t)
  local passed = tensors.zeros_like(t)
  for _, milestone in ipairs(self.milestones) do passed = passed + t:ge(milestone):to "float32" end
  return self.gamma ^ passed * self.initial_val
end

return MultiStep
