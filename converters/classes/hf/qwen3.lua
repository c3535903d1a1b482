-- Hugging Face's Qwen3 and Qwen3-MoE: configuration_qwen3.py, modeling_qwen3.py and those of qwen3_moe, transformers 4.53.

local class = require "converters.engine.class"
local llama = require "converters.classes.hf.llama"

local linear, norm = class.linear, class.norm
local size, number, boolean, any, free = class.makers "size number boolean any free"

local function head_norms() return { norm("self_attn.q_norm", "head_dim", false), norm("self_attn.k_norm", "head_dim", false) } end

local fields = {
  vocab_size = size(151936), intermediate_size = size(22016), num_key_value_heads = size(32), head_dim = size(128),
  max_position_embeddings = size(32768), use_sliding_window = boolean(false),
  max_window_layers = free(28), sliding_window = free(), layer_types = any(), -- with use_sliding_window
}

local function experts()
  return {
    linear("mlp.gate", "hidden_size", "num_experts", false),
    class.each("mlp.experts", "num_experts", {
      linear("gate_proj", "hidden_size", "moe_intermediate_size", false),
      linear("up_proj", "hidden_size", "moe_intermediate_size", false),
      linear("down_proj", "moe_intermediate_size", "hidden_size", false),
    }),
  }
end

local qwen3 = llama.classes("Qwen3", fields, { head_norms = head_norms() })
local moe = llama.classes("Qwen3Moe", class.extend(fields, {
  intermediate_size = free(6144), moe_intermediate_size = size(768), num_key_value_heads = size(4), head_dim = size(),
  num_experts = size(128, "num_local_experts"), num_experts_per_tok = size(8), norm_topk_prob = boolean(false),
  router_aux_loss_coef = number(0.001),
  decoder_sparse_step = size(1), mlp_only_layers = any(), output_router_logits = free(false),
}), { head_norms = head_norms(), feed_forward = experts })

for name, one in pairs(moe) do qwen3[name] = one end
return class.module(qwen3)
