-- A run: the loop over a loader's batches, its steps, and the closures at their ends.

local class = require "cstorch.class"
local closures = require "cstorch.run.closures"
local DataLoader = require "cstorch.utils.data.data_loader"
local effects = require "cstorch.run.effects"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local losses = require "cstorch.run.losses"
local nested = require "cstorch.nested"
local no_list = require "cstorch.utils.data.no_list"
local session = require "cstorch.session"
local step_schedule = require "cstorch.utils.step_schedule"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---@class cstorch.utils.data.DataExecutor : cstorch.Class   A run over the batches of a loader: its steps, closures and checkpoints.
---@field num_steps integer
---@field iteration integer            the step, from 0; -1 before the first
---@field user_iteration integer       the step, from 1; 0 before the first
---@field is_initial_step boolean
---@field on_final_iteration boolean
---@field is_checkpoint_step boolean
---@field has_weights boolean          closures at the end of the step can read weights: on checkpoint steps and before the first step
---@field runs_closures boolean        step closures run at its end
---@field activation_steps integer     the number of steps from one run of step closures to the next; lowered to meet the checkpoint steps
---@field artifact_dir? string         of the backend
---@field initial_step integer         steps that the model was trained before this loop; messages count from there
---@field mode "train"|"eval"
---@field advise? fun(): string|nil     what to try against a loss that is not finite; nil: the usual
local DataExecutor = class.Object:subclass("DataExecutor", {
  num_steps = keywords.OPTIONAL, checkpoint_steps = keywords.OPTIONAL, activation_steps = 1,
  initial_step = 0, mode = "train", advise = keywords.OPTIONAL,
})

DataExecutor.noun, DataExecutor.__call = "executor", no_list.refuse
class.optional(DataExecutor, "is_running", "is_closed", "artifact_dir", "advise")

--- The number of steps: as given, else the loader's budget, else its length.
local function count_steps(loader, given)
  if given == nil and loader:has_budget() then return loader:total_steps() end
  local count = given
  if count == nil then count = loader:length() end
  check(count ~= nil, "runtime", "DataExecutor: the length of the loader is unknown; give num_steps")
  local is_integer = type(count) == "number" and count == math.floor(count) and count < math.huge
  check(is_integer, "value", "DataExecutor: num_steps must be an integer, not %s", show(count))
  check(count >= 1, "runtime", "DataExecutor: num_steps must be at least 1, but is %d", count)
  local configuration, backend = session.configuration or {}, session.backend or {}
  local flag = (configuration.compile_only or backend.compile_only) and "compile_only"
    or (configuration.validate_only or backend.validate_only) and "validate_only"
  if flag and count > 1 then
    errors.warn(("%s runs exactly one step, not %d"):format(flag, count))
    return 1
  end
  return count
end

local function effective_activation_steps(given, ranges, num_steps)
  local is_integer = type(given) == "number" and given == math.floor(given) and given >= 1 and given < math.huge
  check(is_integer, "value", "DataExecutor: activation_steps must be an integer >= 1, not %s", show(given))
  local effective = step_schedule.common_cadence(given, ranges, num_steps)
  if effective ~= given then
    errors.warn(("activation_steps is lowered from %d to %d to meet all checkpoint steps"):format(given, effective))
  end
  return effective
end

---Loops over the step budget: `for i, batch in loader:iter() do`, i from 1.
---@return fun(): integer?, any
function DataLoader:iter()
  return DataExecutor(self, { num_steps = self:total_steps() }):iter()
end

---@param loader cstorch.utils.data.DataLoader
---@param kw { num_steps: integer, checkpoint_steps: any, activation_steps: integer, initial_step: integer, mode: "train"|"eval",
---  advise: fun(): string|nil }
function DataExecutor:init(loader, kw)
  no_list.mark(self)
  check(class.is_a(loader, DataLoader), "type", "DataExecutor: expected a cstorch.utils.data.DataLoader, found %s", show(loader))
  self.loader, self.initial_step, self.mode, self.advise = loader, kw.initial_step, kw.mode, kw.advise
  self.num_steps = count_steps(loader, kw.num_steps)
  local cadence = kw.checkpoint_steps
  if cadence == nil then cadence = (session.configuration or {}).checkpoint_steps end
  self.checkpoints = step_schedule.ranges("checkpoint_steps", cadence, self.num_steps)
  self.activation_steps = effective_activation_steps(kw.activation_steps, self.checkpoints, self.num_steps)
  self.artifact_dir = session.backend and session.backend.artifact_dir
  self:_set_iteration(-1)
