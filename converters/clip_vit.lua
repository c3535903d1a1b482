-- CLIP's image tower with its projection, which the Model Zoo has as an image classifier.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local clip = require "converters.shared.clip"
local classes = require "converters.classes.hf.clip"
local zoo = require "converters.classes.zoo.vision"

return { {
  model = "clip-vit", name = "vision_transformer", note = "CLIPVisionModelWithProjection <-> ViTClassificationModel",
  classes = { left = classes.CLIPVisionModelWithProjection, right = zoo.ViTClassificationModel },
  {
    "hf", "cs-2.1 .. cs-2.9",
    keys = rules.keys {
      -- Hugging Face                      Model Zoo
      { "vision_model",                    "vit_model", clip.tower },
      { "visual_projection.{weight,bias}", "classifier.classifier.ffn.0.linear_layer.{weight,bias}" },
    },
    config = fields.config { fields.fixed.left { model_type = "clip_vision_model" }, clip.config },
    defaults = clip.defaults,
  },
} }
