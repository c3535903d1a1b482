-- GPT-NeoX: queries, keys and values fused head by head, rotary positions on a part of each head, parallel attention under
-- two norms, against the Model Zoo's GPTJModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.gpt_neox"
local zoo = require "converters.classes.zoo.decoder"

local fixed, used = fields.fixed, fields.used
local buffer = actions.buffer
local float = cbk.float
local between, variant = rules.between, rules.variant

-- --- keys

local qkv = actions.qkv.grouped(actions.qkv.heads)

local layer = rules.keys {
  -- Hugging Face                              Model Zoo                                                where bytes change
  { "attention.query_key_value.weight",       actions.qkv.keys "self_attn.proj_%s_dense_layer.weight", qkv },
  { "attention.query_key_value.bias",         actions.qkv.keys "self_attn.proj_%s_dense_layer.bias",   qkv,
    also_left = {
      { "attention.bias",                     buffer.causal_mask "max_position_embeddings" },
      { "attention.masked_bias",              buffer.scalar(-1e9) },
      { "attention.rotary_emb.inv_freq",      actions.rotary.frequencies(10000) },
    } },
  { "attention.dense.{weight,bias}",          "self_attn.proj_output_dense_layer.{weight,bias}" },
  { "input_layernorm.{weight,bias}",          "norm1.{weight,bias}" },
  { "post_attention_layernorm.{weight,bias}", "norm3.{weight,bias}" },
  { "mlp.dense_h_to_4h.{weight,bias}",        "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "mlp.dense_4h_to_h.{weight,bias}",        "ffn.ffn.1.linear_layer.{weight,bias}" },
}

local body = rules.keys {
  decoder.embedding "embed_in",
  decoder.final_norm "final_layer_norm",
  { "layers.N", "transformer_decoder.layers.N", layer },
}

-- --- config

local config = fields.config {
  fixed.left { model_type = "gpt_neox" },
  fixed.right {
    attention_type = "scaled_dot_product", use_projection_bias_in_attention = true, use_ffn_bias_in_attention = true, use_ffn_bias = true,
    use_bias_in_output = false, use_untied_layer_norm = true, embedding_dropout_rate = float(0),
  },
  { "vocab_size" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "hidden_size" },
  { "num_attention_heads", "num_heads" },
  { "num_hidden_layers" },
  { "max_position_embeddings" },
  { "intermediate_size",   "filter_size" },
  { "hidden_act",          "nonlinearity",            values.activation },
  { "layer_norm_eps",      "layer_norm_epsilon" },
  { "attention_dropout",   "attention_dropout_rate" },
  { "hidden_dropout",      "residual_dropout_rate" },
  { "rotary_pct",          "rotary_dim",              rotary.share "num_attention_heads" },
  used.left { "rope_theta", "partial_rotary_factor" },
  fixed.left { rotary_emb_base = 10000 },
  rotary.scaling { "linear", "yarn", "longrope" },
  { "initializer_range" },
}

local own_names = { rope_theta = "rotary_emb_base", partial_rotary_factor = "rotary_pct" }

local hf = {
  keys = body, config = config,
  prepare = { left = rotary.in_one_form({ rope_theta = 10000 }, own_names) },
  defaults = { left = { rope_scaling = cbk.null }, right = { rotary_dim = decoder.quarter_of_head } },
}

-- --- earlier releases, as what they lack: scaled positions, and dropout

local rope_fields = { "rope_scaling", "rope_parameters", "pos_scaling_factor", "pos_scaling_type", "pos_scaling_extra_args" }

local hf_2_0 = variant(hf, {
  tool = "2.0.3",
  config = fields.config {
    fields.without(config, { "attention_dropout", "hidden_dropout", unpack(rope_fields) }),
    fixed.right { attention_dropout_rate = float(0), residual_dropout_rate = float(0) },
    used.left { "rope_scaling", "rope_parameters" },
    fields.drop.left { attention_dropout = 0, hidden_dropout = 0 },
  },
})

return { decoder.models {
  model = "gpt-neox", note = "%s <-> GPTJModel (configured as GPT-NeoX)",
  classes = { with_head = classes.GPTNeoXForCausalLM, headless = classes.GPTNeoXModel, right = zoo.GPTJModel },
  history = rotary.unscaled_before_2_1(), place = "gpt_neox", embedding = "embed_in", head = "embed_out",
  between("cs-1.7", "cs-1.8", decoder.to_1_8),
  between("cs-1.8, cs-1.9", "cs-2.0", decoder.gptj_to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf),
  between("hf", "cs-1.8 .. cs-2.0", hf_2_0),
  between("hf", "cs-1.7", hf_2_0),
} }
