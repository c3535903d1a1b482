-- CyclicLR, CyclicWD: triangles between two values.

local keywords = require "cstorch.keywords"
local tensors = require "cstorch.tensors"

---T = up + down, r = up/T, c = ⌊1 + t/T⌋, x = t/T - c + 1, s = x/r where x <= r, else (x - 1)/(r - 1), h = (max - base)·s;
---f(t) = base + h ("triangular"), base + h/2^(c - 1) ("triangular2"), base + h·gamma^t (any other mode). scale_mode follows from the mode.
---Source: Smith, "Cyclical Learning Rates for Training Neural Networks", 2017.
local Cyclic = {
  name = "Cyclic",
  keywords = {
    base_val = keywords.REQUIRED, max_val = keywords.REQUIRED, step_size_up = 2000, step_size_down = keywords.OPTIONAL, mode = "triangular",
    gamma = 1, scale_mode = "cycle", total_iters = keywords.REMOVED,
  },
}

function Cyclic:validate() self.step_size_down = self.step_size_down or self.step_size_up end

function Cyclic:closed_form(t)
  local period = self.step_size_up + (self.step_size_down or self.step_size_up) -- a state dict may have null
  local ratio = self.step_size_up / period
  local cycle = (t / period + 1):floor()
  local x = t / period - cycle + 1
  local height = tensors.where(x:le(ratio), x / ratio, (x - 1) / (ratio - 1)) * (self.max_val - self.base_val)
  if self.mode == "triangular2" then
    height = height / 2 ^ (cycle - 1)
  elseif self.mode ~= "triangular" then
    height = height * self.gamma ^ t
  end
  return height + self.base_val
end

return Cyclic
