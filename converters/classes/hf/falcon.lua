-- Hugging Face's Falcon: configuration_falcon.py and modeling_falcon.py of transformers 4.48. The names of RefinedWeb, its
-- predecessor, are read as well.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, text, any, free = class.makers "size depth number positive rate boolean text any free"

local falcon = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(65024), hidden_size = size(4544, "n_embed"), num_hidden_layers = depth(32, "n_layer"),
  num_attention_heads = size(71, "n_head"), layer_norm_epsilon = positive(1e-5), initializer_range = number(0.02),
  hidden_dropout = rate(0), attention_dropout = rate(0), alibi = boolean(false), parallel_attn = boolean(true), bias = boolean(false),
  max_position_embeddings = size(2048), rope_theta = positive(10000), rope_scaling = any(), activation = text "gelu",
  tie_word_embeddings = boolean(true), use_cache = free(true),
  -- of one generation, as the others do not read them
  multi_query = class.free(boolean(true)), new_decoder_architecture = class.free(boolean(false)), num_kv_heads = class.free(size()),
  n_head_kv = class.free(size()), ffn_hidden_size = class.free(size()), num_ln_in_parallel_attn = class.free(size()),
}

---RefinedWeb of 40B is the one that counts its key heads.
local function is_new(c) return c.new_decoder_architecture or c.n_head_kv ~= nil end

local function derived(c)
  local rows = is_new(c) and "(num_attention_heads + 2 * kv_heads) * head_dim"
    or c.multi_query and "hidden_size + 2 * head_dim" or "3 * hidden_size"
  return {
    head_dim = "hidden_size / num_attention_heads", fused_rows = rows,
    kv_heads = c.num_kv_heads and "num_kv_heads" or c.n_head_kv and "n_head_kv" or "num_attention_heads",
    inner = c.ffn_hidden_size and "ffn_hidden_size" or "4 * hidden_size",
  }
end

local function norms(c)
  if is_new(c) and c.num_ln_in_parallel_attn ~= 1 then
    return { norm("ln_attn", "hidden_size"), norm("ln_mlp", "hidden_size") }
  end
  return { norm("input_layernorm", "hidden_size"), not c.parallel_attn and norm("post_attention_layernorm", "hidden_size") }
end

local function body(c)
  return {
    { "word_embeddings.weight", { "vocab_size", "hidden_size" } },
    each("h", "num_hidden_layers", {
      { "self_attention.rotary_emb.inv_freq", { "head_dim / 2" }, buffer = true },
      linear("self_attention.query_key_value", "hidden_size", "fused_rows", c.bias),
      linear("self_attention.dense", "hidden_size", "hidden_size", c.bias),
      linear("mlp.dense_h_to_4h", "hidden_size", "inner", c.bias),
      linear("mlp.dense_4h_to_h", "inner", "hidden_size", c.bias),
      norms(c),
    }),
    norm("ln_f", "hidden_size"),
  }
end

falcon.FalconModel = class.new "FalconModel" { fields = fields, derived = derived, tensors = body }

falcon.FalconForCausalLM = class.new "FalconForCausalLM" {
  fields = fields, derived = derived,
  tensors = function(c)
    return {
      below("transformer", body(c)),
      { "lm_head.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "transformer.word_embeddings.weight" },
    }
  end,
}

return class.module(falcon)
