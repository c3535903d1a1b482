-- Pairs of one model in two layouts for the tests of `cbk infer`, the converters inferred from them, and what these make of others.

local cbk = require "cbk"
local catalogue = require("cbk.converters").catalogue
local convert = require("cbk.converters").convert
local conversion = require "conversion"
local harness = require "harness"
local infer = require "cbk.infer"
local keys = require "converters.engine.keys"
local family_files = require "converters.engine.family_files"
local hf_config = require "converters.modelzoo.hf_config"
local sections = require "converters.engine.sections"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local is_true = harness.is_true

local inferred = {}

-- --- two models of each family: sizes by the fields of configs

local function sizes(vocabulary, width, heads, groups, layers, inner, positions, labels)
  local out = {}
  local function set(names, value)
    for name in names:gmatch "%S+" do out[name] = value end
  end
  set("vocab_size", vocabulary)
  set("hidden_size n_embd d_model mm_hidden_size", width)
  set("num_attention_heads n_head num_heads n_heads", heads)
  set("num_key_value_heads num_kv_heads n_head_kv", groups)
  set("num_hidden_layers n_layer num_layers n_layers num_decoder_layers", layers)
  set("intermediate_size n_inner d_ff moe_intermediate_size", inner)
  set("max_position_embeddings n_positions max_seq_len n_ctx", positions)
  set("d_kv head_dim", width / heads)
  set("num_labels", labels)
  return out
end

local small, large = sizes(11, 32, 4, 2, 2, 40, 9, 3), sizes(13, 72, 6, 2, 3, 56, 10, 5)
local deeper = sizes(11, 32, 4, 2, 5, 56, 9, 3) -- other sizes, but for heads
local alike = sizes(13, 48, 6, 3, 3, 56, 9, 3) -- heads of the same size, in the same ratio
local square = sizes(11, 32, 4, 4, 2, 32, 9, 3) -- as many key heads as heads, and other numbers that are equal
inferred.make_sizes = sizes
inferred.sizes = { small = small, large = large, alike = alike, deeper = deeper, square = square }


---What some families need.
local own = {
  codegen = { small = { n_head = 8, n_embd = 64, rotary_dim = 4 }, large = { n_head = 12, n_embd = 96, rotary_dim = 6 } },
  gptj = { small = { rotary_dim = 4 }, large = { rotary_dim = 6 } },
  falcon = { small = { new_decoder_architecture = true, multi_query = false }, large = { new_decoder_architecture = true,
    multi_query = false } },
  gemma2 = { small = { head_dim = 6 }, large = { head_dim = 10 }, alike = { head_dim = 6 } },
  qwen3 = { small = { head_dim = 6 }, large = { head_dim = 10 }, alike = { head_dim = 6 } },
  ["qwen3-moe"] = { small = { head_dim = 6, num_experts = 3 }, large = { head_dim = 10, num_experts = 5 },
    alike = { head_dim = 6, num_experts = 5 } },
  mixtral = { small = { num_local_experts = 3 }, large = { num_local_experts = 5 } },
  ["esm-2"] = { small = { max_position_embeddings = 11 }, large = { max_position_embeddings = 12 } },
  roberta = { small = { max_position_embeddings = 11 }, large = { max_position_embeddings = 12 } },
  ["bert-qa"] = { small = { num_labels = 2 }, large = { num_labels = 2 } },
  mllama = function(config, is_small)
    local text, vision = cbk.deep_copy(config.text_config), cbk.deep_copy(config.vision_config)
    config.text_config, config.vision_config = text, vision
    text.vocab_size, text.hidden_size, text.num_attention_heads = is_small and 11 or 13, is_small and 32 or 72, is_small and 4 or 6
    text.num_key_value_heads, text.num_hidden_layers = is_small and 2 or 3, is_small and 4 or 5
    text.cross_attention_layers = cbk.list(is_small and { 1, 2 } or { 1, 3 })
    text.intermediate_size = is_small and 40 or 56
    vision.hidden_size, vision.num_hidden_layers, vision.num_global_layers = is_small and 20 or 28, is_small and 2 or 3, 2
    vision.vision_output_dim, vision.attention_heads = vision.hidden_size * 2, 2
    vision.intermediate_layers_indices = cbk.list { 0 }
  end,
  bloom = { small = { n_inner = false }, large = { n_inner = false } },
  vit = { small = { image_size = 12, patch_size = 4 }, large = { image_size = 18, patch_size = 6 } },
}
own.dinov2, own["clip-vit"] = own.vit, own.vit

