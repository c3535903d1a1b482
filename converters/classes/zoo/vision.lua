-- The Model Zoo's ViT (ViTModel.py, ViTClassificationModel.py). Fields and defaults: Model Zoo 2.9.

local cbk = require "cbk"
local class = require "converters.engine.class"
local kinds_of = require "converters.engine.kinds"
local parts = require "converters.classes.zoo.parts"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, bias, text, choice, any =
  class.makers "size depth number positive rate boolean bias text choice any"

local vision = {}

local fields = {
  hidden_size = size(768), num_hidden_layers = depth(12), num_heads = size(12), filter_size = size(3072), num_channels = size(3),
  image_size = any(cbk.list { 224, 224 }), patch_size = any(cbk.list { 16, 16 }),
  position_embedding_type = class.deciding(choice "learned", "fixed"),
  prepend_cls_token = boolean(true),
  use_conv_patchified_embedding = boolean(false), use_embed_proj_bias = boolean(true), use_post_embed_layer_norm = boolean(false),
  use_encoder_pooler_layer = boolean(false), use_final_layer_norm = boolean(true), norm_first = boolean(true),
  nonlinearity = choice "gelu", layer_norm_epsilon = positive(1e-5), dropout_rate = rate(0), attention_dropout_rate = rate(0.1),
  use_projection_bias_in_attention = bias(true), use_ffn_bias_in_attention = bias(true), use_ffn_bias = bias(true),
  attention_type = text "scaled_dot_product", initializer_range = number(0.02), use_bias_in_output = boolean(true),
  num_classes = size(2), layerscale_value = class.deciding(number(), 1), use_masked_patches = boolean(false),
  use_dinov2_classifier = boolean(false),
  stochastic_depth_drop_prob = rate(0),
}

local history = {
  layerscale_value = { "2.4", cbk.null }, use_masked_patches = { "2.4", false }, use_dinov2_classifier = { "2.4", false },
}

---Height and width of what is a list of two numbers, or one number.
local function extent(value, i, default)
  if type(value) == "number" then return value end
  return kinds_of.is_list(value) and type(value[i]) == "number" and value[i] or default
end

local function derived(c)
  local height, width = extent(c.patch_size, 1, 16), extent(c.patch_size, 2, 16)
  local patches = math.floor(extent(c.image_size, 1, 224) / height) * math.floor(extent(c.image_size, 2, 224) / width)
  return {
    patch_height = { height, "patch_size" }, patch_width = { width, "patch_size" },
    positions = { patches + (c.prepend_cls_token and 1 or 0), "image_size", "patch_size" },
  }
end

local function tower(c)
  local sizes = { width = "hidden_size", inner = "hidden_size" }
  local patch = c.use_conv_patchified_embedding and { "hidden_size", "num_channels", "patch_height", "patch_width" }
    or { "hidden_size", "num_channels * patch_height * patch_width" }
  return {
    c.prepend_cls_token and { "embedding_layer.cls_embedding", { "hidden_size" } },
    c.use_masked_patches and { "embedding_layer.mask_token", { "hidden_size" }, init = 0 },
    { "embedding_layer.linear_proj.weight", patch },
    c.use_embed_proj_bias and { "embedding_layer.linear_proj.bias", { "hidden_size" } },
    c.position_embedding_type == "learned" and { "embedding_layer.position_embeddings.weight", { "positions", "hidden_size" } },
    c.use_post_embed_layer_norm and norm("embedding_layer.post_embed_ln", "hidden_size"),
    below("encoder", {
      each("transformer_encoder.layers", "num_hidden_layers", {
        parts.attention("self_attn", sizes, c.use_projection_bias_in_attention, c.use_ffn_bias_in_attention),
        parts.feed_forward("ffn", "hidden_size", "filter_size", c.nonlinearity, c.use_ffn_bias),
        norm("norm1", "hidden_size"),
        norm("norm2", "hidden_size"),
        c.layerscale_value and { { "layer_scale1", { "hidden_size" } }, { "layer_scale2", { "hidden_size" } } },
      }),
      c.use_final_layer_norm and norm("transformer_encoder.norm", "hidden_size"),
      c.use_encoder_pooler_layer and linear("pooler.pooler.ffn.0.linear_layer", "hidden_size", "hidden_size", true),
    }),
  }
end

vision.ViTModel = class.new "ViTModel" {
  fields = fields, derived = derived, history = history, tensors = tower, refused = { num_classes = "2.4", use_bias_in_output = "2.4" },
}

vision.ViTClassificationModel = class.new "ViTClassificationModel" {
  fields = fields, derived = derived, history = history,
  tensors = function(c)
    local inputs = c.use_dinov2_classifier and "2 * hidden_size" or "hidden_size" -- of the class token, and the mean of the others
    return {
      below("vit_model", tower(c)),
      linear("classifier.classifier.ffn.0.linear_layer", inputs, "num_classes", c.use_bias_in_output),
    }
  end,
}

return class.module(vision)
