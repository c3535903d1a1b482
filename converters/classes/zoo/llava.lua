-- The Model Zoo's LLaVA (llava/model.py): an image model, a language model, and the projector between them. Fields and defaults:
-- Model Zoo 2.9.

local class = require "converters.engine.class"
local kinds_of = require "converters.engine.kinds"
local decoder = require "converters.classes.zoo.decoder"
local vision = require "converters.classes.zoo.vision"
local history = require "converters.classes.zoo.history"

local below, linear, any = class.below, class.linear, class.kinds.any

local llava = {}

local function section(value, name) return value and kinds_of.is_dict(value, name) and value[name] or nil end

---A projector of the config, and where it is.
---@class ZooProjector
---@field config Dict|nil
---@field name string

---The projector of the config as the section `projector` has it.
---@return ZooProjector
local function of_llava(c) return { config = section(c.projector, "image_model"), name = "projector.image_model" } end

---The projector of the config that the image models of a MultimodalSimple share.
---@return ZooProjector
local function of_simple(c)
  return { config = section(c.image_model_list, "global_image_projection"), name = "image_model_list.global_image_projection" }
end

---The sizes that the outputs of the projector's Linears have.
local function units_of(projector)
  return projector.config and kinds_of.is_list(projector.config, "layers_units") and projector.config.layers_units or {}
end

---@param projector ZooProjector
local function derived_units(projector)
  local out, units = {}, units_of(projector)
  for i = 1, #units do out["units_" .. i] = { units[i], projector.name .. ".layers_units" } end
  return out
end

---The Linears of the projector.
---@param projector ZooProjector
---@param place string
local function linears_of(projector, place)
  local layers, units = {}, units_of(projector)
  for i = 1, #units do
    local inputs = i == 1 and projector.name .. ".input_unit" or "units_" .. i - 1
    layers[i] = linear(("ffn.%d.linear_layer"):format(i - 1), inputs, "units_" .. i, projector.config.use_bias == true)
  end
  return below(place, layers)
end

---The image model as a part.
---@param place string   where its tensors are
function llava.image_part(place)
  return class.new "ViTModel" {
    fields = vision.ViTModel.fields, derived = vision.ViTModel.derived, refused = vision.ViTModel.refused,
    tensors = function(c) return below(place, vision.ViTModel.nodes(c)) end,
  }
end

---The language model with the projector, whose section is beside it in the config.
---@param place string   where the projector's tensors are
---@param removed? table<string, string>   fields that the class refuses
function llava.text_part(place, removed)
  return class.new "LlamaModel" {
    removed = removed,
    fields = class.extend(decoder.GPT2LMHeadModel.fields, { projector = any() }),
    derived = function(c) return class.extend(decoder.GPT2LMHeadModel.derived(c), derived_units(of_llava(c))) end,
    tensors = function(c, since)
      return { below("text_model", decoder.GPT2LMHeadModel.nodes(c, since)), linears_of(of_llava(c), place) }
    end,
  }
end

llava.LlavaModel = class.new "LlavaModel" {
  removed = { label_smoothing = "2.4", z_loss_eps = "2.4" },
  history = { image_model = vision.ViTModel.history, text_model = history.gpt2 },
  fields = { image_model = any(), text_model = any(), projector = any() }, derived = function(c) return derived_units(of_llava(c)) end,
  tensors = function(c)
    return {
      class.part("image_model", vision.ViTModel, c.image_model),
      class.part("text_model", decoder.GPT2LMHeadModel, c.text_model),
      linears_of(of_llava(c), "projector_image_model"),
    }
  end,
}

---The one image model of a MultimodalSimple.
---@param list any   image_model_list
---@return Dict|nil encoder
function llava.only_encoder(list)
  local models = list and kinds_of.is_dict(list) and kinds_of.is_list(list, "image_models") and list.image_models
  local first = models and #models == 1 and kinds_of.is_dict(models[1]) and models[1]
  if not first then return nil end
  if kinds_of.is_dict(first, "image_encoder") then return first.image_encoder end
  local parts = kinds_of.is_list(first, "image_model") and first.image_model -- as in release 2.3, with a projection behind it
  return parts and #parts == 1 and kinds_of.is_dict(parts[1]) and parts[1] or nil
end

llava.MultimodalSimple = class.new "MultimodalSimple" {
  history = { text_model = history.gpt2 },
  fields = { image_model_list = any(), text_model = any() },
  derived = function(c) return derived_units(of_simple(c)) end,
  tensors = function(c)
    local encoder = llava.only_encoder(c.image_model_list)
    return {
      encoder and class.part("image_model.image_model_list.0.0", vision.ViTModel, encoder),
      class.part("text_model", decoder.GPT2LMHeadModel, c.text_model),
      linears_of(of_simple(c), "image_model.projection"),
    }
  end,
}

return class.module(llava)
