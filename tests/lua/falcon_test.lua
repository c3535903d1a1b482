-- Falcon: each of its fused layouts there and back, where the rows go, and what is refused.

local cbk = require "cbk"
local converters = require "cbk.converters"
local catalogue, convert = converters.catalogue, converters.convert
local conversion = require "conversion"
local harness = require "harness"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

converters.load()

local function job(model, src, tgt)
  local found, zoo_name = catalogue.find(model)
  return { model = found, zoo_name = zoo_name, path = catalogue.path(found, src, tgt), seed = 1 }
end

local function counted(...)
  local shape, n, list = { ... }, 1, {}
  for _, extent in ipairs(shape) do n = n * extent end
  for i = 1, n do list[i] = i end
  return cbk.tensor(list, { shape = shape, dtype = "float32" })
end

-- four heads of four rows; what the generations call things
local old = { hidden_size = 16, n_head = 4, n_layer = 1, vocab_size = 3, max_position_embeddings = 8 }
local new = { hidden_size = 16, num_attention_heads = 4, num_hidden_layers = 1, vocab_size = 3, max_position_embeddings = 8 }

local function config(base, more)
  local out = cbk.dict()
  for key, value in cbk.items(base) do out[key] = value end
  for key, value in pairs(more) do out[key] = value end
  return out
end

local layouts = {
  ["7B"] = { release = "cs-2.0", rows = 24, says = "hidden_size=16, num_attention_heads=4", norms = { "input_layernorm" },
    config = config(old, { model_type = "RefinedWebModel", tie_word_embeddings = true }) },
  ["40B"] = { release = "cs-1.9", rows = 32, says = "num_attention_heads=4, n_head_kv=2, hidden_size=16",
    norms = { "ln_attn", "ln_mlp" }, config = config(old, { model_type = "RefinedWeb", n_head_kv = 2, tie_word_embeddings = false }) },
  ["180B"] = { release = "cs-2.9", rows = 32, says = "num_attention_heads=4, num_kv_heads=2, hidden_size=16",
    norms = { "ln_attn", "ln_mlp" },
    config = config(new, { model_type = "falcon", new_decoder_architecture = true, num_kv_heads = 2, multi_query = false }) },
  ["one key head"] = { release = "cs-2.3", rows = 24, says = "hidden_size=16, num_attention_heads=4", norms = { "input_layernorm" },
    config = config(new, { model_type = "falcon" }) },
  ["a key per query, biases"] = { release = "cs-2.4", rows = 48, says = "hidden_size=16", norms = { "input_layernorm" }, bias = true,
    config = config(new, { model_type = "falcon", multi_query = false, bias = true }) },
}

local function checkpoint(layout, prefix)
  local out = cbk.dict()
  local function add(name, ...)
    out[prefix .. name .. ".weight"] = counted(...)
    if layout.bias then out[prefix .. name .. ".bias"] = counted((...)) end
  end
  out[prefix .. "word_embeddings.weight"] = counted(3, 16)
  add("h.0.self_attention.query_key_value", layout.rows, 16)
  add("h.0.self_attention.dense", 16, 16)
  add("h.0.mlp.dense_h_to_4h", 64, 16)
  add("h.0.mlp.dense_4h_to_h", 16, 64)
  for _, kind in ipairs { "weight", "bias" } do
    for _, norm in ipairs(layout.norms) do out[("%sh.0.%s.%s"):format(prefix, norm, kind)] = counted(16) end
    out[prefix .. "ln_f." .. kind] = counted(16)
  end
  return out
end

local function there_and_back(model, layout, hf)
  local there, back = job(model, "hf", layout.release), job(model, layout.release, "hf")
  local cs_config = convert.config(there, layout.config)
  local cs = convert.checkpoint(there, hf)
  return cs_config.model, cs.model, convert.config(back, cs_config), convert.checkpoint(back, cs)
end

---The numbers of the rows of a matrix of 16 columns whose elements are counted.
local function rows(tensor)
  local out = {}
  for i, row in ipairs(tensor:tolist()) do out[i] = (row[1] - 1) / 16 end
  return out
end

local function proj(name) return ("transformer_decoder.layers.0.self_attn.proj_%s_dense_layer.weight"):format(name) end

