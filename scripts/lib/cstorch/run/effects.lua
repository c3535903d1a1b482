-- Tracks what a training loop does to weights, and warns if something has no effect: gradients that nothing uses, a schedule that is
-- never stepped, weights that are NaN. Loops over a loader are runs: their ends are known. Others are looked at when the script ends.

local errors = require "cstorch.errors"
local kept = require "cstorch.kept"
local parameter = require "cstorch.nn.parameter"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local effects = {}

---@class cstorch.Effects
---@field steps table<table, integer>   steps that an optimizer took
---@field schedules table<table, cstorch.ScheduleNote>
---@field idle table<cstorch.ScheduleNote, true>   of schedules that were not stepped; these stay when a schedule is collected
---@field made integer   schedules so far
---@field runs integer   loops over a loader so far
---@field run? { writes: integer, gradients: integer, has_gradients: boolean, has_written: boolean, is_explained: boolean, steps: integer }

---@class cstorch.ScheduleNote
---@field number integer      in the order in which schedules were made
---@field schedule string     the name of its class
---@field optimizer string
---@field steps integer       of the optimizer since the schedule was made

--- Warns about an optimizer whose steps change nothing, which says more than the warning at the end of the run.
local function warn_of_idle_optimizer(format, ...)
  local run = session.effects.run
  if run then run.is_explained = true end
  errors.warn(format:format(...))
end

local IDLE_STEPS = 100    -- of an optimizer outside of a run, after which a schedule that was never stepped is forgotten
local LEAST_STEPS = 2     -- at the end of a run or a script
local LEAST_GRADIENTS = 3 -- of a parameter in a script without a run; a few gradients may be all that a script is for
local MOST_CHECKS = 4  -- of the weights outside of a run, after 10, 100, 1000 and 10,000 steps

---Calls `visit` with each parameter of the optimizers and the model.
---@param visit fun(p: cstorch.Tensor)
function effects.each_parameter(visit)
  for optimizer in pairs(session.optimizers) do
    for p in optimizer:parameters() do visit(p) end
  end
  for _, p in ipairs(session.model and session.model:parameters() or {}) do visit(p) end
end

---@param count_of fun(p: cstorch.Tensor): integer
local function total(count_of)
  local out = 0
  effects.each_parameter(function(p) out = out + count_of(p) end)
  return out
end

local function total_writes() return total(tensors.write_count) end
local function total_gradients() return total(tensors.gradient_count) end

local function has_any_gradient()
  local found = false
  effects.each_parameter(function(p) found = found or p.grad ~= nil end)
  return found
end

-- --- schedules

---@param schedule cstorch.optim.Scheduler
function effects.schedule_made(schedule)
  local notes = session.effects
  notes.made = notes.made + 1
  local note = { number = notes.made, schedule = schedule.class.name, optimizer = schedule.optimizer.class.name, steps = 0 }
  notes.schedules[schedule], notes.idle[note] = note, true
end

---@param schedule cstorch.optim.Scheduler
function effects.schedule_stepped(schedule)
  local note = session.effects.schedules[schedule]
  if note then session.effects.idle[note] = nil end
end

