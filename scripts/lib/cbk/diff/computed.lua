-- Two checkpoints as models that compute: `cbk diff --logits`. Each is read in its own format, by the config that belongs to it.

local cbk = require "cbk"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local dequantised = require "cbk.dequantised"
local kinds = require "converters.engine.kinds"
local logits = require "cbk.logits"
local recognise = require "cbk.recognise"

local computed = {}

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

---@param side DiffSide
---@return LogitsSide, string what   "llama, hf"
local function model_of(side)
  local found, config, own_config = recognise.checkpoint(side.path, side.checkpoint, side.config)
  check_recognised(found, side.path)
  local tree = dequantised.model(found.contents.root, config or own_config, "cannot compute the model")
  local given = {}
  for key, value in cbk.items(kinds.is_dict(tree, "model") and tree.model or tree) do
    if kinds.is_tensor(value) then given[key] = value end
  end
  return { list = found.fit.known, tensors = given }, ("%s, %s"):format(found.model, found.format)
end

---How far the logits of two checkpoints differ. Fails if one of them is not a model that is computed.
---@param a DiffSide
---@param b DiffSide
---@param tolerance number|nil   of the largest logit
---@return LogitsDifference, string what   "llama, hf, and llama, cs-2.4"
function computed.compare(a, b, tolerance)
  converters.load()
  local one, first = model_of(a)
  local other, second = model_of(b)
  local found, why = logits.compare(one, other, tolerance)
  if not found then cbk.fail("unsupported", "cannot compare logits: " .. why) end
  return found, ("%s, and %s"):format(first, second)
end

return computed
