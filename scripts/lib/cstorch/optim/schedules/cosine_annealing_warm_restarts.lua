-- CosineAnnealingWarmRestarts: one half cosine, then a constant for each cycle.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local tensors = require "cstorch.tensors"

---f(t) = eta_min + (initial - eta_min)·(1 + cos(π·x/T_0))/2 with x = t for t < T_0, later x = (⌊t/T_0⌋ - 1)·T_0, as in the reference: after
---the first cycle the value is `initial` in odd cycles and `eta_min` in even ones.
---Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
local CosineAnnealingWarmRestarts = {
  name = "CosineAnnealingWarmRestarts", names = { LR = "CosineAnnealingWarmRestarts" },
  keywords = { initial_val = keywords.REQUIRED, T_0 = keywords.REQUIRED, T_mult = 1, eta_min = 0, total_iters = keywords.REMOVED },
}

function CosineAnnealingWarmRestarts:_check_values()
  errors.check(self.T_mult == 1, "value", "%s: T_mult must be 1, not %g", self.class.name, self.T_mult)
end

function CosineAnnealingWarmRestarts:closed_form(t)
  local x = tensors.where(t:lt(self.T_0), t, ((t / self.T_0):floor() - 1) * self.T_0)
  return ((x * (math.pi / self.T_0)):cos() + 1) * ((self.initial_val - self.eta_min) / 2) + self.eta_min
end

return CosineAnnealingWarmRestarts
