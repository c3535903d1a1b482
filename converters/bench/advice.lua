-- What to try when keys of a checkpoint fit no rule.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local coverage = require "converters.bench.coverage"
local kinds = require "converters.engine.kinds"
local tables = require "converters.bench.tables"

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

local function reads(converter, format)
  for side, text in pairs { left = converter[1], right = converter[2] } do
    if catalogue.format_set(text)[format] then return side end
  end
end

--- Whether a table of the model takes every key, and how many of its rules take none.
local function fit(model, format, keys)
  local least
  for _, one in ipairs(tables.of { model }) do
    local side = not one.part and not one.inside and reads(one.converter, format)
    local found = side and coverage.of(one, side, keys)
    if found and #found.unmatched + #found.refused + found.copied == 0 then least = math.min(least or math.huge, #found.idle) end
  end
  return least
end

--- The models whose rules take every key; those that use most of their rules first.
local function models_that_fit(job, source)
  local keys, out = {}, {}
  for i, key in ipairs(coverage.keys_of(source)) do
    if i <= MOST_KEYS then keys[i] = key end
  end
  for _, name in ipairs(catalogue.names()) do
    local model, zoo_name = catalogue.find(name)
    local is_alias = zoo_name and model.aliases and model.aliases[name]
    local idle = model ~= job.model and not is_alias and fit(model, job.path[1].src, keys)
    if idle then out[#out + 1] = { name = name, idle = idle } end
  end
  table.sort(out, function(a, b) return a.idle < b.idle or a.idle == b.idle and a.name < b.name end)
  for i, one in ipairs(out) do out[i] = one.name end
  return { unpack(out, 1, 3) }
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
  local names = models_that_fit(job, source)
  if #names > 0 then return "; all keys fit --model " .. table.concat(names, " or ") end
end

return advice
