-- The model classes that cbk knows: which tensors a model has for a config.

local cbk = require "cbk"
local converters = require "cbk.converters"
local class = require "converters.engine.class"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local classes = { shape = class.shape }

---The class of a model in a format.
---@param name string     a model, as `cbk list` names it
---@param format string   "hf" or "cs-X.Y"
---@return Class class
---@return string|nil release
function classes.find(name, format)
  local model = catalogue.find(name)
  if not model then cbk.fail("unsupported", ("there is no model '%s'; 'cbk list' lists the models"):format(name)) end
  local found, release = catalogue.class_of(model, {}, catalogue.resolve(format, model))
  if not found then cbk.fail("unsupported", ("the tensors of %s in the format %s are not described"):format(name, format)) end
  return found, release
end

---All tensors of a model for a config.
---@param config Dict     a whole config.json, a whole params.yaml, or the model section of one
---@param name string
---@param format string
---@return ClassTensors
function classes.tensors(config, name, format)
  local found, release = classes.find(name, format)
  local section = config
  if format ~= "hf" and (config.model ~= nil or config.trainer ~= nil) then section = trainer.model(config) end
  return found:tensors(section, { release = release })
end

return classes
