-- The Model Zoo's LLaVA (llava/model.py): an image model, a language model, and the projector between them. Fields and defaults:
-- Model Zoo 2.9.

local class = require "converters.engine.class"
local kinds_of = require "converters.engine.kinds"
local decoder = require "converters.classes.zoo.decoder"
local vision = require "converters.classes.zoo.vision"

local below, linear, any = class.below, class.linear, class.kinds.any

local llava = {}

---The Linears of a projector: `layers_units` are the sizes of their outputs.
---@param projector? Dict   the section projector.image_model
local function projector_of(projector)
  local layers, inputs = {}, "projector.image_model.input_unit"
  local units = projector and kinds_of.is_list(projector, "layers_units") and projector.layers_units or {}
  for i = 1, #units do
    layers[i] = linear(("ffn.%d.linear_layer"):format(i - 1), inputs, units[i], projector.use_bias == true)
    inputs = units[i]
  end
  return below("projector_image_model", layers)
end

local function section(value, name) return value and kinds_of.is_dict(value, name) and value[name] or nil end

llava.image_part = class.new "ViTModel" {
  fields = vision.ViTModel.fields, derived = vision.ViTModel.derived,
  tensors = function(c) return below("image_model", vision.ViTModel.nodes(c)) end,
}

---The language model with the projector, whose section is beside it in the config.
llava.text_part = class.new "LlamaModel" {
  fields = class.extend(decoder.GPT2LMHeadModel.fields, { projector = any() }), derived = decoder.GPT2LMHeadModel.derived,
  tensors = function(c, since)
    return { below("text_model", decoder.GPT2LMHeadModel.nodes(c, since)), projector_of(section(c.projector, "image_model")) }
  end,
}

llava.LlavaModel = class.new "LlavaModel" {
  fields = { image_model = any(), text_model = any(), projector = any() },
  tensors = function(c)
    return {
      class.part("image_model", vision.ViTModel, c.image_model),
      class.part("text_model", decoder.GPT2LMHeadModel, c.text_model),
      projector_of(section(c.projector, "image_model")),
    }
  end,
}

return llava
