-- InverseSquareRootDecayLR, InverseSquareRootDecayWD: decay by the root of time.

local keywords = require "cstorch.keywords"

---f(t) = initial·scale/√max(t, warmup_steps): `initial` is a factor, not the value at the start.
local InverseSquareRootDecay = {
  name = "InverseSquareRootDecay",
  keywords = { initial_val = 1, scale = 1, warmup_steps = 1, total_iters = keywords.REMOVED },
}

function InverseSquareRootDecay:closed_form(t) return self.initial_val * self.scale / t:clamp(self.warmup_steps, nil):sqrt() end

return InverseSquareRootDecay
