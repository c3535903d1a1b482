-- What GPT-J and CodeGen have in common, against the Model Zoo's GPTJModel: parallel attention under one norm.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"

local only = rules.only

local gptj = {}

-- --- keys

---The key rules of a model without its head.
---@param attention table   rules of queries, keys and values, and of buffers that only one side has
---@param made table|nil    buffers that the way back makes from the config (`also_left`)
function gptj.body(attention, made)
  local layer = rules.keys {
    -- Hugging Face                    Model Zoo
    attention,
    { "attn.out_proj.weight",         "self_attn.proj_output_dense_layer.weight", also_left = made },
    { "attn.out_proj.bias",           "self_attn.proj_output_dense_layer.bias" },
    { "ln_1.{weight,bias}",           "norm1.{weight,bias}" },
    { "mlp.fc_in.{weight,bias}",      "ffn.ffn.0.linear_layer.{weight,bias}" },
    { "mlp.fc_out.{weight,bias}",     "ffn.ffn.1.linear_layer.{weight,bias}" },
  }
  return rules.keys {
    decoder.embedding "wte",
    decoder.final_norm "ln_f",
    { "h.N", "transformer_decoder.layers.N", layer },
    only.left("h.N.attn.{masked_bias,bias}", "made from the config"),
  }
end

-- --- config

gptj.config = fields.config {
  fields.fixed.right {
    attention_type = "scaled_dot_product", use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false,
    use_ffn_bias = true, use_untied_layer_norm = false,
  },
  { "vocab_size" },
  { "rotary_dim",          "rotary_dim",              rotary.dim("n_embd", "n_head") },
  rotary.unscaled(),
  { "embd_pdrop",          "embedding_dropout_rate" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "n_embd",              "hidden_size" },
  { "n_head",              "num_heads" },
  { "n_layer",             "num_hidden_layers" },
  { "n_positions",         "max_position_embeddings" },
  { "n_inner",             "filter_size" },
  { "activation_function", "nonlinearity",            values.activation },
  { "attn_pdrop",          "attention_dropout_rate" },
  { "resid_pdrop",         "residual_dropout_rate" },
  { "layer_norm_epsilon" },
  { "initializer_range" },
}

local in_one_form = rotary.in_one_form { rope_type = "default", rope_theta = 10000 }

---For `prepare.left`.
function gptj.prepare(from, given)
  decoder.inner_size(from)
  return in_one_form(from, given)
end

return gptj
