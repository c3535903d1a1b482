-- Whether files are those of another model than the one that was asked for. Steps between releases take any config and any key; a
-- model's table to Hugging Face knows which values its fields have and what its weights are called.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local coverage = require "converters.bench.coverage"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"
local weight_names = require "converters.bench.weight_names"

local likeness = {}

---What of a config contradicts a model; of several layouts, the one that fits best. Nil where no table tells.
---@param model Model
---@param format string   "cs-2.5"
---@param config Dict     the model section
---@return string[]|nil
local function contradictions(model, format, config)
  local step = catalogue.direct(model, format, "hf")
  local best
  for _, converter in pairs(step and (step.converter.variants or { step.converter }) or {}) do
    local refused = not (converter.components or converter.wrap) and sections.refused(converter, step.side, config)
    if refused and not (best and #best <= #refused) then best = refused end
  end
  return best
end

---False of a headless one, or another whose Model Zoo class is that of a model of its own.
---@param model Model
local function is_own_class(model)
  local namesake = catalogue.find(model.name or model.model)
  return not namesake or namesake == model
end

---What speaks against a model, and which others have such fields and such weights.
---@param model_name string
---@param format string
---@param config Dict   the whole file
---@param root Dict
---@return string|nil
function likeness.warning(model_name, format, config, root)
  local model, section = catalogue.find(model_name), trainer.model(config)
  local warn = cbk.warn
  cbk.warn = function() end -- luacheck: ignore
  local found = model and contradictions(model, format, section) or {}
  local others = #found > 0 and weight_names.models_that_fit(coverage.keys_of(root), format, model, function(one)
    local own = is_own_class(one.model) and contradictions(one.model, format, section)
    return own and #own == 0
  end)
  cbk.warn = warn -- luacheck: ignore
  if not others then return nil end
  return ("the config does not describe a %s as elsewhere: %s%s"):format(model_name, table.concat(found, ", "),
    #others > 0 and "; all fields and names of weights fit --model " .. table.concat(others, " or ") or "")
end

return likeness
