-- Model classes: the tensors that a model has for a config.

local cbk = require "cbk"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local checkpoint = require "converters.modelzoo.checkpoint"
local class_tensors = require "converters.engine.class_tensors"
local keys = require "converters.engine.keys"
local naming = require "cbk.naming"
local own_config = require "converters.conversion.own_config"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local classes = { shape = class_tensors.shape }

---The class of a model in a format.
---@param name string     a model, as `cbk list` names it
---@param format string   "hf", "cs-X.Y", or a layout of the user's own
---@return Class class
---@return string|nil release
function classes.find(name, format)
  local model = catalogue.find(name)
  if not model then cbk.fail("unsupported", ("there is no model '%s'; %s"):format(name, converter_list.advice(name, catalogue.names()))) end
  local found, release = catalogue.class_of(model, {}, catalogue.resolve(format, model))
  if not found then
    cbk.fail("unsupported", converters.lacking_class(name, format)
      or ("%s has no format '%s'; `cbk list %s` lists its formats"):format(name, format, name))
  end
  return found, release
end

---The section of a config that describes the model.
local function section_of(config, format)
  return catalogue.release(catalogue.resolve(format)) and (config.model ~= nil or config.trainer ~= nil) and trainer.model(config) or config
end

---Warns of numbers of layers or experts, and of the size of the vocabulary, that a config leaves to the class.
---@param list ClassTensors
local function warn_of_assumed(list)
  local is_assumed = {}
  for _, count in pairs(list.counts) do
    if type(count) == "string" and list.class:leaves_out(list.config, count) then
      is_assumed[("%s=%s"):format(count, list.values[count])] = true
    end
  end
  local words = list.values.vocab_size
  if words ~= nil and list.class:leaves_out(list.config, "vocab_size") then is_assumed["vocab_size=" .. tostring(words)] = true end
  local assumed = naming.sorted(is_assumed)
  if #assumed == 0 then return end
  cbk.warn("the config does not say how many there are, so the class's defaults are taken: " .. table.concat(assumed, ", "))
end

---All tensors of a model for a config.
---@param config Dict     a whole config.json, a whole params.yaml, or the model section of one
---@param name string
---@param format string
---@return ClassTensors
function classes.tensors(config, name, format)
  local found, release = classes.find(name, format)
  local section = own_config.complete(catalogue.find(name), catalogue.resolve(format), section_of(config, format))
  local list = found:tensors(section, { release = release })
  warn_of_assumed(list)
  return list
end

---A lazy tensor of a new model.
---@param one ClassTensor
---@param options { seed: integer, std: number, zeros: boolean, dtype: string }
local function new_tensor(one, options)
  local shape, value = class_tensors.shape(one), options.zeros and 0 or one.init
  if value then return cbk.full(shape, value, { dtype = options.dtype }) end
  return cbk.randn(shape, { std = options.std, seed = keys.seed_of(one.key, options.seed), dtype = options.dtype })
end

local DTYPES = { float32 = true, float16 = true, bfloat16 = true, float64 = true }

---A new checkpoint of a model: random weights (normal, with the config's initializer_range), norms of ones, biases of zeros. Tied weights
---are one tensor. Nothing is computed before the checkpoint is written.
---@param config Dict
---@param name string
---@param format string
---@param options? { seed?: integer, init?: "normal"|"zeros" }
---@return Dict root   as `cbk.create` takes it
function classes.new(config, name, format, options)
  options = options or {}
  local list, section, model = classes.tensors(config, name, format), section_of(config, format), cbk.dict({}, "ordereddict")
  local spread, dtype = section.initializer_range, section.torch_dtype or section.dtype -- transformers 4, and 5
  local own = {
    seed = options.seed or 0, std = type(spread) == "number" and spread > 0 and spread or 0.02, zeros = options.init == "zeros",
    dtype = DTYPES[dtype] and dtype or "float32",
  }
  for _, one in ipairs(list) do
    if not (one.buffer or one.optional) then
      model[one.key] = one.tied_to and model[one.tied_to] or new_tensor(one, own)
    end
  end
  local release = catalogue.release(catalogue.resolve(format))
  return release and checkpoint.from_hf(model, release, config, cbk.dict()) or model
end

return classes
