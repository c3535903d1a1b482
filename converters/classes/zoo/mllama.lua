-- The Model Zoo's MLLaMA. Its vision model is not published: its tensors are those that the original converter writes.

local class = require "converters.engine.class"
local kinds = require "converters.engine.kinds"
local decoder = require "converters.classes.zoo.decoder"
local hf = require "converters.classes.hf.mllama"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, text, any = class.makers "size depth number positive text any"

local mllama = {}

local text_class = decoder.GPT2LMHeadModel

local fields = class.extend(text_class.fields, {
  pad_token_id = number(),
  ["image_model.hidden_size"] = size(1280), ["image_model.nonlinearity"] = text "gelu",
  ["image_model.num_hidden_layers"] = depth(32), ["image_model.num_global_layers"] = depth(8), ["image_model.num_heads"] = size(16),
  ["image_model.num_channels"] = size(3), ["image_model.filter_size"] = size(5120), ["image_model.vision_output_dim"] = size(7680),
  ["image_model.image_size"] = any(), ["image_model.patch_size"] = any(), ["image_model.layer_norm_epsilon"] = positive(1e-5),
  ["image_model.max_num_tiles"] = size(4), ["image_model.intermediate_layers_indices"] = any(),
  ["image_model.supported_aspect_ratios"] = any(), ["image_model.initializer_range"] = number(0.02),
  ["image_model.use_projection_bias_in_attention"] = any(), ["image_model.use_ffn_bias_in_attention"] = any(),
  ["image_model.use_ffn_bias"] = any(), ["image_model.use_conv_patchified_embedding"] = any(), ["image_model.name"] = any(),
})

local function first(value, default) return kinds.is_list(value) and type(value[1]) == "number" and value[1] or default end

local function derived(c)
  local out = text_class.derived(c)
  for name, field in pairs {
    width = "hidden_size", inner = "filter_size", output = "vision_output_dim", channels = "num_channels", tiles = "max_num_tiles",
    depth = "num_hidden_layers", global_depth = "num_global_layers",
  } do
    out["image_" .. name] = { c["image_model." .. field], "image_model." .. field }
  end
  local patch = first(c["image_model.patch_size"], 14)
  local patches = math.floor(first(c["image_model.image_size"], 448) / patch)
  local ratios = c["image_model.supported_aspect_ratios"]
  out.image_patch = { patch, "image_model.patch_size" }
  out.positions = { patches * patches + 1, "image_model.image_size", "image_model.patch_size" }
  out.ratios = kinds.is_list(ratios) and { #ratios + 1, "image_model.supported_aspect_ratios" } or 9 -- the default ones, and none
  return out
end

local function image_layer(more)
  return {
    linear("self_attn.proj_q_dense_layer", "image_width", "image_width"),
    linear("self_attn.proj_k_dense_layer", "image_width", "image_width"),
    linear("self_attn.proj_v_dense_layer", "image_width", "image_width"),
    linear("self_attn.proj_output_dense_layer", "image_width", "image_width"),
    linear("ffn.ffn.0.linear_layer", "image_width", "image_inner", true),
    linear("ffn.ffn.1.linear_layer", "image_inner", "image_width", true),
    norm("norm1", "image_width"), norm("norm2", "image_width"),
    more,
  }
end

---As the rules see a config: text_model's fields beside the section image_model.
mllama.flat = class.new "MLLaMA" {
  fields = fields, derived = derived, removed = text_class.removed,
  tensors = function(c, since)
    return {
      below("text_model.model", text_class.nodes(c, since)),
      below("image_model", {
        hf.embeddings,
        { "patch_embedding.weight", { "image_width", "image_patch * image_patch * image_channels" } },
        each("transformer.layers", "image_depth", image_layer()),
        each("global_transformer.layers", "image_global_depth",
          image_layer { { "gate_attn_weight", { 1 } }, { "gate_ffn_weight", { 1 } } }),
      }),
      linear("projection", "image_output", "hidden_size", true),
    }
  end,
}

---As a file has it.
mllama.MLLaMA = class.new "MLLaMA" {
  fields = { text_model = any(), image_model = any() },
  tensors = function(c)
    return class.part("", mllama.flat, hf.flattened(c.text_model, "image_model", c.image_model))
  end,
}

return class.module(mllama)