function inferred.family_of(name) return (name:gsub("%-headless$", "")) end

---Sets the sizes of a config, and removes fields that its converter does not know.
local function sized(name, size, is_known)
  local given = own[inferred.family_of(name)]
  return function(config)
    if type(given) == "function" then return given(config, size ~= large) end
    for _, field in ipairs(cbk.keys(config)) do
      if not is_known(field) then config[field] = nil end
    end
    for field, value in pairs(size) do
      if config[field] ~= nil and type(config[field]) == "number" then config[field] = value end
    end
    local which = (size == small or size == deeper) and "small" or size == alike and "alike" or "large"
    local more = given and (given[which] or given.large) or {}
    local refined = { RefinedWeb = { n_head_kv = size.num_kv_heads }, RefinedWebModel = {} } -- Falcon 40B and 7B
    for field, value in pairs(refined[config.model_type] or more) do
      if value == false then config[field] = nil else config[field] = value end
    end
  end
end

---@class Pair   One model in both layouts.
---@field left Dict
---@field right Dict
---@field left_config Dict
---@field right_config Dict

---Which fields of its left config a way knows.
local function known_of(way)
  local converter = way.converter
  if converter.variants then
    local config = tiny.config(way.name, converter, way.layout)
    return sections.known(converter.variants[converter.choose(config, "left")], "left")
  end
  local own_field, inner = sections.known(converter, "left"), nil
  if converter.wrap then inner = sections.known(tiny.newest_ways().gpt2.converter, "left") end
  return function(name) return own_field(name) or inner ~= nil and inner(name) end
end

---What makes a tiny config one of a size; that of each part of a composite.
local function change_of(way, size)
  local parts = way.converter.components
  if not parts then return sized(way.name, size, known_of(way)) end
  return function(config)
    for i, part in ipairs(parts) do
      local own_size = {}
      for field, value in pairs(size) do own_size[field] = value end
      local is_image = part.left:find "image"
      if is_image then own_size.num_hidden_layers, own_size.num_attention_heads = size.num_hidden_layers + 1, 2 end
      if is_image then own_size.hidden_size = size.hidden_size / 2 end
      own_size.mm_hidden_size = size.hidden_size / 2
      if not is_image and i > 1 and part.left:find "encoder" then own_size.num_hidden_layers = size.num_hidden_layers + 1 end
      config[part.left] = cbk.deep_copy(config[part.left])
      sized(way.name, own_size, sections.known(part, "left"))(config[part.left])
    end
  end
end

---As `cbk convert` writes both: the way back adds the buffers that it makes.
---@return Pair
local function new_pair(way, size, is_new)
  local config, root = tiny.model(way, change_of(way, size))
  local made, seed = {}, 0
  local function fill(tensors)
    for _, key in ipairs(cbk.keys(tensors)) do
      local tensor = tensors[key]
      if cbk.kind(tensors, key) == "dict" then
        fill(tensor)
      else -- a tied tensor is one tensor
        local shape = tensor:shape()
        local is_constant = is_new and #shape == 1
        seed = seed + 1
        made[tensor] = made[tensor] or is_constant and cbk.full(shape, key:find "bias$" and 0 or 1, { dtype = "float32" })
          or cbk.randn(shape, { seed = seed, dtype = "float32" })
        tensors[key] = made[tensor]
      end
    end
  end
  fill(root)
  local right_config, right, left_config, left
  conversion.warnings(function()
    right_config, right = conversion.run(way.name, "hf", way.format, config, root)
    left_config, left = conversion.run(way.name, way.format, "hf", right_config, right)
  end)
  return { left = left, right = right.model, whole = right, left_config = left_config, right_config = right_config }
end

local pairs_by_size = {} -- several tests have the same

