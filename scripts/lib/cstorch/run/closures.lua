-- Step closures: functions that run when the step has ended, with the tensors of the step on the host.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local nested = require "cstorch.nested"
local session = require "cstorch.session"
local systems = require "cstorch.run.systems"
local tensors = require "cstorch.tensors"

local closures = {}

local check, show = errors.check, errors.show

local function is_csx() return session.backend.kind == "CSX" end

local function mapped(arguments, f)
  local copy = { n = arguments.n }
  for i = 1, arguments.n do copy[i] = nested.map(arguments[i], f) end
  return copy
end

--- Arguments as a closure gets them: copies of their tensors on the host, also in nested tables.
local function fetched(arguments) return mapped(arguments, tensors.to_host) end

--- Weights can be read on checkpoint steps and before the first step.
local function may_read_weights()
  local executor = session.executor
  return not executor or executor.has_weights
end

local function call(entry, arguments) tensors.readable(may_read_weights(), entry.fn, unpack(arguments, 1, arguments.n)) end

--- Weights and optimizer state leave the CSX on checkpoint steps only; copies of them are values of the step.
local function check_captured(tensor)
  session.has_captured = true
  check(not tensors.is_weight(tensor), "runtime",
    "a weight or optimizer state cannot be an argument of a step closure on CSX: pass t:clone(), or read or save it on a checkpoint step")
end

--- A host tensor as it is now; one of the device stays, as its value is that of the end of the step.
local function captured(tensor)
  if tensor.device == "cpu" then return tensors.to_host(tensor) end
  check_captured(tensor)
  return tensor
end

--- Whether the run's flags leave out all closures.
local function skips_closures()
  local configuration, backend = session.configuration or {}, session.backend or {}
  return configuration.compile_only or configuration.validate_only or backend.compile_only or backend.validate_only or false
end

--- Whether `entry` is to run at the end of the current step.
local function is_due(entry)
  if skips_closures() then return false end
  local executor = session.executor
  if entry.kind == "checkpoint" then
    check(executor, "runtime", "a checkpoint closure ran outside of a run; call it before or within a loop over a DataExecutor")
    return executor.has_weights
  end
  return not executor or executor.runs_closures
end

local function enqueue(kind, fn, ...)
  local entry = { kind = kind, fn = fn, arguments = { n = select("#", ...), ... }, executor = session.executor }
  if not session.backend then return call(entry, fetched(entry.arguments)) end
  local trace = session.trace
  if trace then
    nested.each(entry.arguments, check_captured)
    entry.arguments = systems.means(entry.arguments)
    trace.closures = trace.closures or {}
    table.insert(trace.closures, entry)
    table.insert(session.repeated, entry)
  else
    entry.arguments, entry.is_fetched = mapped(entry.arguments, captured), not is_csx()
    table.insert(session.queued, entry)
  end
end

local function make(kind, what, fn, options)
  check(type(fn) == "function", "type", "%s: expected a function, found %s", what, show(fn))
  options = keywords.complete(what, { run_async = false }, options)
  if options.run_async then errors.warn(what .. ": closures always run in order with the loop; run_async has no effect") end
  return function(...) return enqueue(kind, fn, ...) end
end

---Makes a function that queues `fn` for the end of the step. Its tensor arguments arrive as host tensors. Without a backend it runs at
---once.
---@param fn function
---@param options? { run_async: boolean }
---@return fun(...)
function closures.step_closure(fn, options) return make("step", "step_closure", fn, options) end

---As `step_closure`, but `fn` runs only on checkpoint steps, and before the first step.
---@param fn function
---@param options? { run_async: boolean }
---@return fun(...)
function closures.checkpoint_closure(fn, options) return make("checkpoint", "checkpoint_closure", fn, options) end

---Queues the closures that were called while `trace` was recorded: for each replay of it.
---@param trace table
function closures.requeue(trace)
  for _, entry in ipairs(trace.closures or {}) do table.insert(session.repeated, entry) end
end

--- Warns if nothing of the recorded step can be seen, because no closure, metric or summary has a tensor of it.
local function warn_of_no_capture()
  if not session.is_step_new then return end
  session.is_step_new = false
  if session.has_captured or session.metrics[1] or session.summaries then return end
  errors.warn("compile_step: no step closure gets a tensor of the step: a cluster has nothing to compute, and refuses to compile it; "
    .. "pass the loss to a function made with cstorch.step_closure")
end

---Runs the queued closures: those of traced steps first, then those of the loop. Closures called meanwhile wait for the next step.
function closures.drain()
  warn_of_no_capture()
  local repeated, queued = session.repeated, session.queued
  session.repeated, session.queued = {}, {}
  session.is_draining = true
  local fine, problem = pcall(function()
    for _, list in ipairs { repeated, queued } do
      for _, entry in ipairs(list) do
        if is_due(entry) then call(entry, entry.is_fetched and entry.arguments or fetched(entry.arguments)) end
      end
    end
  end)
  session.is_draining = false
  if not fine then error(problem, 0) end
end

---Discards the closures that were queued while `executor` ran.
---@param executor table
---@return integer count   closures forgotten
function closures.drop(executor)
  local count = 0
  for _, name in ipairs { "repeated", "queued" } do
    local kept = {}
    for _, entry in ipairs(session[name]) do
      if entry.executor ~= executor then kept[#kept + 1] = entry end
    end
    count = count + #session[name] - #kept
    session[name] = kept
  end
  return count
end

return closures
