-- MLLaMA (Llama 3.2 Vision): a LLaMA of which some layers look at the image, and a vision model over tiles of the image.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local kinds = require "converters.engine.kinds"
local values = require "converters.vocabulary.values"
local llama = require "converters.shared.llama"
local vision = require "converters.shared.vision"
local classes = require "converters.classes.hf.mllama"
local zoo = require "converters.classes.zoo.mllama"

-- --- keys

---The Model Zoo multiplies flat patches, row by row with the channels last.
local flat_patches = actions.pair("flat patches", function(t)
  return t:permute({ 0, 2, 3, 1 }):reshape { t:shape()[1], -1 }
end, function(t, at)
  local image = at.left.vision_config
  return t:reshape({ t:shape()[1], image.patch_size, image.patch_size, image.num_channels }):permute { 0, 3, 1, 2 }
end)

local projections = rules.keys {
  -- Hugging Face            Model Zoo
  { "{q,k,v}_proj.weight",   "proj_{q,k,v}_dense_layer.weight" },
  { "o_proj.weight",         "proj_output_dense_layer.weight" },
}

local cross_attention = rules.keys {
  { "cross_attn",                          "multihead_attn", projections },
  { "cross_attn.{q,k}_norm.weight",        "multihead_attn.{q,k}_norm.weight" },
  { "cross_attn_{attn,mlp}_gate",          "cross_attn_{attn,mlp}_gate" },
}

