-- Hugging Face's Mixtral: configuration_mixtral.py and modeling_mixtral.py of transformers 4.48.

local class = require "converters.engine.class"
local llama = require "converters.classes.hf.llama"

local linear = class.linear
local size, number, positive, boolean, any, free = class.makers "size number positive boolean any free"

---Each expert is a feed-forward part with a gate of its own; `gate` chooses among them.
local function experts(c)
  return {
    linear("block_sparse_moe.gate", "hidden_size", "num_local_experts"),
    class.each("block_sparse_moe.experts", "num_local_experts", {
      linear("w1", "hidden_size", "intermediate_size", c.mlp_bias),
      linear("w2", "intermediate_size", "hidden_size", c.mlp_bias),
      linear("w3", "hidden_size", "intermediate_size", c.mlp_bias),
    }),
  }
end

return llama.classes("Mixtral", {
  intermediate_size = size(14336), num_key_value_heads = size(8), max_position_embeddings = size(131072), sliding_window = any(),
  rms_norm_eps = positive(1e-5), rope_theta = positive(1e6), num_local_experts = size(8, "num_experts"), num_experts_per_tok = size(2),
  router_aux_loss_coef = number(0.001), output_router_logits = free(false), router_jitter_noise = free(0), pretraining_tp = free(),
  attention_bias = boolean(false),
}, { feed_forward = experts })
