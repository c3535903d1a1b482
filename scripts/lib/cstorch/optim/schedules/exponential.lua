-- ExponentialLR, ExponentialWD: exponential decay.

local keywords = require "cstorch.keywords"

---f(t) = initial·decay_rate^(t/N), the exponent rounded down with `staircase`. It keeps decaying after N = total_iters.
local Exponential = {
  name = "Exponential",
  keywords = { initial_val = keywords.REQUIRED, total_iters = keywords.REQUIRED, decay_rate = keywords.REQUIRED, staircase = false },
}

function Exponential:closed_form(t)
  local exponent = t / self.total_iters
  if self.staircase then exponent = exponent:floor() end
  return self.decay_rate ^ exponent * self.initial_val
end

return Exponential