local image_layer = rules.keys {
  { "self_attn",                               "self_attn", projections },
  { "input_layernorm.{weight,bias}",           "norm1.{weight,bias}" },
  { "post_attention_layernorm.{weight,bias}",  "norm2.{weight,bias}" },
  { "mlp.fc1.{weight,bias}",                   "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "mlp.fc2.{weight,bias}",                   "ffn.ffn.1.linear_layer.{weight,bias}" },
  { "gate_{attn,ffn}",                         "gate_{attn,ffn}_weight" },
}

local image_model = rules.keys {
  { "patch_embedding.weight",                  "patch_embedding.weight", flat_patches },
  { "class_embedding" },
  { "layernorm_{pre,post}.{weight,bias}" },
  { "gated_positional_embedding.{gate,embedding,tile_embedding.weight}" },
  { "{pre,post}_tile_positional_embedding.{gate,embedding.weight}" },
  { "{transformer,global_transformer}.layers.N", "{transformer,global_transformer}.layers.N", image_layer },
}

local text_model = llama.body(llama.attention(), cross_attention, llama.norms, llama.feed_forward)

local before_4_52 = "its name up to transformers 4.51"

local keys = rules.keys {
  { "lm_head.{weight,bias}",                     "text_model.model.lm_head.{weight,bias}" },
  { "model.language_model",                      "text_model.model", text_model },
  { "model.vision_model",                        "image_model",      image_model },
  { "model.multi_modal_projector.{weight,bias}", "projection.{weight,bias}" },
  { "language_model.lm_head.{weight,bias}",      "text_model.model.lm_head.{weight,bias}", read_only = before_4_52 },
  { "language_model.model",                      "text_model.model", text_model,           read_only = before_4_52 },
  { "vision_model",                              "image_model",      image_model,          read_only = before_4_52 },
  { "multi_modal_projector.{weight,bias}",       "projection.{weight,bias}",               read_only = before_4_52 },
}

-- --- layouts of the config: rules see the language model's fields beside the section of the vision model

---@param name string   the section of the language model
---@param image string  the section of the vision model
---@param own table<string, any>   what the section says of its class, and nothing else of the model
---@param belongs table<string, any>   the language model's fields; others stay where they are, and come back to it
local function layout(name, image, own, belongs)
  local function read(config)
    for _, one in ipairs { name, image } do
      if not kinds.is_dict(config, one) then cbk.fail("config", ("the config has no section '%s'"):format(one)) end
    end
    local section, others, stray = config[name], cbk.dict(), cbk.dict()
    for _, field in ipairs(cbk.keys(config)) do
      if belongs[field] then
        stray[field], config[field] = cbk.raw(config, field), nil
      end
    end
    for field in cbk.items(section) do
      if own[field] == nil then (belongs[field] and config or others)[field] = cbk.raw(section, field) end
    end
    config[name], config["beside_" .. name] = cbk.count(others) > 0 and others or nil, cbk.count(stray) > 0 and stray or nil
    return config
  end
  local function write(config)
    local section, stray = cbk.dict(own), config["beside_" .. name] or cbk.dict()
    for field in cbk.items(config[name] or cbk.dict()) do section[field] = cbk.raw(config[name], field) end
    for _, field in ipairs(cbk.keys(config)) do
      if belongs[field] then
        section[field], config[field] = cbk.raw(config, field), nil
      end
    end
    for field in cbk.items(stray) do config[field] = cbk.raw(stray, field) end
    config[name], config["beside_" .. name] = section, nil
    return config
  end
  return { read = read, write = write }
end


-- --- config

local text_config = fields.config {
  fields.fixed.right { num_extra_input_vocab_tokens = 8 }, -- the embedding has that many rows more than the head
  { "cross_attention_layers" },
  fields.used.left { "pad_token_id" }, fields.used.right { "pad_token_id" }, -- pad_token
}

local image_config = fields.config {
  fields.fixed.left { ["vision_config.model_type"] = "mllama_vision_model" },
  fields.fixed.right {
    ["image_model.name"] = "MllamaVisionModel", ["image_model.use_projection_bias_in_attention"] = true,
    ["image_model.use_ffn_bias_in_attention"] = false, ["image_model.use_ffn_bias"] = true,
    ["image_model.use_conv_patchified_embedding"] = false,
  },
  { "vision_config.hidden_size",                 "image_model.hidden_size" },
  { "vision_config.num_hidden_layers",           "image_model.num_hidden_layers" },
  { "vision_config.num_global_layers",           "image_model.num_global_layers" },
  { "vision_config.norm_eps",                    "image_model.layer_norm_epsilon" },
  { "vision_config.attention_heads",             "image_model.num_heads" },
  { "vision_config.max_num_tiles",               "image_model.max_num_tiles" },
  { "vision_config.supported_aspect_ratios",     "image_model.supported_aspect_ratios" },
  { "vision_config.intermediate_layers_indices", "image_model.intermediate_layers_indices" },
  { "vision_config.vision_output_dim",           "image_model.vision_output_dim" },
  { "vision_config.hidden_act",                  "image_model.nonlinearity", values.activations { gelu_pytorch_tanh = "gelu_new" } },
  { "vision_config.intermediate_size",           "image_model.filter_size" },
  { "vision_config.initializer_range",           "image_model.initializer_range" },
  { "vision_config.image_size",                  "image_model.image_size", vision.square },
  { "vision_config.num_channels",                "image_model.num_channels" },
  { "vision_config.patch_size",                  "image_model.patch_size", vision.square },
}

-- --- what is not in the section of the model

---A section below another one, or nil.
local function section_in(config, ...)
  for _, name in ipairs { ... } do
    if not kinds.is_dict(config, name) then return nil end
    config = config[name]
  end
  return config
end

---The padding token is known to the data loader: the Model Zoo's text_model refuses such a field. The original converter writes it there
---all the same.
---@param read Read
local function pad_token(to, from, read)
  local file = read.file or {}
  for _, section in ipairs { section_in(file, "trainer", "fit", "train_dataloader") or {}, section_in(file, "train_input") or {}, from,
    read.hf_config or {} } do
    local said = section.pad_token_id
    if not values.absent(said) then
      to.pad_token_id = said
      return
    end
  end
  to.pad_token_id = 0
  cbk.warn "pad_token_id is 0: the config has no train_input.pad_token_id, nor one in trainer.fit.train_dataloader"
end

---@param read Read
local function warn_of_pad_token(_, from, read)
  if read.source or values.absent(from.pad_token_id) then return end
  cbk.warn(("pad_token_id=%s is left out: the Model Zoo has it in the config of the data loader, train_input.pad_token_id"):format(
    fields.shown(from.pad_token_id)))
end

---The number of tiles of the largest image; nil if no image is said.
local function tiles_of(ratios)
  local most
  for _, ratio in cbk.items(kinds.is_list(ratios) and ratios or {}) do
    local wide, high = unpack(kinds.is_list(ratio) and { ratio[1], ratio[2] } or {})
    if type(wide) == "number" and type(high) == "number" then most = math.max(most or 0, wide * high) end
  end
  return most
end

---The number of tiles, which the original converter does not write: from the embedding of tiles, or else from the shapes of images.
---@param section string     of the vision model
---@param embedding string   its key
local function name_tiles(section, embedding)
  local field = section .. ".max_num_tiles"
  return function(from, given, read)
    if given[field] ~= nil then return end
    local width, root = from[section .. ".hidden_size"], read.source or cbk.dict()
    local tree, shape = section == "image_model" and section_in(root, "model") or root, nil
    for _, prefix in ipairs { "", "model." } do
      local key = prefix .. embedding
      shape = cbk.kind(tree, key) == "tensor" and tree[key]:shape() or shape
    end
    local is_said = shape and #shape == 2 and type(width) == "number" and width > 0 and shape[2] % width == 0
    from[field] = is_said and shape[2] / width or tiles_of(from[section .. ".supported_aspect_ratios"]) or 4
  end
end

local tiles = "pre_tile_positional_embedding.embedding.weight"
local name_left_tiles = name_tiles("vision_config", "vision_model." .. tiles)
local name_right_tiles = name_tiles("image_model", "image_model." .. tiles)

-- --- the whole

local hf = llama.converter {
  model_type = "mllama", config = fields.config { text_config, image_config }, keys = keys, key_heads = 8,
}

local function prepare_left(from, given, read)
  name_left_tiles(from, given, read)
  return hf.prepare.left(from, given)
end

local function prepare_right(from, given, read)
  name_right_tiles(from, given, read)
  hf.prepare.right(from)
end

local function finish_left(to, from, read)
  hf.finish.left(to, from, read)
  pad_token(to, from, read)
end

local function finish_right(to, from, read)
  hf.finish.right(to)
  warn_of_pad_token(to, from, read)
end

return { {
  model = "mllama", note = "MllamaForConditionalGeneration (keys since transformers 4.52) <-> MLLaMA",
  classes = { left = classes.MllamaForConditionalGeneration, right = zoo.MLLaMA },
  rules.between("hf", "cs-2.4 .. cs-2.9", hf, {
    classes = { left = classes.flat, right = zoo.flat },
    nested = { left = { "vision_config" }, right = { "image_model" } },
    defaults = { left = { rope_scaling = cbk.null }, right = { pos_scaling_type = fields.none } },
    prepare = { left = prepare_left, right = prepare_right }, finish = { left = finish_left, right = finish_right },
    layout = {
      left = layout("text_config", "vision_config", { model_type = "mllama_text_model" },
        fields.with(classes.flat:by_name(), { rope_parameters = true })),
      right = layout("text_model", "image_model", { name = "llama" }, zoo.flat:by_name()),
    },
  }),
} }
