-- MultiplicativeLR, MultiplicativeWD: a factor at each step.

local keywords = require "cstorch.keywords"

---f(t) = initial·coefficient^t.
local Multiplicative = {
  name = "Multiplicative",
  keywords = { initial_val = keywords.REQUIRED, coefficient = keywords.REQUIRED, total_iters = keywords.REMOVED },
}

function Multiplicative:closed_form(t) return self.coefficient ^ t * self.initial_val end

return Multiplicative
