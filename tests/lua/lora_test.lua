-- Folding LoRA into weights, and muP configs made from standard ones.

local cbk = require "cbk"
local lora = require "converters.modelzoo.lora"
local modules = require "converters.modelzoo.modules"
local mup_config = require "converters.modelzoo.mup_config"
local conversion = require "conversion"
local harness = require "harness"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

local function matrix(rows, dtype) return cbk.tensor(rows, { dtype = dtype or "float32" }) end

local function config(params, more)
  local model = cbk.dict(more or {})
  model.lora_params = params
  return cbk.dict { model = model }
end

local linear = "model.transformer_decoder.layers.0.ffn.ffn.1.linear_layer"
local embedding = "model.embedding_layer.word_embeddings"

---A linear layer (out 2, in 3) and an embedding (num 3, dim 2), rank 1, with B·A = { { 1, 2, 3 }, { 10, 20, 30 } } each.
local function checkpoint(dtype)
  local out = cbk.dict()
  out[linear .. ".weight"] = matrix({ { 1, 1, 1 }, { 1, 1, 1 } }, dtype)
  out[embedding .. ".weight"] = matrix({ { 1, 1 }, { 1, 1 }, { 1, 1 } }, dtype)
  for _, name in ipairs { linear, embedding } do
    out[name .. ".lora_A"], out[name .. ".lora_B"] = matrix({ { 1, 2, 3 } }, dtype), matrix({ { 1 }, { 10 } }, dtype)
  end
  return out
end

