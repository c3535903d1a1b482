-- Tiny Hugging Face models of every family of the catalogue: a config and a checkpoint with a tensor for each key. Formats come
-- from the families' own tables, tensors from their classes; a family that the fields below do not suit says here what it needs.

local cbk = require "cbk"
local classes = require "cbk.classes"
local converters = require "cbk.converters"
local conversion = require "conversion"
local catalogue = converters.catalogue
local naming = require "cbk.naming"

local tiny = {}

-- --- configs of Hugging Face: one name of each size is what a family reads, the others have no counterpart

local sizes = {
  vocab_size = 5, hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1, intermediate_size = 32, max_position_embeddings = 4,
  n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4, n_inner = 32, d_model = 8, d_kv = 4, d_ff = 32, num_heads = 2, num_layers = 1,
  num_decoder_layers = 1, n_heads = 2, n_layers = 1, num_labels = 2,
  image_size = 8, patch_size = 4, mm_hidden_size = 8,
  layer_norm_epsilon = 1e-5, attn_pdrop = 0.5, embd_pdrop = 0.5, resid_pdrop = 0.5,
}

local families = {
  ["bert-sequence-classifier"] = { problem_type = "single_label_classification" },
  ["esm-2"] = { max_position_embeddings = 6, pad_token_id = 1, hidden_act = "gelu" },
  roberta = { max_position_embeddings = 6, pad_token_id = 1 }, gptj = { rotary_dim = 2 }, codegen = { n_head = 4, rotary_dim = 2 },
  ["gpt-neox"] = { rotary_pct = 0.5 },
  gemma2 = { num_key_value_heads = 2, head_dim = 4, hidden_activation = "gelu" },
  qwen3 = { num_key_value_heads = 1, head_dim = 6 }, ["qwen3-moe"] = { num_key_value_heads = 2, head_dim = 4, num_experts = 3,
    num_experts_per_tok = 2, moe_intermediate_size = 8 },
  mistral = { num_key_value_heads = 2 }, qwen2 = { num_key_value_heads = 2 },
  mixtral = { num_key_value_heads = 2, num_local_experts = 3, num_experts_per_tok = 2 },
  ["mmsimple-llava"] = { mm_projector_type = "mlp1x_gelu", mm_vision_select_layer = -1 },
  mllama = {
    text_config = cbk.dict {
      model_type = "mllama_text_model", vocab_size = 5, hidden_size = 8, num_attention_heads = 2, num_key_value_heads = 1,
      num_hidden_layers = 2, intermediate_size = 6, max_position_embeddings = 4, cross_attention_layers = cbk.list { 1 }, pad_token_id = 0,
    },
    vision_config = cbk.dict {
      model_type = "mllama_vision_model", hidden_size = 4, attention_heads = 2, num_hidden_layers = 1, num_global_layers = 1,
      intermediate_size = 6, vision_output_dim = 8, image_size = 4, patch_size = 2, num_channels = 3, max_num_tiles = 2,
      supported_aspect_ratios = cbk.list { cbk.list { 1, 1 }, cbk.list { 1, 2 } }, intermediate_layers_indices = cbk.list { 0 },
    },
  },
  llava = { mm_projector_type = "mlp1x_gelu", mm_vision_select_layer = -1 },
}

---Further layouts of a family: what the config says, and since which release a converter reads it.
---@class Layout
---@field fields table<string, any>
---@field since? string

local grouped = { num_attention_heads = 4, n_head = 4, num_kv_heads = 2 }

---@type table<string, Layout[]>
local layouts = {
  llama = { { fields = { head_dim = 6 }, since = "2.3" } }, -- which is not hidden_size / num_attention_heads
  ["esm-2"] = {
    { fields = { position_embedding_type = "rotary", emb_layer_norm_before = true, token_dropout = true, mask_token_id = 2 } },
  },
  falcon = {
    { fields = { model_type = "RefinedWebModel", multi_query = true }, since = "2.1" }, -- 7B
    { fields = conversion.with(cbk.dict(grouped), { model_type = "RefinedWeb", n_head_kv = 2 }) }, -- 40B
    { fields = conversion.with(cbk.dict(grouped), { model_type = "falcon", new_decoder_architecture = true, multi_query = false }),
      since = "2.1" },
  },
}

-- a wrapper holds a model of this family
local inside = "gpt2"

local function family_of(name) return (name:gsub("%-headless$", "")) end

