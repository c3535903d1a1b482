-- Hugging Face's Qwen2 and Qwen2.5: configuration_qwen2.py and modeling_qwen2.py of transformers 4.48.

local class = require "converters.engine.class"
local llama = require "converters.classes.hf.llama"

local size, boolean, any, free = class.makers "size boolean any free"

return llama.classes("Qwen2", {
  vocab_size = size(151936), intermediate_size = size(22016), num_key_value_heads = size(32), max_position_embeddings = size(32768),
  use_sliding_window = boolean(false), max_window_layers = free(28), layer_types = any(),
  sliding_window = free(), -- with use_sliding_window
}, { qkv_bias = function() return true end, output_bias = function() return false end })