describe("LoRA folding", function()
  it("adds the scaled product to weights, transposed for embeddings", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
      local folded = lora.fold(checkpoint(dtype), config(cbk.dict { r = 1, alpha = 2 }), "gpt2")
      equal(cbk.keys(folded), { linear .. ".weight", embedding .. ".weight" })
      equal(folded[linear .. ".weight"]:tolist(), { { 3, 5, 7 }, { 21, 41, 61 } }, dtype)
      equal(folded[embedding .. ".weight"]:tolist(), { { 3, 21 }, { 5, 41 }, { 7, 61 } }, dtype)
      equal(folded[linear .. ".weight"].dtype, dtype)
    end
  end)

  it("refuses masks in the optimizer's sparsity, which the folded checkpoint would lack", function()
    for _, name in ipairs { linear, linear:gsub("^model%.", ""), "model.other" } do
      local state = cbk.dict { [name .. ".weight"] = cbk.dict { mask = matrix { { 1 } } } }
      local root = cbk.dict { model = checkpoint(), optimizer = cbk.dict { sparsity = cbk.dict { state = state } } }
      local text = ("'optimizer.sparsity.state.%s.weight.mask' is the mask of a sparse weight"):format(name)
      raises(text, function() lora.refuse_masks(root) end)
    end
    lora.refuse_masks(cbk.dict { model = checkpoint(), optimizer = cbk.dict { sparsity = cbk.dict { state = cbk.dict() } } })
  end)

  it("accumulates in float32 and rounds once", function()
    local model = checkpoint "bfloat16"
    model[linear .. ".lora_A"] = matrix({ { 1, 1, 1 }, { 2 ^ -9, 0, 0 } }, "bfloat16")
    model[linear .. ".lora_B"] = matrix({ { 1, 1 }, { 1, 1 } }, "bfloat16")
    model[embedding .. ".lora_A"], model[embedding .. ".lora_B"] = nil, nil
    model[linear .. ".weight"] = matrix({ { -1, 0, 0 }, { -1, 0, 0 } }, "bfloat16")
    local folded = lora.fold(model, config(cbk.dict { r = 2, alpha = 2 }), "gpt2")
    equal(folded[linear .. ".weight"]:tolist()[1], { 2 ^ -9, 1, 1 }) -- 1 + 2^-9 is no bfloat16
  end)

  it("transposes for fan_in_fan_out", function()
    local model = checkpoint()
    model[linear .. ".weight"] = matrix { { 1, 1 }, { 1, 1 }, { 1, 1 } }
    local folded
    local said = conversion.warnings(function()
      folded = lora.fold(model, config(cbk.dict { r = 1, fan_in_fan_out = true }), "gpt2")
    end)
    assert(table.concat(said):find("fan_in_fan_out: these weights stay as (in, out)", 1, true), table.concat(said))
    equal(#conversion.warnings(function() lora.fold(checkpoint(), config(cbk.dict { r = 1 }), "gpt2") end), 0)
    equal(folded[linear .. ".weight"]:tolist(), { { 2, 11 }, { 3, 21 }, { 4, 31 } })
    equal(folded[embedding .. ".weight"]:tolist(), { { 2, 11 }, { 3, 21 }, { 4, 31 } })
  end)

  it("takes the first group whose classes are all around a module", function()
    local function group(alpha, ...) return cbk.dict { r = 1, alpha = alpha, target_modules = cbk.list { ... } } end
    local groups = cbk.list { group(5, "TransformerDecoderLayer", "Embedding"), group(3, "Embedding"), group(7, "TransformerDecoderLayer") }
    local folded = lora.fold(checkpoint(), config(groups), "gpt2")
    equal(folded[linear .. ".weight"]:tolist()[1], { 8, 15, 22 })
    equal(folded[embedding .. ".weight"]:tolist()[1], { 4, 31 })
    raises("no target_modules of model.lora_params include it", function()
      lora.fold(checkpoint(), config(cbk.list { group(7, "TransformerDecoderLayer") }), "gpt2")
    end)
    raises("cannot tell whether they include", function()
      lora.fold(checkpoint(), config(cbk.list { group(1, "MyLayer"), group(2, "Linear") }), "gpt2")
    end)
    equal(cbk.count(lora.fold(checkpoint(), config(group(1, "MyLayer")), "gpt2")), 2)
  end)

  it("knows the classes of modules", function()
    local function classes(path, model, more)
      local list, complete = modules.classes(path, model, cbk.dict(more or {}))
      return table.concat(list, " ") .. (complete and "" or " …")
    end
    equal(classes("model.transformer_decoder.layers.11.self_attn.proj_q_dense_layer", "llama"),
      "LlamaModel GPT2LMHeadModel TransformerDecoder ModuleList TransformerDecoderLayer MultiheadAttention Linear")
    equal(classes("transformer_decoder.layers.0.ffn.ffn.0.linear_layer", "gptj"),
      "GptjModel GPTJModel TransformerDecoder ModuleList GPTJDecoderLayer FeedForwardNetwork ModuleList SingleFeedForwardLayer Linear")
    equal(classes("model.embedding_layer.position_embeddings.embed", "gpt2"),
      "Gpt2Model GPT2LMHeadModel EmbeddingLayer LearnedPositionEmbeddingLayer Embedding")
    equal(classes("model.embedding_layer.position_embeddings", "gpt2"), "Gpt2Model GPT2LMHeadModel EmbeddingLayer Embedding")
    equal(classes("model.transformer_decoder.layers.0.self_attn.proj_k_dense_layer", "starcoder",
      { attention_module = "multiquery_attention" }):match "MultiQuery%S* Linear", "MultiQueryAttention Linear")
    equal(classes("model.transformer_decoder.layers.0.ffn.gate", "mixtral", { num_experts = 8 }):match "%S* Linear",
      "SparseMoEBlock Linear")
    equal(classes("model.transformer_decoder.what.x", "gpt2"), "Gpt2Model GPT2LMHeadModel TransformerDecoder …")
    equal(classes("model.lm_head", "unheard-of"), " …")
  end)

  it("refuses settings that it cannot use", function()
    for text, params in pairs {
      ["r, the rank, is missing"] = { alpha = 2 }, ["r=nan"] = { r = 0 / 0 }, ["r=1.5"] = { r = 1.5 },
      ["alpha=nan"] = { r = 1, alpha = 0 / 0 }, ["alpha=inf"] = { r = 1, alpha = math.huge },
      ["alpha=x"] = { r = 1, alpha = "x" }, ["rank is"] = { r = 1, rank = 2 },
      ["fan_in_fan_out=1"] = { r = 1, fan_in_fan_out = 1 }, ["list of class names"] = { r = 1, target_modules = "Linear" },
      ["do not have the rank 4"] = { r = 4 }, ["do not have the rank 0"] = { r = 0 },
    } do
      raises(text, function() lora.fold(checkpoint(), config(cbk.dict(params)), "gpt2") end)
    end
    local nothing = "has no model.lora_params: there is nothing to fold"
    raises("the config " .. nothing, function() lora.groups(cbk.dict { model = cbk.dict { r = 1 } }) end)
    raises("'p.yaml' " .. nothing, function() lora.groups(config(cbk.null), "p.yaml") end)
    raises("found no section 'model'", function() lora.groups(cbk.dict { trainer = cbk.dict { init = cbk.dict() } }) end)
  end)

  it("reads both layouts of configs", function()
    local old = config(cbk.dict { r = 1, alpha = 3 }, { share_embedding_weights = false })
    local new = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = old.model } } }
    local model = checkpoint()
    local a, b = lora.fold(model, old, "gpt2"), lora.fold(model, new, "gpt2")
    for key in cbk.items(a) do equal(b[key]:tolist(), a[key]:tolist(), key) end
    equal(lora.config(new, model), { trainer = { init = { model = { share_embedding_weights = false } } } })
    new.trainer.init.model = cbk.dict { r = 1 }
    raises("the config has no trainer.init.model.lora_params: there is nothing to fold", function() lora.groups(new) end)
  end)

  it("refuses checkpoints that lack a half", function()
    local settings = config(cbk.dict { r = 1 })
    for _, half in ipairs { ".lora_A", ".lora_B", ".weight" } do
      local model = checkpoint()
      model[linear .. half] = nil
      raises(linear .. half, function() lora.fold(model, settings, "gpt2") end)
    end
    raises("has no LoRA weights", function() lora.fold(cbk.dict { x = matrix { { 1 } } }, settings, "gpt2") end)
    local model = checkpoint()
    model[linear .. ".lora_B"] = matrix { { 1 } }
    raises("do not fit the weight [2, 3]", function() lora.fold(model, settings, "gpt2") end)
  end)

  it("refuses low-rank matrices that are not finite", function()
    for _, half in ipairs { ".lora_A", ".lora_B" } do
      for _, bad in ipairs { 0 / 0, math.huge } do
        local model = checkpoint()
        model[linear .. half] = half == ".lora_A" and matrix { { 1, bad, 3 } } or matrix { { 1 }, { bad } }
        raises(linear .. half .. " has ", function() lora.fold(model, config(cbk.dict { r = 1 }), "gpt2") end)
      end
    end
  end)

  it("refuses weights of whole numbers", function()
    for _, name in ipairs { ".weight", ".lora_A", ".lora_B" } do
      local model = checkpoint()
      model[linear .. name] = model[linear .. name]:to "int8"
      raises(name:sub(2) .. " is int8", function() lora.fold(model, config(cbk.dict { r = 1 }), "gpt2") end)
    end
  end)

  it("rewrites the config", function()
    local model, tied = checkpoint(), config(cbk.dict { r = 1 }, { share_embedding_weights = true, hidden_size = 2 })
    raises("model.lm_head.weight", function() lora.config(tied, model) end)
    model["model.lm_head.weight"] = matrix { { 1 } }
    equal(lora.config(tied, model), { model = { share_embedding_weights = false, hidden_size = 2 } })
    equal(lora.config(config(cbk.dict { r = 1 }, {}), model).model.share_embedding_weights, false) -- tied by default
    local untied = config(cbk.dict { r = 1 }, { share_embedding_weights = cbk.null })
    equal(cbk.raw(lora.config(untied, model).model, "share_embedding_weights"), cbk.null)
    model[embedding .. ".lora_A"] = nil
    equal(lora.config(tied, model).model.share_embedding_weights, true)
  end)

  it("rewrites the config of a model inside another, and of embeddings of two stacks", function()
    local own = checkpoint()
    local function below(place, more)
      local out = cbk.dict { [place .. "lm_head.weight"] = matrix { { 1 } } }
      for key in cbk.items(own) do out[(key:gsub("^model%.", place))] = own[key] end
      for key, value in pairs(more or {}) do out[key] = value end
      return out
    end
    local params = cbk.dict { r = 1 }
    equal(lora.config(config(params, {}), below "policy_model.model.").model.share_embedding_weights, false)
    local whole = config(params, { text_model = { share_embedding_weights = true } })
    equal(lora.config(whole, below "text_model.model."), { model = { text_model = { share_embedding_weights = false } } })
    local encoder, decoder = "encoder_embeddings.word_embeddings", "decoder_embeddings.word_embeddings"
    local t5 = cbk.dict { [encoder .. ".weight"] = matrix { { 1 } }, [decoder .. ".weight"] = matrix { { 1 } },
      [encoder .. ".lora_A"] = matrix { { 1 } }, [encoder .. ".lora_B"] = matrix { { 1 } } }
    equal(lora.config(config(params, {}), t5), { model = { share_encoder_decoder_embedding = false } })
    t5[decoder .. ".lora_A"], t5[decoder .. ".lora_B"] = matrix { { 1 } }, matrix { { 1 } }
    t5["lm_head.weight"] = matrix { { 1 } }
    equal(lora.config(config(params, {}), t5), { model = { share_embedding_weights = false } }) -- one module of two names
    local words, head = "bert_encoder.embedding_layer.word_embeddings", "bert_mlm_head.classifier.ffn.0.linear_layer.weight"
    local bert = cbk.dict { [words .. ".weight"] = matrix { { 1 } }, [head] = matrix { { 1 } }, [words .. ".lora_A"] = matrix { { 1 } },
      [words .. ".lora_B"] = matrix { { 1 } } }
    equal(lora.config(config(params, {}), bert), { model = { share_embedding_weights = false } })
    bert[head] = nil
    raises(head, function() lora.config(config(params, {}), bert) end)
  end)
