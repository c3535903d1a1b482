-- What GPT-2 and related models (BTLM, JAIS, SantaCoder, StarCoder) have in common, against the Model Zoo's GPT2LMHeadModel.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"

local gpt2 = {}

-- --- keys

---The key rules of a layer.
---@param attention table   rules of queries, keys and values
---@param matrix? Action    on the other weights: `actions.transpose` if they are Conv1D on the left
function gpt2.layer(attention, matrix)
  return rules.keys {
    -- Hugging Face                  Model Zoo                                           where bytes change
    { "attn.c_proj.{weight,bias}",  "self_attn.proj_output_dense_layer.{weight,bias}",   matrix },
    attention,
    { "ln_1.{weight,bias}",         "norm1.{weight,bias}" },
    { "ln_2.{weight,bias}",         "norm3.{weight,bias}" },
    { "mlp.c_fc.{weight,bias}",     "ffn.ffn.0.linear_layer.{weight,bias}",              matrix },
    { "mlp.c_proj.{weight,bias}",   "ffn.ffn.1.linear_layer.{weight,bias}",              matrix },
  }
end

---The key rules of a model without its head.
---@param layer table
---@param is_2_0? boolean   up to 2.0, position embeddings are not a module of their own
function gpt2.body(layer, is_2_0)
  local old, now = "embedding_layer.position_embeddings.{weight,bias}", "embedding_layer.position_embeddings.embed.{weight,bias}"
  return rules.keys {
    { "wpe.{weight,bias}",          is_2_0 and old or now },
    decoder.embedding "wte",
    not is_2_0 and { "wpe.{weight,bias}", old, read_only = "its name up to 2.0" },
    { "h.N",                        "transformer_decoder.layers.N",                      layer },
    decoder.final_norm "ln_f",
  }
end

-- --- config

gpt2.config = fields.config {
  fields.fixed.right { use_bias_in_output = false },
  { "vocab_size" },
  { "embd_pdrop",          "embedding_dropout_rate" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "n_embd",              "hidden_size" },
  { "n_head",              "num_heads" },
  { "n_layer",             "num_hidden_layers" },
  { "n_positions",         "max_position_embeddings" },
  { "scale_attn_weights",  "attention_type", values.choice { [true] = "scaled_dot_product", [false] = "dot_product" } },
  { "n_inner",             "filter_size" },
  { "activation_function", "nonlinearity",            values.activation },
  { "attn_pdrop",          "attention_dropout_rate" },
  { "resid_pdrop",         "dropout_rate" },
  { "rotary_dim" },
  { "layer_norm_epsilon" },
  { "initializer_range" },
}

return gpt2
