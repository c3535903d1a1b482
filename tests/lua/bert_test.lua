-- BERT and its heads: there and back, each release, what cannot be said on the other side.

local cbk = require "cbk"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local harness = require "harness"
local conversion = require "conversion"
local tiny = require "tiny"

local convert = converters.convert
local describe, it = harness.describe, harness.it
local same, fails, job, counted = conversion.same, conversion.fails, conversion.job, conversion.counted

-- --- a tiny model: 2 heads, 1 layer

local function hf_config(more)
  local out = cbk.dict {
    model_type = "bert", hidden_size = 4, num_attention_heads = 2, num_hidden_layers = 1, intermediate_size = 6, vocab_size = 5,
    max_position_embeddings = 3, type_vocab_size = 2, hidden_act = "gelu", position_embedding_type = "absolute",
    hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.2, layer_norm_eps = 1e-12, initializer_range = 0.02,
  }
  for name, value in pairs(more or {}) do out[name] = value end
  return out
end

local function hf_checkpoint(head)
  local out, at = cbk.dict(), 0
  local function add(key, ...)
    out[key] = counted({ ... }, at)
    at = at + 100
  end
  local function both(key, rows, columns)
    if columns then add(key .. ".weight", rows, columns) else add(key .. ".weight", rows) end
    add(key .. ".bias", rows)
  end
  add("bert.embeddings.word_embeddings.weight", 5, 4)
  add("bert.embeddings.position_embeddings.weight", 3, 4)
  add("bert.embeddings.token_type_embeddings.weight", 2, 4)
  both("bert.embeddings.LayerNorm", 4)
  local layer = "bert.encoder.layer.0."
  for _, name in ipairs { "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense" } do
    both(layer .. name, 4, 4)
  end
  both(layer .. "attention.output.LayerNorm", 4)
  both(layer .. "intermediate.dense", 6, 4)
  both(layer .. "output.dense", 4, 6)
  both(layer .. "output.LayerNorm", 4)
  both("bert.pooler.dense", 4, 4)
  for name, shape in pairs(head) do both(name, shape[1], shape[2]) end
  return out
end

local pretraining = {
  ["cls.predictions.transform.dense"] = { 4, 4 }, ["cls.predictions.transform.LayerNorm"] = { 4 },
  ["cls.predictions.decoder"] = { 5, 4 }, ["cls.seq_relationship"] = { 2, 4 },
}

local models = {
  bert = { head = pretraining, config = {} },
  ["bert-sequence-classifier"] = {
    head = { classifier = { 3, 4 } }, config = { num_labels = 3, problem_type = "single_label_classification" },
  },
  ["bert-token-classifier"] = { head = { classifier = { 3, 4 } }, config = { num_labels = 3 } },
  ["bert-qa"] = { head = { qa_outputs = { 2, 4 } }, config = { num_labels = 2 } },
}