describe("Falcon", function()
  for name, layout in pairs(layouts) do
    it("comes back as it was: " .. name, function()
      local hf = checkpoint(layout, "transformer.")
      hf["lm_head.weight"] = counted(3, 16)
      local cs_config, cs, config_again, again = there_and_back("falcon", layout, hf)
      equal(cbk.count(again), cbk.count(hf))
      for key, tensor in cbk.items(hf) do equal(again[key]:tolist(), tensor:tolist()) end
      assert(cs["ln_f.weight"] ~= nil and cs_config.rotary_dim == 4 and cs_config.filter_size == 64)
      for field, value in cbk.items(layout.config) do equal(config_again[field], value) end
    end)
  end

  it("configs of the first generations say that there are no biases, as the Model Zoo's default is that there are", function()
    for _, case in ipairs { { "7B", "cs-2.4" }, { "40B", "cs-2.9" }, { "7B", "cs-1.9" }, { "40B", "cs-2.0" } } do
      local one = job("falcon", "hf", case[2])
      local reported = conversion.warnings(function()
        local model = convert.config(one, config(layouts[case[1]].config, { bias = false })).model
        for _, name in ipairs { "use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias", "use_bias_in_output" } do
          equal(model[name], false, name)
        end
      end)
      equal(#reported, 0)
    end
  end)

  it("a config gets the model's name with the first release that asks for it, on every way", function()
    local function name_in(src, tgt, from) return convert.config(job("falcon", src, tgt), from).model end
    for _, layout in ipairs { "7B", "40B" } do
      local of_2_4 = name_in("hf", "cs-2.4", layouts[layout].config)
      equal(of_2_4.name, "falcon")
      of_2_4.name = nil -- as in files of the original converter
      equal(name_in("cs-2.4", "cs-2.5", cbk.dict { model = of_2_4 }).name, "falcon")
      equal(name_in("hf", "cs-2.5", layouts[layout].config).name, "falcon")
    end
  end)

  it("one norm and some key heads (11B) come back with the checkpoint that keeps what Hugging Face said", function()
    local fields = { model_type = "falcon", new_decoder_architecture = true, num_kv_heads = 2, num_ln_in_parallel_attn = 1 }
    local layout = { rows = 32, norms = { "input_layernorm" }, config = config(new, fields) }
    for name, prefix in pairs { falcon = "transformer.", ["falcon-headless"] = "" } do
      local hf, cs_config, cs, again_config, again = checkpoint(layout, prefix), nil, nil, nil, nil
      if name == "falcon" then hf["lm_head.weight"] = counted(3, 16) end
      local reported = conversion.warnings(function() cs_config, cs = conversion.run(name, "hf", "cs-2.5", layout.config, hf) end)
      assert(table.concat(reported):find("only together with the checkpoint that is written", 1, true))
      equal(cs_config.model.use_untied_layer_norm, false)
      conversion.warnings(function() again_config, again = conversion.run(name, "cs-2.5", "hf", cs_config, cs) end)
      conversion.equal_tensors(hf, again)
      equal(cbk.count(again), cbk.count(hf))
      for field, value in pairs(fields) do equal(again_config[field], value) end
      raises("keeps num_ln_in_parallel_attn=1", function()
        conversion.run(name, "cs-2.5", "hf", cs_config, cbk.dict { model = cs.model })
      end)
    end
  end)

  it("rows are taken from their groups, queries and keys as rotary pairs", function()
    local _, cs = there_and_back("falcon", layouts["180B"], checkpoint(layouts["180B"], "transformer."))
    equal(rows(cs[proj "q"]), { 0, 2, 1, 3, 4, 6, 5, 7, 16, 18, 17, 19, 20, 22, 21, 23 })
    equal(rows(cs[proj "k"]), { 8, 10, 9, 11, 24, 26, 25, 27 })
    equal(rows(cs[proj "v"]), { 12, 13, 14, 15, 28, 29, 30, 31 })
  end)

  it("biases: those that the config says, the Model Zoo's defaults counted, and none but them", function()
    local layout = layouts["a key per query, biases"]
    local hf = checkpoint(layout, "transformer.")
    local cs_config, cs = there_and_back("falcon", layout, hf)
    local to_cs, to_hf = job("falcon", "hf", layout.release), job("falcon", layout.release, "hf")
    ---What comes of a CS config with these flags.
    local function with_flags(projection, attention, inner)
      local flags = { use_projection_bias_in_attention = projection, use_ffn_bias_in_attention = attention, use_ffn_bias = inner }
      local changed = cbk.copy(cs_config)
      for _, name in ipairs { "use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias" } do
        changed[name] = flags[name]
      end
      return convert.config(to_hf, cbk.dict { model = changed }).bias
    end
    equal(with_flags(nil, nil, true), true)
    equal(cbk.count(convert.checkpoint(to_hf, cbk.dict { model = cs })), cbk.count(hf))
    for _, flags in ipairs { { true }, { nil, true }, { nil, nil, false }, { false }, { true, true, false } } do
      raises("must be the same", function() with_flags(flags[1], flags[2], flags[3]) end)
    end
    equal(with_flags(nil, nil, nil), nil)
    raises("linear_layer.bias", function() convert.checkpoint(to_hf, cbk.dict { model = cs }) end)
    convert.config(to_cs, config(layout.config, { bias = false }))
    raises("FalconForCausalLM does not have with this config", function() convert.checkpoint(to_cs, hf) end)
    convert.config(to_cs, layout.config)
    hf["transformer.h.0.mlp.dense_4h_to_h.bias"] = nil
    raises("1 weight is missing: transformer.h.0.mlp.dense_4h_to_h.bias", function() convert.checkpoint(to_cs, hf) end)
  end)

  it("a fused projection has the rows that the config says, in either layout", function()
    for _, name in ipairs { "7B", "40B", "180B", "one key head", "a key per query, biases" } do
      local layout = layouts[name]
      local key = "transformer.h.0.self_attention.query_key_value.weight"
      local to_cs, to_hf = job("falcon", "hf", layout.release), job("falcon", layout.release, "hf")
      local hf = checkpoint(layout, "transformer.")
      hf["lm_head.weight"] = counted(3, 16)
      local cs_config = convert.config(to_cs, layout.config)
      local cs = convert.checkpoint(to_cs, hf)
      hf[key] = counted(2 * layout.rows, 16)
      local says = layout.says:gsub("num_attention_heads", layout.config.n_head and "n_head" or "%0") -- as the config names it
      says = says:gsub(", ", "; ")
      raises(("'%s': expected [%d, 16] (%s), found [%d, 16]"):format(key, layout.rows, says, 2 * layout.rows),
        function() convert.checkpoint(to_cs, hf) end)
      convert.config(to_hf, cs_config)
      local key_rows = cs.model[proj "k"]:shape()[1]
      cs.model[proj "k"] = counted(2 * key_rows, 16)
      raises(("'%s': expected [%d, 16] ("):format(proj "k", key_rows), function() convert.checkpoint(to_hf, cs) end)
      raises(("num_heads=4), found [%d, 16]"):format(2 * key_rows), function() convert.checkpoint(to_hf, cs) end)
    end
  end)

  it("a headless model gets a head and loses it", function()
    local layout = layouts["7B"]
    local hf = checkpoint(layout, "")
    local _, cs, _, again = there_and_back("falcon-headless", layout, hf)
    equal(cs["lm_head.weight"]:tolist(), hf["word_embeddings.weight"]:tolist())
    assert(again["lm_head.weight"] == nil and cbk.count(again) == cbk.count(hf))
  end)

  it("what a side cannot say is refused", function()
    local to_cs, to_hf = job("falcon", "hf", "cs-2.4"), job("falcon", "cs-2.4", "hf")
    local function refused(part, one, from, more)
      local made = config(from, more)
      raises(part, function() convert.config(one, one.path[1].src == "hf" and made or cbk.dict { model = made }) end)
    end
    refused("alibi", to_cs, layouts["180B"].config, { alibi = true })
    local zoo = conversion.with(convert.config(to_cs, layouts["180B"].config).model, { position_embedding_type = "alibi" })
    local said = conversion.warnings(function() convert.config(to_hf, cbk.dict { model = zoo }) end)
    assert(table.concat(said, "\n"):find("divides ALiBi's biases", 1, true), table.concat(said, "\n"))
    refused("multi_query", to_cs, layouts["7B"].config, { multi_query = false })
    refused("parallel_attn", to_cs, layouts["40B"].config, { parallel_attn = false })
    equal(convert.config(to_cs, config(layouts["40B"].config, { parallel_attn = 1 })), convert.config(to_cs, layouts["40B"].config))
    refused("rope_scaling.type='dynamic'", to_cs, layouts["180B"].config, { rope_scaling = cbk.dict { type = "dynamic", factor = 2 } })
    refused("ffn_hidden_size=8", to_cs, layouts["180B"].config, { ffn_hidden_size = 8 })
    refused("model_type='falcon'", job("falcon", "hf", "cs-2.0"), layouts["one key head"].config, {})
    local cs = convert.config(to_cs, layouts["180B"].config).model
    refused("use_ffn_bias", to_hf, cs, { use_ffn_bias = true })
    refused("filter_size=8", to_hf, cs, { filter_size = 8 })
    refused("embedding_dropout_rate", to_hf, cs, { embedding_dropout_rate = 0.1 })
    refused("rotary_dim=2", to_hf, cs, { rotary_dim = 2 })
    refused("use_untied_layer_norm=false", to_hf, cs, { use_untied_layer_norm = false })
  end)

  it("a layer that is not there is named", function()
    local layout = layouts["180B"]
    local hf = checkpoint(layout, "transformer.")
    hf["transformer.h.0.mlp.dense_4h_to_h.weight"] = nil
    local there = job("falcon", "hf", layout.release)
    convert.config(there, layout.config)
    raises("1 weight is missing: transformer.h.0.mlp.dense_4h_to_h.weight", function() convert.checkpoint(there, hf) end)
  end)

  it("a projection without its partners is named", function()
    local to_hf = job("falcon", "cs-2.9", "hf")
    convert.config(to_hf, convert.config(job("falcon", "hf", "cs-2.9"), layouts["180B"].config))
    raises("proj_v_dense_layer", function()
      convert.checkpoint(to_hf, cbk.dict { model = cbk.dict { [proj "q"] = counted(16, 16), [proj "k"] = counted(8, 16) } })
    end)
  end)
end)
