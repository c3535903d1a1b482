-- CLIP's image tower against the Model Zoo's ViT: what LLaVA and CLIP by itself have in common.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"

local fixed = fields.fixed

local clip = {}

-- --- keys

---The class token's position is Hugging Face's first row, and the Model Zoo's last.
local token_first = actions.pair("class token", function(t)
  local rows = t:shape()[1]
  return cbk.cat({ t:slice(0, 1, rows), t:slice(0, 0, 1) }, 0)
end, function(t)
  local rows = t:shape()[1]
  return cbk.cat({ t:slice(0, rows - 1, rows), t:slice(0, 0, rows - 1) }, 0)
end)

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
  { "embeddings.position_embedding.weight",     "embedding_layer.position_embeddings.weight", token_first },
  { "embeddings.patch_embedding.{weight,bias}", "embedding_layer.linear_proj.{weight,bias}" },
  { "pre_layrnorm.{weight,bias}",               "embedding_layer.post_embed_ln.{weight,bias}" },
  { "encoder.layers.N",                         "encoder.transformer_encoder.layers.N", layer },
  { "post_layernorm.{weight,bias}",             "encoder.transformer_encoder.norm.{weight,bias}" },
}

-- --- config

---The side of a square, of which the Model Zoo has height and width.
local function side_of(sides)
  local is_pair = type(sides) == "userdata" and (cbk.kind(sides) == "list" or cbk.kind(sides) == "tuple") and #sides == 2
  return is_pair and sides[1] == sides[2] and type(sides[1]) == "number" and sides[1] or nil
end

---Hugging Face has one number where the Model Zoo has height and width.
local square = {
  forward = function(size) return cbk.list { size, size } end,
  backward = function(sides, at)
    if not side_of(sides) then at:refuse(sides, "a list of two equal numbers") end
    return cbk.raw(sides, 1)
  end,
}

---Images are whole patches: the Model Zoo's model asks for it.
local function check_patches(size, patch, at)
  if type(patch) == "number" and patch > 0 and size % patch ~= 0 then
    at:refuse(at.from[at.field], ("a multiple of patch_size (%s)"):format(patch))
  end
end
local image = {
  forward = function(size, at)
    check_patches(size, at.from.patch_size, at)
    return square.forward(size)
  end,
  backward = function(sides, at)
    local out = square.backward(sides, at)
    check_patches(side_of(sides), side_of(at.from.patch_size), at)
    return out
  end,
}

---The Model Zoo's converter makes silu a swiglu, though CLIP has no gates.
local function with_notice(change)
  return function(name, at)
    local out = change(name, at)
    if name == "silu" or name == "swiglu" then
      cbk.warn(("%s=%s becomes %s, as in the Model Zoo's converter: swiglu has a gate, for which CLIP has no weights"):format(at.field,
        fields.shown(name), fields.shown(out)))
    end
    return out
  end
end

local names = values.activations { silu = "swiglu", gelu_pytorch_tanh = "gelu_new" }
local activation = { forward = with_notice(names.forward), backward = with_notice(names.backward) }

---The Model Zoo's embedding layer does not read the field.
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
  { "num_labels", false, { forward = function(count, at) at:set("num_classes", count) end } },
  { "attention_dropout",   "attention_dropout_rate" },
  fields.written.right { dropout_rate = cbk.float(0) },
  { "hidden_size" },
  { "num_hidden_layers" },
  { "layer_norm_eps",      "layer_norm_epsilon",       epsilon_of_norms },
  { "num_attention_heads", "num_heads" },
  { "hidden_act",          "nonlinearity",             activation },
  { "intermediate_size",   "filter_size" },
  { "initializer_range" },
  { "image_size", nil, image },
  { "num_channels" },
  { "patch_size", nil, square },
  { "encoder_stride", false, { forward = function(stride, at)
    if stride ~= at.from.patch_size then at:refuse(stride, ("the patch_size (%s)"):format(fields.shown(at.from.patch_size))) end
  end } },
}

clip.defaults = { right = fields.with(layout, { num_classes = 512 }) }

return clip
