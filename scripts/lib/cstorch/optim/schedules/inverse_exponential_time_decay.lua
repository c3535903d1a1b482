-- InverseExponentialTimeDecayLR, InverseExponentialTimeDecayWD: decay by a power of time.

local keywords = require "cstorch.keywords"

---f(t) = initial/(1 + decay_rate·x) with x = t^step_exponent/N, rounded down with `staircase`; N = total_iters.
local InverseExponentialTimeDecay = {
  name = "InverseExponentialTimeDecay",
  keywords = {
    initial_val = keywords.REQUIRED, step_exponent = keywords.REQUIRED, total_iters = keywords.REQUIRED, decay_rate = keywords.REQUIRED,
    staircase = false,
  },
}

function InverseExponentialTimeDecay:closed_form(t)
  local x = t ^ self.step_exponent / self.total_iters
  if self.staircase then x = x:floor() end
  return self.initial_val / (x * self.decay_rate + 1)
end

return InverseExponentialTimeDecay
