-- Data loaders: a function that makes batches, the workers that call it, and a step budget.

local batches = require "cstorch.utils.data.batches"
local budget = require "cstorch.utils.data.num_steps"
local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local no_list = require "cstorch.utils.data.no_list"
local session = require "cstorch.session"
local systems = require "cstorch.run.systems"
local workers = require "cstorch.utils.data.workers"

local check, show = errors.check, errors.show

---@class cstorch.utils.data.DataLoader : cstorch.Class   Batches from a function that each worker calls once.
---@field batch_size? integer      as given, else that of the first batch
---@field num_epochs integer
---@field executor? cstorch.utils.data.DataExecutor   of the last loop
local DataLoader = class.Object:subclass "DataLoader"

DataLoader.noun, DataLoader.__call = "loader", no_list.refuse
class.optional(DataLoader, "workers", "executor", "is_running", "step", "batch_size")

---@param input_fn fun(arguments: table): any   returns a list of batches, or an object with `iter` and, if known, `length`
---@param options? table   the step budget (initial_step, num_steps, max_steps, num_epochs, steps_per_epoch, grad_accum_steps); all else
---  goes to `input_fn`
function DataLoader:init(input_fn, options)
  no_list.mark(self)
  check(type(input_fn) == "function", "type", "DataLoader: expected a function that makes batches, found %s", show(input_fn))
  options = keywords.plain(options) or {}
  check(type(options) == "table", "type", "DataLoader: expected a keyword table, found %s", show(options))
  self.input_fn, self.budget, self.arguments = input_fn, {}, {}
  for name, value in pairs(options) do
    local into = budget.LEAST[name] and self.budget or self.arguments
    into[name] = value
  end
  self.batch_size, self.num_epochs = self.arguments.batch_size, self.budget.num_epochs or 1
  self.has_state = true
end

--- The workers, which start on first use.
local function started(self)
  if not self.workers then
    self.workers, self.num_workers_per_csx = workers.start(self.input_fn, self.arguments)
  end
  return self.workers
end

---The number of batches of the source, nil if unknown.
---@return integer?
function DataLoader:length() return started(self)[1]:length() end

---The step budget. Raises an error if it is invalid.
---@return integer
function DataLoader:total_steps() return budget.steps(self:length(), self.budget) end

---Whether any keyword of the step budget was given.
---@return boolean
function DataLoader:has_budget() return next(self.budget) ~= nil end

---Ends a loop that was left by `break`: runs the closures of its last step.
function DataLoader:close()
  if self.executor then self.executor:close() end
end

-- --- what executors use

local function is_csx() return session.backend ~= nil and session.backend.kind == "CSX" end

---Begins a run. A position that was loaded is kept.
function DataLoader:_start_run()
  local list = started(self)
  local is_lost = is_csx() and not self.has_state and list[1]:missing_methods()[1] == nil
  check(not is_lost, "runtime", "the loader's state is unavailable, as its last run stopped between checkpoint steps; make a new loader")
  for _, worker in ipairs(list) do worker:restart() end
  self.is_running, self.step = true, 0
end

---Ends a run.
---@param has_state boolean   it stopped where the state of restartable sources is available
function DataLoader:_end_run(has_state) self.is_running, self.has_state = false, has_state end

---The next batch, of all systems that this process emulates.
---@return any
function DataLoader:_next_batch()
  local list, parts = self.workers, {}
  local local_id = self.step % self.num_workers_per_csx
  for of_system = 0, #list - 1, self.num_workers_per_csx do
    local worker = list[of_system + local_id + 1]
    local part = worker:next()
    worker.part_size = batches.size(part, worker.part_size, is_csx())
    worker.state.samples_streamed = worker.state.worker_step * worker.part_size
    parts[#parts + 1] = part
  end
  self.step = self.step + 1
  for _, worker in ipairs(list) do worker.state.appliance_step = self.step end
  local batch = batches.join(parts)
  if self.step == 1 then
    local size = systems.begin(batches.size(batch, nil, is_csx()))
    self.batch_size = self.batch_size or size
  end
  return batch
end

-- --- state

local function check_restartable(self)
  local missing = started(self)[1]:missing_methods()
  check(missing[1] == nil, "runtime", "the loader's state cannot be saved: its source has no %s", table.concat(missing, ", "))
end

---The position of the source: the aggregate of all workers' states. Available before the first step, on checkpoint steps and on the
---last step.
---@return table
function DataLoader:state_dict()
  check_restartable(self)
  local executor = self.is_running and session.executor
  local is_available = not executor or executor.has_weights or executor.on_final_iteration
  local step = executor and executor.user_iteration or 0
  check(is_available, "runtime", "the loader's state is available before step 1, on checkpoint steps and the last; this is step %d", step)
  local own, states = {}, {}
  for i, worker in ipairs(self.workers) do own[i] = worker:call "state_dict" end
  for _, list in ipairs(systems.exchange(own)) do
    for _, state in ipairs(list) do states[#states + 1] = state end
  end
  return self.workers[1]:call("aggregate_state_dict", states)
end

---Restores the position of the source. Only before the loop starts.
---@param state_dict table
---@param options? { strict: boolean }
function DataLoader:load_state_dict(state_dict, options)
  options = keywords.complete("DataLoader:load_state_dict", { strict = true }, options)
  check(not self.is_running, "runtime", "load_state_dict: the loop over this loader has started; load before it")
  check_restartable(self)
  for _, worker in ipairs(self.workers) do worker:load(state_dict, options.strict) end
  self.has_state = true
end

return DataLoader
