-- A checkpoint as a model that computes: its class, by the config that belongs to it, and its weights.

local adapters = require "cbk.recognise.adapters"
local cbk = require "cbk"
local classes = require "cbk.classes"
local config_beside = require "cbk.recognise.config_beside"
local configs = require "cbk.recognise.configs"
local converters = require "cbk.converters"
local dequantised = require "cbk.dequantised"
local kinds = require "converters.engine.kinds"
local recognise = require "cbk.recognise"

local computable = {}

---@param found Identity
---@param path string
---@param has_config boolean
local function check_recognised(found, path, has_config)
  local file = cbk.quote(path)
  if not found.model then
    cbk.fail("unsupported", ("cannot compute %s: %s"):format(file, found.reason), { advice = found.advice })
  end
  if not has_config then
    local called = config_beside.called(not converters.catalogue.release(found.format))
    cbk.fail("config", ("cannot compute %s without its config: there is no %s beside it"):format(file, called),
      { advice = "put the config into the folder of the checkpoint" })
  end
end

---The model of a checkpoint. Fails if it is not recognised, or has no config.
---@param path string
---@param checkpoint Checkpoint
---@param config_path? string   default: the config beside it
---@param model_name? string    as the user names it; default: as the config and the tensors say
---@return LogitsSide, Identity
function computable.of(path, checkpoint, config_path, model_name)
  local found, config, own_config = recognise.checkpoint(path, checkpoint, { config = config_path })
  local has_config = (config or own_config) ~= nil
  found.model = model_name or found.model
  check_recognised(found, path, model_name and has_config or found.fit ~= nil)
  local list = model_name and classes.tensors(config or own_config, configs.model_of(config or own_config, model_name, found.format))
    or found.fit.known
  local tree = dequantised.model(found.contents.root, config or own_config, "cannot compute the model", found.contents.dequantised)
  local given, keys = {}, {}
  for key, value in cbk.items(kinds.is_dict(tree, "model") and tree.model or tree) do
    if kinds.is_tensor(value) then given[key], keys[#keys + 1] = value, key end
  end
  adapters.check_folded(path, keys)
  return { list = list, tensors = given }, found
end

return computable
