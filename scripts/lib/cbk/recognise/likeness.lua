-- Checks whether files are of another model than the user named. Steps between releases accept any config; a model's table to Hugging
-- Face knows the values of its fields.

local catalogue = require "converters.engine.catalogue"
local fit = require "converters.engine.fit"
local names = require "cbk.recognise.names"
local naming = require "cbk.naming"
local warnings = require "cbk.warnings"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"

local likeness = {}

local MOST_TEXT, MOST_FIELDS, MOST_MODELS = 100, 3, 3 -- characters of a contradiction; contradictions and models in a message

---The entries with fields that count.
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

---The fields of a config that contradict a model, by the layout that fits best. Nil if no table checks them.
---@param model Model
---@param format string   "cs-2.5"
---@param config Dict     the model section
---@param counts? fun(field: string): boolean   whether a field counts; default: all do, even those that got a default
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

---How far a config is from a model's table: the number of the table's fields that it lacks.
---@param model Model
---@param format string
---@param config Dict   the model section
local function distance(model, format, config)
  local step, least = catalogue.direct(model, format, "hf"), math.huge
  for _, converter in pairs(step and (step.converter.variants or { step.converter }) or {}) do
    if converter.config then least = math.min(least, (select(2, sections.distance(converter, step.side, config)))) end
  end
  return least
end

---False for a headless model, or any other model that shares its Model Zoo class with the model of that name.
---@param model Model
local function is_own_class(model)
  local namesake = catalogue.find(model.name or model.model)
  return not namesake or namesake == model
end

---Whether a model's class has all of these names, and needs no others.
---@param model Model
---@param format string
---@param section Dict
---@param keys string[]
local function fits(model, format, section, keys)
  local class, release = catalogue.class_of(model, {}, format)
  local fine, one = pcall(function() return fit.of(class:tensors(section, { release = release }), keys, function() end) end)
  return fine and fit.mistakes(one) == 0
end

---The contradiction of a field, without the list of possible values if that is long.
local function brief(text) return #text <= MOST_TEXT and text or (text:gsub(" %(not [^()]*%)$", "")) end

---Another model that fits the fields and weights, if some of the user's fields contradict the model that was named. For each of these it
-- may lack three more fields: a family with many fields accepts most configs of one with few. A config that fits no other model is a
-- variant: the Model Zoo may train it although Hugging Face lacks it.
---@param model Model
---@param format string
---@param config Dict   the whole file
---@param root Dict
---@param is_own fun(field: string): boolean   whether a field of the model section is in the user's file
---@return string|nil
function likeness.warning(model, format, config, root, is_own)
  local section, keys = trainer.model(config), names.keys_of(root)
  local found, others = {}, {}
  local fine, problem = warnings.quietly(function()
    found = contradictions(model, format, section, is_own) or {}
    local farthest = #found > 0 and 3 * #found + distance(model, format, section)
    for _, name in ipairs(#found > 0 and catalogue.names() or {}) do
      local other = catalogue.find(name)
      local is_close = other.model == name and other ~= model and is_own_class(other) and distance(other, format, section) <= farthest
      local against = is_close and contradictions(other, format, section)
      if against and #against == 0 and fits(other, format, section, keys) then others[#others + 1] = other end
    end
  end)
  if not fine then error(problem, 0) end
  if #others == 0 then return nil end
  table.sort(others, function(a, b)
    local far_a, far_b = distance(a, format, section), distance(b, format, section)
    return far_a < far_b or far_a == far_b and a.model < b.model
  end)
  local texts, shown = {}, {}
  for i, one in ipairs(found) do texts[i] = brief(one.text) end
  for i, one in ipairs(others) do shown[i] = i <= MOST_MODELS and one.model or nil end
  return ("the config does not fit %s: %s; all its fields and the weight names fit --model %s"):format(model.model,
    naming.listed(texts, MOST_FIELDS), table.concat(shown, " or "))
end

return likeness
