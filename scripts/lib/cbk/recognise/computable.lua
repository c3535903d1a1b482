-- A checkpoint as a model that computes: its class, by the config that belongs to it, and its weights.

local cbk = require "cbk"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local dequantised = require "cbk.dequantised"
local kinds = require "converters.engine.kinds"
local recognise = require "cbk.recognise"

local computable = {}

---@param found Identity
---@param path string
local function check_recognised(found, path)
  local file = cbk.quote(path)
  if not found.model then
    cbk.fail("unsupported", ("cannot compute %s: %s"):format(file, found.reason), { advice = found.advice })
  end
  if not found.fit then
    local called = config_beside.called(not converters.catalogue.release(found.format))
    cbk.fail("config", ("cannot compute %s without its config: there is no %s beside it"):format(file, called),
      { advice = "put the config into the folder of the checkpoint" })
  end
end

---The model of a checkpoint. Fails if it is not recognised, or has no config.
---@param path string
---@param checkpoint Checkpoint
---@param config_path? string   default: the config beside it
---@return LogitsSide, Identity
function computable.of(path, checkpoint, config_path)
  local found, config, own_config = recognise.checkpoint(path, checkpoint, { config = config_path })
  check_recognised(found, path)
  local tree = dequantised.model(found.contents.root, config or own_config, "cannot compute the model", found.contents.dequantised)
  local given = {}
  for key, value in cbk.items(kinds.is_dict(tree, "model") and tree.model or tree) do
    if kinds.is_tensor(value) then given[key] = value end
  end
  return { list = found.fit.known, tensors = given }, found
end

return computable
