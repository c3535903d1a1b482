-- CLIP's image tower against the Model Zoo's ViT, for LLaVA and for CLIP alone.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local vision = require "converters.shared.vision"

local fixed = fields.fixed

local clip = {}

-- --- keys

local layer = rules.keys {
  -- Hugging Face                      Model Zoo
  { "self_attn.q_proj.{weight,bias}",   "self_attn.proj_q_dense_layer.{weight,bias}" },
  { "self_attn.k_proj.{weight,bias}",   "self_attn.proj_k_dense_layer.{weight,bias}" },
  { "self_attn.v_proj.{weight,bias}",   "self_attn.proj_v_dense_layer.{weight,bias}" },
  { "self_attn.out_proj.{weight,bias}", "self_attn.proj_output_dense_layer.{weight,bias}" },
  { "mlp.fc1.{weight,bias}",            "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "mlp.fc2.{weight,bias}",            "ffn.ffn.1.linear_layer.{weight,bias}" },
  { "layer_norm1.{weight,bias}",        "norm1.{weight,bias}" },
  { "layer_norm2.{weight,bias}",        "norm2.{weight,bias}" },
}

clip.tower = rules.keys {
  rules.only.left("embeddings.position_ids", "the numbers of the rows"),
  { "embeddings.class_embedding",               "embedding_layer.cls_embedding" },
  { "embeddings.position_embedding.weight",     "embedding_layer.position_embeddings.weight", vision.token_first },
  { "embeddings.patch_embedding.{weight,bias}", "embedding_layer.linear_proj.{weight,bias}" },
  { "pre_layrnorm.{weight,bias}",               "embedding_layer.post_embed_ln.{weight,bias}" },
  { "encoder.layers.N",                         "encoder.transformer_encoder.layers.N", layer },
  { "post_layernorm.{weight,bias}",             "encoder.transformer_encoder.norm.{weight,bias}" },
}

-- --- config

---Warns about an epsilon that the Model Zoo's embedding layer does not read.
local USUAL_EPSILON = 1e-5
local function warn_of_epsilon(epsilon, at)
  if type(epsilon) == "number" and epsilon ~= USUAL_EPSILON then
    cbk.warn(("%s=%s: the norm behind the embeddings always uses %g in the Model Zoo, so outputs differ slightly"):format(at.field,
      fields.shown(epsilon), USUAL_EPSILON))
  end
  return cbk.raw(at.from, at.field)
end
local epsilon_of_norms = { forward = warn_of_epsilon, backward = warn_of_epsilon }

local layout = {
  attention_type = "scaled_dot_product", position_embedding_type = "learned", prepend_cls_token = true, use_bias_in_output = false,
  use_conv_patchified_embedding = true, use_embed_proj_bias = false, use_encoder_pooler_layer = false, use_ffn_bias = true,
  use_ffn_bias_in_attention = true, use_post_embed_layer_norm = true, use_projection_bias_in_attention = true,
}

clip.config = fields.config {
  fixed.right(layout),
  fixed.right { norm_first = true },
  { "projection_dim",      "num_classes" },
  { "num_labels", false, { forward = function(count, at)
    if kinds.absent(at.from.projection_dim) then at:set("num_classes", count) end -- else it says the same twice
  end } },
  { "attention_dropout",   "attention_dropout_rate" },
  fields.written.right { dropout_rate = cbk.float(0) },
  { "layer_norm_eps",      "layer_norm_epsilon",       epsilon_of_norms },
  vision.config,
  vision.feed_forward,
}

clip.defaults = { right = fields.with(layout, { num_classes = 512 }) }

return clip
