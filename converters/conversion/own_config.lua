-- The config of a table with a layout of the user's own ("a", "b"), or of a table that needs no config.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local pretrained = require "converters.engine.pretrained"
local rules = require "converters.engine.rules"
local sections = require "converters.engine.sections"
local trainer = require "converters.modelzoo.trainer"

local own_config = {}

---Whether a table has config rules, so that a config belongs to the checkpoint. Other tables copy the config, if there is one.
---@param converter Converter
function own_config.is_needed(converter) return not converter.without_config and not sections.takes_any(converter, "left") end

---Fails if the table knows no field of the config.
---@param step Step
---@param section Dict
local function refuse_other(step, section)
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

---The fields of a side without a config: the defaults of the table, and of its class.
---@param converter Converter
---@param side Side
---@return Dict
local function defaults_of(converter, side)
  local fine, made = pcall(sections.of_defaults, converter, side)
  if fine then return made end
  cbk.fail("config", ("the table's defaults cannot be computed without a config (%s); name one with --config"):format(errors.text(made)))
end

---The model's fields in a config.
---@param step Step
---@param config Dict|nil   the whole file
---@return Dict|nil
function own_config.section(step, config)
  local is_zoo = config and catalogue.release(step.src) and kinds.is_dict(config, "model")
  if is_zoo or config and trainer.is_file(config) then return trainer.model(config) end
  return config
end

---@param step Step
---@param config Dict|nil   the model's fields; nil: defaults alone
---@return Dict|nil made    the other side's fields; nil: there is no config
---@return StepConfigs
function own_config.convert(step, config)
  local converter, side = step.converter, step.side
  if not config then
    local left, right = defaults_of(converter, "left"), defaults_of(converter, "right")
    return nil, { converter = converter, left = left, right = right, assumed = {} }
  end
  refuse_other(step, config)
  local to, from, dropped = sections.convert(converter, side, config)
  local lost, has_class = {}, (converter.classes or {})[side] ~= nil
  for _, name in ipairs(dropped) do
    local is_class = name == "architectures" and has_class or name == "name" and catalogue.release(step.src) -- the new one has its own
    if not (is_class or pretrained.goes_without_saying(name, config[name])) then lost[#lost + 1] = name end
  end
  if #lost > 0 then cbk.warn("config fields without a counterpart are left out: " .. naming.listed(lost)) end
  return to, { converter = converter, given = config, [side] = sections.nested(converter, side, from), [rules.other[side]] = to,
    assumed = {} }
end

return own_config
