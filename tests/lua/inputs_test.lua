-- What every family reads: both layouts of a Model Zoo YAML, and a Hugging Face checkpoint as a pickle, a bare safetensors file, an
-- index of shards or a folder. Models, formats and keys come from the catalogue, so that a new family is tested without a word; one
-- that the fields and shapes below do not suit says here what it needs.

local cbk = require "cbk"
local converters = require "cbk.converters"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"
local catalogue, convert = converters.catalogue, converters.convert
local trainer = require "converters.modelzoo.trainer"

local describe, it, equal = harness.describe, harness.it, harness.equal

local function config_of(name, src, tgt, config)
  local out
  conversion.warnings(function() out = convert.config(conversion.job(name, src, tgt), config) end)
  return out
end

describe("Inputs: both layouts of a YAML, all families", function()
  it("towards Hugging Face", function()
    local seen = {}
    for _, way in ipairs(tiny.ways()) do
      local name, format = way.name, way.format
      local legacy = config_of(name, "hf", format, tiny.config(name, way.converter, way.layout))
      local as_trainer = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = legacy.model }, fit = cbk.dict { a = 1 } } }
      conversion.same(config_of(name, format, "hf", as_trainer), config_of(name, format, "hf", legacy), name .. " " .. format)
      seen[name] = true
    end
    assert(seen.gpt2 and seen.llama and seen.bert and seen.t5 and seen.falcon)
  end)

  it("between releases", function()
    for _, way in ipairs(tiny.ways()) do
      local name, format = way.name, way.format
      local target = format ~= "cs-2.9" and catalogue.path(catalogue.find(name), format, "cs-2.9")
      if target then
        local legacy = config_of(name, "hf", format, tiny.config(name, way.converter, way.layout))
        local as_trainer = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = cbk.deep_copy(legacy.model) } } }
        local from_legacy = trainer.model(config_of(name, format, "cs-2.9", legacy))
        for _, field in ipairs { "fp16_type", "mixed_precision" } do legacy.model[field] = nil end -- stand elsewhere since 2.3
        conversion.same(trainer.model(config_of(name, format, "cs-2.9", as_trainer)), from_legacy, name .. " " .. format)
      end
    end
  end)

  it("both in one file are refused", function()
    local model = cbk.dict { hidden_size = 4 }
    local config = cbk.dict { model = model, trainer = cbk.dict { init = cbk.dict { model = model } } }
    for _, target in ipairs { "hf", "cs-2.5" } do
      conversion.fails("both describe the model", convert.config, conversion.job("llama", "cs-2.4", target), config)
    end
  end)

  it("a list of trainers is refused for each", function()
    for _, way in ipairs(tiny.ways()) do
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
    for name, way in pairs(tiny.newest_ways()) do
      local config = tiny.config(name, way.converter, way.layout)
      conversion.warnings(function()
        check(name, "hf", way.format, config)
        check(name, way.format, "hf", config_of(name, "hf", way.format, config).model, true)
      end)
    end
  end)
end)

