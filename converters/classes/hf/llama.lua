-- Hugging Face's LLaMA: configuration_llama.py and modeling_llama.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, text, any, free = class.makers "size depth number positive rate boolean text any free"

local llama = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(32000), hidden_size = size(4096), intermediate_size = size(11008), num_hidden_layers = depth(32),
  num_attention_heads = size(32), num_key_value_heads = size(), head_dim = size(), max_position_embeddings = size(2048),
  hidden_act = text "silu", rms_norm_eps = positive(1e-6), initializer_range = number(0.02), attention_bias = boolean(false),
  mlp_bias = boolean(false), attention_dropout = rate(0), rope_theta = positive(10000), rope_scaling = any(),
  tie_word_embeddings = boolean(false), use_cache = free(true), pretraining_tp = free(1), sliding_window = any(),
  partial_rotary_factor = positive(1),
}

local function derived(c)
  return {
    num_key_value_heads = c.num_key_value_heads or "num_attention_heads",
    head_dim = c.head_dim or "hidden_size / num_attention_heads",
  }
end

local function is_biased(c) return c.attention_bias end

local function gated(c)
  return {
    linear("mlp.gate_proj", "hidden_size", "intermediate_size", c.mlp_bias),
    linear("mlp.up_proj", "hidden_size", "intermediate_size", c.mlp_bias),
    linear("mlp.down_proj", "intermediate_size", "hidden_size", c.mlp_bias),
  }
end

local function separate(_, bias)
  return {
    linear("self_attn.q_proj", "hidden_size", "num_attention_heads * head_dim", bias),
    linear("self_attn.k_proj", "hidden_size", "num_key_value_heads * head_dim", bias),
    linear("self_attn.v_proj", "hidden_size", "num_key_value_heads * head_dim", bias),
  }
end

---@class LlamaLike   What differs in models that are built as LLaMA.
---@field qkv_bias? fun(c: table): boolean      whether the projections of q, k and v have biases
---@field output_bias? fun(c: table): boolean   whether the output projection has a bias
---@field projections? fun(c: table): TensorNode   of q, k and v
---@field feed_forward? fun(c: table): TensorNode
---@field head_norms? TensorNode                norms of queries and keys
---@field norms? string[]                       of a layer

---@param own LlamaLike
local function body_of(own)
  local qkv_bias, output_bias, feed_forward = own.qkv_bias or is_biased, own.output_bias or is_biased, own.feed_forward or gated
  local projections = own.projections or separate
  local names, norms = own.norms or { "input_layernorm", "post_attention_layernorm" }, {}
  for i, name in ipairs(names) do norms[i] = norm(name, "hidden_size", false) end
  return function(c)
    return {
      { "embed_tokens.weight", { "vocab_size", "hidden_size" } },
      each("layers", "num_hidden_layers", {
        projections(c, qkv_bias(c)),
        linear("self_attn.o_proj", "num_attention_heads * head_dim", "hidden_size", output_bias(c)),
        own.head_norms or class.of_relatives { norm("self_attn.q_norm", "head_dim"), norm("self_attn.k_norm", "head_dim") },
        { "self_attn.rotary_emb.inv_freq", { "head_dim / 2" }, buffer = true },
        feed_forward(c),
        norms,
      }),
      norm("norm", "hidden_size", false),
    }
  end
end

---The classes of a model that is built as LLaMA, without and with its head.
---@param name string   "Llama": LlamaModel and LlamaForCausalLM
---@param own_fields table<string, ClassField>   in place of LLaMA's, or besides
---@param own? LlamaLike
---@return table<string, Class>
function llama.classes(name, own_fields, own)
  local all, body = class.extend(fields, own_fields), body_of(own or {})
  return class.module {
    [name .. "Model"] = class.new(name .. "Model") { fields = all, derived = derived, tensors = body },
    [name .. "ForCausalLM"] = class.new(name .. "ForCausalLM") {
      fields = all, derived = derived,
      tensors = function(c)
        return {
          below("model", body(c)),
          { "lm_head.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "model.embed_tokens.weight" },
        }
      end,
    },
  }
end

for name, one in pairs(llama.classes("Llama", {})) do llama[name] = one end

return class.module(llama)
