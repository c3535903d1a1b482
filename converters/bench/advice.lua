-- What to try when keys of a checkpoint fit no rule.

local cbk = require "cbk"
local coverage = require "converters.bench.coverage"
local kinds = require "converters.engine.kinds"
local weight_names = require "converters.bench.weight_names"

local advice = {}

local MOST_KEYS = 2000 -- of which a model is known
local TENSORS = { tensor = true, parameter = true }

local function holds_tensors(tree)
  for _, value in cbk.items(tree) do
    if TENSORS[cbk.kind(value)] then return true end
  end
  return false
end

--- The key below which a training script keeps the model: { state_dict = { … } }.
local function wrapper(source)
  local found
  for key, value in cbk.items(source) do
    if TENSORS[cbk.kind(value)] then return nil end
    if kinds.is_dict(value) and type(key) == "string" and holds_tensors(value) then
      if found then return nil end
      found = key
    end
  end
  return found
end

---What else the keys may be, as the end of a message; nil if nothing is known.
---@param job Job
---@param source Dict   the checkpoint
---@return string|nil
function advice.unmatched(job, source)
  local below = wrapper(source)
  if below and (below ~= "model" or job.path[1].src == "hf") then
    return ("; the tensors lie below '%s': `cbk copy CHECKPOINT FLAT --include %s --rename '%s.*=*'` takes them out"):format(
      below, below, below)
  end
  local keys = {}
  for i, key in ipairs(coverage.keys_of(source)) do
    if i <= MOST_KEYS then keys[i] = key end
  end
  local names = weight_names.models_that_fit(keys, job.path[1].src, job.model)
  if #names > 0 then return "; all keys fit --model " .. table.concat(names, " or ") end
end

return advice
