-- DPR and DRAGON+: two encoders there and back, poolers, and how 2.2 and 2.3 scale scores.

local cbk = require "cbk"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"

local convert = converters.convert
local describe, it = harness.describe, harness.it
local same, fails, run, job = conversion.same, conversion.fails, conversion.run, conversion.job

local prefixes = { dragon = { "", "" }, dpr = { "question_encoder.bert_model.", "ctx_encoder.bert_model." } }

describe("DPR and DRAGON+", function()
  for name, prefix in pairs(prefixes) do
    for _, format in ipairs { "cs-2.3", "cs-2.4", "cs-2.9", name == "dpr" and "cs-2.2" or nil } do
      it(("%s there and back by %s"):format(name, format), function()
        local config, root = tiny.model(tiny.composite(name))
        local cs_config, cs, back_config, back
        conversion.warnings(function()
          cs_config, cs = run(name, "hf", format, config, root)
          back_config, back = run(name, format, "hf", cs_config, cs)
        end)
        assert(root.q_encoder[prefix[1] .. "embeddings.word_embeddings.weight"] ~= nil)
        assert(cs.model["ctx_encoder.transformer_encoder.layers.0.norm1.weight"] ~= nil)
        for part, tensors in cbk.items(root) do conversion.equal_tensors(tensors, back[part]) end
        same(back_config.ctx_encoder.model_type, name == "dpr" and "dpr" or "bert")
        local has_names = format == "cs-2.4" or format == "cs-2.9"
        same(cs_config.model.name, has_names and "dpr" or nil)
        for _, section in ipairs { "q_encoder", "ctx_encoder" } do
          same(cs_config.model[section].name, has_names and "bert_model" or nil)
        end
        same(cs_config.model.scale_similarity == false, format == "cs-2.2")
        same(cs_config.model.q_encoder.freeze_ffn_bias_in_glu == nil, format == "cs-2.2", "new in 2.3")
      end)
    end
  end

  it("has the names of its sections where one table leads to a release that needs them", function()
    local config, root = tiny.model(tiny.composite "dpr")
    for target, name in pairs { ["cs-2.3"] = false, ["cs-2.4"] = "bert_model", ["cs-2.9"] = "bert_model" } do
      local new
      conversion.warnings(function()
        local old_config, old = run("dpr", "hf", "cs-2.2", config, root)
        new = run("dpr", "cs-2.2", target, old_config, old)
      end)
      for _, section in ipairs { "q_encoder", "ctx_encoder" } do same(trainer.model(new)[section].name or false, name, target) end
    end
  end)

  it("a folder is DRAGON's or DPR's by the configs in it", function()
    for name, kind in pairs { dragon = "bert", dpr = "dpr" } do
      local top = harness.temp_dir()
      for _, part in ipairs { "q_encoder", "ctx_encoder" } do
        cbk.fs.mkdir(cbk.fs.join(top, part))
        cbk.fs.write(cbk.fs.join(top, part, "config.json"), ('{ "model_type": "%s" }'):format(kind))
      end
      harness.equal(composite.model_in(top).model, name)
    end
  end)

  it("has sections of the class's name from 2.4 on, also after an upgrade, and reads the original converter's", function()
    for name in pairs(prefixes) do
      local config = tiny.model(tiny.composite(name))
      local new, model
      conversion.warnings(function()
        new = convert.config(job(name, "cs-2.3", "cs-2.5"), convert.config(job(name, "hf", "cs-2.3"), config))
        model = require("converters.modelzoo.trainer").model(new)
      end)
      same({ model.name, model.q_encoder.name, model.ctx_encoder.name }, { "dpr", "bert_model", "bert_model" })
      for _, section in ipairs { "q_encoder", "ctx_encoder" } do
        for _, said in ipairs { "dpr", "BertModel" } do
          model[section].name = said
          local newer, back
          conversion.warnings(function()
            newer, back = convert.config(job(name, "cs-2.5", "cs-2.6"), new), convert.config(job(name, "cs-2.5", "hf"), new)
          end)
          same(newer.model[section].name, said == "dpr" and "bert_model" or said)
          same(back[section].name, nil)
        end
      end
      model.q_encoder.name = "llama"
      fails("name='llama': only 'bert_model' or 'BertModel' or 'dpr'", convert.config, job(name, "cs-2.5", "hf"), new)
    end
  end)

  it("reads the type of BERT, which the original converter writes", function()
    local config, root = tiny.model(tiny.composite "dpr")
    config.q_encoder.model_type, config.ctx_encoder.model_type = "bert", "bert"
    conversion.warnings(function()
      local cs_config, cs = run("dpr", "hf", "cs-2.9", config, root)
      same(run("dpr", "cs-2.9", "hf", cs_config, cs).q_encoder.model_type, "dpr")
      config.q_encoder.model_type = "roberta"
      fails("model_type='roberta': only 'dpr' or 'bert'", convert.config, job("dpr", "hf", "cs-2.9"), config)
    end)
  end)

  it("leaves poolers out, with a warning", function()
    local config, root = tiny.model(tiny.composite "dragon")
    root.q_encoder["pooler.dense.weight"] = conversion.counted({ 8, 8 }, 1)
    root.q_encoder["pooler.dense.bias"] = conversion.counted({ 8 }, 1)
    local warned = table.concat(conversion.warnings(run, "dragon", "hf", "cs-2.9", config, root), "\n")
    assert(warned:find("(the output is that of the first token, without a pooler)", 1, true), warned)
  end)

  it("has projections as wide as the model only", function()
    local config = tiny.model(tiny.composite "dragon")
    config.q_encoder.projection_dim = 8
    local made = convert.config(job("dragon", "hf", "cs-2.9"), config)
    same({ made.model.q_encoder.add_pooling_layer, made.model.ctx_encoder.add_pooling_layer }, { true })
    same(convert.config(job("dragon", "cs-2.9", "hf"), made).q_encoder.projection_dim, 8)
    config.ctx_encoder.projection_dim = 4
    fails("projection_dim=4: only 0 or the hidden_size (8)", convert.config, job("dragon", "hf", "cs-2.9"), config)
  end)

  it("has no projection where Hugging Face would compute one", function()
    for _, format in ipairs { "cs-2.2", "cs-2.9" } do
      local config = tiny.model(tiny.composite "dpr")
      local made = convert.config(job("dpr", "hf", format), config)
      made.model.q_encoder.add_pooling_layer = true
      same(convert.config(job("dpr", format, "hf"), made).q_encoder.projection_dim, 0)
      config.ctx_encoder.projection_dim = 8
      fails("projection_dim=8: only 0 (the Model Zoo has no encode_proj)", convert.config, job("dpr", "hf", format), config)
    end
  end)

  it("scales scores by a switch in 2.2, and by a number since", function()
    local config = tiny.model(tiny.composite "dpr")
    local old = convert.config(job("dpr", "hf", "cs-2.2"), config)
    for value, expected in pairs { [true] = 8 ^ 0.5, [false] = 1 } do
      old.model.scale_similarity = value
      local new = convert.config(job("dpr", "cs-2.2", "cs-2.3"), old)
      local section = new.trainer and new.trainer.init.model or new.model
      same({ section.softmax_temperature, section.pooler_type }, { expected, "cls" })
      same(convert.config(job("dpr", "cs-2.3", "cs-2.2"), cbk.dict { model = section }).model.scale_similarity, value)
    end
    local other = cbk.dict { model = cbk.dict { softmax_temperature = 7, q_encoder = old.model.q_encoder } }
    local warned = table.concat(conversion.warnings(convert.config, job("dpr", "cs-2.3", "cs-2.2"), other))
    assert(warned:find("softmax_temperature=7 becomes scale_similarity=false", 1, true), warned)
  end)
end)
