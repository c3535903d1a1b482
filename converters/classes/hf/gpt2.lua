-- Hugging Face's GPT-2: configuration_gpt2.py and modeling_gpt2.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, conv1d, norm = class.below, class.each, class.conv1d, class.norm
local size, depth, number, positive, rate, boolean, text, free = class.makers "size depth number positive rate boolean text free"

local gpt2 = {}

local fields = {
  vocab_size = size(50257), n_positions = size(1024, "max_position_embeddings", "n_ctx"), n_embd = size(768, "hidden_size"),
  n_layer = depth(12, "num_hidden_layers"), n_head = size(12, "num_attention_heads"), n_inner = size(),
  activation_function = text "gelu_new", resid_pdrop = rate(0.1), embd_pdrop = rate(0.1), attn_pdrop = rate(0.1),
  layer_norm_epsilon = positive(1e-5), initializer_range = number(0.02), scale_attn_weights = boolean(true),
  scale_attn_by_inverse_layer_idx = boolean(false), reorder_and_upcast_attn = boolean(false), use_cache = free(true),
  tie_word_embeddings = boolean(true), add_cross_attention = boolean(false), summary_type = free "cls_index",
  summary_use_proj = free(true), summary_activation = free(), summary_first_dropout = free(0.1),
  summary_proj_to_labels = free(true),
}

local function derived(c) return { inner = c.n_inner and "n_inner" or "4 * n_embd", head_dim = "n_embd / n_head" } end

local body = {
  { "wte.weight", { "vocab_size", "n_embd" } },
  { "wpe.weight", { "n_positions", "n_embd" } },
  each("h", "n_layer", {
    norm("ln_1", "n_embd"),
    { "attn.bias", { 1, 1, "n_positions", "n_positions" }, buffer = true },
    { "attn.masked_bias", {}, buffer = true },
    conv1d("attn.c_attn", "n_embd", "3 * n_embd"),
    conv1d("attn.c_proj", "n_embd", "n_embd"),
    norm("ln_2", "n_embd"),
    conv1d("mlp.c_fc", "n_embd", "inner"),
    conv1d("mlp.c_proj", "inner", "n_embd"),
  }),
  norm("ln_f", "n_embd"),
}

gpt2.GPT2Model = class.new "GPT2Model" { fields = fields, derived = derived, tensors = function() return body end }

gpt2.GPT2LMHeadModel = class.new "GPT2LMHeadModel" {
  fields = fields, derived = derived,
  tensors = function(c)
    return {
      below("transformer", body),
      { "lm_head.weight", { "vocab_size", "n_embd" }, tied = c.tie_word_embeddings and "transformer.wte.weight" },
    }
  end,
}

return gpt2
