-- Which configs `cbk upgrade` takes for those of another model: wrong ones, never right ones or variants.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local doubts = require "cbk.recognise.doubts"
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"
local upgrade = require "cbk.upgrade"

local catalogue = converters.catalogue
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

---What an upgrade to 2.5 says of the model.
---@return string|nil
local function reported(name, format, config, root)
  local job, text = upgrade.job(name, format, "cs-2.5" .. format:match "^cs%-[%d.]+(.*)$"), nil
  conversion.warnings(function()
    local done = upgrade.run({ checkpoint = { root = root } }, config, job)
    text = doubts.other_model(job, { config = config, root = root }, done)
  end)
  return text
end

---A model of a release, as the converters make it.
---@return Dict config, Dict root
local function model_of(way)
  local config, root
  conversion.warnings(function() config, root = conversion.run(way.name, "hf", way.format, tiny.model(way)) end)
  return config, root.model == nil and cbk.dict { model = root } or root
end

---Each way into a release that can be upgraded.
local function old_ways(name, formats)
  local out = {}
  for _, way in ipairs(tiny.ways()) do
    local is_wanted = name == nil or way.name == name and formats[way.format]
    if is_wanted and not catalogue.since(catalogue.release(way.format), "2.5") then out[#out + 1] = way end
  end
  return out
end

---The config with other fields, in the release's words, and the weights that there are then.
local function vary(way, change)
  local config = cbk.deep_copy((model_of(way)))
  local section, is_old = trainer.model(config), not catalogue.since(catalogue.release(way.format), "2.0")
  for field, value in pairs(change) do
    if field == "norm_type" and is_old then
      field, value = way.name == "t5" and "use_t5_layer_norm" or "use_rms_norm", way.name ~= "t5"
    end
    section[field] = value
  end
  local class, release = classes.find(way.name, way.format)
  return config, cbk.dict { model = tiny.checkpoint(class, section, release) }
end

local variants = {
  gpt2 = {
    { position_embedding_type = "alibi" }, { position_embedding_type = "rotary", rotary_dim = 4 },
    { position_embedding_type = "fixed" }, { position_embedding_type = "relative" },
    { embedding_layer_norm = true }, { nonlinearity = "swiglu" }, { share_embedding_weights = false },
    { attention_module = "multiquery_attention", extra_attention_params = cbk.dict { num_kv_groups = 1 }, use_ffn_bias = false },
    { norm_type = "rmsnorm" }, { use_ffn_bias = false },
    { use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false },
    { position_embedding_type = "alibi", use_ffn_bias = false, norm_type = "rmsnorm" },
  },
  t5 = {
    { norm_type = "layernorm" }, { use_ffn_bias = true },
    { norm_type = "layernorm", position_embedding_type = "fixed", use_pre_encoder_decoder_dropout = true, use_ffn_bias = true,
      use_dropout_outside_residual_path = false, use_pre_encoder_decoder_layer_norm = false, use_transformer_initialization = true,
      relu_dropout_rate = 0, src_max_position_embeddings = 4, tgt_max_position_embeddings = 4 },
  },
  bert = { { pooler_nonlinearity = "gelu" }, { pooler_nonlinearity = "relu", mlm_nonlinearity = "gelu" } },
  llama = { { use_projection_bias_in_attention = true, attention_sliding_window_length = 8 } },
}
local of_releases = { ["cs-1.9"] = true, ["cs-2.2"] = true }

describe("the fields of a config", function()
  it("reveal a model that is asked for as another one", function()
    local count = 0
    for name, asked in pairs { gpt2 = { "llama", "bloom", "gpt-neox" }, llama = { "gpt2", "bloom" }, ["gpt-neox"] = { "gptj", "llama" },
      bloom = { "gpt2" }, gptj = { "gpt2", "gpt-neox", "llama" } } do
      for _, way in ipairs(old_ways(name, of_releases)) do
        local config, root = model_of(way)
        for _, other in ipairs(asked) do
          if catalogue.path(catalogue.find(other), way.format, "cs-2.5") then
            local text = reported(other, way.format, config, root) or "nothing"
            local is_told = text:find("not fit " .. other .. ":", 1, true)
              and (text:match "fit %-%-model (.*)" or ""):match "^[%w-]+" == name
            is_true(is_told, ("%s of %s as %s: %s"):format(name, way.format, other, text))
            count = count + 1
          end
        end
      end
    end
    is_true(count > 15, count)
  end)

  it("say what is not the model's", function()
    local way = old_ways("llama", { ["cs-2.0"] = true })[1]
    local text = reported("gpt2", way.format, model_of(way))
    for _, part in ipairs { "position_embedding_type='rotary' (not 'learned')", "norm_type='rmsnorm' (not 'layernorm')" } do
      is_true(text:find(part, 1, true), text)
    end
    is_true(text:find("nonlinearity='swiglu',", 1, true) and #text < 400, text) -- without the list of all others
  end)

  it("are right in every family and release", function()
    for _, way in ipairs(old_ways()) do
      local config, root = model_of(way)
      equal(reported(way.name, way.format, config, root), nil, way.name .. " of " .. way.format)
    end
  end)

  it("may describe a variant, whatever Hugging Face has", function()
    for name, changes in pairs(variants) do
      for _, way in ipairs(old_ways(name, of_releases)) do
        for _, change in ipairs(changes) do
          local config, root = vary(way, change)
          equal(reported(name, way.format, config, root), nil,
            ("%s of %s with %s"):format(name, way.format, cbk.json(trainer.model(config))))
          if name == "t5" then equal(reported("transformer", way.format, config, root), nil, way.format) end
        end
      end
    end
  end)

  it("are not judged by what they do not say", function()
    local gpt2 = cbk.dict { model = cbk.dict { ["model.transformer_decoder.layers.0.norm1.bias"] = conversion.counted({ 8 }, 0) } }
    for name, format in pairs { gpt2 = "cs-2.0", bert = "cs-1.8", bloom = "cs-1.9", llama = "cs-1.9" } do
      equal(reported(name, format, cbk.config.parse("model: {hidden_size: 8, nonlinearity: gelu}", "yaml"), gpt2), nil)
    end
  end)

  it("count where they stood in the file, not where a step wrote them", function()
    local of_1_7 = cbk.config.parse("model: {hidden_size: 8, encoder_nonlinearity: gelu, num_heads: 2, vocab_size: 3}", "yaml")
    local words = conversion.counted({ 3, 8 }, 0)
    local root = cbk.dict { model = cbk.dict { ["bert_encoder.embedding_layer.word_embeddings.weight"] = words } }
    equal(reported("bert", "cs-1.7", of_1_7, root), nil)
  end)
end)
