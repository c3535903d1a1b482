-- CosineDecayLR, CosineDecayWD: half a cosine from one value to another.

local keywords = require "cstorch.keywords"

---f(t) = end + (initial - end)·(1 + cos(π·min(t, N)/N))/2 with N = total_iters.
local CosineDecay = {
  name = "CosineDecay",
  keywords = { initial_val = keywords.REQUIRED, end_val = keywords.REQUIRED, total_iters = keywords.REQUIRED },
}

function CosineDecay:closed_form(t)
  local angle = t:clamp(nil, self.total_iters) * (math.pi / self.total_iters)
  return (angle:cos() + 1) * ((self.initial_val - self.end_val) / 2) + self.end_val
end

return CosineDecay
