-- Hugging Face's Phi-3: configuration_phi3.py and modeling_phi3.py of transformers 4.53.

local class = require "converters.engine.class"
local llama = require "converters.classes.hf.llama"

local linear = class.linear
local size, positive, rate, free = class.makers "size positive rate free"

local width = "num_attention_heads * head_dim + 2 * num_key_value_heads * head_dim"

return llama.classes("Phi3", {
  vocab_size = size(32064), hidden_size = size(3072), intermediate_size = size(8192), max_position_embeddings = size(4096),
  original_max_position_embeddings = free(4096), rms_norm_eps = positive(1e-5), resid_pdrop = rate(0), embd_pdrop = rate(0),
}, {
  projections = function() return { linear("self_attn.qkv_proj", "hidden_size", width, false) } end,
  output_bias = function() return false end,
  feed_forward = function()
    return {
      linear("mlp.gate_up_proj", "hidden_size", "2 * intermediate_size", false),
      linear("mlp.down_proj", "intermediate_size", "hidden_size", false),
    }
  end,
})
