-- MultiStepLR, MultiStepWD: a factor at each milestone.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local ordered_map = require "cstorch.ordered_map"
local tensors = require "cstorch.tensors"

---f(t) = initial·gamma^(number of milestones <= t).
local MultiStep = {
  name = "MultiStep",
  keywords = { initial_val = keywords.REQUIRED, gamma = keywords.REQUIRED, milestones = keywords.REQUIRED, total_iters = keywords.REMOVED },
}

local MOST = 1000 -- milestones

--- Milestones as a list. torch's state has a map of them: a step to how often it counts.
function MultiStep:_read(name, value)
  local is_counted = name == "milestones" and (ordered_map.is(value) or type(value) == "userdata" and keywords.is_map(value))
  if not is_counted then return value end
  local list = {}
  for key, count in ordered_map.items(value) do
    local step, times = tonumber(key), tonumber(loaded.plain(count))
    local is_right = step and times and times >= 0 and times == math.floor(times) and #list + times <= MOST
    errors.check(is_right, "value", "%s: expected at most %d milestones, as a list or as a map of steps to how often they count; found %s "
      .. "at %s", self.class.name, MOST, errors.show(count), errors.show(key))
    for _ = 1, times do list[#list + 1] = step end
  end
  table.sort(list)
  return list
end

function MultiStep:closed_form(t)
  local passed = tensors.zeros_like(t)
  for _, milestone in ipairs(self.milestones) do passed = passed + t:ge(milestone):to "float32" end
  return self.gamma ^ passed * self.initial_val
end

return MultiStep
