-- MLLaMA: sections of its configs, names of its keys up to transformers 4.51, what cannot be said.

local cbk = require "cbk"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"
local converters = require "cbk.converters"

local describe, it = harness.describe, harness.it
local same, fails, with, run = conversion.same, conversion.fails, conversion.with, conversion.run

describe("MLLaMA", function()
  local config, root = tiny.model(tiny.newest_ways().mllama)
  config = cbk.dict { model_type = "mllama", text_config = config.text_config, vision_config = config.vision_config }
  config.text_config.eos_token_id = 2

  it("has sections for its language model and its vision model on both sides", function()
    local cs_config, cs = run("mllama", "hf", "cs-2.9", config, root)
    local text, image = cs_config.model.text_model, cs_config.model.image_model
    same({ text.name, text.num_extra_input_vocab_tokens, text.rotary_dim, text.rope_theta }, { "llama", 8, 4, 500000 })
    same({ image.name, image.num_heads, image.layer_norm_epsilon }, { "MllamaVisionModel", 2, 1e-5 })
    same({ text.cross_attention_layers, image.image_size }, { cbk.list { 1 }, cbk.list { 4, 4 } })
    same(cs.model["image_model.patch_embedding.weight"]:shape(), { 4, 12 })
    assert(cs.model["text_model.model.transformer_decoder.layers.1.multihead_attn.q_norm.weight"] ~= nil)
    local back = run("mllama", "cs-2.9", "hf", cs_config, cs)
    same({ back.model_type, back.text_config.model_type, back.text_config.eos_token_id }, { "mllama", "mllama_text_model", 2 })
  end)

  it("reads positions of transformers 5, and refuses muP", function()
    local map = cbk.dict { rope_type = "linear", factor = 2, rope_theta = 77 }
    local old, new = cbk.deep_copy(config), cbk.deep_copy(config)
    old.text_config.rope_scaling, old.text_config.rope_theta = cbk.dict { rope_type = "linear", factor = 2 }, 77
    new.text_config.rope_parameters, new.text_config.rope_scaling, new.text_config.rope_theta = map, nil, nil
    local cs_config, cs = run("mllama", "hf", "cs-2.9", new, root)
    local text = cs_config.model.text_model
    same({ text.rope_theta, text.pos_scaling_factor, text.pos_scaling_type }, { 77, 2, "linear" })
    same((run("mllama", "hf", "cs-2.9", old, root)).model.text_model, text)
    local back = (run("mllama", "cs-2.9", "hf", cs_config, cs)).text_config
    same({ back.rope_theta, back.rope_scaling.factor, back.rope_parameters }, { 77, 2 })
    text.mup_base_hidden_size = 8
    conversion.fails("the config uses muP (mup_base_hidden_size=8)", run, "mllama", "cs-2.9", "hf", cs_config, cs)
  end)

  it("reads the names that keys had up to transformers 4.51", function()
    local old = cbk.dict()
    for key, tensor in cbk.items(root) do
      local name = key:gsub("^model%.language_model", "language_model.model"):gsub("^lm_head", "language_model.lm_head")
      old[(name:gsub("^model%.", ""))] = tensor
    end
    local _, want = run("mllama", "hf", "cs-2.9", config, root)
    local _, got = run("mllama", "hf", "cs-2.9", config, old)
    conversion.equal_tensors(want.model, got.model)
  end)

  it("counts its tiles by their embedding where a config does not say how many", function()
    local cs_config, cs = run("mllama", "hf", "cs-2.9", config, root)
    cs_config.model.image_model.max_num_tiles = nil -- as the original converter writes it
    for _, prefix in ipairs { "", "model." } do
      local tree = cbk.dict()
      for key, tensor in cbk.items(cs.model) do tree[prefix .. key] = tensor end
      local back_config, back = run("mllama", "cs-2.9", "hf", cs_config, cbk.dict { model = tree })
      same(back_config.vision_config.max_num_tiles, 2)
      conversion.equal_tensors(root, back)
    end
    local unsaid = cbk.deep_copy(config)
    unsaid.vision_config.max_num_tiles = nil
    same(run("mllama", "hf", "cs-2.9", unsaid, root).model.image_model.max_num_tiles, 2)
    same(converters.convert.config(conversion.job("mllama", "cs-2.9", "hf"), cs_config).vision_config.max_num_tiles, 2)
  end)

  it("has its padding token in the config of the data loader", function()
    local changed = cbk.deep_copy(config)
    changed.text_config.pad_token_id = 7
    local cs_config, cs = run("mllama", "hf", "cs-2.9", changed, root)
    same(cs_config.model.text_model.pad_token_id, nil)
    local function pad(file, checkpoint)
      local out
      local warned = conversion.warnings(function()
        if checkpoint then
          out = run("mllama", "cs-2.9", "hf", file, checkpoint)
        else
          out = converters.convert.config(conversion.job("mllama", "cs-2.9", "hf"), file)
        end
      end)
      return out.text_config.pad_token_id, table.concat(warned, "\n")
    end
    local model = cs_config.model
    same(pad(cs_config, cs), 7, "kept in the checkpoint")
    local unsaid, warned = pad(cs_config)
    same(unsaid, 0)
    assert(warned:find("pad_token_id is 0: the config has no train_input.pad_token_id", 1, true), warned)
    same(pad(cbk.dict { model = model, train_input = cbk.dict { pad_token_id = 3 } }, cs), 3)
    local fit = cbk.dict { train_dataloader = cbk.dict { pad_token_id = 4 } }
    same(pad(cbk.dict { trainer = cbk.dict { init = cbk.dict { model = model }, fit = fit } }), 4)
    local old = with(model, { text_model = with(model.text_model, { pad_token_id = 5 }) }) -- as the original converter writes it
    same(pad(cbk.dict { model = old }), 5)
    warned = conversion.warnings(converters.convert.config, conversion.job("mllama", "hf", "cs-2.9"), changed)
    assert(table.concat(warned):find("pad_token_id=7 is left out: the Model Zoo has it in the config of the data loader", 1, true))
  end)

  it("refuses what the other side computes otherwise", function()
    local there, back = conversion.job("mllama", "hf", "cs-2.9"), conversion.job("mllama", "cs-2.9", "hf")
    local convert = converters.convert.config
    fails("no section 'vision_config'", convert, there, cbk.dict { text_config = config.text_config })
    local cs_config = convert(there, config)
    for field, value in pairs { use_ffn_bias = false, use_conv_patchified_embedding = true, patch_size = cbk.list { 2, 1 } } do
      local changed = with(cs_config.model, { image_model = with(cs_config.model.image_model, { [field] = value }) })
      fails("image_model." .. field .. "=", convert, back, cbk.dict { model = changed })
    end
    local changed = with(cs_config.model, { text_model = with(cs_config.model.text_model, { num_extra_input_vocab_tokens = 0 }) })
    fails("num_extra_input_vocab_tokens=0", convert, back, cbk.dict { model = changed })
  end)
end)
