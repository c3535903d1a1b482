-- The Model Zoo's LLaVA (llava/model.py): an image model, a language model, and the projector between them. Fields and defaults:
-- Model Zoo 2.9.

local class = require "converters.engine.class"
local kinds_of = require "converters.engine.kinds"
local decoder = require "converters.classes.zoo.decoder"
local vision = require "converters.classes.zoo.vision"
local came_with = require "converters.classes.zoo.came_with"

local below, linear, any = class.below, class.linear, class.kinds.any

local llava = {}

local function section(value, name) return value and kinds_of.is_dict(value, name) and value[name] or nil end

local UNITS = "projector.image_model.layers_units"

---The sizes that the outputs of the projector's Linears have.
---@param c table   values of the config
---@return (Dict|table) units, Dict|nil projector
local function units_of(c)
  local projector = section(c.projector, "image_model")
  return projector and kinds_of.is_list(projector, "layers_units") and projector.layers_units or {}, projector
end

local function derived_units(c)
  local out, units = {}, units_of(c)
  for i = 1, #units do out["units_" .. i] = { units[i], UNITS } end
  return out
end

---The Linears of the projector.
local function projector_of(c)
  local layers, units, projector = {}, units_of(c)
  for i = 1, #units do
    local inputs = i == 1 and "projector.image_model.input_unit" or "units_" .. i - 1
    layers[i] = linear(("ffn.%d.linear_layer"):format(i - 1), inputs, "units_" .. i, projector.use_bias == true)
  end
  return below("projector_image_model", layers)
end

llava.image_part = class.new "ViTModel" {
  fields = vision.ViTModel.fields, derived = vision.ViTModel.derived,
  tensors = function(c) return below("image_model", vision.ViTModel.nodes(c)) end,
}

---The language model with the projector, whose section is beside it in the config.
llava.text_part = class.new "LlamaModel" {
  removed = decoder.GPT2LMHeadModel.removed,
  fields = class.extend(decoder.GPT2LMHeadModel.fields, { projector = any() }),
  derived = function(c) return class.extend(decoder.GPT2LMHeadModel.derived(c), derived_units(c)) end,
  tensors = function(c, since)
    return { below("text_model", decoder.GPT2LMHeadModel.nodes(c, since)), projector_of(c) }
  end,
}

llava.LlavaModel = class.new "LlavaModel" {
  removed = { label_smoothing = "2.4", z_loss_eps = "2.4" }, came_with = { text_model = came_with.gpt2 },
  fields = { image_model = any(), text_model = any(), projector = any() }, derived = derived_units,
  tensors = function(c)
    return {
      class.part("image_model", vision.ViTModel, c.image_model),
      class.part("text_model", decoder.GPT2LMHeadModel, c.text_model),
      projector_of(c),
    }
  end,
}

return llava