end)

describe("cbk fold-lora-checkpoint", function()
  local function files(folder, params, model)
    local out = cbk.create(folder .. "/c.1.mdl", { root = cbk.dict { model = model or checkpoint(), global_step = 3 } })
    out:commit()
    cbk.config.save(config(params, { hidden_size = 2, share_embedding_weights = false }), folder .. "/p.yaml")
  end
  local command = { "fold-lora-checkpoint", "--model", "gpt2", "-p", "p.yaml", "--checkpoint_path", "c.1.mdl" }

  it("needs a dict at the root, and so does `rules`", function()
    local folder = harness.temp_dir()
    files(folder, cbk.dict { r = 1 })
    for kind, root in pairs { int = 3, none = cbk.null, str = "text", tensor = cbk.tensor { 1, 2 }, list = cbk.list { 1 } } do
      cbk.create(folder .. "/root.pt", { root = root, overwrite = true }):commit()
      local ways = {
        { "fold-lora-checkpoint", "--model", "gpt2", "-p", "p.yaml", "--checkpoint_path", "root.pt" }, { "rules", "gpt2", "root.pt" },
      }
      for _, way in ipairs(ways) do
        local code, _, err = harness.cbk(folder, unpack(way))
        local message = "cbk: expected a checkpoint with a dict of tensors, found a root of the kind '%s'\n"
        equal({ code, err }, { 1, message:format(kind) }, way[1])
      end
    end
  end)

  it("says which options have no effect", function()
    local folder = harness.temp_dir()
    local code, _, err = harness.cbk(folder, "fold-lora-checkpoint", "--adapter", "a", "m.safetensors", "-o", "n.safetensors",
      "--shard-size", "1MB")
    equal({ code, err:find("--shard-size: 'n.safetensors' is one file; name a folder for shards", 1, true) ~= nil }, { 2, true }, err)
    files(folder, cbk.dict { r = 1 })
    local old = cbk.dict { model = checkpoint() }
    cbk.create(folder .. "/c.1.mdl", { root = old, overwrite = true, h5_version = "0.4" }):commit { progress = false }
    for version, is_warned in pairs { ["0.4"] = false, ["0.5"] = true } do
      code, _, err = harness.cbk(folder, "fold-lora-checkpoint", "--model", "gpt2", "-p", "p.yaml", "--checkpoint_path", "c.1.mdl",
        "--h5-version", version, "--overwrite")
      equal({ code, err:find("releases up to 2.4 cannot read H5 0.5", 1, true) ~= nil }, { 0, is_warned }, err)
    end
  end)

  it("keeps the Hugging Face config; unfolded, a checkpoint is not converted, and it says what to do", function()
    local folder = harness.temp_dir()
    files(folder, cbk.dict { r = 1 })
    local history = cbk.list { cbk.dict { { "version", "2.4.0" }, { "hf_config", cbk.dict { bos_token_id = 7 } } } }
    local root = cbk.dict { { "model", checkpoint() }, { "__metadata__", history } }
    cbk.create(folder .. "/c.1.mdl", { root = root, overwrite = true }):commit()
    equal(harness.cbk(folder, unpack(command)), 0)
    equal(cbk.open(folder .. "/c.1_folded.mdl").root.__metadata__[1].hf_config.bos_token_id, 7)
    local model = cbk.dict { hidden_size = 2, num_heads = 1, num_hidden_layers = 1, dropout_rate = 0, embedding_dropout_rate = 0,
      vocab_size = 3, max_position_embeddings = 8, filter_size = 3 }
    cbk.config.save(cbk.dict { model = model }, folder .. "/q.yaml")
    local code, _, err = harness.cbk(folder, "convert", "--model", "gpt2", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "--config", "q.yaml",
      "c.1.mdl", "-o", "out")
    equal(code, 1)
    equal(err:find("fold them into the weights first with `cbk fold-lora-checkpoint`", 1, true) ~= nil, true, err)
  end)

  it("writes checkpoint and config beside the inputs, and replaces nothing", function()
    local folder = harness.temp_dir()
    files(folder, cbk.dict { r = 1 })
    local code, out, err = harness.cbk(folder, unpack(command))
    equal({ code, out }, { 0, "Saved folded config to: p_folded.yaml\nSaved folded checkpoint to: c.1_folded.mdl\n" }, err)
    local root = cbk.open(folder .. "/c.1_folded.mdl").root
    equal(cbk.keys(root), { "model" })
    equal(root.model[linear .. ".weight"]:tolist(), { { 2, 3, 4 }, { 11, 21, 31 } })
    equal(cbk.config.load(folder .. "/p_folded.yaml"), { model = { hidden_size = 2, share_embedding_weights = false } })
    code, out, err = harness.cbk(folder, unpack(command))
    equal({ code, out }, { 1, "" })
    harness.is_true(err:find "exists already")
  end)

  it("stops at a weight that is not finite, or does not fit its dtype", function()
    local function refused(model, ...)
      local folder = harness.temp_dir()
      files(folder, cbk.dict { r = 1, alpha = 2 }, model)
      local code, _, err = harness.cbk(folder, unpack(command))
      equal(code, 1, err)
      for _, part in ipairs { ... } do harness.is_true(err:find(part, 1, true), err) end
      equal(cbk.fs.list(folder), { "c.1.mdl", "p.yaml" })
    end
    for _, bad in ipairs { 0 / 0, math.huge } do
      local model = checkpoint "bfloat16"
      model[linear .. ".weight"] = matrix({ { 1, 1, 1 }, { 1, bad, 1 } }, "bfloat16")
      refused(model, linear .. ".weight: LoRA is not folded: the weight itself is not finite: an element is "
        .. (bad == bad and "inf" or "NaN"))
    end
    for dtype, large in pairs { float16 = 200, bfloat16 = 2 ^ 64, float32 = 2 ^ 64, float64 = 2 ^ 512 } do
      local model = checkpoint(dtype)
      model[embedding .. ".lora_A"] = matrix({ { 1, -large, 1 } }, dtype)
      model[embedding .. ".lora_B"] = matrix({ { large }, { 1 } }, dtype)
      refused(model, ("%s.weight' (1 of 6 values overflow %s)"):format(embedding, dtype), "--allow-overflow")
    end
  end)

  it("leaves nothing behind when it refuses", function()
    local folder = harness.temp_dir()
    files(folder, cbk.dict { r = 0 / 0 })
    local code, _, err = harness.cbk(folder, unpack(command))
    harness.is_true(code == 1 and err:find("model.lora_params.r=nan", 1, true), err)
    equal(cbk.fs.list(folder), { "c.1.mdl", "p.yaml" })
    command[3] = "gpt22"
    code, _, err = harness.cbk(folder, unpack(command))
    command[3] = "gpt2"
    harness.is_true(code == 2 and err:find("did you mean 'gpt2", 1, true), err)
  end)
end)

