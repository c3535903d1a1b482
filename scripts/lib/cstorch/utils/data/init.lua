-- cstorch.utils.data: loaders, runs and samplers.

local class = require "cstorch.class"
local budget = require "cstorch.utils.data.num_steps"
local DataLoader = require "cstorch.utils.data.data_loader"
local errors = require "cstorch.errors"
local namespace = require "cstorch.namespace"
local workers = require "cstorch.utils.data.workers"

local data = {
  DataLoader = DataLoader,
  DataExecutor = require "cstorch.utils.data.data_executor",
  ShardedSampler = require "cstorch.utils.data.sharded_sampler",
  get_worker_state = workers.get_worker_state,
}

---The number of steps that a step budget gives for a loader. The loader's own budget does not count.
---@param loader cstorch.utils.data.DataLoader
---@param options { initial_step: integer, num_steps: integer, max_steps: integer, num_epochs: integer, steps_per_epoch: integer }
---@return integer
function data.compute_num_steps(loader, options)
  local is_loader = class.is_a(loader, DataLoader)
  errors.check(is_loader, "type", "compute_num_steps: expected a cstorch.utils.data.DataLoader, found %s", errors.show(loader))
  return budget.steps(loader:length(), options)
end

return namespace("cstorch.utils.data", data)