---@param name string
---@param own Converter   one table
---@param layout? Layout
local function config_for(name, own, layout)
  local out = conversion.with(cbk.dict(sizes), families[family_of(name)])
  for field, value in cbk.items(layout and cbk.dict(layout.fields) or cbk.dict()) do out[field] = value end
  for _, rule in ipairs(own.config) do
    local has_default = rule.left and own.classes and own.classes.left and own.classes.left.fields[rule.left]
    local is_plain = rule.kind == "must" and rule.left and not has_default and type(rule.value) ~= "table"
    if is_plain and out[rule.left] == nil then out[rule.left] = rule.value end
  end
  return out
end

---Without the other names of its fields.
local function plain_config(name, own)
  local out, is_named = config_for(name, own), {}
  for _, rule in ipairs(own.config) do is_named[rule.left or ""] = true end
  for first, field in pairs(own.classes.left.fields) do
    for _, one in ipairs { first, unpack(field.aliases) } do
      if not is_named[one] and #field.aliases > 0 then out[one] = nil end
    end
  end
  return out
end

---A config of the table, or of a variant that is chosen for it.
---@param name string
---@param converter Converter
---@param layout? Layout
function tiny.config(name, converter, layout)
  if converter.components then
    local out = cbk.dict()
    for _, part in ipairs(converter.components) do out[part.left] = config_for(name, part) end
    return out
  end
  if converter.wrap then return tiny.config(inside, catalogue.newest_step(catalogue.find(inside), "left").converter) end
  if converter.config then return plain_config(name, converter) end
  for _, variant in ipairs(naming.sorted(converter.variants)) do
    local config = config_for(name, converter.variants[variant], layout)
    if converter.choose(config, "left") == variant then return config end
  end
end

-- --- checkpoints of Hugging Face

---Every tensor that a class has for a config, with numbers of its own; a tied name is the same tensor. Hugging Face's buffers are
---left out, as its programs do.
---@param class Class
---@param config Dict        a Hugging Face config, or the model section of the release
---@param release? string
---@return Dict
function tiny.checkpoint(class, config, release)
  local out = cbk.dict()
  for i, one in ipairs(class:tensors(config, { release = release })) do
    if not one.optional and (release or not one.buffer) then
      out[one.key] = one.tied_to and out[one.tied_to] or conversion.counted(classes.shape(one), 1000 * i)
    end
  end
  return out
end

---A way from Hugging Face, and again with each further layout that is read by it.
---@return { name: string, converter: Converter, format: string, layout?: Layout }[]
function tiny.layouts(name, converter, format)
  local out = { { name = name, converter = converter, format = format } }
  for _, layout in ipairs(layouts[family_of(name)] or {}) do
    if catalogue.since(catalogue.release(format), layout.since or "1.9") then
      out[#out + 1] = { name = name, converter = converter, format = format, layout = layout }
    end
  end
  return out
end

---Every model with each way from Hugging Face that it has: name, converter, format; again with each further layout.
function tiny.ways()
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    for _, converter in ipairs(model.model == name and model or {}) do
      if converter[1] == "hf" and not converter.components then
        for _, format in ipairs(catalogue.formats(converter[2])) do
          for _, way in ipairs(tiny.layouts(name, converter, format)) do out[#out + 1] = way end
        end
      end
    end
  end
  return out
end

---The newest way from Hugging Face of each model that has one.
---@return table<string, { name: string, converter: Converter, format: string }>
function tiny.newest_ways()
  local out = {}
  for _, way in ipairs(tiny.ways()) do
    local known = out[way.name]
    if not known or catalogue.place_of(way.format) > catalogue.place_of(known.format) then
      out[way.name] = way
    end
  end
  return out
end

---The newest way from Hugging Face of a composite.
---@param name string
function tiny.composite(name)
  local step = catalogue.newest_step(catalogue.find(name), "left")
  return { name = name, converter = step.converter, format = step.tgt }
end

---A Hugging Face model of the way's family: config and checkpoint.
---@param way { name: string, converter: Converter, format: string, layout?: Layout }
---@param change? fun(config: Dict)   makes it another model of the family
---@return Dict config, Dict root
function tiny.model(way, change)
  local config, job = tiny.config(way.name, way.converter, way.layout), conversion.job(way.name, "hf", way.format)
  if change then change(config) end
  conversion.warnings(function() converters.convert.config(job, config) end)
  local converter, read = job.configs[1].converter, job.configs[1].left -- with the defaults of the table
  if not converter.components then return config, tiny.checkpoint(catalogue.class_of(job.model, converter, "hf"), read) end
  local root = cbk.dict()
  for _, part in ipairs(converter.components) do
    root[part.left] = tiny.checkpoint(catalogue.class_of(job.model, part, "hf"), read[part.left])
  end
  return config, root
end

return tiny
