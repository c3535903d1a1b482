-- Ranges of steps, and what a run's `checkpoint_steps` means.

local class = require "cstorch.class"
local errors = require "cstorch.errors"

local check, show = errors.check, errors.show

---@class cstorch.utils.StepRange : cstorch.Class   Steps from 0: start, start + step, … below stop.
---@field start integer
---@field stop integer
---@field step integer
---@field include_last boolean   also stop - 1
local StepRange = class.Object:subclass("StepRange", { step = 1, include_last = false })

local MOST_LISTED = 1e7 -- steps

local function is_integer(value) return type(value) == "number" and value == math.floor(value) and math.abs(value) <= 2 ^ 53 end

---@param start integer
---@param stop integer
---@param kw { step: integer, include_last: boolean }
function StepRange:init(start, stop, kw)
  check(is_integer(start) and start >= 0, "value", "StepRange: start must be an integer from 0 to 2^53, not %s", show(start))
  local is_stop = is_integer(stop) and stop > start
  check(is_stop, "value", "StepRange: stop must be an integer above start %d and at most 2^53, not %s", start, show(stop))
  check(is_integer(kw.step) and kw.step >= 1, "value", "StepRange: step must be an integer from 1 to 2^53, not %s", show(kw.step))
  self.start, self.stop, self.step, self.include_last = start, stop, kw.step, kw.include_last
end

---Whether step `i` is in the range.
---@param i integer
---@return boolean
function StepRange:match(i)
  check(type(i) == "number", "type", "StepRange: expected a step number, found %s", show(i))
  if i < self.start or i >= self.stop then return false end
  return (i - self.start) % self.step == 0 or self.include_last and i == self.stop - 1
end

---The last step.
---@return integer
function StepRange:final()
  if self.include_last then return self.stop - 1 end
  return self.start + math.floor((self.stop - 1 - self.start) / self.step) * self.step
end

---@return integer[]
function StepRange:steps()
  check(self:length() <= MOST_LISTED, "value", "StepRange: expected at most %d steps for a list, found %d; use match, next and length",
    MOST_LISTED, self:length())
  local list = {}
  for i = self.start, self.stop - 1, self.step do list[#list + 1] = i end
  if list[#list] ~= self:final() then list[#list + 1] = self:final() end
  return list
end

---The number of steps.
---@return integer
function StepRange:length()
  local count = math.floor((self.stop - 1 - self.start) / self.step) + 1
  local is_extra = self.include_last and (self.stop - 1 - self.start) % self.step ~= 0
  return count + (is_extra and 1 or 0)
end

---The first step at or after `target`.
---@param target integer
---@return integer
function StepRange:next(target)
  check(type(target) == "number", "type", "StepRange: expected a step number, found %s", show(target))
  check(target <= self:final(), "value", "StepRange: step %s is past the last step %d", show(target), self:final())
  local i = self.start + math.max(0, math.ceil((target - self.start) / self.step)) * self.step
  return math.min(i, self:final())
end

return StepRange
