-- Hugging Face's GPT-NeoX: configuration_gpt_neox.py and modeling_gpt_neox.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, bias, text, any, free =
  class.makers "size depth number positive rate boolean bias text any free"

local gpt_neox = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(50432), hidden_size = size(6144), num_hidden_layers = depth(44), num_attention_heads = size(64),
  intermediate_size = size(24576), hidden_act = text "gelu", rotary_pct = rate(0.25), rotary_emb_base = positive(10000),
  attention_dropout = rate(0), hidden_dropout = rate(0), classifier_dropout = rate(0.1), max_position_embeddings = size(2048),
  initializer_range = number(0.02), layer_norm_eps = positive(1e-5), use_cache = free(true), tie_word_embeddings = boolean(false),
  use_parallel_residual = boolean(true), rope_scaling = any(), attention_bias = bias(true), scale_attn_weights = boolean(true),
}

local function derived(c)
  local dim = math.floor(c.hidden_size / c.num_attention_heads * (c.rotary_pct or 1))
  return { head_dim = "hidden_size / num_attention_heads", rotary_dim = { dim, "hidden_size", "num_attention_heads", "rotary_pct" } }
end

local function body(c)
  return {
    { "embed_in.weight", { "vocab_size", "hidden_size" } },
    each("layers", "num_hidden_layers", {
      norm("input_layernorm", "hidden_size"),
      norm("post_attention_layernorm", "hidden_size"),
      { "attention.bias", { 1, 1, "max_position_embeddings", "max_position_embeddings" }, buffer = true },
      { "attention.masked_bias", {}, buffer = true },
      { "attention.rotary_emb.inv_freq", { "rotary_dim / 2" }, buffer = true },
      linear("attention.query_key_value", "hidden_size", "3 * hidden_size", c.attention_bias),
      linear("attention.dense", "hidden_size", "hidden_size", c.attention_bias),
      linear("mlp.dense_h_to_4h", "hidden_size", "intermediate_size", true),
      linear("mlp.dense_4h_to_h", "intermediate_size", "hidden_size", true),
    }),
    norm("final_layer_norm", "hidden_size"),
  }
end

gpt_neox.GPTNeoXModel = class.new "GPTNeoXModel" { fields = fields, derived = derived, tensors = body }

gpt_neox.GPTNeoXForCausalLM = class.new "GPTNeoXForCausalLM" {
  fields = fields, derived = derived,
  tensors = function(c)
    return {
      below("gpt_neox", body(c)),
      { "embed_out.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "gpt_neox.embed_in.weight" },
    }
  end,
}

return class.module(gpt_neox)
