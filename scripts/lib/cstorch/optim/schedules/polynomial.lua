-- PolynomialLR, PolynomialWD: a polynomial from one value to another.

local keywords = require "cstorch.keywords"
local tensors = require "cstorch.tensors"

---f(t) = (initial - end)·(1 - t/N)^power + end for t < N = total_iters, then end. `cycle` has no effect: the reference ends at N, too.
local Polynomial = {
  name = "Polynomial",
  keywords = { initial_val = keywords.REQUIRED, end_val = keywords.REQUIRED, total_iters = keywords.REQUIRED, power = 1, cycle = false },
}

function Polynomial:closed_form(t)
  local falling = (1 - t / self.total_iters) ^ self.power * (self.initial_val - self.end_val) + self.end_val
  return tensors.where(t:ge(self.total_iters), tensors.full_like(t, self.end_val), falling)
end

return Polynomial
