-- The hyper-parameters that a run will have at each step, without running it.

local cbk = require "cbk"
local cstorch = require "cstorch"
local model = require "cbk.training.model"
local models = require "cstorch.models"
local num_steps = require "cstorch.utils.data.num_steps"
local numbers = require "cbk.numbers"
local optimizing = require "cbk.training.optimizing"
local params = require "cbk.training.params"

local rates = {}

-- Of a GradScaler: its largest scale, and steps without an overflow before it doubles.
local LARGEST, PAUSE = 2 ^ 15, 2000

local MOST, MOST_OF_ALL = 10000, 1000000 -- steps that have values: of a long run, and where each is asked for

---@class ScheduledSeries   A hyper-parameter of groups that always have the same one.
---@field name string       "lr", "weight_decay"
---@field groups integer[]  from 0
---@field values number[]   of the steps that have values

---@class ScheduledRun
---@field steps integer
---@field at integer[]   the steps that have values: all of them, or so many with the same distance, and the last one
---@field series ScheduledSeries[]

--- The number of steps that the file says; nil: it depends on the data.
local function stated_steps(loop)
  local has_number = loop.num_epochs and loop.steps_per_epoch or not loop.num_epochs and (loop.num_steps or loop.max_steps)
  return has_number and num_steps.steps(loop.steps_per_epoch, { num_steps = loop.num_steps, max_steps = loop.max_steps,
    num_epochs = loop.num_epochs, steps_per_epoch = loop.steps_per_epoch, grad_accum_steps = loop.grad_accum_steps }) or nil
end

---Joins series of groups whose values are the same at each step.
---@param by_group table<integer, number[]>
---@return ScheduledSeries[]
local function joined(name, by_group)
  local out = {}
  for g, values in ipairs(by_group) do
    local same
    for _, one in ipairs(out) do
      local is_same = true
      for i, value in ipairs(values) do is_same = is_same and one.values[i] == value end
      same = same or is_same and one
    end
    if same then same.groups[#same.groups + 1] = g - 1 else out[#out + 1] = { name = name, groups = { g - 1 }, values = values } end
  end
  return out
end

local function constant(value, count)
  local out = {}
  for i = 1, count do out[i] = value end
  return out
end

---@param steps integer
---@param every integer   from one to the next
---@return integer[]
local function some_steps(steps, every)
  local out = {}
  for step = 1, steps, every do out[#out + 1] = step end
  if out[#out] ~= steps then out[#out + 1] = steps end
  return out
end

---What a schedule has at these steps.
---@param schedule cstorch.optim.Scheduler
---@param at integer[]
---@param every integer
---@return (number[]|false)[]   for each group; false: it is not targeted
local function values_of(schedule, at, every)
  local count, out = 1 + math.floor((at[#at] - 1) / every), {}
  local last = count < #at and schedule:values_at(at[#at] - 1, 1) or nil
  for g, values in ipairs(schedule:values_at(0, count, every)) do
    out[g] = values and values:tolist()
    if values and last then out[g][#at] = last[g]:item() end
  end
  return out
end

---The loss scale of some steps as long as no gradient overflows; nil without one.
---@param scaler cstorch.amp.GradScaler|nil
---@param precision table
---@param at integer[]
local function loss_scales(scaler, precision, at)
  if not scaler then return nil end
  if precision.loss_scaling_factor ~= "dynamic" then return constant(precision.loss_scaling_factor, #at) end
  local most = precision.max_loss_scale or LARGEST
  local first, pause = math.min(precision.initial_loss_scale or most, most), precision.steps_per_increase or PAUSE
  local out = {}
  for i, step in ipairs(at) do out[i] = math.min(most, first * 2 ^ math.floor((step - 1) / (pause + 1))) end
  return out
end

local NAMES = { "lr", "weight_decay" }

---@param given TrainingParams
---@param options { steps?: integer, all: boolean }   the length (default: that of the file), and whether each step has values
---@return ScheduledRun
function rates.of(given, options)
  local steps = options.steps
  steps = steps or stated_steps(given.init.loop)
  if not steps then
    params.refuse(given, "trainer.init.loop", "the number of steps depends on the data (num_epochs); --steps says how many to show")
  end
  if options.all and steps > MOST_OF_ALL then
    cbk.fail("value", ("cannot print each of %s steps; expected at most %s"):format(numbers.grouped(steps), numbers.grouped(MOST_OF_ALL)),
      { advice = "--steps N takes the first ones" })
  end
  local every = options.all and 1 or math.ceil(steps / MOST)
  local at = some_steps(steps, every)
  local outlined = model.of(given)
  local module = model.make(given, models.outline, outlined.list)
  local own = optimizing.new(given, module)
  local groups, series = own.optimizer.param_groups, {}
  for _, name in ipairs(NAMES) do
    local by_group = {}
    for g, group in ipairs(groups) do by_group[g] = constant(cstorch.value(group[name] or 0), #at) end
    for _, schedule in ipairs(own.schedules) do
      for g, values in ipairs(schedule.param_group_key == name and values_of(schedule, at, every) or {}) do
        by_group[g] = values or by_group[g]
      end
    end
    for _, one in ipairs(joined(name, by_group)) do series[#series + 1] = one end
  end
  local scaled = loss_scales(own.scaler, given.init.precision, at)
  if scaled then series[#series + 1] = { name = "loss_scale", groups = {}, values = scaled } end
  return { steps = steps, at = at, series = series }
end

return rates
