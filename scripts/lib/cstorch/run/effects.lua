-- Tracks what a training script does to weights, and warns if something has no effect: gradients that nothing uses, a schedule that is
-- never stepped, weights that are NaN. Most of it is known when the script ends: a schedule may be stepped once an epoch, and gradients may
-- add up over many steps.

local errors = require "cstorch.errors"
local kept = require "cstorch.kept"
local session = require "cstorch.session"
local tensors = require "cstorch.tensors"

local effects = {}

---@class cstorch.Effects
---@field schedules table<table, cstorch.ScheduleNote>
---@field optimizers table<table, cstorch.OptimizerNote>
---@field idle table<cstorch.ScheduleNote|cstorch.OptimizerNote, true>   what had no effect yet; these stay when the object is collected
---@field made integer           schedules and optimizers so far
---@field run_steps integer      steps of loops over a loader
---@field has_written boolean    an optimizer has written parameters
---@field is_explained boolean   it was warned about steps that change nothing
---@field is_nan boolean         it was warned about weights that are NaN

---@class cstorch.ScheduleNote
---@field number integer      in the order in which they were made
---@field schedule string     the name of its class
---@field optimizer string
---@field steps integer       of the optimizer since the schedule was made

---@class cstorch.OptimizerNote
---@field number integer
---@field optimizer string
---@field steps integer
---@field had_gradients boolean

local LEAST_STEPS = 2     -- without an effect
local LEAST_GRADIENTS = 2 -- of a parameter that nothing writes
local MOST_CHECKS = 4     -- of the weights, after 10, 100, 1000 and 10,000 steps of an optimizer

---Calls `visit` with each parameter of the optimizers and the model.
---@param visit fun(p: cstorch.Tensor)
function effects.each_parameter(visit)
  for optimizer in pairs(session.optimizers) do
    for p in optimizer:parameters() do visit(p) end
  end
  for _, p in ipairs(session.model and session.model:parameters() or {}) do visit(p) end
end

