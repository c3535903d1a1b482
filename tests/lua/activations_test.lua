-- Activations: names that both sides know, in both directions; names that one side does not know, and gates where a family has none.

local cbk = require "cbk"
local harness = require "harness"
local variations = require "variations"

local describe, it = harness.describe, harness.it
local refuses, converted = variations.refuses, variations.converted

local null = cbk.null

-- models whose feed-forward part has no gate, with the activation's two names
local plain = {
  { "gpt2", "activation_function", "nonlinearity" }, { "gpt2-headless", "activation_function", "nonlinearity" },
  { "gptj", "activation_function", "nonlinearity" }, { "gpt-neox", "hidden_act", "nonlinearity" },
  { "bert", "hidden_act", "encoder_nonlinearity" }, { "bert-qa", "hidden_act", "encoder_nonlinearity" },
}
local releases = { gpt2 = { "cs-1.9", "cs-2.9" }, gptj = { "cs-2.2", "cs-2.9" }, bert = { "cs-1.8", "cs-2.9" } }

local function each(visit)
  for _, family in ipairs(plain) do
    for _, release in ipairs(releases[family[1]] or { "cs-2.9" }) do visit(release, unpack(family)) end
  end
end

---Of BERT's masked-language head, which says the same.
local function also(right, value)
  return { [right] = value, mlm_nonlinearity = right == "encoder_nonlinearity" and null or nil }
end

