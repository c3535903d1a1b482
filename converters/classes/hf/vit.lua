-- Hugging Face's ViT and DINOv2: configuration and modeling of vit and dinov2 in transformers 4.48.

local class = require "converters.engine.class"
local bert = require "converters.classes.hf.bert"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, bias, text, free =
  class.makers "size depth number positive rate boolean bias text free"

local vit = {}

local RATIO = 4 -- of a DINOv2's inner width to its hidden size

local fields = {
  hidden_size = size(768), num_hidden_layers = depth(12), num_attention_heads = size(12), num_channels = size(3), image_size = size(224),
  hidden_act = text "gelu", hidden_dropout_prob = rate(0), attention_probs_dropout_prob = rate(0), initializer_range = number(0.02),
  qkv_bias = bias(true), id2label = free(), num_labels = class.free(size()),
}
local vit_fields = class.extend(fields, {
  intermediate_size = size(3072), patch_size = size(16), layer_norm_eps = positive(1e-12), encoder_stride = size(),
})
local dinov2_fields = class.extend(fields, {
  patch_size = size(14), layer_norm_eps = positive(1e-6), mlp_ratio = positive(RATIO), layerscale_value = number(1),
  drop_path_rate = rate(0), use_swiglu_ffn = boolean(false), apply_layernorm = free(true), reshape_hidden_states = free(true),
  out_features = free(), out_indices = free(), stage_names = free(),
})

local function derived(c)
  local patches = math.floor(c.image_size / c.patch_size)
  return { labels = bert.derived(c).labels, positions = { patches * patches + 1, "image_size", "patch_size" } }
end

---The width between both layers of a DINOv2's feed-forward part.
---@param hidden integer
---@param ratio number
---@param is_gated boolean
---@return integer
function vit.inner_size(hidden, ratio, is_gated)
  local inner = math.floor(hidden * ratio)
  return is_gated and math.floor((math.floor(inner * 2 / 3) + 7) / 8) * 8 or inner
end

local function derived_of_dinov2(c)
  local inner = vit.inner_size(c.hidden_size, c.mlp_ratio or RATIO, c.use_swiglu_ffn)
  return class.extend(derived(c), { inner = { inner, "hidden_size", "mlp_ratio", "use_swiglu_ffn" } })
end

---@param mask_token TensorNode
---@param layer TensorNode   what is in a layer besides its attention
local function body(c, mask_token, layer)
  return {
    { "embeddings.cls_token", { 1, 1, "hidden_size" } },
    mask_token,
    { "embeddings.position_embeddings", { 1, "positions", "hidden_size" } },
    { "embeddings.patch_embeddings.projection.weight", { "hidden_size", "num_channels", "patch_size", "patch_size" } },
    { "embeddings.patch_embeddings.projection.bias", { "hidden_size" }, init = 0 },
    each("encoder.layer", "num_hidden_layers", {
      linear("attention.attention.query", "hidden_size", "hidden_size", c.qkv_bias),
      linear("attention.attention.key", "hidden_size", "hidden_size", c.qkv_bias),
      linear("attention.attention.value", "hidden_size", "hidden_size", c.qkv_bias),
      linear("attention.output.dense", "hidden_size", "hidden_size", true),
      layer,
    }),
    norm("layernorm", "hidden_size"),
  }
end

local function vit_body(c)
  return body(c, { "embeddings.mask_token", { 1, 1, "hidden_size" }, optional = true }, {
    linear("intermediate.dense", "hidden_size", "intermediate_size", true),
    linear("output.dense", "intermediate_size", "hidden_size", true),
    norm("layernorm_before", "hidden_size"), norm("layernorm_after", "hidden_size"),
  })
end

local function dinov2_body(c)
  local inner = c.use_swiglu_ffn
    and { linear("mlp.weights_in", "hidden_size", "2 * inner", true), linear("mlp.weights_out", "inner", "hidden_size", true) }
    or { linear("mlp.fc1", "hidden_size", "inner", true), linear("mlp.fc2", "inner", "hidden_size", true) }
  return body(c, { "embeddings.mask_token", { 1, "hidden_size" } }, {
    inner, norm("norm1", "hidden_size"), norm("norm2", "hidden_size"),
    { "layer_scale1.lambda1", { "hidden_size" } }, { "layer_scale2.lambda1", { "hidden_size" } },
  })
end

vit.ViTForImageClassification = class.new "ViTForImageClassification" {
  fields = vit_fields, derived = derived,
  tensors = function(c) return { below("vit", vit_body(c)), linear("classifier", "hidden_size", "labels", true) } end,
}

vit.ViTModel = class.new "ViTModel" {
  fields = vit_fields, derived = derived,
  tensors = function(c)
    return { vit_body(c), class.optional(linear("pooler.dense", "hidden_size", "hidden_size", true)) }
  end,
}

vit.Dinov2ForImageClassification = class.new "Dinov2ForImageClassification" {
  fields = dinov2_fields, derived = derived_of_dinov2,
  tensors = function(c) return { below("dinov2", dinov2_body(c)), linear("classifier", "2 * hidden_size", "labels", true) } end,
}

vit.Dinov2Model = class.new "Dinov2Model" { fields = dinov2_fields, derived = derived_of_dinov2, tensors = dinov2_body }

return class.module(vit)
