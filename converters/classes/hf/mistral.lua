-- Hugging Face's Mistral: configuration_mistral.py and modeling_mistral.py of transformers 4.48.

local class = require "converters.engine.class"
local llama = require "converters.classes.hf.llama"

local size, positive, free = class.makers "size positive free"

return llama.classes("Mistral", {
  intermediate_size = size(14336), num_key_value_heads = size(8), max_position_embeddings = size(131072),
  sliding_window = class.kinds.any(4096), rms_norm_eps = positive(1e-6), pretraining_tp = free(),
})
