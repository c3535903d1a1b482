-- What every family reads: both layouts of a Model Zoo YAML, and a Hugging Face checkpoint as a pickle, a bare safetensors file, an
-- index of shards or a folder. Models, formats and keys come from the catalogue, so that a new family is tested without a word; one
-- that the fields and shapes below do not suit says here what it needs.

local cbk = require "cbk"
local converters = require "cbk.converters"
local conversion = require "conversion"
local harness = require "harness"
local catalogue, convert = converters.catalogue, converters.convert
local patterns = require "converters.engine.patterns"
local trainer = require "converters.modelzoo.trainer"

local describe, it, equal = harness.describe, harness.it, harness.equal

-- --- configs of Hugging Face: one name of each size is what a family reads, the others have no counterpart

local sizes = {
  vocab_size = 5, hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1, intermediate_size = 32, max_position_embeddings = 4,
  n_embd = 8, n_head = 2, n_layer = 1, n_positions = 4, n_inner = 32, d_model = 8, d_kv = 4, d_ff = 32, num_heads = 2, num_layers = 1,
  num_decoder_layers = 1, n_heads = 2, n_layers = 1, num_labels = 2,
  layer_norm_epsilon = 1e-5, attn_pdrop = 0.5, embd_pdrop = 0.5, resid_pdrop = 0.5,
}

local families = {
  ["bert-sequence-classifier"] = { problem_type = "single_label_classification" },
  ["gpt-neox"] = { rotary_pct = 0.5 }, mpt = { layer_norm_epsilon = false }, -- false: not a field of its
}

-- a wrapper holds a model of this family
local inside = "gpt2"

---@param name string
---@param own Converter   one table
local function config_for(name, own)
  local out = cbk.dict(sizes)
  for field, value in pairs(families[name:gsub("%-headless$", "")] or {}) do out[field] = value or nil end
  for _, rule in ipairs(own.config) do
    local is_plain = rule.kind == "must" and rule.side == "left" and type(rule.value) ~= "table"
    if is_plain and out[rule.name] == nil then out[rule.name] = rule.value end
  end
  return out
end

---A config of the table, or of a variant that is chosen for it.
---@param name string
---@param converter Converter
local function hf_config(name, converter)
  if converter.wrap then return hf_config(inside, catalogue.newest_step(catalogue.find(inside), "left").converter) end
  if converter.config then return config_for(name, converter) end
  for variant, own in pairs(converter.variants) do
    local config = config_for(name, own)
    if converter.choose(config, "left") == variant then return config end
  end
end

-- --- checkpoints of Hugging Face: the first name of each tensor

local shapes = { -- by the end of a key; else a matrix of 8 x 8, or a vector of 8
  ["attn.c_attn.weight"] = { 8, 24 }, ["attn.c_attn.bias"] = { 24 }, ["query_key_value.weight"] = { 24, 8 },
  ["query_key_value.bias"] = { 24 }, ["Wqkv.weight"] = { 24, 8 }, ["Wqkv.bias"] = { 24 },
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

---A tensor for every key that the table of a Hugging Face config reads.
local function hf_checkpoint(set, own)
  local out, written, count = cbk.dict(), {}, 0
  for _, base in ipairs(set) do
    for _, rule in ipairs(base.kind and {} or patterns.expand(base)) do
      local key, target = rule.left[1]:gsub("%f[%w]%u%f[%W]", "0"), rule.right[1]
      if not key:find "*" and not written[target] and out[key] == nil and not base.why then
        count = count + 1
        out[key] = conversion.counted(shape_of(key, own), 1000 * count)
        written[target] = true
      end
    end
  end
  return out
end

---Every model with each way from Hugging Face that it has: name, converter, format.
local function ways()
  local out = {}
  for _, name in ipairs(catalogue.names()) do
    local model = catalogue.find(name)
    for _, converter in ipairs(model.model == name and model or {}) do
      if converter[1] == "hf" and not converter.components then
        for _, format in ipairs(catalogue.formats(converter[2])) do
          out[#out + 1] = { name = name, converter = converter, format = format }
        end
      end
    end
  end
  return out
end

local function config_of(name, src, tgt, config)
  local out
  conversion.warnings(function() out = convert.config(conversion.job(name, src, tgt), config) end)
  return out
end

describe("Inputs: both layouts of a YAML, all families", function()
  it("towards Hugging Face", function()
    local seen = {}
    for _, way in ipairs(ways()) do
      local name, format = way.name, way.format
      local legacy = config_of(name, "hf", format, hf_config(name, way.converter))
      local as_trainer = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = legacy.model }, fit = cbk.dict { a = 1 } } }
      conversion.same(config_of(name, format, "hf", as_trainer), config_of(name, format, "hf", legacy), name .. " " .. format)
      seen[name] = true
    end
    assert(seen.gpt2 and seen.llama and seen.bert and seen.t5 and seen.falcon)
  end)

  it("between releases", function()
    for _, way in ipairs(ways()) do
      local name, format = way.name, way.format
      local target = format ~= "cs-2.9" and catalogue.path(catalogue.find(name), format, "cs-2.9")
      if target then
        local legacy = config_of(name, "hf", format, hf_config(name, way.converter))
        local as_trainer = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cbk.deep_copy(legacy.model) } } }
        local from_legacy = trainer.model(config_of(name, format, "cs-2.9", legacy))
        for _, field in ipairs { "fp16_type", "mixed_precision" } do legacy.model[field] = nil end -- stand elsewhere since 2.3
        conversion.same(trainer.model(config_of(name, format, "cs-2.9", as_trainer)), from_legacy, name .. " " .. format)
      end
    end
  end)

  it("a list of trainers is refused for each", function()
    for _, way in ipairs(ways()) do
      conversion.fails("multiple trainer configs", convert.config, conversion.job(way.name, way.format, "hf"),
        cbk.dict { trainer = cbk.list { cbk.dict { init = cbk.dict { model = cbk.dict() } } } })
    end
  end)
