-- Hugging Face's MLLaMA (Llama 3.2 Vision): configuration_mllama.py and modeling_mllama.py of transformers 4.52, whose keys begin with
-- `model.`.

local cbk = require "cbk"
local class = require "converters.engine.class"
local kinds = require "converters.engine.kinds"
local llama = require "converters.classes.hf.llama"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, text, any = class.makers "size depth number positive rate text any"

local mllama = {}

---The numbers of the layers that look at the image.
---@param value any   cross_attention_layers
---@return table<integer, true>
local function cross_layers(value)
  local out = {}
  if not kinds.is_list(value) then value = { 3, 8, 13, 18, 23, 28, 33, 38 } end
  for i = 1, #value do out[value[i]] = true end
  return out
end

---The fields of text_config, and those of vision_config.
local fields = class.extend(llama.LlamaForCausalLM.fields, {
  vocab_size = size(128256), num_hidden_layers = depth(40), num_key_value_heads = size(8), intermediate_size = size(14336),
  max_position_embeddings = size(131072), rope_theta = positive(500000), rms_norm_eps = positive(1e-5), cross_attention_layers = any(),
  dropout = rate(0), pad_token_id = number(128004),
  ["vision_config.hidden_size"] = size(1280), ["vision_config.hidden_act"] = text "gelu",
  ["vision_config.num_hidden_layers"] = depth(32), ["vision_config.num_global_layers"] = depth(8),
  ["vision_config.attention_heads"] = size(16, "vision_config.num_attention_heads"), ["vision_config.num_channels"] = size(3),
  ["vision_config.intermediate_size"] = size(5120), ["vision_config.vision_output_dim"] = size(7680),
  ["vision_config.image_size"] = size(448), ["vision_config.patch_size"] = size(14), ["vision_config.norm_eps"] = positive(1e-5),
  ["vision_config.max_num_tiles"] = size(4), ["vision_config.intermediate_layers_indices"] = any(),
  ["vision_config.supported_aspect_ratios"] = any(), ["vision_config.initializer_range"] = number(0.02),
})

local function derived(c)
  local out = llama.LlamaForCausalLM.derived(c)
  for name, field in pairs {
    width = "hidden_size", inner = "intermediate_size", output = "vision_output_dim", channels = "num_channels", patch = "patch_size",
    tiles = "max_num_tiles", depth = "num_hidden_layers", global_depth = "num_global_layers",
  } do
    out["image_" .. name] = { c["vision_config." .. field], "vision_config." .. field }
  end
  local patches = math.floor(c["vision_config.image_size"] / c["vision_config.patch_size"])
  out.positions = { patches * patches + 1, "vision_config.image_size", "vision_config.patch_size" }
  local ratios = c["vision_config.supported_aspect_ratios"]
  out.ratios = kinds.is_list(ratios) and { #ratios + 1, "vision_config.supported_aspect_ratios" } or 9 -- the default ones, and none
  return out
end

local function attention(name)
  return below(name, {
    linear("q_proj", "hidden_size", "num_attention_heads * head_dim"),
    linear("k_proj", "hidden_size", "num_key_value_heads * head_dim"),
    linear("v_proj", "hidden_size", "num_key_value_heads * head_dim"),
    linear("o_proj", "num_attention_heads * head_dim", "hidden_size"),
  })
end

local cross_attention = {
  attention "cross_attn", norm("cross_attn.q_norm", "head_dim", false), norm("cross_attn.k_norm", "head_dim", false),
  { "cross_attn_attn_gate", { 1 } }, { "cross_attn_mlp_gate", { 1 } },
}

local function language_model(c)
  local is_cross = cross_layers(c.cross_attention_layers)
  return {
    { "embed_tokens.weight", { "vocab_size + 8", "hidden_size" } },
    each("layers", "num_hidden_layers", function(i)
      return {
        is_cross[i] and cross_attention or attention "self_attn",
        linear("mlp.gate_proj", "hidden_size", "intermediate_size"),
        linear("mlp.up_proj", "hidden_size", "intermediate_size"),
        linear("mlp.down_proj", "intermediate_size", "hidden_size"),
        norm("input_layernorm", "hidden_size", false), norm("post_attention_layernorm", "hidden_size", false),
      }
    end),
    norm("norm", "hidden_size", false),
  }
end

---A transformer over patches.
local function image_layer(more)
  return {
    linear("self_attn.q_proj", "image_width", "image_width"), linear("self_attn.k_proj", "image_width", "image_width"),
    linear("self_attn.v_proj", "image_width", "image_width"), linear("self_attn.o_proj", "image_width", "image_width"),
    linear("mlp.fc1", "image_width", "image_inner", true), linear("mlp.fc2", "image_inner", "image_width", true),
    norm("input_layernorm", "image_width"), norm("post_attention_layernorm", "image_width"),
    more,
  }
end

---The tensors of the vision model that have the same names in the Model Zoo.
mllama.embeddings = {
  { "class_embedding", { "image_width" } },
  below("gated_positional_embedding", {
    { "gate", { 1 } }, { "embedding", { "positions", "image_width" } },
    { "tile_embedding.weight", { "ratios", "image_tiles * positions * image_width" } },
  }),
  { "pre_tile_positional_embedding.gate", { 1 } },
  { "pre_tile_positional_embedding.embedding.weight", { "ratios", "image_tiles * image_width" } },
  { "post_tile_positional_embedding.gate", { 1 } },
  { "post_tile_positional_embedding.embedding.weight", { "ratios", "image_tiles * image_width" } },
  norm("layernorm_pre", "image_width"),
  norm("layernorm_post", "image_width"),
}

---As the rules see a config: text_config's fields beside the section vision_config.
mllama.flat = class.new "MllamaForConditionalGeneration" {
  fields = fields, derived = derived,
  renamed = { -- up to transformers 4.51
    { "^language_model%.model%.", "model.language_model." }, { "^language_model%.lm_head%.", "lm_head." },
    { "^vision_model%.", "model.vision_model." }, { "^multi_modal_projector%.", "model.multi_modal_projector." },
  },
  tensors = function(c)
    return {
      below("model.language_model", language_model(c)),
      below("model.vision_model", {
        mllama.embeddings,
        { "patch_embedding.weight", { "image_width", "image_channels", "image_patch", "image_patch" } },
        each("transformer.layers", "image_depth", image_layer()),
        each("global_transformer.layers", "image_global_depth", image_layer { { "gate_attn", { 1 } }, { "gate_ffn", { 1 } } }),
      }),
      linear("model.multi_modal_projector", "image_output", "hidden_size", true),
      { "lm_head.weight", { "vocab_size", "hidden_size" } },
    }
  end,
}

---A config whose fields of the text model are beside its other section.
---@param inner any          the section of the text model
---@param section string     the other section's name
---@param image any          the other section
---@return Dict
function mllama.flattened(inner, section, image)
  local out = cbk.dict { [section] = image }
  for name in cbk.items(kinds.is_dict(inner) and inner or cbk.dict()) do out[name] = inner[name] end
  return out
end

---As a file has it.
mllama.MllamaForConditionalGeneration = class.new "MllamaForConditionalGeneration" {
  fields = { text_config = any(), vision_config = any() }, renamed = mllama.flat.renamed,
  tensors = function(c)
    return class.part("", mllama.flat, mllama.flattened(c.text_config, "vision_config", c.vision_config))
  end,
}

return class.module(mllama)