describe("BERT: Hugging Face", function()
  for name, model in pairs(models) do
    for _, format in ipairs { "cs-1.7", "cs-2.0", "cs-2.2", "cs-2.9" } do
      it(name .. " there and back by " .. format, function()
        local config, hf = hf_config(model.config), hf_checkpoint(model.head)
        local cs_config, cs, back_config, back
        conversion.warnings(function()
          cs_config, cs = conversion.run(name, "hf", format, config, hf)
          back_config, back = conversion.run(name, format, "hf", cs_config, cs)
        end)
        conversion.equal_tensors(hf, back)
        same(back["bert.embeddings.position_ids"]:tolist(), { { 0, 1, 2 } })
        for field in pairs(model.config) do same(back_config[field], config[field], field) end
        same(back_config.hidden_act, "gelu")
        local position = format >= "cs-2.1" and "position_embeddings.embed.weight" or "position_embeddings.weight"
        local encoder = name == "bert" and "bert_encoder" or "bert"
        assert(cs.model[encoder .. ".embedding_layer." .. position] ~= nil)
        assert(cs_config.model.pooler_nonlinearity == (format ~= "cs-1.7" and "tanh" or nil))
        assert((cs_config.model.enable_vts == false) == (format < "cs-2.1"))
      end)
    end
  end

  it("a layer that is not there is an error, whether the config counts it or a default", function()
    local hf = hf_checkpoint(pretraining)
    local two = hf_config { num_hidden_layers = 2 }
    fails("16 weights are missing: bert.encoder.layer.1.attention.self.query.weight", conversion.run, "bert", "hf", "cs-2.4", two, hf)
    two.num_hidden_layers = nil
    fails("num_hidden_layers=12 is assumed, because the config does not set it", conversion.run, "bert", "hf", "cs-2.4", two, hf)
  end)

  it("a bias under two names is compared", function()
    local hf = hf_checkpoint(pretraining)
    hf["cls.predictions.bias"] = hf["cls.predictions.decoder.bias"]:affine(1, 1)
    local reported = table.concat(conversion.warnings(conversion.run, "bert", "hf", "cs-2.4", hf_config(), hf), "\n")
    assert(reported:find("cls.predictions.bias (it differs from 'cls.predictions.decoder.bias', which is kept)", 1, true), reported)
  end)

  it("gamma and beta are old names of a norm, never two of them", function()
    local hf = hf_checkpoint(pretraining)
    local norm = "bert.embeddings.LayerNorm."
    hf[norm .. "gamma"], hf[norm .. "beta"] = hf[norm .. "weight"], hf[norm .. "bias"]
    fails("both become 'bert_encoder.embed_ln_f", conversion.run, "bert", "hf", "cs-2.4", hf_config(), hf)
    hf[norm .. "weight"], hf[norm .. "bias"] = nil, nil
    local _, cs = conversion.run("bert", "hf", "cs-2.4", hf_config(), hf)
    same(cs.model["bert_encoder.embed_ln_f.bias"]:tolist(), hf[norm .. "beta"]:tolist())
  end)

  it("the decoder has two names there; one is enough", function()
    local config, cs = conversion.run("bert", "hf", "cs-2.4", hf_config(), hf_checkpoint(pretraining))
    local _, hf = conversion.run("bert", "cs-2.4", "hf", config, cs)
    same(hf["cls.predictions.bias"]:tolist(), hf["cls.predictions.decoder.bias"]:tolist())
    hf["cls.predictions.decoder.weight"], hf["cls.predictions.decoder.bias"] = nil, nil
    local _, again = conversion.run("bert", "hf", "cs-2.4", hf_config(), hf, { deduplicated = true })
    same(cbk.count(again.model), cbk.count(cs.model))
    local bias = "bert_mlm_head.classifier.ffn.0.linear_layer.bias"
    same(again.model[bias]:tolist(), cs.model[bias]:tolist())
  end)

  it("a file that has each tensor once lacks the decoder, an old one only its bias", function()
    local full = hf_checkpoint(pretraining)
    full["cls.predictions.decoder.weight"] = full["bert.embeddings.word_embeddings.weight"]
    full["cls.predictions.bias"] = full["cls.predictions.decoder.bias"]
    local old = conversion.with(full, {}, { "cls.predictions.decoder.bias" })
    local once = conversion.with(old, {}, { "cls.predictions.decoder.weight" })
    local function silent(release, want, hf, options)
      local got, _
      local warnings = conversion.warnings(function() _, got = conversion.run("bert", "hf", release, hf_config(), hf, options) end)
      for _, reported in ipairs(warnings) do assert(reported:find("pooler of release 1.7", 1, true), reported) end
      same(cbk.count(got.model), cbk.count(want.model), release)
      conversion.equal_tensors(want.model, got.model, release)
    end
    for _, release in ipairs { "cs-1.7", "cs-2.0", "cs-2.2", "cs-2.9" } do
      local want, _
      conversion.warnings(function() _, want = conversion.run("bert", "hf", release, hf_config(), full) end)
      silent(release, want, once, { deduplicated = true })
      silent(release, want, old)
    end
    local untied = hf_config { tie_word_embeddings = false }
    fails("cls.predictions.decoder.weight", conversion.run, "bert", "hf", "cs-2.4", untied, once, { deduplicated = true })
  end)

  it("without pooler and next-sentence head (BertForMaskedLM) it is converted, with a warning", function()
    local without = { "bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias" }
    local hf = conversion.with(hf_checkpoint(pretraining), {}, without)
    local config, cs
    local reported = table.concat(conversion.warnings(function()
      config, cs = conversion.run("bert", "hf", "cs-2.4", hf_config(), hf)
    end), "\n")
    assert(reported:find("lacks the next-sentence head, which some models do without: cls.seq_relationship.weight", 1, true), reported)
    assert(reported:find("lacks the pooler, which some models do without: bert.pooler.dense.weight", 1, true), reported)
    assert(reported:find("add disable_nsp: true to the config", 1, true), reported)
    assert(reported:find("to convert it back to Hugging Face, take that out", 1, true), reported)
    same(cbk.count(cs.model), cbk.count(hf))
    local _, back = conversion.run("bert", "cs-2.4", "hf", config, cs)
    conversion.equal_tensors(hf, back)
    config.model.disable_nsp = true
    fails("disable_nsp=true: only false", conversion.run, "bert", "cs-2.4", "hf", config, cs)
    hf["cls.predictions.transform.dense.weight"] = nil
    fails("1 weight is missing: cls.predictions.transform.dense.weight", conversion.run, "bert", "hf", "cs-2.4", hf_config(), hf)
  end)

  it("a null is read from the tied tensor's other name", function()
    local config, cs = conversion.run("bert", "hf", "cs-1.9", hf_config(), hf_checkpoint(pretraining))
    local words = cs.model["bert_encoder.embedding_layer.word_embeddings.weight"]:tolist()
    cs.model["bert_mlm_head.classifier.ffn.0.linear_layer.weight"] = cbk.null
    local _, hf = conversion.run("bert", "cs-1.9", "hf", config, cs)
    same(hf["cls.predictions.decoder.weight"]:tolist(), words)
    local _, next_one = conversion.run("bert", "cs-1.9", "cs-2.0", config, cs)
    same(next_one.model["bert_mlm_head.classifier.ffn.0.linear_layer.weight"]:tolist(), words)
  end)

  it("mup is folded into keys and both heads, and into embeddings where the norm behind them notices", function()
    local want, key = hf_checkpoint(pretraining), "bert.encoder.layer.0.attention.self.key"
    local head, words = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
    local function scaled(name, embeddings)
      if name:find(key, 1, true) then return 3 end
      if name:find "predictions.decoder" or name:find "predictions.bias" or name:find "seq_relationship" then return 2.5 end
      return name:find "embeddings%.[%w_]+%.weight" and not name:find "LayerNorm" and embeddings or 1
    end
    local function check(case, change)
      local config, cs = conversion.run("bert", "hf", "cs-2.4", hf_config { layer_norm_eps = case.epsilon }, want)
      for name, value in pairs { mup_base_hidden_size = 2, embeddings_scale = 10, scale_qk_dot_by_d = false, attention_logits_alpha = 3,
        output_logits_alpha = 5 } do config.model[name] = value end
      change(cs.model)
      local out, hf
      local reported = conversion.warnings(function() out, hf = conversion.run("bert", "cs-2.4", "hf", config, cs) end)
      same(#reported, 0)
      assert(out.tie_word_embeddings == false)
      same(hf["cls.predictions.bias"]:tolist(), hf["cls.predictions.decoder.bias"]:tolist())
      for name, tensor in cbk.items(want) do
        local from = case.tied and name == head and want[words] or tensor
        same(hf[name]:tolist(), from:affine(scaled(name, case.embeddings), 0):tolist(), name)
      end
    end
    for _, case in ipairs { { epsilon = 1e-12, embeddings = 1 }, { epsilon = 1e-5, embeddings = 10 } } do
      check(case, function() end)
      case.tied = true
      check(case, function(model) model["bert_mlm_head.classifier.ffn.0.linear_layer.weight"] = cbk.null end)
    end
  end)

  it("a multiplier alone is no mup, and what knows none refuses it", function()
    local config = convert.config(job("bert", "hf", "cs-2.4"), hf_config())
    config.model.embeddings_scale = 10
    local alone = conversion.warnings(convert.config, job("bert", "cs-2.4", "hf"), config)
    assert(table.concat(alone):find("embeddings_scale", 1, true))
    config.model.mup_base_hidden_size = 2
    fails("muP", convert.config, job("bert", "cs-2.2", "hf"), config)
    fails("muP", convert.config, job("bert-qa", "cs-2.4", "hf"), config)
  end)

  it("keys may begin with model. since 1.8", function()
    local config, cs = conversion.run("bert-qa", "hf", "cs-1.9", hf_config(), hf_checkpoint(models["bert-qa"].head))
    local prefixed = cbk.dict()
    for key, tensor in cbk.items(cs.model) do prefixed["model." .. key] = tensor end
    local root = cbk.dict { model = prefixed }
    local _, hf = conversion.run("bert-qa", "cs-1.9", "hf", config, root)
    conversion.equal_tensors(hf_checkpoint(models["bert-qa"].head), hf)
    config.model.pooler_nonlinearity = "gelu"
    local old
    conversion.warnings(function() _, old = conversion.run("bert-qa", "cs-1.9", "cs-1.6", config, root) end)
    assert(old.model["bert.encoder.layer.0.output.LayerNorm.weight"] ~= nil)
    config.model.pooler_nonlinearity = nil
    fails("model.bert.", conversion.run, "bert-qa", "cs-1.7", "hf", config, root)
  end)
end)

describe("BERT: what the other side cannot say", function()
  local function to_hf(model, fields)
    local config = { position_embedding_type = "learned", pooler_nonlinearity = "tanh", encoder_nonlinearity = "gelu" }
    for name, value in pairs(fields) do config[name] = value or nil end
    return convert.config, job(model, "cs-2.4", "hf"), cbk.dict { model = cbk.dict(config) }
  end

  it("towards Hugging Face", function()
    fails("pooler_nonlinearity='relu': only 'tanh'", to_hf("bert", { pooler_nonlinearity = "relu" }))
    fails("pooler_nonlinearity", to_hf("bert", { pooler_nonlinearity = false }))
    for _, head in ipairs { "bert-qa", "bert-token-classifier" } do
      for _, release in ipairs { "cs-1.7", "cs-1.9", "cs-2.9" } do
        fails("pooler_nonlinearity='gelu': only 'tanh' is supported; this model has no pooler, so the value has no effect", convert.config,
          job(head, release, "hf"), cbk.dict { model = cbk.dict { pooler_nonlinearity = "gelu", encoder_nonlinearity = "gelu" } })
      end
    end
    fails("mlm_nonlinearity='relu': only gelu", to_hf("bert", { mlm_nonlinearity = "relu" }))
    fails("position_embedding_type='fixed'", to_hf("bert-qa", { position_embedding_type = "fixed" }))
    fails("disable_nsp=true: only false", to_hf("bert", { disable_nsp = true }))
    fails("num_labels", to_hf("bert-qa", { num_labels = 2 }))
  end)

  it("towards the Model Zoo", function()
    local function to_cs(model, fields) return convert.config, job(model, "hf", "cs-2.4"), hf_config(fields) end
    fails("type_vocab_size=4: only 2", to_cs("bert", { type_vocab_size = 4 }))
    fails("is_decoder=true", to_cs("bert-token-classifier", { is_decoder = true }))
    fails("num_labels=3: only 2", to_cs("bert-qa", { id2label = cbk.dict { ["0"] = "a", ["1"] = "b", ["2"] = "c" } }))
    fails("problem_type", to_cs("bert-sequence-classifier", {}))
    local warnings = conversion.warnings(convert.config, job("bert", "hf", "cs-1.7"), hf_config { hidden_act = "relu" })
    same(#warnings, 2)
    for _, text in ipairs(warnings) do assert(text:find("hidden_act='relu'", 1, true), text) end
    local relu = convert.config(job("bert", "hf", "cs-1.7"), hf_config { hidden_act = "relu" })
    relu.model.mlm_nonlinearity = nil
    warnings = table.concat(conversion.warnings(convert.config, job("bert", "cs-1.7", "hf"), relu), "\n")
    assert(warnings:find("not encoder_nonlinearity='relu'", 1, true) and not warnings:find "hidden_act", warnings)
    local old = convert.config(job("bert", "hf", "cs-1.7"), hf_config {})
    for _, format in ipairs { "cs-1.6", "cs-1.7" } do
      warnings = conversion.warnings(convert.config, job("bert", format, "hf"), old)
      assert(table.concat(warnings, "\n"):find("the pooler of release 1.7 uses encoder_nonlinearity='gelu'", 1, true), format)
    end
    same(#conversion.warnings(convert.config, job("bert-qa", "hf", "cs-1.7"), hf_config { hidden_act = "relu" }), 0) -- it has neither
  end)

  it("what a head's config leaves out is as its model assumes", function()
    local one = convert.config(job("bert-sequence-classifier", "hf", "cs-2.4"), hf_config { num_labels = 1 }).model
    same({ one.problem_type, one.task_dropout, one.name }, { "regression", 0.1, "bert/classifier" })
    local tokens = convert.config(job("bert-token-classifier", "hf", "cs-2.3"), hf_config {}).model
    same({ tokens.num_classes, tokens.encoder_output_dropout_rate, tokens.loss_weight }, { 2, 0.1, 1 })
    assert(tokens.name == nil)
  end)

  it("positions are counted as far as there are any", function()
    local config, cs = conversion.run("bert", "hf", "cs-2.4", hf_config(), hf_checkpoint(pretraining))
    config.model.max_position_embeddings = 1e12
    fails("expected [1000000000000, 4] (max_position_embeddings=1000000000000), found [3, 4]", conversion.run, "bert", "cs-2.4", "hf",
      config, cs)
  end)
end)

describe("BERT: releases", function()
  it("1.8 gave pooler and masked-language head activations of their own", function()
    local config = cbk.dict { model = cbk.dict { encoder_nonlinearity = "relu" } }
    local new = convert.config(job("bert-summarization", "cs-1.7", "cs-1.9"), config)
    same({ new.model.pooler_nonlinearity, new.model.mlm_nonlinearity }, { "relu", "gelu" })
    same(convert.config(job("bert-summarization", "cs-1.9", "cs-1.7"), new), new)
    new.model.pooler_nonlinearity = "tanh"
    fails("pooler_nonlinearity='tanh'", convert.config, job("bert", "cs-1.8", "cs-1.7"), new)
    fails("write pooler_nonlinearity: relu to convert it", convert.config, job("bert", "cs-1.8", "cs-1.7"), new)
    new.model.pooler_nonlinearity, new.model.mlm_nonlinearity = "relu", nil
    fails("encoder_nonlinearity='relu'", convert.config, job("bert", "cs-2.0", "cs-1.6"), new)
  end)

  it("1.6 keeps the model only", function()
    local config, cs = conversion.run("bert", "hf", "cs-1.8", hf_config(), hf_checkpoint(pretraining))
    config.model.pooler_nonlinearity, cs.global_step = "gelu", 7
    local old, again
    local warnings = conversion.warnings(function()
      old = select(2, conversion.run("bert", "cs-1.8", "cs-1.6", config, cs))
    end)
    assert(table.concat(warnings, "\n"):find("the model only", 1, true) and old.global_step == nil and old.__metadata__ == nil)
    conversion.equal_tensors(hf_checkpoint(pretraining), old.model)
    local prefixed = cbk.dict()
    for key, tensor in cbk.items(cs.model) do prefixed["model." .. key] = tensor end
    conversion.warnings(function()
      again = select(2, conversion.run("bert", "cs-1.8", "cs-1.6", config, cbk.dict { model = prefixed }))
    end)
    conversion.equal_tensors(old.model, again.model)
  end)

  it("the list names every release that there is a way from", function()
    local ways = {}
    for _, row in ipairs(converter_list.rows { model = "bert" }) do
      if row.note == "release by release, in one pass" then ways[#ways + 1] = row.src .. " to " .. row.tgt end
    end
    same(cbk.list(ways), cbk.list { "cs-1.6 … cs-2.9 to cs-1.6 … cs-2.9", "hf to cs-1.6", "cs-1.6 to hf" })
  end)
end)

describe("the masked-language head's bias", function()
  local first_names = {
    bert = "cls.predictions.bias", roberta = "lm_head.bias", ["esm-2"] = "lm_head.bias",
  }
  local second_names = { bert = "cls.predictions.decoder.bias", roberta = "lm_head.decoder.bias" }
  local written = "bert_mlm_head.classifier.ffn.0.linear_layer.bias"
  local releases = { bert = { "cs-1.7", "cs-1.9", "cs-2.0", "cs-2.2", "cs-2.9" }, roberta = { "cs-1.8", "cs-2.0", "cs-2.1", "cs-2.9" },
    ["esm-2"] = { "cs-2.1", "cs-2.9" } }
  local cases = { -- what the file has under its two names, and what becomes of it
    { "both names, equal values", 1, 1, 1 },
    { "both names, different values", 1, 2, 2, "it differs from '%s', which is kept" }, -- transformers reads the decoder's last
    { "the first name alone", 1, nil, 1 },
    { "the second name alone", nil, 2, 2 },
    { "neither name", nil, nil, nil, "1 weight is missing: %s" },
  }

  local function check(model, release, first, second, want, says)
    local first_name, second_name = first_names[model], second_names[model]
    local config, root = tiny.model(tiny.newest_ways()[model])
    local size = root[first_name]:shape()[1]
    local function values(from) return from and counted({ size }, 100 * from) end
    root[first_name] = values(first)
    if second_name then root[second_name] = values(second) end
    if not want then return fails(says:format(first_name), conversion.run, model, "hf", release, config, root) end
    local cs_config, cs, back, _
    local warned = table.concat(conversion.warnings(function()
      cs_config, cs = conversion.run(model, "hf", release, config, root)
    end), "\n")
    same(cs.model[written]:tolist(), values(want):tolist())
    if says then assert(warned:find(says:format(second_name), 1, true), warned) else assert(not warned:find("bias", 1, true), warned) end
    conversion.warnings(function() _, back = conversion.run(model, release, "hf", cs_config, cs) end)
    for _, name in ipairs { first_name, second_name } do same(back[name]:tolist(), values(want):tolist(), name) end
  end

  for model, list in pairs(releases) do
    for _, release in ipairs(list) do
      for _, case in ipairs(cases) do
        if second_names[model] or case[2] ~= case[3] and case[3] == nil then
          it(("%s, %s: %s"):format(model, release, case[1]), function() check(model, release, unpack(case, 2, 5)) end)
        end
      end
    end
  end
end)

describe("RoBERTa", function()
  local config = cbk.dict {
    model_type = "roberta", vocab_size = 5, hidden_size = 4, num_attention_heads = 2, num_hidden_layers = 0, intermediate_size = 6,
    max_position_embeddings = 6, pad_token_id = 1, type_vocab_size = 1,
  }
  local way = tiny.newest_ways().roberta

  it("has positions behind the padding token, and a first segment of zeros where the Model Zoo has none", function()
    local full, root = tiny.model(way)
    local cs_config, cs = conversion.run("roberta", "hf", "cs-2.9", full, root)
    same({ cs_config.model.max_position_embeddings, cs_config.model.pad_token_id, cs_config.model.num_segments }, { 4, 1, 2 })
    cs_config.model.num_segments = nil
    cs.model["bert_encoder.embedding_layer.segment_embeddings.weight"] = nil
    local back_config, back
    local warned = table.concat(conversion.warnings(function()
      back_config, back = conversion.run("roberta", "cs-2.9", "hf", cs_config, cs)
    end))
    same({ back_config.max_position_embeddings, back_config.type_vocab_size }, { 6, 1 })
    assert(warned:find("token_type_embeddings.weight' is not in the checkpoint: zeros are written", 1, true), warned)
    same(back["roberta.embeddings.token_type_embeddings.weight"]:shape(), { 1, 8 })
  end)

  it("refuses positions that end before the padding token, and a padding token outside the vocabulary", function()
    for field, value in pairs { max_position_embeddings = 2, pad_token_id = -1 } do
      local changed = conversion.with(config, { [field] = value, num_hidden_layers = 1 })
      fails(field .. "=" .. value, convert.config, job("roberta", "hf", "cs-2.9"), changed)
    end
  end)

end)

describe("ESM-2", function()
  local config = cbk.dict {
    model_type = "esm", vocab_size = 5, hidden_size = 4, num_attention_heads = 2, num_hidden_layers = 1, intermediate_size = 6,
    max_position_embeddings = 6, pad_token_id = 1, mask_token_id = 3, token_dropout = true, position_embedding_type = "rotary",
  }
  local there, back = job("esm-2", "hf", "cs-2.9"), job("esm-2", "cs-2.9", "hf")

  local function section(changes) return conversion.with(convert.config(there, cbk.copy(config)).model, changes or {}) end

  it("reads configs with the type of BERT, which the original converter writes", function()
    local written = convert.config(there, conversion.with(config, { model_type = "bert" }))
    same(written, convert.config(there, config))
    same(convert.config(back, written).model_type, "esm")
    fails("model_type='roberta': only 'esm' or 'bert'", convert.config, there, conversion.with(config, { model_type = "roberta" }))
  end)

  it("has rotary positions over whole heads, or positions behind the padding token", function()
    local rotary = section()
    same({ rotary.max_position_embeddings, rotary.rotary_dim, rotary.embedding_layer_norm }, { 6, 2, false })
    local learned = convert.config(there, conversion.with(config, { position_embedding_type = "absolute" })).model
    same({ learned.max_position_embeddings, learned.mask_padding_in_positional_embed }, { 4, true })
    same(learned.rotary_dim, nil)
    local read = convert.config(back, cbk.dict { model = learned })
    same({ read.model_type, read.max_position_embeddings, read.position_embedding_type }, { "esm", 6, "absolute" })
  end)

  it("refuses what the other side computes otherwise", function()
    for field, value in pairs { hidden_act = "relu", is_folding_model = true, position_embedding_type = "relative_key" } do
      fails(field .. "=", convert.config, there, conversion.with(config, { [field] = value }))
    end
    fails("mask_token_id=null", convert.config, there, conversion.with(config, { mask_token_id = cbk.null }))
    for field, value in pairs { rotary_dim = 1, rope_theta = 500, encoder_nonlinearity = "relu", num_segments = 2, norm_first = false } do
      fails(field .. "=", convert.config, back, cbk.dict { model = section { [field] = value } })
    end
    fails("mask_padding_in_positional_embed=", convert.config, back, cbk.dict { model = section { position_embedding_type = "learned" } })
  end)

  it("leaves the contact head out, and positions that rotary models do not use", function()
    local way = tiny.newest_ways()["esm-2"]
    local full, root = tiny.model(way)
    full.position_embedding_type = "rotary"
    root["esm.contact_head.regression.weight"] = counted({ 1, 2 }, 0)
    root["esm.contact_head.regression.bias"] = counted({ 1 }, 0)
    local warned = table.concat(conversion.warnings(conversion.run, "esm-2", "hf", "cs-2.9", full, root), "\n")
    for _, part in ipairs { "contact_head", "position_embeddings" } do assert(warned:find(part, 1, true), warned) end
  end)
end)
