-- Two checkpoints as models that compute: `cbk diff --logits`. Each is read in its own format, by the config that belongs to it.

local cbk = require "cbk"
local computable = require "cbk.recognise.computable"
local converters = require "cbk.converters"
local logits = require "cbk.logits"

local computed = {}

---@param side DiffSide
---@return LogitsSide, string what   "llama, hf"
local function model_of(side)
  local model, found = computable.of(side.path, side.checkpoint, side.config)
  return model, ("%s, %s"):format(found.model, found.format)
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