--- Warns about schedules that were not stepped in this many steps of their optimizer.
local function warn_of_idle_schedules(least)
  local list = {}
  for note in pairs(session.effects.idle) do list[#list + 1] = note.steps >= least and note or nil end
  table.sort(list, function(a, b) return a.number < b.number end)
  for _, note in ipairs(list) do
    errors.warn(("%s was not stepped once while %s took steps, so its value stays the first one: call its step() after that of the "
      .. "optimizer, in every step (schedules count steps, not epochs)"):format(note.schedule, note.optimizer))
  end
end

-- --- weights

local function is_nan(p)
  local sum = tensors.readable(true, function() return p:detach():to("float32"):sum():item() end)
  return sum ~= sum
end

--- Warns if an optimizer has made a parameter NaN: every step leaves it so. A loss that is NaN is warned about by itself.
local function warn_of_nan(optimizer)
  if session.nan_since then return end
  for p in optimizer:parameters() do
    if p.dtype:find "float" and tensors.no_grad(is_nan, p) then
      return errors.warn(("the weights that %s changes are nan, and further steps leave them so: begin again with a lower learning rate, "
        .. "gradient clipping (max_gradient_norm) or another loss scale; a loss that compile_step returns stops the run when it is nan")
        :format(optimizer.class.name))
    end
  end
end

-- --- optimizers

---Records a step of an optimizer: one that runs now, or one that a recorded step repeats.
---@param optimizer cstorch.optim.Optimizer
---@param is_replayed? boolean
function effects.optimizer_stepped(optimizer, is_replayed)
  local steps = session.effects.steps
  steps[optimizer] = (steps[optimizer] or 0) + 1
  for _, schedule in ipairs(optimizer.schedulers) do
    local note = session.effects.schedules[schedule]
    if note then note.steps = note.steps + 1 end
  end
  if session.trace then table.insert(session.trace.steps, optimizer) end
  if is_replayed or session.trace then return end
  local count = steps[optimizer]
  for digits = 1, MOST_CHECKS do
    if count == 10 ^ digits then warn_of_nan(optimizer) end
  end
  if not session.executor and count % IDLE_STEPS == 0 then warn_of_idle_schedules(IDLE_STEPS) end
end

---Warns if none of an optimizer's parameters has a gradient. Without a backend a script may step it for its schedules alone.
---@param optimizer cstorch.optim.Optimizer
function effects.check_gradients(optimizer)
  if not session.backend and not session.executor then return end
  for p in optimizer:parameters() do
    if p.grad ~= nil then return end
  end
  warn_of_idle_optimizer("%s:step: none of its parameters has a gradient, so the step changes nothing: call backward first, on a loss "
    .. "that is computed from the parameters that the optimizer was made with", optimizer.class.name)
end

---A function that warns if no parameter with a gradient has been written since.
---@param optimizer cstorch.optim.Optimizer
---@return fun()
function effects.expect_writes(optimizer)
  local before = {}
  for p in optimizer:parameters() do before[p] = p.grad ~= nil and tensors.write_count(p) or nil end
  return function()
    for p, count in pairs(before) do
      if tensors.write_count(p) ~= count then return end
    end
    if next(before) == nil then return end
    warn_of_idle_optimizer("%s: its step wrote into no parameter; 'p = p - …' only gives a new tensor that name: write in place, with "
      .. "p:sub_(…), p:add_(…) or p:copy_(…)", optimizer.class.name)
  end
end

-- --- recorded steps

---Notes which parameters have gradients while a step is recorded.
---@param trace cstorch.Trace
function effects.parameters_recorded(trace)
  effects.each_parameter(function(p)
    kept.note(trace, p, "requires_grad", "requires_grad of a parameter")
  end)
end

---A function for the end of a recording: whether the recorded step writes into parameters.
---@return fun(): boolean
function effects.watch_writes()
  local before = total_writes()
  return function() return total_writes() ~= before end
end

---@param trace cstorch.Trace
function effects.replayed(trace)
  local run = session.effects.run
  if run then run.has_written = run.has_written or trace.writes end
  for _, optimizer in ipairs(trace.steps) do effects.optimizer_stepped(optimizer, true) end
end

-- --- runs

function effects.begin_run()
  session.effects.runs = session.effects.runs + 1
  session.effects.run = { writes = total_writes(), gradients = total_gradients(), has_gradients = false, has_written = false,
    is_explained = false, steps = 0 }
end

function effects.end_step()
  local run = session.effects.run
  if not run then return end
  run.steps = run.steps + 1
  run.has_gradients = run.has_gradients or has_any_gradient()
end

---Warns if something had no effect in the run that ends.
function effects.end_run()
  local run = session.effects.run
  session.effects.run = nil
  if not run then return end
  local has_written = run.has_written or total_writes() ~= run.writes
  local has_gradients = run.has_gradients or total_gradients() ~= run.gradients
  if has_gradients and not has_written and not run.is_explained then
    errors.warn(("the run computed gradients in its %d steps, and no parameter was written: step an optimizer that was made with "
      .. "model:parameters(), or write parameters in place, with p:sub_(…) within cstorch.no_grad"):format(run.steps))
  end
  warn_of_idle_schedules(LEAST_STEPS)
  for optimizer in pairs(session.optimizers) do
    if session.effects.steps[optimizer] then warn_of_nan(optimizer) end
  end
end

--- Warns if a script without a run gave gradients to parameters, again and again, and wrote none of these.
local function warn_of_unwritten_parameters()
  local most, is_any_written = 0, false
  parameter.each(function(p)
    most, is_any_written = math.max(most, tensors.gradient_count(p)), is_any_written or tensors.is_written_since_gradient(p)
  end)
  if most < LEAST_GRADIENTS or is_any_written then return end
  errors.warn(("parameters got gradients %d times, and none of them was written: if they should be trained, step an optimizer that was "
    .. "made with model:parameters(), or write them in place, with p:sub_(…) within cstorch.no_grad; 'p = p - …' only gives a new "
    .. "tensor that name"):format(most))
end

---Warns if something had no effect outside of runs. For the end of the script.
function effects.end_script()
  warn_of_idle_schedules(LEAST_STEPS)
  if session.effects.runs == 0 then warn_of_unwritten_parameters() end
end

return effects
