-- LinearLR, LinearWD: a straight line from one value to another. A linear warm-up is one from 0.

local keywords = require "cstorch.keywords"
local polynomial = require "cstorch.optim.schedules.polynomial"

---f(t) = (initial - end)·(1 - t/N) + end for t < N = total_iters, then end.
local Linear = {
  name = "Linear",
  keywords = { initial_val = keywords.REQUIRED, end_val = keywords.REQUIRED, total_iters = keywords.REQUIRED, cycle = false },
  closed_form = polynomial.closed_form,
}

function Linear:validate() self.power = 1 end

return Linear
