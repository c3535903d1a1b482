-- `cstorch.compile_step`: on the CSX the body of a step runs once, while its operators are recorded; every step replays them.

local cbk = require "cbk"
local closures = require "cstorch.run.closures"
local effects = require "cstorch.run.effects"
local errors = require "cstorch.errors"
local kept = require "cstorch.kept"
local losses = require "cstorch.run.losses"
local nested = require "cstorch.nested"
local session = require "cstorch.session"
local systems = require "cstorch.run.systems"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show
local is_tensor = cbk.compute.is_tensor

---A recorded step.
---@class cstorch.Trace
---@field program table
---@field inputs any[]       arguments whose tensors are written before each replay
---@field outputs any[]      what the body returned: the same handles for every step
---@field closures? table[]  closures called in the body
---@field model? cstorch.nn.Module
---@field losses table       tensors that are checked at the end of each step
---@field kept cstorch.Kept[]   the hyper-parameters, state, hooks and modules that the step uses
---@field used table<table, true>   what is noted in `kept`
---@field modules table<cstorch.nn.Module, true>   those that it calls
---@field count integer      arguments
---@field scalers? table<cstorch.amp.GradScaler, boolean>   those that scaled a loss in it
---@field steps table[]      optimizers that it steps
---@field writes boolean     it writes into parameters

--- Keeps the values of what is read after a run; the number of tensors.
local function keep_outputs(trace)
  local count = 0
  local function keep(tensor)
    trace.program:keep(tensor)
    count = count + 1
  end
  nested.each(trace.outputs, keep)
  for _, entry in ipairs(trace.closures or {}) do nested.each(entry.arguments, keep) end
  return count
end

local function copy_of(tensor) return tensors.to_device(tensor:detach():clone()) end

--- A function that gives all parameters the gradients that they have now.
local function gradients_of_now()
  local gradients = {}
  effects.each_parameter(function(p) gradients[p] = p.grad end)
  return function()
    effects.each_parameter(function(p) p.grad = gradients[p] end)
  end
end

--- The results of a step, those of all systems where they are numbers.
local function run_body(fn, ...)
  local function results(...) return { n = select("#", ...), losses.watch_results(...) } end
  return systems.means(results(fn(...)))
end

local function record(fn, ...)
  local trace = { program = cbk.compute.program(), count = select("#", ...), inputs = {}, losses = {}, kept = {}, used = {},
    steps = {}, modules = {} }
  for i = 1, trace.count do trace.inputs[i] = nested.map((select(i, ...)), copy_of) end
  session.trace = trace
  local queued, restore_gradients = #session.repeated, gradients_of_now()
  local fine, problem = pcall(function()
    trace.outputs = tensors.on_device(tensors.record, trace.program, run_body, fn, unpack(trace.inputs, 1, trace.count))
  end)
  session.trace = nil
  effects.parameters_recorded(trace)
  if not fine then
    -- tensors of this step never get values
    while #session.repeated > queued do table.remove(session.repeated) end
    restore_gradients()
    error(problem, 0)
  end
  for module in pairs(trace.modules) do module:_note_kept(trace) end
  for scaler in pairs(trace.scalers or {}) do scaler:_check_recorded(trace) end
  local count = keep_outputs(trace)
  check(count > 0, "runtime", "compile_step: nothing would be computed: return a tensor, or pass one to a function made with step_closure")
  for loss in pairs(trace.losses) do trace.program:keep(loss) end
  trace.program:finish()
  session.is_step_new = true
  return trace
end

--- Writes the tensors of `given` into those of `input`.
local function feed(input, given, place)
  if is_tensor(input) then
    if not is_tensor(given) then
      errors.raise("runtime", "compile_step: %s was a tensor in the first step and is %s now", place, show(given))
    end
    cbk.compute.feed(input, given, place)
  elseif nested.is(input) then
    local is_table = type(given) == "table"
    for key, item in nested.entries(input) do feed(item, is_table and given[key] or nil, place) end
  end
end

local function run(trace)
  trace.program:run()
  for loss in pairs(trace.losses) do losses.watch(loss) end
  return unpack(trace.outputs, 1, trace.outputs.n)
end

local function replay(trace, ...)
  kept.check(trace)
  for i = 1, trace.count do feed(trace.inputs[i], (select(i, ...)), "argument " .. i) end
  closures.requeue(trace)
  effects.replayed(trace)
  return run(trace)
end

---Makes a step of a function. On the CSX its body runs once; the tensors that it returned then have new values after each step. On the
---CPU it runs every time. In a loop over a loader, a loss that it returns is checked: NaN or infinity stops the run.
---@param fn function
---@return function step
---@return fun(): { recorded: integer, kernels: integer, arena_bytes: integer }|nil size   of the recorded step: its operators, what is
---  left of them after joining, and the memory for values that live only within it; nil before the first step, and on the CPU
return function(fn)
  check(type(fn) == "function", "type", "compile_step: expected a function, found %s", show(fn))
  local trace
  local function size() return trace and trace.program:size() end
  local function step(...)
    check(session.backend, "runtime", "compile_step: compile a model, or call cstorch.backend, before the first step")
    check(not session.trace, "runtime", "compile_step: a step was called inside of another one; call its function instead")
    if session.backend.kind ~= "CSX" then return losses.watch_results(fn(...)) end
    if trace then return replay(trace, ...) end
    trace = record(fn, ...)
    return run(trace)
  end
  return step, size
end
