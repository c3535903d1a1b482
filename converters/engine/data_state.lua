-- How far the data loaders of a 1.8 or 1.9 run had come: from the files beside its checkpoint into the checkpoint.

local cbk = require "cbk"

local data_state = {}

local kinds = { GptHDF5DataProcessor = "iterable", GptHDF5MapDataProcessor = "map" }

local function first_number(path)
  local line = (cbk.fs.read(path):match "^[^\n]*" or ""):gsub("_", "")
  local number = line:match "^%s*([+-]?%d+)%s*$"
  if not number then cbk.fail("data", ("'%s': its first line is not a whole number"):format(path)) end
  return tonumber(number)
end

---The samples that each worker had streamed at the last checkpoint, in the order of the workers.
local function workers(folder)
  local global = cbk.fs.join(folder, "data_iter_checkpoint_state_file_global")
  if not cbk.fs.exists(global) then cbk.fail("data", ("there is no '%s'"):format(global)) end
  local step, out = first_number(global), {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    if name:find "%.txt$" then
      local worker, at = name:match "([^_]*)_[^_]*_(%d+)%.[^_]*$"
      worker = tonumber(worker)
      local path = cbk.fs.join(folder, name)
      if not worker then cbk.fail("data", ("'%s' is not a worker's state file (…_WORKER_step_STEP.txt)"):format(path)) end
      if tonumber(at) == step then out[#out + 1] = { worker, first_number(path) } end
    end
  end
  table.sort(out, function(a, b) return a[1] < b[1] end)
  return out
end

---Adds `dataloader` to the checkpoint where the config names a folder of such files.
---@param config Dict   the whole old config
---@param root Dict     the new checkpoint, changed in place
function data_state.add(config, root)
  local section = cbk.kind(config, "cerebras") == "dict" and config.cerebras or nil
  local folder = section and section.save_iter_state_path
  if type(folder) ~= "string" then return end
  if root.dataloader ~= nil then
    cbk.warn("the checkpoint has a 'dataloader' already: cerebras.save_iter_state_path is not looked at")
    return
  end
  local input = config.train_input
  local processor = input ~= nil and input ~= cbk.null and input.data_processor or nil
  local kind = kinds[processor]
  if not kind then
    cbk.fail("data", ("data loader states of train_input.data_processor=%s cannot be converted; those of GptHDF5DataProcessor and "
      .. "GptHDF5MapDataProcessor can"):format(tostring(processor)))
  end
  local state = cbk.dict()
  if kind == "map" then
    local total = 0
    for _, worker in ipairs(workers(folder)) do total = total + worker[2] end
    state.samples_streamed, state.seed = total, 0
  else
    local list = cbk.list()
    for i, worker in ipairs(workers(folder)) do
      local one = cbk.dict()
      one.samples_streamed, one.shard_index = worker[2], worker[1]
      list[i] = one
    end
    state.all_worker_states = list
  end
  root.dataloader = state
end

return data_state
