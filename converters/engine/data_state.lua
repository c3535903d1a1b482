-- How far the data loaders of a 1.8 or 1.9 run had come: from the files beside its checkpoint into the checkpoint.

local cbk = require "cbk"
local dataloader_state = require "cbk.dataloader_state"

local data_state = {}

local kinds = { GptHDF5DataProcessor = "iterable", GptHDF5MapDataProcessor = "map" }

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
  root.dataloader = dataloader_state.to_dict(dataloader_state.from_files(dataloader_state.read_files(folder), kind))
end

return data_state
