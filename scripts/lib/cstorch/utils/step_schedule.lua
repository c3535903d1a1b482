-- The steps of a run on which something happens: from a cadence, a range or a list of ranges.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local StepRange = require "cstorch.utils.step_range"

local check, show = errors.check, errors.show

local step_schedule = {}

---@param cadence integer   the number of steps from one to the next, also the last step; 0: never
---@param num_steps integer
---@return cstorch.utils.StepRange[]
local function from_cadence(what, cadence, num_steps)
  check(cadence == math.floor(cadence), "value", "%s must be an integer, not %s", what, show(cadence))
  check(cadence >= 0, "runtime", "%s must not be negative, but is %s", what, show(cadence))
  if cadence == 0 then return {} end
  local first = math.min(cadence, num_steps) - 1
  return { StepRange(first, num_steps, { step = cadence, include_last = true }) }
end

local function check_ranges(what, ranges)
  local sorted = { unpack(ranges) }
  for i, range in ipairs(sorted) do
    check(class.is_a(range, StepRange), "value", "%s: item %d is %s, not a StepRange", what, i, show(range))
  end
  table.sort(sorted, function(a, b) return a.start < b.start end)
  for i = 2, #sorted do
    local a, b = sorted[i - 1], sorted[i]
    check(a.stop <= b.start, "value", "%s: the ranges %d to %d and %d to %d overlap", what, a.start, a.stop, b.start, b.stop)
  end
  return sorted
end

---The ranges of `value` in a run of `num_steps` steps.
---@param what string   the keyword, for messages
---@param value? integer|cstorch.utils.StepRange|cstorch.utils.StepRange[]
---@param num_steps integer
---@return cstorch.utils.StepRange[]
function step_schedule.ranges(what, value, num_steps)
  if value == nil then return {} end
  if type(value) == "number" then return from_cadence(what, value, num_steps) end
  check(type(value) == "table", "value", "%s: expected a number or a StepRange, found %s", what, show(value))
  return check_ranges(what, class.is_a(value, StepRange) and { value } or value)
end

---@param ranges cstorch.utils.StepRange[]
---@param i integer   from 0
---@return boolean
function step_schedule.match(ranges, i)
  for _, range in ipairs(ranges) do
    if range:match(i) then return true end
  end
  return false
end

---The first step at or after `i`, from 0; nil after the last one.
---@param ranges cstorch.utils.StepRange[]
---@param i integer
---@return integer?
function step_schedule.next(ranges, i)
  for _, range in ipairs(ranges) do
    if i <= range:final() then return range:next(i) end
  end
end

local function gcd(a, b)
  while b ~= 0 do a, b = b, a % b end
  return a
end

---The greatest divisor of `cadence` that meets all steps of the ranges but the extra last ones.
---@param cadence integer
---@param ranges cstorch.utils.StepRange[]
---@param num_steps integer
---@return integer
function step_schedule.common_cadence(cadence, ranges, num_steps)
  for _, range in ipairs(ranges) do
    local count = math.floor((math.min(range.stop, num_steps - 1) - 1 - range.start) / range.step) + 1
    if count > 0 then cadence = gcd(cadence, range.start + 1) end
    if count > 1 then cadence = gcd(cadence, range.step) end
  end
  return cadence
end

return step_schedule
