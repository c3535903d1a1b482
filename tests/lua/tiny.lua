-- Tiny Hugging Face models of every family of the catalogue: a config and a checkpoint with a tensor for each key. Formats and keys
-- come from the families' own tables; one that the fields and shapes below do not suit says here what it needs.

local cbk = require "cbk"
local converters = require "cbk.converters"
local conversion = require "conversion"
local catalogue = converters.catalogue
local naming = require "converters.engine.naming"
local rules = require "converters.engine.rules"

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
  gptj = { rotary_dim = 2 }, ["gpt-neox"] = { rotary_pct = 0.5 },
  llava = { mm_projector_type = "mlp1x_gelu", mm_vision_select_layer = -1 },
}

---Further layouts of a family: what the config says, since which release a converter reads it, and which keys there are not.
---@class Layout
---@field fields table<string, any>
---@field since? string
---@field excluded string[]

local falcon_biases = { "attention%..*bias$", "%.mlp%..*bias$" }
local one_norm = { "ln_attn", "ln_mlp", "post_attention_layernorm", unpack(falcon_biases) }
local two_norms = { "input_layernorm", "post_attention_layernorm", unpack(falcon_biases) }
local grouped = { num_attention_heads = 4, n_head = 4, num_kv_heads = 2, n_head_kv = 2 }

---@type table<string, Layout[]>
local layouts = {
  falcon = {
    { fields = { model_type = "RefinedWebModel", multi_query = true }, since = "2.1", excluded = one_norm }, -- 7B
    { fields = conversion.with(cbk.dict(grouped), { model_type = "RefinedWeb" }), excluded = two_norms },    -- 40B
    { fields = conversion.with(cbk.dict(grouped), { model_type = "falcon", new_decoder_architecture = true, multi_query = false }),
      since = "2.1", excluded = two_norms },
  },
}

-- a wrapper holds a model of this family
local inside = "gpt2"

local function family_of(name) return (name:gsub("%-headless$", "")) end

---@param name string
---@param own Converter   one table
---@param layout? Layout
local function config_for(name, own, layout)
  local out = cbk.dict(sizes)
  for field, value in pairs(families[family_of(name)] or {}) do out[field] = value end
  for field, value in cbk.items(layout and cbk.dict(layout.fields) or cbk.dict()) do out[field] = value end
  for _, rule in ipairs(own.config) do
    local is_plain = rule.kind == "must" and rule.left and type(rule.value) ~= "table"
    if is_plain and out[rule.left] == nil then out[rule.left] = rule.value end
  end
  return out
end

---Without the other names of its fields.
local function plain_config(name, own)
  local out = config_for(name, own)
  for _, rule in ipairs(own.config) do
    if rule.alias and rule.alias.left then out[rule.alias.left] = nil end
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

-- --- checkpoints of Hugging Face: the first name of each tensor

local shapes = { -- by the end of a key; else a matrix of 8 x 8, or a vector of 8
  ["attn.c_attn.weight"] = { 8, 24 }, ["attn.c_attn.bias"] = { 24 }, ["query_key_value.weight"] = { 24, 8 },
  ["query_key_value.bias"] = { 24 }, ["Wqkv.weight"] = { 24, 8 }, ["Wqkv.bias"] = { 24 },
  ["q_norm.weight"] = { 4 }, ["q_norm.bias"] = { 4 }, ["k_norm.weight"] = { 4 }, ["k_norm.bias"] = { 4 },
}
local falcon_shapes = { ["query_key_value.weight"] = { 16, 8 }, ["query_key_value.bias"] = { 16 } }

local function shape_of(key, own)
  for _, list in ipairs { own, shapes } do
    for ending, shape in pairs(list) do
      if key:sub(-#ending) == ending then return shape end
    end
  end
  return (key:find "bias$" or key:find "norm" or key:find "ln_" or key:find "Norm") and { 8 } or { 8, 8 }
end

-- keys that the configs above exclude
local excluded = {
  t5 = { "absolute_position", "wi_%d", "^encoder%.block%.%d%.layer%.2", "^decoder%.block%.%d%.layer%.1%.DenseReluDense" },
  falcon = one_norm,
}

local function is_excluded(name, key, layout)
  for _, pattern in ipairs(layout and layout.excluded or excluded[family_of(name)] or {}) do
    if key:find(pattern) then return true end
  end
end

---A tensor for every key that the table of a Hugging Face config reads. Rules with a reason come last: they are about old names.
---@param name string
---@param set Rule[]
---@param layout? Layout
function tiny.checkpoint(name, set, layout)
  local own = name:find "falcon" and falcon_shapes or {}
  local out, written, count = cbk.dict(), {}, 0
  local function add(base)
    for _, rule in ipairs(base.kind and {} or rules.expand(base)) do
      local key, target = rule.left[1]:gsub("%f[%w]%u%f[%W]", "0"), rule.right[1]
      if not key:find "*" and not written[target] and out[key] == nil and not is_excluded(name, key, layout) then
        count = count + 1
        out[key] = conversion.counted(shape_of(key, own), 1000 * count)
        written[target] = true
      end
    end
  end
  for _, is_told in ipairs { false, true } do
    for _, base in ipairs(set) do
      if (base.why ~= nil) == is_told then add(base) end
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
---@return Dict config, Dict root
function tiny.model(way)
  local config, job = tiny.config(way.name, way.converter, way.layout), conversion.job(way.name, "hf", way.format)
  conversion.warnings(function() converters.convert.config(job, config) end)
  local converter = job.configs[1].converter
  if not converter.components then return config, tiny.checkpoint(way.name, converter.keys, way.layout) end
  local root = cbk.dict()
  for _, part in ipairs(converter.components) do root[part.left] = tiny.checkpoint(way.name, part.keys) end
  return config, root
end

return tiny
