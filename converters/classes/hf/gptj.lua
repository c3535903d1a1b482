-- Hugging Face's GPT-J and CodeGen: modeling_gptj.py and modeling_codegen.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, text, free = class.makers "size depth number positive rate boolean text free"

local gptj = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(50400), n_positions = size(2048, "max_position_embeddings"), n_embd = size(4096, "hidden_size"),
  n_layer = depth(28, "num_hidden_layers"), n_head = size(16, "num_attention_heads"), n_inner = size(), rotary_dim = class.free(size(64)),
  activation_function = text "gelu_new", resid_pdrop = rate(0), embd_pdrop = rate(0), attn_pdrop = rate(0),
  layer_norm_epsilon = positive(1e-5), initializer_range = number(0.02), use_cache = free(true),
  tie_word_embeddings = boolean(false), scale_attn_weights = boolean(true), rotary = boolean(true), use_bias_in_output = boolean(true),
}

local function derived(c) return { inner = c.n_inner and "n_inner" or "4 * n_embd", head_dim = "n_embd / n_head" } end

---@param attention TensorNode   the projections
local function body(attention)
  return {
    { "wte.weight", { "vocab_size", "n_embd" } },
    each("h", "n_layer", {
      norm("ln_1", "n_embd"),
      { "attn.bias", { 1, 1, "n_positions", "n_positions" }, buffer = true },
      { "attn.masked_bias", {}, buffer = true },
      attention,
      linear("mlp.fc_in", "n_embd", "inner", true),
      linear("mlp.fc_out", "inner", "n_embd", true),
    }),
    norm("ln_f", "n_embd"),
  }
end

---@param nodes TensorNode
local function with_head(nodes)
  return function(c)
    return {
      below("transformer", nodes),
      { "lm_head.weight", { "vocab_size", "n_embd" }, tied = c.tie_word_embeddings and "transformer.wte.weight" },
      { "lm_head.bias", { "vocab_size" } },
    }
  end
end

local own = body {
  linear("attn.k_proj", "n_embd", "n_embd"),
  linear("attn.v_proj", "n_embd", "n_embd"),
  linear("attn.q_proj", "n_embd", "n_embd"),
  linear("attn.out_proj", "n_embd", "n_embd"),
}

local codegen = body {
  { "attn.causal_mask", { 1, 1, "n_positions", "n_positions" }, buffer = true },
  linear("attn.qkv_proj", "n_embd", "3 * n_embd"),
  linear("attn.out_proj", "n_embd", "n_embd"),
}

gptj.GPTJModel = class.new "GPTJModel" { fields = fields, derived = derived, tensors = function() return own end }
gptj.GPTJForCausalLM = class.new "GPTJForCausalLM" { fields = fields, derived = derived, tensors = with_head(own) }

local codegen_fields = class.extend(fields, { n_ctx = free(2048) }) -- which its code does not read
codegen_fields.rotary, codegen_fields.use_bias_in_output = nil, nil

gptj.CodeGenModel = class.new "CodeGenModel" { fields = codegen_fields, derived = derived, tensors = function() return codegen end }
gptj.CodeGenForCausalLM = class.new "CodeGenForCausalLM" { fields = codegen_fields, derived = derived, tensors = with_head(codegen) }

return class.module(gptj)