---@param is_new? boolean   as `cbk new` makes it: norms are ones, biases zeros
---@return Pair
function inferred.pair(way, size, is_new)
  local id = ("%s %s %s"):format(way.name, way.format, is_new and "new" or "random")
  local known = pairs_by_size[size] or {}
  pairs_by_size[size] = known
  if way.layout then return new_pair(way, size, is_new) end
  known[id] = known[id] or new_pair(way, size, is_new)
  return known[id]
end

-- --- the converter that is inferred

function inferred.model_of(text)
  local path = cbk.fs.join(harness.temp_dir(), "mine.lua")
  cbk.fs.write(path, text)
  local model = family_files.read(path)[1]
  catalogue.describe(model)
  return model
end

function inferred.run(model, src, tgt, config, root, options)
  local job = { model = model, zoo_name = model.model, path = catalogue.path(model, src, tgt), seed = 1, keeps_fields = true,
    source = root, hf_config = hf_config.of(root), configs = {}, files = {}, copies = {} }
  for name, value in pairs(options) do job[name] = value end
  local out
  conversion.warnings(function()
    config = convert.config(job, config)
    out = convert.checkpoint(job, root)
  end)
  return out, config
end

function inferred.check_same(wanted, got, is_excused, what)
  for key, tensor in cbk.items(wanted) do
    if cbk.kind(wanted, key) == "dict" then
      inferred.check_same(tensor, got[key], is_excused, what .. ", " .. key)
    elseif not is_excused[key] then
      is_true(got[key] ~= nil, ("%s: '%s' is missing"):format(what, key))
      is_true(got[key].dtype == tensor.dtype, ("%s: '%s' has another dtype"):format(what, key))
      is_true(tostring(got[key]:shape()) == tostring(tensor:shape()), ("%s: '%s' is %s, not %s"):format(what, key,
        tostring(got[key]:shape()), tostring(tensor:shape())))
      is_true(got[key]:compare(tensor).same_bits, ("%s: '%s' differs"):format(what, key))
    end
  end
  for key in cbk.items(got) do is_true(wanted[key] ~= nil, ("%s: '%s' is too many"):format(what, key)) end
end

---The converter of a pair, with configs.
---@param one Pair
---@return Inferred
function inferred.with_configs(way, one)
  local left = { tensors = one.left, config = one.left_config, format = "hf", source = "left" }
  if way.converter.components then
    left.parts = {}
    for i, part in ipairs(way.converter.components) do
      left.parts[i] = { name = part.left, tensors = one.left[part.left], config = one.left_config[part.left] }
    end
  end
  return infer.run(left,
    { tensors = one.right, config = trainer.model(one.right_config), format = way.format, source = "right" }, { model = "inferred" })
end

---The converter of a pair, without configs.
---@param left Dict
---@param right Dict
---@param options? table   of infer.run
---@return Inferred
function inferred.plainly(left, right, options)
  local all = { model = "inferred" }
  for name, value in pairs(options or {}) do all[name] = value end
  return infer.run({ tensors = left, format = "a", source = "left" }, { tensors = right, format = "b", source = "right" }, all)
end

---Converts with a table that needs no config, as `cbk convert` does; raises what it refuses.
---@param model table
---@param side Side       that is read
---@param tensors Dict
---@return Dict out, string[] unmatched, string[] warnings
function inferred.run_plainly(model, side, tensors)
  local out, unmatched
  local warnings = conversion.warnings(function()
    local converter = model[1]
    out, unmatched = keys.convert(converter.keys, side, tensors, { left = cbk.dict(), right = cbk.dict(), fill = converter.fill })
  end)
  return out, unmatched, warnings
end

---The keys of a converter's comment, by side and key, and in order.
---@param found Inferred
---@return { left: table<string, boolean>, right: table<string, boolean> } excused, string[] names
function inferred.unexplained(found)
  local excused, missing = { left = {}, right = {} }, {}
  for _, one in ipairs(found.unexplained) do
    excused[one.side][one.key] = true
    missing[#missing + 1] = one.side .. " " .. one.key
  end
  return excused, missing
end

return inferred
