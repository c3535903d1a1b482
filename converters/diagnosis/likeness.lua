-- Whether files are those of another model than the one that was asked for. Steps between releases take any config and any key; a
-- model's table to Hugging Face knows which values its fields have and what its weights are called.

local report = require "cbk.report"
local catalogue = require "converters.engine.catalogue"
local coverage = require "converters.diagnosis.coverage"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"
local weight_names = require "converters.diagnosis.weight_names"

local likeness = {}

local MOST_TEXT = 100

---Those whose fields count.
---@param refused Refused[]
---@param counts fun(field: string): boolean
---@return Refused[]
local function kept(refused, counts)
  local out = {}
  for _, one in ipairs(refused) do
    if counts(one.field) then out[#out + 1] = one end
  end
  return out
end

---What of a config contradicts a model; of several layouts, the one that fits best. Nil where no table tells.
---@param model Model
---@param format string   "cs-2.5"
---@param config Dict     the model section
---@param counts? fun(field: string): boolean   which fields do; default: all, and defaults of what is not said
---@return Refused[]|nil
local function contradictions(model, format, config, counts)
  local step = catalogue.direct(model, format, "hf")
  local best
  for _, converter in pairs(step and (step.converter.variants or { step.converter }) or {}) do
    local refused = not (converter.components or converter.wrap) and sections.refused(converter, step.side, config)
    if refused and counts then refused = kept(refused, counts) end
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

---What of a field contradicts, without all that it may be where that is much.
local function brief(text) return #text <= MOST_TEXT and text or (text:gsub(" %(not [^()]*%)$", "")) end

---Another model whose fields and weights those are, where some of what the user wrote speaks against the one that was asked for. A
-- config that no other model fits describes a variant, which the Model Zoo may well train though Hugging Face has none of it.
---@param model_name string
---@param format string
---@param config Dict   the whole file
---@param root Dict
---@param is_own fun(field: string): boolean   whether a field of the model section stood in the user's file
---@return string|nil
function likeness.warning(model_name, format, config, root, is_own)
  local model, section, keys = catalogue.find(model_name), trainer.model(config), coverage.keys_of(root)
  local found, others = {}, {}
  local fine, problem = report.quietly(function()
    found = model and contradictions(model, format, section, is_own) or {}
    others = #found > 0 and weight_names.models_that_fit(keys, format, model, function(one, side)
      local against = is_own_class(one.model) and contradictions(one.model, format, section)
      local lacking = against and #against == 0 and coverage.lacking(one, side, config, keys)
      return lacking and #lacking == 0
    end) or {}
  end)
  if not fine then error(problem, 0) end
  if #others == 0 then return nil end
  local texts = {}
  for i, one in ipairs(found) do texts[i] = brief(one.text) end
  return ("the config does not describe a %s as elsewhere: %s; all fields and names of weights fit --model %s"):format(model_name,
    table.concat(texts, ", "), table.concat(others, " or "))
end

return likeness
