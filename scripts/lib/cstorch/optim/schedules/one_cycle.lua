-- OneCycleLR, OneCycleWD: up to a maximum and down far below the start.

local keywords = require "cstorch.keywords"
local tensors = require "cstorch.tensors"

---T = total_steps, least = initial/final_div_factor. Two phases end at pct_start·T - 1 and T - 1, with the values initial, max, least.
---Three phases end at pct_start·T - 1, 2·pct_start·T - 2 and T - 1, with initial, max, initial, least. Within a phase from s to e, of which
---the part q has passed, f = e + (s - e)·(1 + cos(π·q))/2 ("cos") or s + (e - s)·q (any other anneal_strategy). The last phase does not
---stop at T - 1.
---Source: Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates", 2018.
local OneCycle = {
  name = "OneCycle",
  keywords = {
    initial_val = keywords.REQUIRED, max_val = keywords.REQUIRED, total_steps = 1000, pct_start = 0.3, final_div_factor = 1e4,
    three_phase = false, anneal_strategy = "cos", total_iters = keywords.REMOVED,
  },
}

--- The phases: where each ends, and its first and last value.
local function phases(self)
  local peak, last, least = self.pct_start * self.total_steps - 1, self.total_steps - 1, self.initial_val / self.final_div_factor
  if not self.three_phase then return { { peak, self.initial_val, self.max_val }, { last, self.max_val, least } } end
  local back = 2 * self.pct_start * self.total_steps - 2
  return { { peak, self.initial_val, self.max_val }, { back, self.max_val, self.initial_val }, { last, self.initial_val, least } }
end

function OneCycle:closed_form(t)
  local list, value = phases(self), nil
  for k = #list, 1, -1 do
    local start, stop, from, to = k > 1 and list[k - 1][1] or 0, unpack(list[k])
    local q = (t - start) / (stop - start)
    if stop == start then q = tensors.ones_like(t) end
    local phase
    if self.anneal_strategy == "cos" then
      phase = ((q * math.pi):cos() + 1) * ((from - to) / 2) + to
    else
      phase = q * (to - from) + from
    end
    value = value and tensors.where(t:le(stop), phase, value) or phase
  end
  return value
end

return OneCycle