end

function DataExecutor:_set_iteration(iteration)
  self.iteration, self.user_iteration = iteration, iteration + 1
  self.is_initial_step, self.on_final_iteration = iteration == 0, iteration == self.num_steps - 1
  self.is_checkpoint_step = step_schedule.match(self.checkpoints, iteration)
  local is_before_first = iteration < 0
  self.has_weights = is_before_first or self.is_checkpoint_step
  self.runs_closures = is_before_first or self.on_final_iteration or self.user_iteration % self.activation_steps == 0
end

---The number of steps.
---@return integer
function DataExecutor:length() return self.num_steps end

---The next checkpoint step at or after the current one, from 1; nil after the last one.
---@return integer?
function DataExecutor:next_checkpoint_step()
  local i = step_schedule.next(self.checkpoints, math.max(0, self.iteration))
  return i and i + 1
end

-- --- the loop

local function start(self)
  local other = session.executor
  if other then other:_abandon() end
  self.loader:_start_run()
  self.loader.executor, session.executor = self, self
  self.is_running, self.is_closed = true, false
end

local function finish(self, is_fine)
  self.is_running = false
  if is_fine and session.executor == self then
    effects.end_run()
    losses.end_run(self.initial_step + self.user_iteration, self.mode)
  end
  if session.executor == self then session.executor = nil end
  self.loader:_end_run(self.has_weights or self.on_final_iteration)
end

--- Drops the closures that wait for the end of a step that never comes.
function DataExecutor:_abandon()
  local count = closures.drop(self)
  if count > 0 then
    errors.warn(("%d step closures of step %d never ran; after leaving a loop by break, call close() of the loader or the executor")
      :format(count, self.user_iteration))
  end
  if self.is_running then finish(self) end
end

--- The tensor on the device, over the same memory: the tensors of the source stay on the host.
local function on_device(tensor) return tensors.to_device(tensor:detach()) end

local function end_step(self)
  losses.check(self.initial_step + self.user_iteration, self.mode)
  if self.user_iteration > 0 then effects.end_step() end
  closures.drain()
end

local function next_step(self)
  end_step(self)
  if self.on_final_iteration then
    closures.drop(self)
    finish(self, true)
    return nil
  end
  self:_set_iteration(self.iteration + 1)
  local batch = self.loader:_next_batch()
  if session.backend and session.backend.kind == "CSX" then batch = nested.map(batch, on_device) end
  return self.user_iteration, batch
end

--- The results of a step; an error ends the run, as its loop does not resume.
local function finish_run_after_error(self, fine, ...)
  if fine then return ... end
  closures.drop(self)
  finish(self)
  error((...), 0)
end

---Loops over the steps: `for i, batch in executor:iter() do`, i from 1.
---@return fun(): integer?, any
function DataExecutor:iter()
  local executor, has_started, has_ended = self, false, false
  if self.is_running then self:_abandon() end
  self:_set_iteration(-1)
  -- a loop that was left by break is garbage some time later
  local guard = newproxy(true)
  getmetatable(guard).__gc = function()
    if session.executor == executor and has_started and not has_ended then executor:_abandon() end
  end
  return function()
    if has_ended or executor.is_closed and has_started or not guard then return nil end
    if not has_started then start(executor) end
    has_started = true
    local is_current = session.executor == executor
    check(is_current, "runtime", "another loop ended this run after step %d; loops cannot be nested", executor.user_iteration)
    has_ended = true
    local i, batch = finish_run_after_error(executor, pcall(next_step, executor))
    has_ended = i == nil
    return i, batch
  end
end

---Ends a loop that was left by `break`: runs the closures of its last step.
function DataExecutor:close()
  if not self.is_running then return end
  self.is_closed = true
  if session.executor == self then
    finish_run_after_error(self, pcall(end_step, self))
    closures.drop(self)
  end
  finish(self, true)
end

return DataExecutor