end)

describe("Inputs: configs with a value of any kind, all families", function()
  local strange = { cbk.null, "x", -1, 0, 2.5, true, cbk.list { 1 }, cbk.dict { a = 1 } }

  ---Converts the config with each field gone, and with each strange value: done, or refused in words.
  local function check(name, src, tgt, config, wrapped)
    local function try(field, value)
      local changed = cbk.copy(config)
      changed[field] = value
      local job = conversion.job(name, src, tgt)
      local ok, problem = pcall(convert.config, job, wrapped and cbk.dict { model = changed } or changed)
      local what = ("%s, %s to %s, %s=%s: %s"):format(name, src, tgt, field, tostring(value), tostring(problem))
      assert(ok or type(problem) == "table", what)
    end
    for _, field in ipairs(cbk.keys(config)) do
      try(field, nil)
      for _, value in ipairs(strange) do try(field, value) end
    end
  end

  it("are converted or refused", function()
    local newest = {}
    for _, way in ipairs(ways()) do newest[way.name] = way end
    for name, way in pairs(newest) do
      local config = hf_config(name, way.converter)
      conversion.warnings(function()
        check(name, "hf", way.format, config)
        check(name, way.format, "hf", config_of(name, "hf", way.format, config).model, true)
      end)
    end
  end)
end)

describe("Inputs: all forms of a checkpoint, all families", function()
  ---The same tensors as a pickle, a bare safetensors file, an index of shards and a folder.
  local function forms(dir, root)
    cbk.create(dir .. "/pytorch_model.bin", { root = root }):commit()
    cbk.create(dir .. "/model.safetensors", { root = root }):commit()
    cbk.create(dir .. "/shards", { root = root, format = "safetensors", shard_size = "2KB", shard_stem = "model" }):commit()
    return {
      dir .. "/pytorch_model.bin", dir .. "/model.safetensors", dir .. "/shards/model.safetensors.index.json", dir .. "/shards",
      dir .. "/shards/",
    }
  end

  local newest = {}
  for _, way in ipairs(ways()) do newest[way.name] = way end

  for name, way in pairs(newest) do
    it(name, function()
      local job = conversion.job(name, "hf", way.format)
      conversion.warnings(function()
        convert.config(job, hf_config(name, way.converter))
        local set = job.configs[1].converter.keys
        local root = hf_checkpoint(set, name:find "falcon" and falcon_shapes or {})
        local want = convert.checkpoint(job, root)
        assert(#want.model > 5, name)
        for _, path in ipairs(forms(harness.temp_dir(), root)) do
          local got = convert.checkpoint(job, cbk.open(path).root)
          equal(#got.model, #want.model, path)
          conversion.equal_tensors(want.model, got.model)
        end
      end)
    end)
  end

  it("as a command, the output stands beside the input and is named after it", function()
    local dir = harness.temp_dir()
    local way = newest.llama
    local root = hf_checkpoint(way.converter.keys, {})
    cbk.config.save(hf_config("llama", way.converter), dir .. "/config.json")
    local names = { "pytorch_model", "model", "model", "shards", "shards" }
    for i, path in ipairs(forms(dir, root)) do
      local out = ("%s/out%d"):format(dir, i)
      local code, stdout, stderr = harness.cbk(dir, "convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.10", "-o", out,
        "--config", "config.json", path)
      equal(code, 0, stderr)
      equal(stdout, ("Checkpoint saved to %s/%s_to_cs-2.9.mdl\nConfig saved to %s/config_to_cs-2.9.yaml\n"):format(out, names[i], out))
    end
    local code, stdout = harness.cbk(dir, "convert", "--model", "llama", "--src-fmt", "cs-auto", "--tgt-fmt", "cs-current",
      "--config", "out1/config_to_cs-2.9.yaml", "out1/pytorch_model_to_cs-2.9.mdl")
    equal({ code, stdout }, { 1, "" }) -- says no release: it comes from Hugging Face
  end)
end)