--- What had no effect in this many steps, in the order in which it was made.
local function idle_notes(kind)
  local list = {}
  for note in pairs(session.effects.idle) do list[#list + 1] = note[kind] and note.steps >= LEAST_STEPS and note or nil end
  table.sort(list, function(a, b) return a.number < b.number end)
  return list
end

local function new_note(fields)
  local notes = session.effects
  notes.made = notes.made + 1
  fields.number, fields.steps = notes.made, 0
  notes.idle[fields] = true
  return fields
end

-- --- schedules

---@param schedule cstorch.optim.Scheduler
function effects.schedule_made(schedule)
  session.effects.schedules[schedule] = new_note { schedule = schedule.class.name, optimizer = schedule.optimizer.class.name }
end

---Its step was called, or it is a part of another one.
---@param schedule cstorch.optim.Scheduler
function effects.schedule_used(schedule)
  local note = session.effects.schedules[schedule]
  if note then session.effects.idle[note] = nil end
end

local function warn_of_idle_schedules()
  for _, note in ipairs(idle_notes "schedule") do
    errors.warn(("%s was not stepped once while %s took steps, so its value stays the first one: call its step() after that of the "
      .. "optimizer, in every step (schedules count steps, not epochs)"):format(note.schedule, note.optimizer))
  end
end

-- --- weights

local function is_broken(p)
  if not p.dtype:find "float" then return false end
  return tensors.readable(true, function()
    local values = p:detach():to "float32"
    local sum, most = values:sum():item(), values:abs():amax():item()
    return sum ~= sum or most == math.huge
  end)
end

local function warn_of_nan(what)
  session.effects.is_nan = true
  errors.warn(("%s are nan or infinite, and further steps leave them so: begin again with a lower learning rate, gradient clipping "
    .. "(max_gradient_norm) or another loss scale; a loss that compile_step returns stops the run when it is nan"):format(what))
end

--- Warns if an optimizer has made a parameter NaN: every step leaves it so. A loss that is NaN is warned about by itself.
local function check_nan(optimizer)
  if session.nan_since or session.effects.is_nan then return end
  for p in optimizer:parameters() do
    if tensors.no_grad(is_broken, p) then return warn_of_nan(("the weights that %s changes"):format(optimizer.class.name)) end
  end
end

-- --- optimizers

local function note_of(optimizer)
  local notes = session.effects.optimizers
  if not notes[optimizer] then notes[optimizer] = new_note { optimizer = optimizer.class.name, had_gradients = false } end
  return notes[optimizer]
end

local function has_written(optimizer)
  session.effects.idle[note_of(optimizer)], session.effects.has_written = nil, true
end

---Records a step of an optimizer: one that runs now, or one that a recorded step repeats.
---@param optimizer cstorch.optim.Optimizer
---@param is_replayed? boolean
function effects.optimizer_stepped(optimizer, is_replayed)
  local note = note_of(optimizer)
  note.steps = note.steps + 1
  for _, schedule in ipairs(optimizer.schedulers) do
    local own = session.effects.schedules[schedule]
    if own then own.steps = own.steps + 1 end
  end
  if session.trace then table.insert(session.trace.steps, optimizer) end
  if is_replayed or session.trace then return end
  for digits = 1, MOST_CHECKS do
    if note.steps == 10 ^ digits then check_nan(optimizer) end
  end
end

---Warns if none of an optimizer's parameters has a gradient. Without a backend a script may step it for its schedules alone.
---@param optimizer cstorch.optim.Optimizer
function effects.check_gradients(optimizer)
  if not session.backend and not session.executor then return end
  for p in optimizer:parameters() do
    if p.grad ~= nil then return end
  end
  session.effects.is_explained = true
  errors.warn(("%s:step: none of its parameters has a gradient, so the step changes nothing: call backward first, on a loss that is "
    .. "computed from the parameters that the optimizer was made with"):format(optimizer.class.name))
end

---A function that notes if the step wrote a parameter with a gradient; nil if it is known to write.
---@param optimizer cstorch.optim.Optimizer
---@return fun()|nil
function effects.watch_step(optimizer)
  local note = note_of(optimizer)
  if not session.effects.idle[note] then return nil end
  local before = {}
  for p in optimizer:parameters() do before[p] = p.grad ~= nil and tensors.write_count(p) or nil end
  note.had_gradients = note.had_gradients or next(before) ~= nil
  return function()
    for p, count in pairs(before) do
      if tensors.write_count(p) ~= count then return has_written(optimizer) end
    end
  end
end

local function warn_of_idle_optimizers()
  for _, note in ipairs(idle_notes "had_gradients") do
    session.effects.is_explained = true
    errors.warn(("%s: its step wrote into no parameter; 'p = p - …' only gives a new tensor that name: write in place, with p:sub_(…), "
      .. "p:add_(…) or p:copy_(…)"):format(note.optimizer))
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

---@param trace cstorch.Trace
function effects.replayed(trace)
  for _, optimizer in ipairs(trace.steps) do effects.optimizer_stepped(optimizer, true) end
end

-- --- ends

---Of a step of a loop over a loader.
function effects.end_step() session.effects.run_steps = session.effects.run_steps + 1 end

---Of a loop over a loader.
function effects.end_run()
  for optimizer in pairs(session.optimizers) do
    if session.effects.optimizers[optimizer] then check_nan(optimizer) end
  end
end

--- Warns if parameters got gradients, again and again, and none of them was written, although an optimizer was made or 'p = p - …' was
--- meant to write them. A script may want the gradients themselves.
local function warn_of_unwritten_parameters()
  local notes = session.effects
  if notes.is_explained then return end
  local function is_often(count) return count >= LEAST_GRADIENTS or count > 0 and notes.run_steps >= LEAST_STEPS end
  local has_gradients, is_any_written, is_rebound = false, notes.has_written, false
  for p in pairs(session.parameters) do
    local is_written = tensors.is_written_since_gradient(p)
    has_gradients, is_any_written = has_gradients or is_often(tensors.gradient_count(p)), is_any_written or is_written
    is_rebound = is_rebound or not is_written and is_often(tensors.rebound_count(p))
  end
  local is_idle = session.optimizer_count > 0 and has_gradients and not is_any_written
  if not (is_idle or is_rebound) then return end
  errors.warn("parameters got gradients, again and again, and none of them was written: step an optimizer that was made with "
    .. "model:parameters(), or write them in place, with p:sub_(…) within cstorch.no_grad; 'p = p - …' only gives a new tensor that name")
end

local function warn_of_nan_parameters()
  for p in pairs(session.parameters) do
    if tensors.gradient_count(p) > 0 and tensors.no_grad(is_broken, p) then return warn_of_nan "parameters" end
  end
end

---Of the script.
function effects.end_script()
  warn_of_idle_schedules()
  warn_of_idle_optimizers()
  warn_of_unwritten_parameters()
  if not (session.nan_since or session.effects.is_nan) then warn_of_nan_parameters() end
end

return effects
