-- Hugging Face's image model of CLIP: configuration_clip.py and modeling_clip.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, text, free = class.makers "size depth number positive rate text free"

local clip = {}

local fields = {
  hidden_size = size(768), intermediate_size = size(3072), projection_dim = size(512), num_hidden_layers = depth(12),
  num_attention_heads = size(12), num_channels = size(3), image_size = size(224), patch_size = size(32),
  hidden_act = text "quick_gelu", layer_norm_eps = positive(1e-5), attention_dropout = rate(0), initializer_range = number(0.02),
  initializer_factor = free(1),
}

local function derived(c)
  local patches = math.floor(c.image_size / c.patch_size)
  return { positions = { patches * patches + 1, "image_size", "patch_size" } }
end

local body = below("vision_model", {
  { "embeddings.class_embedding", { "hidden_size" } },
  { "embeddings.position_ids", { 1, "positions" }, buffer = true },
  { "embeddings.patch_embedding.weight", { "hidden_size", "num_channels", "patch_size", "patch_size" } },
  { "embeddings.position_embedding.weight", { "positions", "hidden_size" } },
  norm("pre_layrnorm", "hidden_size"),
  each("encoder.layers", "num_hidden_layers", {
    linear("self_attn.k_proj", "hidden_size", "hidden_size", true),
    linear("self_attn.v_proj", "hidden_size", "hidden_size", true),
    linear("self_attn.q_proj", "hidden_size", "hidden_size", true),
    linear("self_attn.out_proj", "hidden_size", "hidden_size", true),
    norm("layer_norm1", "hidden_size"),
    linear("mlp.fc1", "hidden_size", "intermediate_size", true),
    linear("mlp.fc2", "intermediate_size", "hidden_size", true),
    norm("layer_norm2", "hidden_size"),
  }),
  norm("post_layernorm", "hidden_size"),
})

clip.CLIPVisionModel = class.new "CLIPVisionModel" { fields = fields, derived = derived, tensors = function() return body end }

clip.CLIPVisionModelWithProjection = class.new "CLIPVisionModelWithProjection" {
  fields = fields, derived = derived,
  tensors = function() return { body, linear("visual_projection", "hidden_size", "projection_dim") } end,
}

return class.module(clip)
