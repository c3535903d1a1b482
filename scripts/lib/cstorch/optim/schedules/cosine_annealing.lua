-- CosineAnnealingLR, CosineAnnealingWD: a cosine that comes back after each half period.

local keywords = require "cstorch.keywords"

---f(t) = eta_min + (initial - eta_min)·(1 + cos(π·t/T_max))/2.
---Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
local CosineAnnealing = {
  name = "CosineAnnealing",
  keywords = { initial_val = keywords.REQUIRED, T_max = keywords.REQUIRED, eta_min = 0, total_iters = keywords.REMOVED },
}

function CosineAnnealing:closed_form(t)
  return ((t * (math.pi / self.T_max)):cos() + 1) * ((self.initial_val - self.eta_min) / 2) + self.eta_min
end

return CosineAnnealing
