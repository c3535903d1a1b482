-- The step budget: how many steps a run makes.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"

local check, show = errors.check, errors.show

local budget = {}

--- The keywords, with the least value of each.
budget.LEAST = { initial_step = 0, num_steps = 1, max_steps = 1, num_epochs = 1, steps_per_epoch = 1, grad_accum_steps = 1 }

local DECLARED = {}
for name in pairs(budget.LEAST) do DECLARED[name] = keywords.OPTIONAL end

local function check_integers(given)
  check(not (given.num_steps and given.num_epochs), "value", "num_steps and num_epochs exclude each other; give one of them")
  for _, name in ipairs(keywords.names(budget.LEAST)) do
    local value, least = given[name], budget.LEAST[name]
    local is_integer = value == nil or type(value) == "number" and value == math.floor(value) and math.abs(value) < math.huge
    check(is_integer, "value", "%s must be an integer, not %s", name, show(value))
    check(value == nil or value >= least, "value", "%s must be >= %d, not %s", name, least, show(value))
  end
end

--- Steps of one epoch; nil when the length is unknown.
local function epoch_steps(given, length)
  if length == nil then
    check(given.num_epochs == nil, "value", "num_epochs needs a loader of known length; give num_steps or max_steps")
    return nil
  end
  check(length > 0, "assertion", "the loader has no batches")
  local steps, accumulated = given.steps_per_epoch or length, given.grad_accum_steps or 1
  check(steps <= length, "value", "steps_per_epoch is %d, but the loader has only %d batches", steps, length)
  check(accumulated <= steps, "value", "grad_accum_steps is %d, but an epoch has only %d batches", accumulated, steps)
  return math.floor(steps / accumulated)
end

---The number of steps for a loader with `length` batches (nil: unknown).
---@param length? integer
---@param given table<string, integer>   the keywords of LEAST
---@return integer
function budget.steps(length, given)
  given = keywords.complete("step budget", DECLARED, given)
  check_integers(given)
  local per_epoch, total = epoch_steps(given, length), math.huge
  if given.num_epochs then total = given.num_epochs * per_epoch end
  if given.num_steps then total = math.min(total, given.num_steps) end
  if given.max_steps then
    local initial = given.initial_step or 0
    check(given.max_steps > initial, "runtime", "nothing is left to do: initial_step is %d and max_steps %d", initial, given.max_steps)
    total = math.min(total, given.max_steps - initial)
  end
  check(total < math.huge, "value", "the number of steps is open; give num_steps, max_steps or num_epochs")
  return total
end

return budget