describe("Inputs: what one side leaves out or cannot say", function()
  local newest = tiny.newest_ways()

  ---A config of the family on either side, changed, and what becomes of it.
  local function converted(name, to, changes, gone)
    local way = newest[name]
    local config = tiny.config(name, way.converter, way.layout)
    if to == "hf" then config = config_of(name, "hf", way.format, config).model end
    config = conversion.with(config, changes, gone)
    if to == "hf" then return config_of(name, way.format, "hf", cbk.dict { model = config }) end
    return config_of(name, "hf", way.format, config).model
  end

  local defaults = { -- family, direction, the field that is not there, what is written
    { "gpt2", "cs", "activation_function", nonlinearity = "gelu_new" }, { "gpt2", "hf", "nonlinearity", activation_function = "gelu" },
    { "gpt2", "cs", "attn_pdrop", attention_dropout_rate = 0.1 },
    { "gpt2", "cs", "scale_attn_weights", attention_type = "scaled_dot_product" },
    { "gpt2", "hf", "max_position_embeddings", n_positions = 1024 }, { "bert", "hf", "layer_norm_epsilon", layer_norm_eps = 1e-5 },
    { "bert", "hf", "attention_dropout_rate", attention_probs_dropout_prob = 0.1 },
    { "t5", "hf", "layer_norm_epsilon", layer_norm_epsilon = 1e-5 },
    { "llama", "hf", "layer_norm_epsilon", rms_norm_eps = 1e-5 },
    { "falcon", "hf", "attention_dropout_rate", attention_dropout = 0.1 },
    { "clip-vit", "hf", "nonlinearity", hidden_act = "gelu" }, { "bert-token-classifier", "hf", "dropout_rate", hidden_dropout_prob = 0 },
  }

  it("is written where the defaults differ", function()
    for _, one in ipairs(defaults) do
      local name, to, field = unpack(one)
      local out = converted(name, to, {}, { field })
      for key, value in pairs(one) do
        if type(key) == "string" then conversion.same(out[key], value, ("%s to %s without %s: %s"):format(name, to, field, key)) end
      end
    end
    local heads = { num_heads = 1 } -- of which a quarter is a pair of rows
    conversion.same(converted("gptj", "hf", heads, { "rotary_dim" }).rotary_dim, 2)
    conversion.same(converted("gpt-neox", "hf", heads, { "rotary_dim" }).rotary_pct, 0.25)
    conversion.same(converted("t5", "hf", { extra_ids = 3 }).vocab_size, 8)
    converted("llama", "hf", { moe_params = cbk.dict { num_experts = 1 }, norm_first_sandwich = false })
  end)

  it("is refused where it is a number of layers and the checkpoint has another", function()
    for name, field in pairs { llama = "num_hidden_layers", t5 = "num_layers", ["clip-vit"] = "num_hidden_layers" } do
      local way = newest[name]
      local config, root = tiny.model(way)
      config = conversion.with(config, {}, { field })
      conversion.warnings(function()
        conversion.fails("is assumed, because the config does not set it", conversion.run, name, "hf", way.format, config, root)
      end)
    end
  end)

  it("is refused between releases, too, where the checkpoint has other layers than the config says", function()
    for name, field in pairs { llama = "num_hidden_layers", t5 = "encoder_num_hidden_layers", bert = "num_hidden_layers" } do
      local config, root = tiny.model(newest[name])
      config = conversion.with(config, { num_hidden_layers = 2, num_layers = 2 })
      root = tiny.checkpoint(catalogue.find(name).classes.left, config)
      conversion.warnings(function() config, root = conversion.run(name, "hf", "cs-2.4", config, root) end)
      local section = trainer.model(config)
      conversion.warnings(function() conversion.run(name, "cs-2.4", "cs-2.5", config, root) end)
      section[field] = 1
      conversion.fails(("the config says %s=1, but the checkpoint has '"):format(field), conversion.run, name,
        "cs-2.4", "cs-2.5", config, root)
      section[field] = 3
      conversion.fails((".layers.2.', but the config says %s=3"):format(field), conversion.run, name, "cs-2.4", "cs-2.5", config, root)
      section[field] = nil
      conversion.warnings(function() conversion.run(name, "cs-2.4", "cs-2.5", config, root) end)
    end
  end)

  it("is no loss if other fields express it", function()
    local way = newest.gpt2
    local config = conversion.with(tiny.config("gpt2", way.converter), { use_bfloat16 = true })
    local job = conversion.job("gpt2", "hf", "cs-2.2")
    local out
    local reported = table.concat(conversion.warnings(function() out = convert.config(job, config) end), "\n")
    assert(out.model.fp16_type == "bfloat16" and not reported:find("bfloat16", 1, true), reported)
    local linear = cbk.dict { rope_type = "linear", factor = 2 }
    conversion.same(converted("gpt-neox", "cs", { rope_scaling = linear }).pos_scaling_factor, 2)
  end)

  local refused = {
    bert = { norm_first = true, use_final_layer_norm = true, add_pooling_layer = false, encoder_nonlinearity = "geglu",
      attention_module = "multiquery_attention", num_segments = 3, embedding_layer_norm = false },
    t5 = { attention_module = "multiquery_attention", attention_type = "scaled_dot_product", use_bias_in_output = true },
    gpt2 = { attention_module = "multiquery_attention", attention_sliding_window_length = 4, scale_qk_dot_by_layer_idx = true },
    llama = { attention_logit_softcapping = 30, moe_params = cbk.dict { num_experts = 2 } },
    gptj = { norm_first = false }, ["gpt-neox"] = { attention_sliding_window_length = 4 },
    bloom = { final_logit_softcapping = 1, position_embedding_offset = 2 },
  }

  it("is refused by field and value where there is no word for it", function()
    for name, fields in pairs(refused) do
      for field, value in pairs(fields) do
        local shown = type(value) == "string" and "'" .. value .. "'" or type(value) ~= "userdata" and tostring(value) or ""
        conversion.fails(("cannot convert the config with %s=%s"):format(field, shown), converted, name, "hf", { [field] = value })
      end
    end
    for _, field in ipairs { "attention_bias", "mlp_bias" } do
      conversion.fails(field .. "=true", converted, "llama", "cs", { [field] = true })
    end
    conversion.fails("attention_bias=false", converted, "gpt-neox", "cs", { attention_bias = false })
    conversion.fails("hidden_act='geglu'", converted, "bert", "cs", { hidden_act = "geglu" })
    conversion.fails("the config has no 'filter_size'", converted, "gpt2", "hf", {}, { "filter_size" })
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

  local newest = tiny.newest_ways()

  for name, way in pairs(newest) do
    it(name, function()
      local job = conversion.job(name, "hf", way.format)
      conversion.warnings(function()
        local config, root = tiny.model(way)
        convert.config(job, config)
        local want = convert.checkpoint(job, root)
        assert(cbk.count(want.model) > 5, name)
        for _, path in ipairs(forms(harness.temp_dir(), root)) do
          local got = convert.checkpoint(job, cbk.open(path).root)
          equal(cbk.count(got.model), cbk.count(want.model), path)
          conversion.equal_tensors(want.model, got.model)
        end
      end)
    end)
  end

  local needed = {
    t5 = { "encoder.block.0.layer.1.DenseReluDense.wo.weight", "decoder.block.0.layer.1.EncDecAttention.k.weight",
      "decoder.final_layer_norm.weight", "decoder.block.0.layer.2.layer_norm.weight",
      "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" },
    bert = { "bert.encoder.layer.0.output.LayerNorm.weight", "bert.embeddings.token_type_embeddings.weight",
      "bert.embeddings.position_embeddings.weight", "cls.predictions.transform.dense.weight" },
    ["bert-sequence-classifier"] = { "bert.pooler.dense.weight", "classifier.weight" },
    ["bert-qa"] = { "qa_outputs.weight", "bert.embeddings.LayerNorm.weight" },
    falcon = { "transformer.ln_f.weight" },
    gpt2 = { "transformer.wpe.weight", "transformer.ln_f.weight", "transformer.h.0.mlp.c_proj.weight" },
    llama = { "model.norm.weight", "model.layers.0.mlp.gate_proj.weight", "lm_head.weight" },
    gptj = { "transformer.h.0.ln_1.weight", "lm_head.weight" }, ["gpt-neox"] = { "gpt_neox.embed_in.weight", "embed_out.weight" },
    bloom = { "transformer.word_embeddings_layernorm.weight" }, mpt = { "transformer.norm_f.weight" },
    ["clip-vit"] = { "vision_model.embeddings.class_embedding", "visual_projection.weight", "vision_model.post_layernorm.weight" },
  }

  it("without a weight that the model needs are incomplete", function()
    for name, gone in pairs(needed) do
      local job = conversion.job(name, "hf", newest[name].format)
      conversion.warnings(function()
        local config, root = tiny.model(newest[name])
        convert.config(job, config)
        for _, key in ipairs(gone) do
          assert(root[key] ~= nil, key)
          conversion.fails("the checkpoint is incomplete: 1 weight is missing: " .. key, convert.checkpoint, job,
            conversion.with(root, {}, { key }))
        end
      end)
    end
  end)

  -- biases that a model of the family may do without
  local optional = {
    gpt2 = { "lm_head", "word_embeddings", "position_embeddings.*", "wte", "wpe" }, falcon = { "word_embeddings", "lm_head" },
    bloom = { "word_embeddings", "lm_head" }, mpt = { "word_embeddings", "position_embeddings.*", "lm_head", "wte", "wpe" },
    gptj = { "wte", "word_embeddings", "lm_head", "attn%.%a+_proj", "attn%.proj_%a+_dense_layer" },
    ["gpt-neox"] = { "word_embeddings", "embed_in", "embed_out", "lm_head" },
    ["clip-vit"] = { "patch_embedding", "linear_proj", "visual_projection", "classifier.*" },
    bert = {}, ["bert-qa"] = {}, ["bert-sequence-classifier"] = {}, ["bert-token-classifier"] = {},
  }

  ---Whether the key is a bias that the family cannot do without.
  local function is_needed_bias(name, key)
    local module = key:match "^(.*)%.bias$"
    for _, own in ipairs(optional[name]) do
      if module and module:find(own .. "$") then return false end
    end
    return module ~= nil
  end

  ---All names of the tensor of a key.
  local function names_of(source, key)
    local out = {}
    for name, tensor in cbk.items(source) do
      if tensor:same(source[key]) then out[#out + 1] = name end
    end
    return out
  end

  ---Fails as one of the names is missing.
  local function fails_naming(names, f, ...)
    local ok, why = pcall(f, ...)
    assert(not ok, "should have failed without " .. names[1])
    for _, name in ipairs(names) do
      if why.message:find("missing: " .. name, 1, true) then return end
    end
    error(why.message .. " does not name " .. table.concat(names, ", "))
  end

  it("without a bias that the model always has are incomplete, from either side", function()
    for name in pairs(optional) do
      local way = newest[name]
      conversion.warnings(function()
        local config, root = tiny.model(way)
        local cs_config, cs = conversion.run(name, "hf", way.format, config, root)
        for _, side in ipairs { { "hf", way.format, config, root }, { way.format, "hf", cs_config, cs.model } } do
          local src, tgt, own, source = unpack(side)
          for key in cbk.items(source) do
            local names = is_needed_bias(name, key) and names_of(source, key) or {}
            if #names > 0 then
              local rest = conversion.with(source, {}, names)
              fails_naming(names, conversion.run, name, src, tgt, own, src == "hf" and rest or cbk.dict { model = rest })
            end
          end
        end
      end)
    end
  end)

  ---Names of one tensor, where embeddings are tied; safetensors files of transformers have the first alone.
  local tied = {
    gpt2 = { "transformer.wte.weight", "lm_head.weight" }, llama = { "model.embed_tokens.weight", "lm_head.weight" },
    gptj = { "transformer.wte.weight", "lm_head.weight" }, ["gpt-neox"] = { "gpt_neox.embed_in.weight", "embed_out.weight" },
    falcon = { "transformer.word_embeddings.weight", "lm_head.weight" }, bloom = { "transformer.word_embeddings.weight", "lm_head.weight" },
    t5 = { "shared.weight", "lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight" },
    bert = { "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight" },
  }

  ---A tiny model whose tied tensors have all their names.
  ---@return Dict config, Dict root, Job job   the config is converted
  ---@return Dict want    what all of it becomes
  local function tied_model(name, names)
    local config, root = tiny.model(newest[name])
    config.tie_word_embeddings = true
    local one = root[names[1]] or root[names[3]]
    for _, key in ipairs(names) do root[key] = one end
    local job = conversion.job(name, "hf", newest[name].format)
    convert.config(job, config)
    return config, root, job, convert.checkpoint(job, root).model
  end

  it("with a head that is another tensor, though the config ties it, are reported, from either side", function()
    for name, names in pairs(tied) do
      local config, root, way = nil, nil, newest[name]
      conversion.warnings(function() config, root = tied_model(name, names) end)
      local function reported(src, tgt, own, source)
        local out = {}
        local warned = conversion.warnings(function() out = { conversion.run(name, src, tgt, own, source) } end)
        return table.concat(warned, "\n"):find("differs from .*, though the config ties them") ~= nil, unpack(out)
      end
      local is_told, cs_config, cs = reported("hf", way.format, config, root)
      equal({ is_told, reported(way.format, "hf", cs_config, cs) == true }, { false, false }, name)
      root[names[2]] = root[names[2]]:affine(2, 1)
      is_told, cs_config, cs = reported("hf", way.format, config, root)
      equal({ is_told, (reported(way.format, "hf", cs_config, cs)) }, { true, true }, name)
    end
  end)

  ---The command over model.safetensors of a folder; what it prints.
  local function run_in(dir, name, ...)
    local code, out, stderr = harness.cbk(dir, "convert", "--model", name, "--src-fmt", "hf", "--tgt-fmt", newest[name].format,
      "--config", "config.json", "model.safetensors", ...)
    equal(code, 0, stderr)
    return out
  end

  local function has_all(got, want, what)
    equal(cbk.count(got), cbk.count(want), what)
    conversion.equal_tensors(want, got)
  end

  for name, names in pairs(tied) do
    it("tied tensors of " .. name .. " that safetensors files have once are written under all names that the target has", function()
      local dir = harness.temp_dir()
      conversion.warnings(function()
        local config, root, _, want = tied_model(name, names)
        cbk.config.save(config, dir .. "/config.json")
        cbk.create(dir .. "/model.safetensors", { root = conversion.with(root, {}, { unpack(names, 2) }) }):commit()
        run_in(dir, name)
        has_all(cbk.open(("%s/model_to_%s.mdl"):format(dir, newest[name].format)).root.model, want)
      end)
    end)
  end

  ---What safetensors.torch.save_model keeps of these: the first by name, the others as notes.
  local function noted(names)
    local sorted = { unpack(names) }
    table.sort(sorted)
    local metadata = cbk.dict { format = "pt" }
    for k = 2, #sorted do metadata[sorted[k]] = sorted[1] end
    return sorted[1], metadata
  end

  for name, names in pairs(tied) do
    it("tied tensors of " .. name .. ": a safetensors file keeps the first name and notes the others", function()
      local dir = harness.temp_dir()
      conversion.warnings(function()
        local config, root, _, want = tied_model(name, names)
        cbk.config.save(config, dir .. "/config.json")
        local kept, metadata = noted(names)
        local once = conversion.with(root, {}, names)
        once[kept] = root[kept]
        metadata["no.tensor"], metadata[kept], metadata["model.layers.0"] = "neither.is.this", "format", "" -- anyone may write anything
        cbk.create(dir .. "/model.safetensors", { root = once, metadata = metadata }):commit()
        local plan = run_in(dir, name, "--dry-run")
        for other, first in cbk.items(metadata) do -- read as tensors of their own, which share the kept one's bytes
          if first == kept then assert(plan:find("\n  " .. other .. " ", 1, true), plan) end
        end
        run_in(dir, name)
        has_all(cbk.open(("%s/model_to_%s.mdl"):format(dir, newest[name].format)).root.model, want)
      end)
    end)
  end

  it("tied tensors that a safetensors file has under another name than the first, without a note, are written under all names", function()
    for name, names in pairs(tied) do
      conversion.warnings(function()
        local config, root, job, want = tied_model(name, names)
        job.deduplicated = true
        for k = 2, #names do
          local once = conversion.with(root, {}, names)
          once[names[k]] = root[names[k]]
          has_all(convert.checkpoint(job, once).model, want, name .. " " .. names[k])
        end
        config.tie_word_embeddings = false
        convert.config(job, config)
        local lost = conversion.with(root, {}, { names[1], unpack(names, 3) })
        if name ~= "t5" then conversion.fails("is missing: ", convert.checkpoint, job, lost) end
      end)
    end
  end)

  it("as a command, the output is beside the input and is named after it", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(newest.llama)
    cbk.config.save(config, dir .. "/config.json")
    local names = { "pytorch_model", "model", "model", "shards", "shards" }
    for i, path in ipairs(forms(dir, root)) do
      local out = ("%s/out%d"):format(dir, i)
      local code, stdout, stderr = harness.cbk(dir, "convert", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.10", "-o", out,
        "--config", "config.json", path)
      equal(code, 0, stderr)
      equal(stdout, ("Checkpoint saved to %s/%s_to_cs-2.9.mdl\nConfig saved to %s/config_to_cs-2.9.yaml\n"):format(out, names[i], out))
    end
    local code, stdout, stderr = harness.cbk(dir, "convert", "--model", "llama", "--src-fmt", "cs-auto", "--tgt-fmt", "cs-current",
      "--config", "out1/config_to_cs-2.9.yaml", "out1/pytorch_model_to_cs-2.9.mdl")
    equal(code, 0, stderr)
    assert(stdout:find("cs-2.9 and cs-current are the same", 1, true), stdout)
  end)
end)
