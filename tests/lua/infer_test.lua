-- `cbk infer`: of a tiny pair of every family it makes a converter that converts a larger model of the family, bit for bit, in both
-- directions.

local cbk = require "cbk"
local catalogue = require("cbk.converters").catalogue
local convert = require("cbk.converters").convert
local conversion = require "conversion"
local harness = require "harness"
local infer = require "cbk.infer"
local keys = require "converters.engine.keys"
local notation = require "converters.notation.files"
local hf_config = require "converters.modelzoo.hf_config"
local sections = require "converters.engine.sections"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local describe, it, is_true = harness.describe, harness.it, harness.is_true

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
local alike = sizes(13, 48, 6, 3, 3, 56, 9, 3) -- heads of the same size, in the same ratio

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
    text.vocab_size, text.hidden_size, text.num_attention_heads = is_small and 11 or 13, is_small and 32 or 48, is_small and 4 or 6
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

local function family_of(name) return (name:gsub("%-headless$", "")) end

---Sets the sizes of a config, and removes fields that its converter does not know.
local function sized(name, size, is_known)
  local given = own[family_of(name)]
  return function(config)
    if type(given) == "function" then return given(config, size == small) end
    for _, field in ipairs(cbk.keys(config)) do
      if not is_known(field) then config[field] = nil end
    end
    for field, value in pairs(size) do
      if config[field] ~= nil and type(config[field]) == "number" then config[field] = value end
    end
    local which = size == small and "small" or size == alike and "alike" or "large"
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
---@param is_new? boolean   as `cbk new` makes it: norms are ones, biases zeros
---@return Pair
local function pair(way, size, is_new)
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

-- --- the converter that is inferred

local function model_of(text)
  local path = cbk.fs.join(harness.temp_dir(), "mine.lua")
  cbk.fs.write(path, text)
  local model = notation.read(path)[1]
  catalogue.describe(model)
  return model
end

local function run(model, src, tgt, config, root, options)
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

local function check_same(wanted, got, is_excused, what)
  for key, tensor in cbk.items(wanted) do
    if cbk.kind(wanted, key) == "dict" then
      check_same(tensor, got[key], is_excused, what .. ", " .. key)
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

