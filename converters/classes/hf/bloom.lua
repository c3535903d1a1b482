-- Hugging Face's BLOOM: configuration_bloom.py and modeling_bloom.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, free = class.makers "size depth number positive rate boolean free"

local bloom = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(250880), hidden_size = size(64, "n_embed"), n_layer = depth(2, "num_hidden_layers"),
  n_head = size(8, "num_attention_heads"), layer_norm_epsilon = positive(1e-5), initializer_range = number(0.02),
  use_cache = free(true), apply_residual_connection_post_layernorm = boolean(false), hidden_dropout = rate(0),
  attention_dropout = rate(0), pretraining_tp = free(1), slow_but_exact = free(false), tie_word_embeddings = boolean(true),
  scale_attn_by_inverse_layer_idx = boolean(false), reorder_and_upcast_attn = boolean(false),
}

local function derived() return { head_dim = "hidden_size / n_head" } end

local body = {
  { "word_embeddings.weight", { "vocab_size", "hidden_size" } },
  norm("word_embeddings_layernorm", "hidden_size"),
  each("h", "n_layer", {
    norm("input_layernorm", "hidden_size"),
    linear("self_attention.query_key_value", "hidden_size", "3 * hidden_size", true),
    linear("self_attention.dense", "hidden_size", "hidden_size", true),
    norm("post_attention_layernorm", "hidden_size"),
    linear("mlp.dense_h_to_4h", "hidden_size", "4 * hidden_size", true),
    linear("mlp.dense_4h_to_h", "4 * hidden_size", "hidden_size", true),
  }),
  norm("ln_f", "hidden_size"),
}

bloom.BloomModel = class.new "BloomModel" { fields = fields, derived = derived, tensors = function() return body end }

bloom.BloomForCausalLM = class.new "BloomForCausalLM" {
  fields = fields, derived = derived,
  tensors = function(c)
    return {
      below("transformer", body),
      { "lm_head.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "transformer.word_embeddings.weight" },
    }
  end,
}

return class.module(bloom)
