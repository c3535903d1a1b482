-- Hugging Face's Gemma 2: configuration_gemma2.py and modeling_gemma2.py of transformers 4.48; and fields of 5.

local class = require "converters.engine.class"
local llama = require "converters.classes.hf.llama"

local size, depth, number, positive, boolean, text, any, free = class.makers "size depth number positive boolean text any free"

return llama.classes("Gemma2", {
  vocab_size = size(256000), hidden_size = size(2304), intermediate_size = size(9216), num_hidden_layers = depth(26),
  num_attention_heads = size(8), num_key_value_heads = size(4), head_dim = size(256), max_position_embeddings = size(8192),
  hidden_activation = text "gelu_pytorch_tanh", hidden_act = free(), sliding_window = any(4096), query_pre_attn_scalar = positive(256),
  final_logit_softcapping = number(30), attn_logit_softcapping = number(50), tie_word_embeddings = boolean(true),
  cache_implementation = free "hybrid", layer_types = any(), use_bidirectional_attention = boolean(false),
}, { norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm" } })
