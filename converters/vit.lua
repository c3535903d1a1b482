-- ViT, with and without its classifier.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local labels = require "converters.shared.labels"
local vision = require "converters.shared.vision"
local classes = require "converters.classes.hf.vit"
local zoo = require "converters.classes.zoo.vision"

local between = rules.between

local body = rules.keys {
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
local with_head, headless = vision.heads("vit", body, 1)

local hf = {
  config = fields.config {
    fields.fixed.left { model_type = "vit" },
    vision.layout,
    { "num_labels",                   "num_classes" },
    { "hidden_dropout_prob",          "dropout_rate" },
    { "attention_probs_dropout_prob", "attention_dropout_rate" },
    { "layer_norm_eps",               "layer_norm_epsilon" },
    vision.config,
    vision.feed_forward,
  },
  prepare = { left = labels },
  finish = { left = function(to) to.encoder_stride = cbk.raw(to, "patch_size") end },
}

return {
  {
    model = "vit", name = "vision_transformer", note = "ViTForImageClassification <-> ViTClassificationModel",
    classes = { left = classes.ViTForImageClassification, right = zoo.ViTClassificationModel },
    between("hf", "cs-2.1 .. cs-2.9", hf, with_head),
  },
  {
    model = "vit-headless", name = "vision_transformer", note = "ViTModel <-> ViTClassificationModel",
    classes = { left = classes.ViTModel, right = zoo.ViTClassificationModel },
    between("hf", "cs-2.1 .. cs-2.9", hf, headless),
  },
}
