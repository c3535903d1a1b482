-- StepLR, StepWD: a factor after each `step_size` steps.

local keywords = require "cstorch.keywords"

---f(t) = initial·gamma^⌊t/step_size⌋.
local Step = {
  name = "Step",
  keywords = { initial_val = keywords.REQUIRED, step_size = keywords.REQUIRED, gamma = keywords.REQUIRED, total_iters = keywords.REMOVED },
}

function Step:closed_form(t) return self.gamma ^ (t / self.step_size):floor() * self.initial_val end

return Step