---Tensors that nothing tells of: the head that a model without one gets is random.
local unexplained = {}
for _, name in ipairs { "codegen", "gptj", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3-moe", "gpt-neox" } do
  unexplained[name .. "-headless"] = { "right lm_head.weight" }
end
for _, name in ipairs { "dinov2", "vit" } do
  unexplained[name .. "-headless"] = { "right classifier.classifier.ffn.0.linear_layer.weight" }
end

---The converter of a pair, without configs.
local function infer_plainly(one)
  return infer.run({ tensors = one.left, format = "a", source = "left" }, { tensors = one.right, format = "b", source = "right" },
    { model = "inferred" })
end

local function infer_of(way, one)
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

---@param is_new? boolean   the tiny pair has constants
local function check(way, is_new)
  local seen, other = pair(way, small, is_new), pair(way, large)
  local found = infer_of(way, seen)
  local fine, why = pcall(function()
    local model, excused, missing = model_of(found.text), { left = {}, right = {} }, {}
    for _, one in ipairs(found.unexplained) do
      excused[one.side][one.key] = true
      missing[#missing + 1] = one.side .. " " .. one.key
    end
    harness.equal(missing, unexplained[way.name] or {}, "unexplained")
    local options = { drop_unmatched = #missing > 0 }
    local right = run(model, "hf", way.format, other.left_config, other.left, options)
    check_same(other.right, right.model, excused.right, "to the right")
    local left = run(model, way.format, "hf", other.right_config, other.whole, options)
    check_same(other.left, left, excused.left, "to the left")
  end)
  if not fine then error(("%s\n%s"):format(tostring(why), os.getenv "INFER_SHOW" and found.text or ""), 0) end
end

---Converts with a table that needs no config.
local function run_plainly(model, side, tensors)
  local out, unmatched
  conversion.warnings(function()
    local converter = model[1]
    out, unmatched = keys.convert(converter.keys, side, tensors, { left = cbk.dict(), right = cbk.dict(), fill = converter.fill })
  end)
  return out, unmatched
end

local slopes = "right embedding_layer.position_embed_helper.slopes" -- made from the number of heads

---Without configs, rows of four devices are heads of a size, and one key head is a share of the heads.
local needs_configs = { codegen = true, starcoder = true }

local function check_plainly(way)
  local seen, other = pair(way, small), pair(way, alike)
  local found = infer_plainly(seen)
  local fine, why = pcall(function()
    local model, excused, missing = model_of(found.text), { left = {}, right = {} }, {}
    for _, one in ipairs(found.unexplained) do
      excused[one.side][one.key] = true
      missing[#missing + 1] = one.side .. " " .. one.key
    end
    harness.equal(missing, family_of(way.name) == "bloom" and { slopes } or unexplained[way.name] or {}, "unexplained")
    check_same(other.right, run_plainly(model, "left", other.left), excused.right, "to the right")
    check_same(other.left, run_plainly(model, "right", other.right), excused.left, "to the left")
  end)
  if not fine then error(("%s\n%s"):format(tostring(why), os.getenv "INFER_SHOW" and found.text or ""), 0) end
end

describe("cbk infer", function()
  for _, name in ipairs { "llava", "mmsimple-llava", "dpr" } do
    it("writes a converter for the parts of " .. name, function() check(tiny.composite(name)) end)
  end

  it("knows every layout of a family, and experts in one tensor", function()
    for _, way in ipairs(tiny.ways()) do
      local is_newest = way.layout and way.format == "cs-2.9"
      if is_newest or family_of(way.name) == "mixtral" and way.format == "cs-2.8" then check(way) end
    end
  end)

  local ways, names = tiny.newest_ways(), {}
  for name in pairs(ways) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    it("writes a converter for " .. name, function() check(ways[name]) end)
    it("writes one of a new model of " .. name, function() check(ways[name], true) end)
    if not needs_configs[family_of(name)] then
      it("writes one without configs for " .. name, function() check_plainly(ways[name]) end)
    end
  end
end)

-- --- the command

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

---The command lines of the first example of a help page: `cbk` and its words.
local function first_example(page)
  local out = {}
  for line in cbk.fs.read(here .. "scripts/help/" .. page):gmatch "[^\n]+" do
    local words = line:match "^  cbk (.*)$"
    if words then
      local list = {}
      for word in words:gmatch "%S+" do list[#list + 1] = word end
      out[#out + 1] = list
    elseif #out > 0 then
      return out
    end
  end
end

---A checkpoint in a layout, and in another one with the same values: two layers with rotary rows, in bfloat16 on the right.
local function write_two(dir, names, width, layers)
  local left, right = cbk.dict(), cbk.dict()
  local function add(a, b, shape, change)
    local seed = cbk.count(left)
    left[a] = cbk.randn(shape, { seed = seed, dtype = "float32" }):to "bfloat16":to "float32"
    right[b] = (change and change(left[a]) or left[a]):to "bfloat16"
  end
  local function pairs_of_rows(t) return t:reshape({ width / 8, 2, 4, -1 }):permute({ 0, 2, 1, 3 }):reshape(t:shape()) end
  add("embed", "words.weight", { 11, width })
  for i = 0, layers - 1 do
    local a, b = ("blocks.%d."):format(i), ("decoder.layers.%d."):format(i + 0)
    add(a .. "q", b .. "attention.query", { width, width }, pairs_of_rows)
    add(a .. "up", b .. "ffn.0.weight", { width, 3 * width }, function(t) return t:transpose(0, 1) end)
    left[a .. "norm"], right[b .. "norm.weight"] = cbk.full({ width }, 1), cbk.full({ width }, 1, { dtype = "bfloat16" })
  end
  for name, root in pairs { [names[1]] = left, [names[2]] = right } do cbk.create(dir .. "/" .. name, { root = root }):commit() end
end

describe("cbk infer, the command", function()
  it("does what its help page shows", function()
    local dir = harness.temp_dir()
    write_two(dir, { "old.safetensors", "new.pt" }, 16, 2)
    write_two(dir, { "other.safetensors", "wanted.pt" }, 32, 4)
    local lines = first_example "infer.md"
    harness.equal(#lines, 4)
    for _, words in ipairs(lines) do
      local code, out, err = harness.cbk(dir, unpack(words))
      harness.equal(code, 0, out .. err)
    end
    harness.equal((harness.cbk(dir, "diff", "other_to_b.pt", "wanted.pt")), 0)
    harness.equal((harness.cbk(dir, "rules", "mine.lua", "old.safetensors")), 0)
  end)

  it("finds heads in another order, other numbers, stacked and joined tensors", function()
    local dir = harness.temp_dir()
    local function random(seed, ...) return cbk.randn({ ... }, { seed = seed, dtype = "float32" }) end
    local left, right = cbk.dict(), cbk.dict()
    left["a.w"] = random(1, 24, 5)
    right["heads.w"] = left["a.w"]:reshape({ 4, 6, 5 }):permute({ 1, 0, 2 }):reshape { 24, 5 }
    left["b.w"], left["c.w"] = random(2, 8, 5), random(3, 4, 5)
    right["joined.w"] = cbk.cat({ left["b.w"], left["c.w"] }, 0)
    left["d.w"] = random(4, 7)
    right["norm.w"] = left["d.w"] + 1
    left["e.w"] = random(5, 7, 6)
    right["scaled.w"] = left["e.w"] * 0.5
    for i = 0, 2 do left[("experts.%d.w"):format(i)] = random(10 + i, 4, 3) end
    right["experts.w"] = cbk.stack({ left["experts.0.w"], left["experts.1.w"], left["experts.2.w"] }, 0)
    left["f.w"] = random(6, 3, 10)
    right["one.w"], right["two.w"] = left["f.w"]:slice(1, 4, 10), left["f.w"]:slice(1, 0, 4)
    cbk.create(dir .. "/a.pt", { root = left }):commit()
    cbk.create(dir .. "/b.pt", { root = right }):commit()
    for _, words in ipairs {
      { "infer", "a.pt", "b.pt", "-o", "mine.lua" }, { "convert", "a.pt", "--converter", "mine.lua", "--to", "b" },
      { "diff", "a_to_b.pt", "b.pt" }, { "convert", "b.pt", "--converter", "mine.lua", "--to", "a" },
      { "diff", "b_to_a.pt", "a.pt", "--atol", "1e-6" },
    } do
      local code, out, err = harness.cbk(dir, unpack(words))
      harness.equal(code, 0, table.concat(words, " ") .. out .. err)
    end
  end)

  it("says what it cannot explain, and convert refuses that", function()
    local dir = harness.temp_dir()
    write_two(dir, { "a.pt", "b.pt" }, 16, 2)
    local root = cbk.copy(cbk.open(dir .. "/b.pt").root)
    root["more.weight"] = cbk.randn({ 3, 5 }, { seed = 99 })
    cbk.create(dir .. "/c.pt", { root = root }):commit()
    local code, out = harness.cbk(dir, "infer", "a.pt", "c.pt", "-o", "mine.lua")
    harness.equal(code, 1)
    is_true(out:find("7 of 7 tensors of 'a.pt', 7 of 8 of 'c.pt'", 1, true), out)
    is_true(out:find("without a rule, right: more.weight", 1, true), out)
    is_true(cbk.fs.read(dir .. "/mine.lua"):find("--   right: float32 [3, 5]  values that the other side lacks: more.weight", 1, true))
    local refused, _, err = harness.cbk(dir, "convert", "c.pt", "--converter", "mine.lua", "--to", "a")
    harness.equal(refused, 1)
    is_true(err:find("1 key was not matched: more.weight", 1, true), err)
    harness.equal((harness.cbk(dir, "convert", "c.pt", "--converter", "mine.lua", "--to", "a", "--drop-unmatched-keys")), 0)
    harness.equal((harness.cbk(dir, "diff", "a.pt", "c_to_a.pt")), 0)
  end)

  it("refuses wrong formats, and half of the configs", function()
    local dir = harness.temp_dir()
    for text, words in pairs {
      ["--src-fmt: 'old' is not a format"] = { "--src-fmt", "old" }, ["must differ"] = { "--src-fmt", "b" },
      ["belong together"] = { "--src-config", "x.json" },
    } do
      local code, _, err = harness.cbk(dir, "infer", "a.pt", "b.pt", "-o", "mine.lua", unpack(words))
      harness.equal(code, 2, err)
      is_true(err:find(text, 1, true), err)
    end
  end)
end)