describe("cbk convert-config-to-mup", function()
  it("takes the options of old, and keeps what it does not change", function()
    local folder = harness.temp_dir()
    cbk.fs.write(folder .. "/a.b.yaml", "z: 1e-5\nmodel: {num_hidden_layers: 2, hidden_size: 512}\noptimizer: {}\n")
    local code, out, err = harness.cbk(folder, "convert-config-to-mup", "-i", "a.b.yaml", "-d_base=128", "-lr_base", "6.e-3", "-std_base",
      "0.1", "-m_base", "9")
    equal({ code, out, err }, { 0, "muP config saved to a.b_muP.yaml\n", "" })
    local text = cbk.fs.read(folder .. "/a.b_muP.yaml")
    local start = "z: 1e-5\nmodel:\n  num_hidden_layers: 2\n  hidden_size: 512\n  embedding_initializer:\n    mean: 0.0\n"
    equal(text:sub(1, #start), start)
    local made = cbk.config.load(folder .. "/a.b_muP.yaml")
    equal({ made.model.initializer.std, made.model.embeddings_scale, made.optimizer.learning_rate }, { 0.05, 9, 6e-3 })
    for _, wrong in ipairs { { "-d_base", "1.5" }, { "-lr_base", "0x1" }, { "-q_base", "1" }, { "-lr_base", "0" }, { "-std_base", "-1" },
      { "-m_base", "1e999" }, { "-m_base", "0" } } do
      equal((harness.cbk(folder, "convert-config-to-mup", "-i", "a.b.yaml", "-o", "x.yaml", unpack(wrong))), 2, wrong[1])
    end
    code, out, err = harness.cbk(folder, "convert-config-to-mup", "-i", "a.b.yaml", "-o", "c.yaml")
    equal(out, "muP config saved to c.yaml\n")
    harness.is_true(code == 0 and err:find "base_layer_width 256", err)
    code, out, err = harness.cbk(folder, "convert-config-to-mup", "-i", "c.yaml", "-o", "d.yaml")
    equal({ code, out, cbk.fs.exists(folder .. "/d.yaml") }, { 1, "", false })
    harness.has(err, "the config uses muP already")
    cbk.fs.write(folder .. "/e.yaml", "model: {name: bert, num_hidden_layers: 2, hidden_size: 512}\noptimizer: {}\n")
    code, out, err = harness.cbk(folder, "convert-config-to-mup", "-i", "e.yaml", "-o", "d.yaml")
    equal({ code, out }, { 1, "" })
    harness.has(err, "model.name=bert: muP of release 2.2 is for decoders, such as gpt2 and gptj")
  end)
end)

describe("muP configs", function()
  local base = { base_layer_width = 256, base_lr = 6e-3, base_init_std = 0.08, m_embed = 10 }
  local function standard(rate)
    local optimizer = cbk.dict()
    if rate ~= nil then optimizer.learning_rate = rate end
    return cbk.dict { model = cbk.dict { hidden_size = 1024, num_hidden_layers = 2 }, optimizer = optimizer }
  end
  local function schedule(name, first, last)
    return cbk.dict { scheduler = name, initial_learning_rate = first, end_learning_rate = last }
  end

  it("refuse a schedule that is no list", function()
    raises("expected a list of a Linear warm-up", function() mup_config.generate(standard(schedule("Linear", 0, 1e-3)), base) end)
    equal(mup_config.generate(standard(cbk.dict()), base).optimizer.learning_rate, 6e-3) -- empty
  end)

  it("follow from the width", function()
    local out = mup_config.generate(standard(cbk.list { schedule("Linear", 0, 1e-3), schedule("CosineDecay", 1e-3, 1e-4),
      schedule("Linear", 1e-4, 0) }), base)
    equal(out.model.initializer, { mean = 0, name = "truncated_normal", std = 0.04, a = -0.08, b = 0.08 })
    equal({ out.model.embedding_initializer.std, out.model.output_layer_initializer.std }, { 0.08, 0.02 })
    equal({ out.model.output_logits_scale, out.model.embeddings_scale, out.model.scale_qk_dot_by_d }, { 0.25, 10, true })
    equal(out.optimizer.adjust_learning_rate, { decoder_kernel = 0.25 })
    local rates = out.optimizer.learning_rate
    equal({ rates[1].end_learning_rate, rates[2].initial_learning_rate, rates[3].initial_learning_rate }, { 6e-3, 6e-3, 6e-3 })
    harness.near(rates[2].end_learning_rate, 6e-4, 1e-12)
    equal(rates[3].end_learning_rate, 0)
    for _, none in ipairs { cbk.null, 0, cbk.list() } do
      equal(mup_config.generate(standard(none), base).optimizer.learning_rate, 6e-3)
    end
  end)

  it("need a legacy config with schedules that are known", function()
    for text, rate in pairs {
      ["found 0.1"] = 0.1, ["scheduler Constant"] = cbk.list { cbk.dict { scheduler = "Constant" } },
      ["`end_learning_rate` needs"] = cbk.list { schedule("Linear", 1, cbk.null) },
      ["an entry without a scheduler"] = cbk.list { cbk.dict { total_iters = 3 } },
      ["must be numbers"] = cbk.list { schedule("Linear", nil, 1) },
    } do
      raises(text, function() mup_config.generate(standard(rate), base) end)
    end
    raises("model.hidden_size", function() mup_config.generate(cbk.dict { trainer = cbk.dict() }, base) end)
    raises("model.num_hidden_layers", function() mup_config.generate(cbk.dict { model = cbk.dict { hidden_size = 1 } }, base) end)
    raises("'optimizer'", function()
      mup_config.generate(cbk.dict { model = cbk.dict { hidden_size = 1, num_hidden_layers = 1 } }, base)
    end)
  end)
end)
