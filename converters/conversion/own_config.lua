-- The config of a table with a layout of the user's own ("a", "b"), or of a table that needs no config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local errors = require "cbk.errors"
local fields = require "converters.engine.fields"
local file = require "converters.modelzoo.file"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local pretrained = require "converters.engine.pretrained"
local rules = require "converters.engine.rules"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"
local warnings = require "cbk.warnings"

local own_config = {}

---Whether a table has config rules, so that a config belongs to the checkpoint. Other tables copy the config, if there is one.
---@param converter Converter
function own_config.is_needed(converter) return not converter.without_config and not sections.takes_any(converter, "left") end

---Fails if the table knows no field of the config.
---@param step Step
---@param section Dict
function own_config.refuse_other(step, section)
  local converter, side = step.converter, step.side
  local counts, names = { left = 0, right = 0 }, {}
  for name, value in cbk.items(section) do
    names[#names + 1] = name
    for inner in cbk.items(kinds.is_dict(value) and value or cbk.dict()) do names[#names + 1] = ("%s.%s"):format(name, tostring(inner)) end
  end
  for _, one in ipairs { "left", "right" } do
    local is_known = sections.known(converter, one)
    for _, name in ipairs(names) do counts[one] = counts[one] + (is_known(tostring(name)) and 1 or 0) end
  end
  if counts[side] > 0 or #names == 0 or sections.takes_any(converter, side) then return end
  cbk.fail("config", ("the config has no field that the table knows on the side of %s: %s%s"):format(step.src,
    naming.listed(names, 5), counts[rules.other[side]] > 0 and ("; it is a config of %s: name the format or the config that belongs "
    .. "to the checkpoint"):format(step.tgt) or ""))
end

---The configs of a conversion without one: the defaults of the table, and of its classes.
---@param step Step
---@return StepConfigs
function own_config.of_defaults(step)
  local converter = step.converter
  local function defaults_of(side)
    local fine, made = pcall(sections.of_defaults, converter, side)
    if fine then return made end
    cbk.fail("config", ("the table's defaults cannot be computed without a config (%s); name one with --config"):format(errors.text(made)))
  end
  return { converter = converter, left = defaults_of "left", right = defaults_of "right", assumed = {} }
end

---The model's fields in a config, in the layout of the rules.
---@param step Step
---@param config Dict   the whole file
---@return Dict section, string[] others   the sections beside it in the file
function own_config.section(step, config)
  local converter, side = step.converter, step.side
  local is_zoo = catalogue.release(step.src) and kinds.is_dict(config, "model")
  local has_own = false -- a section of that name in a layout of one's own
  for _, name in ipairs((converter.nested or {})[side] or {}) do has_own = has_own or name == "model" end
  if not is_zoo and (has_own or not trainer.is_file(config)) then return sections.of_file(converter, side, config), {} end
  local section, rest = cbk.copy(trainer.model(config)), cbk.copy(config)
  section = sections.of_file(converter, side, section)
  sections.move(converter.beside, rest, section)
  return section, file.beside_model(rest)
end

---The fields of a config as a table of the user's own reads them, complete: in its layout, with its defaults, and prepared. Other models
---have all that in their classes.
---@param model Model
---@param format string
---@param section Dict   the model's fields
---@return Dict
function own_config.complete(model, format, section)
  local converter, side = nil, nil
  if catalogue.is_own(model.model) then converter, side = catalogue.table_with(model, format) end
  if not (converter and converter.keys) then return section end
  local fine, problem, from = warnings.quietly(sections.convert, converter, side, sections.of_file(converter, side, section))
  if not fine then error(problem, 0) end
  return sections.nested(converter, side, from)
end

---A config that rules made, as the file that is written.
---@param step Step
---@param made Dict
---@return Dict
function own_config.whole(step, made)
  local side = rules.other[step.side]
  if not catalogue.release(step.tgt) then return sections.for_file(step.converter, side, made) end
  local whole, section = cbk.dict { model = made }, cbk.copy(made)
  sections.move(step.converter.beside, section, whole)
  whole.model = sections.for_file(step.converter, side, section)
  return whole
end

---The fields without a counterpart that are worth a warning.
---@param step Step
---@param dropped string[]
---@param config Dict
---@return string[]
function own_config.lost(step, dropped, config)
  local out, has_class = {}, (step.converter.classes or {})[step.side] ~= nil
  for _, name in ipairs(dropped) do
    local is_class = name == "architectures" and has_class or name == "name" and catalogue.release(step.src) -- the new one has its own
    if not (is_class or pretrained.goes_without_saying(name, config[name])) then out[#out + 1] = name end
  end
  return out
end

---Warns of values that come back under another name, as no checkpoint keeps them.
---@param step Step
---@param config Dict   the config that was read
function own_config.warn_of_further_names(step, config)
  for _, rule in ipairs(step.side == "left" and step.converter.config or {}) do
    local further, value = rule.action and rule.action.further_names, rule.left and config[rule.left]
    if further and further[value] ~= nil then
      cbk.warn(("%s=%s does not come back: %s has one name for several values"):format(rule.left, fields.shown(value), step.tgt))
    end
  end
end

return own_config
