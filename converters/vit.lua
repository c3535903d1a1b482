-- ViT, with and without its classifier.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local vision = require "converters.shared.vision"
local classes = require "converters.classes.hf.vit"

local keys = rules.keys {
  vision.body(rules.keys {
    -- Hugging Face                      Model Zoo
    { "intermediate.dense.{weight,bias}", "ffn.ffn.0.linear_layer.{weight,bias}" },
    { "output.dense.{weight,bias}",       "ffn.ffn.1.linear_layer.{weight,bias}" },
    { "layernorm_before.{weight,bias}",   "norm1.{weight,bias}" },
    { "layernorm_after.{weight,bias}",    "norm2.{weight,bias}" },
  }),
  rules.drop.left("embeddings.mask_token", "the Model Zoo's model masks no patches"),
  rules.drop.left("pooler.dense.{weight,bias}", "the Model Zoo's model has no pooler with use_encoder_pooler_layer: false"),
}

return { vision.models {
  model = "vit", classes = { with_head = classes.ViTForImageClassification, headless = classes.ViTModel },
  formats = "cs-2.1 .. cs-2.9", keys = keys, inputs = 1, config = vision.feed_forward,
  finish = { left = function(to) to.encoder_stride = cbk.raw(to, "patch_size") end },
} }