describe("Activations", function()
  it("that both sides know keep their names, or have another one there", function()
    local pairs_of_names = { relu2 = "squared_relu" }
    for name in ("gelu gelu_fast gelu_new leaky_relu linear mish quick_gelu relu relu6 sigmoid silu swish tanh"):gmatch "%S+" do
      pairs_of_names[name] = name
    end
    each(function(release, model, left, right)
      for hf, zoo in pairs(pairs_of_names) do
        harness.equal(converted({ model, "hf", release, { [left] = hf } })[right], zoo, model)
        harness.equal(converted({ model, release, "hf", also(right, zoo) })[left], hf, model)
      end
      for hf, zoo in pairs { gelu_pytorch_tanh = "gelu_new", gelu_accurate = "gelu_new", gelu_python = "gelu" } do
        harness.equal(converted({ model, "hf", release, { [left] = hf } })[right], zoo, model)
      end
    end)
  end)

  it("that only Hugging Face knows come back as they are, because the Model Zoo's converters copy them", function()
    local function kept(model, release, left, right, name)
      local out, reported = converted { model, release, "hf", also(right, name) }
      harness.equal((out.vision_config or out)[left], name, model)
      local wanted = ("%s='%s' is written as it is"):format(right, name)
      assert(reported:find(wanted, 1, true), model .. ": " .. reported)
    end
    for _, name in ipairs { "gelu_pytorch_tanh", "gelu_accurate", "gelu_python", "gelu_10", "laplace", "relu2" } do
      each(function(release, model, left, right) kept(model, release, left, right, name) end)
      for _, model in ipairs { "starcoder", "starcoder-headless", "santacoder", "codegen", "btlm", "jais" } do
        kept(model, "cs-2.9", "activation_function", "nonlinearity", name)
      end
      kept("starcoder", "cs-2.0", "activation_function", "nonlinearity", name)
      kept("clip-vit", "cs-2.9", "hidden_act", "nonlinearity", name)
      kept("vit", "cs-2.9", "hidden_act", "nonlinearity", name)
      kept("mllama", "cs-2.9", "hidden_act", "image_model.nonlinearity", name)
    end
    local out = converted { "t5", "cs-2.9", "hf", { encoder_nonlinearity = "gelu_accurate", decoder_nonlinearity = "gelu_accurate" } }
    harness.equal(out.feed_forward_proj, "gelu_accurate")
  end)

  it("that one side does not know, and gates, are refused with the names that it may have", function()
    each(function(release, model, left, right)
      local cases = {}
      for _, bad in ipairs { "swiglu", "geglu", "squared_relu", "foo", "GELU", "laplace", "", null } do
        local shown = bad == null and "null" or "'" .. bad .. "'"
        cases[#cases + 1] = { model, "hf", release, { [left] = bad }, ("%s=%s: only 'gelu' or"):format(left, shown) }
      end
      for _, bad in ipairs { "swiglu", "geglu", "reglu", "liglu", "squared_gelu", "foo" } do
        cases[#cases + 1] = { model, release, "hf", also(right, bad), ("%s='%s': only 'gelu' or"):format(right, bad) }
      end
      cases[#cases + 1] = { model, release, "hf", also(right, null), right .. "=null: only a string (null means none)" }
      refuses(cases)
    end)
    refuses {
      { "dpo", "cs-2.9-dpo", "hf", { nonlinearity = "swiglu" }, "nonlinearity='swiglu': only 'gelu' or" },
      { "clip-vit", "hf", "cs-2.9", { hidden_act = "swiglu" }, "hidden_act='swiglu': only 'gelu' or" },
      { "clip-vit", "cs-2.9", "hf", { nonlinearity = "geglu" }, "nonlinearity='geglu': only 'gelu' or" },
    }
  end)
end)

describe("Null, where it means none", function()
  it("is not taken for the default", function()
    local cases = {}
    for _, model in ipairs { "gpt2", "gpt-neox", "gptj", "codegen", "falcon", "llama", "bloom", "mpt", "starcoder", "t5", "bert", "vit" } do
      cases[#cases + 1] = { model, "cs-2.9", "hf", { position_embedding_type = null }, "position_embedding_type=null: only" }
    end
    for _, model in ipairs { "bloom", "falcon", "gptj", "mpt", "vit", "llama" } do
      cases[#cases + 1] = { model, "cs-2.9", "hf", { nonlinearity = null }, "nonlinearity=null: only" }
    end
    refuses(cases)
  end)
end)

describe("Activations that the Model Zoo's class refuses", function()
  it("are written with a warning that names what it takes", function()
    for _, case in ipairs {
      { "t5", "feed_forward_proj", { gelu_new = true, silu = true, relu = false, ["gated-silu"] = false } },
      { "bert-sequence-classifier", "hidden_act", { relu6 = true, gelu_fast = true, gelu_new = false, silu = false } },
      { "bert-token-classifier", "hidden_act", { tanh = true, gelu = false } },
      { "bert-qa", "hidden_act", { tanh = false } },
    } do
      for name, is_refused in pairs(case[3]) do
        local _, reported = converted { case[1], "hf", "cs-2.9", { [case[2]] = name } }
        local said = reported:find("is written, but the Model Zoo's class takes only", 1, true) ~= nil
        harness.equal(said, is_refused, case[1] .. " " .. name .. ": " .. reported)
      end
    end
  end)

  it("silu of a vision model has no gate, there and back", function()
    for _, model in ipairs { "vit", "clip-vit" } do
      harness.equal(converted({ model, "hf", "cs-2.9", { hidden_act = "silu" } }).nonlinearity, "silu")
      refuses { { model, "cs-2.9", "hf", { nonlinearity = "swiglu" }, "nonlinearity='swiglu': only 'gelu' or" } }
    end
  end)
end)

describe("Activations of T5", function()
  local newest, all = "cs-2.9", { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0", "cs-2.1", "cs-2.9" }
  local gates = { ["gated-gelu"] = "geglu", ["gated-silu"] = "swiglu", ["gated-relu"] = "reglu" }

  local function both(model) return { model.encoder_nonlinearity, model.decoder_nonlinearity } end

  it("have gates by their names, in every release", function()
    for _, release in ipairs(all) do
      for hf, zoo in pairs(gates) do
        harness.equal(both(converted { "t5", "hf", release, { feed_forward_proj = hf } }), { zoo, zoo }, release)
        harness.equal(converted({ "t5", release, "hf", { encoder_nonlinearity = zoo, decoder_nonlinearity = zoo } }).feed_forward_proj, hf)
      end
      harness.equal(both(converted { "t5", "hf", release, { feed_forward_proj = "gelu" } }), { "gelu", "gelu" }, release)
    end
  end)

  it("have them up to 2.0 if a field says so, too", function()
    for _, release in ipairs { "cs-1.7", "cs-1.9", "cs-2.0" } do
      for name, zoo in pairs { gelu = "geglu", silu = "swiglu", relu = "reglu", ["gated-gelu"] = "geglu" } do
        harness.equal(both(converted { "t5", "hf", release, { feed_forward_proj = name, is_gated_act = true } }), { zoo, zoo }, release)
      end
      harness.equal(both(converted { "t5", "hf", release, { is_gated_act = true } }), { "reglu", "reglu" }, release)
      refuses { { "t5", "hf", release, { feed_forward_proj = "tanh", is_gated_act = true },
        "feed_forward_proj='tanh': only 'gelu', 'relu' or 'silu', where is_gated_act is true" } }
    end
  end)

  it("are copied by 1.9 with a warning if that field denies them", function()
    local model, reported = converted { "t5", "hf", "cs-1.9", { feed_forward_proj = "gated-silu", is_gated_act = false } }
    harness.equal(both(model), { "gated-silu", "gated-silu" })
    assert(reported:find("feed_forward_proj='gated-silu' is copied because of is_gated_act=false", 1, true), reported)
  end)

  it("with another name, or with fields that say another thing, are refused", function()
    for _, release in ipairs(all) do
      local cases = {}
      for _, bad in ipairs { "gated-swish", "gated-", "gated-tanh", "swiglu", "geglu", "foo", null } do
        cases[#cases + 1] = { "t5", "hf", release, { feed_forward_proj = bad },
          ": only 'gated-gelu' or 'gated-relu' or 'gated-silu' or 'gelu'" }
      end
      cases[#cases + 1] = { "t5", release, "hf", { encoder_nonlinearity = null }, "encoder_nonlinearity=null: only a string (null" }
      for _, bad in ipairs { "liglu", "gated-gelu", "foo" } do
        cases[#cases + 1] = { "t5", release, "hf", { encoder_nonlinearity = bad, decoder_nonlinearity = null }, ": only 'geglu' or 'gelu'" }
      end
      refuses(cases)
      refuses { { "t5", "hf", release, { feed_forward_proj = "relu", dense_act_fn = "gelu_new" },
        "dense_act_fn='gelu_new': only 'relu', as feed_forward_proj='relu' says" } }
    end
    refuses { { "t5", "hf", newest, { feed_forward_proj = "relu", is_gated_act = true },
      "is_gated_act=true: only false, as feed_forward_proj='relu' says" } }
    local _, reported = converted { "t5", "hf", newest, { feed_forward_proj = "gated-silu", is_gated_act = false } }
    assert(reported:find("is_gated_act=false is left out: feed_forward_proj='gated-silu' decides, which means true", 1, true), reported)
  end)

  it("of the decoder repeat the encoder's, which is relu where the config does not say it", function()
    refuses { { "t5", newest, "hf", { encoder_nonlinearity = "gelu", decoder_nonlinearity = "relu" },
      "decoder_nonlinearity='relu': only the value of encoder_nonlinearity ('gelu')" } }
    for _, value in ipairs { null, "relu" } do
      local config = converted { "t5", newest, "hf", { encoder_nonlinearity = "relu", decoder_nonlinearity = value } }
      harness.equal(config.feed_forward_proj, "relu")
    end
    local config = cbk.dict { model = cbk.deep_copy(converted { "t5", "hf", newest, {} }) }
    config.model.encoder_nonlinearity = nil
    local conversion = require "conversion"
    local convert = require("cbk.converters").convert
    conversion.warnings(function()
      convert.config(conversion.job("t5", newest, "hf"), config)
      config.model.decoder_nonlinearity = "gelu"
      conversion.fails("decoder_nonlinearity='gelu': only the value of encoder_nonlinearity ('relu')", convert.config,
        conversion.job("t5", newest, "hf"), config)
    end)
  end)
end)
