-- BTLM, JAIS, CodeGen, SantaCoder and StarCoder on small models: muP and positions, where rows of fused projections go, what is refused.

local cbk = require "cbk"
local classes = require "cbk.classes"
local conversion = require "conversion"
local converters = require "cbk.converters"
local harness = require "harness"
local tiny = require "tiny"
local variations = require "variations"

local describe, it = harness.describe, harness.it
local same, fails, with = conversion.same, conversion.fails, conversion.with
local refuses, converted = variations.refuses, variations.converted

---A small model of a family, with other fields and the tensors that they need.
---@param name string
---@param more? table   fields of the Hugging Face config
---@return Dict config, Dict root
local function small(name, more)
  local way = tiny.newest_ways()[name]
  local config = with((tiny.model(way)), more or {})
  return config, tiny.checkpoint((classes.find(name, "hf")), config)
end

---@param release string
local function there(name, release, config, root)
  local to, out
  local said = conversion.warnings(function() to, out = conversion.run(name, "hf", release, config, root) end)
  return to, out, table.concat(said, "\n")
end

local function back(name, release, config, root)
  local to, out
  local said = conversion.warnings(function() to, out = conversion.run(name, release, "hf", config, root) end)
  return to, out, table.concat(said, "\n")
end

local mup = {
  activation_function = "swiglu", position_embedding_type = "alibi", mup_width_scale = 0.25, mup_embeddings_scale = 10,
  mup_output_alpha = 2, mup_scale_qk_dot_by_d = true, alibi_scaling = cbk.dict { type = "linear", factor = cbk.float(4) },
}

describe("The backbone layout of 2.4", function()
  local function nested(layers)
    local stack = cbk.dict { { "num_hidden_layers", #layers }, { "layers", cbk.list(layers) } }
    return cbk.dict { model = cbk.dict { { "name", "gpt_backbone" }, { "hidden_size", 8 }, { "transformer_decoder", stack },
      { "embedding_layer", cbk.dict { vocab_size = 5, max_position_embeddings = 4 } } } }
  end
  local function layer(window, changes)
    local attention = cbk.dict { num_heads = 2, attention_sliding_window_length = window }
    return conversion.with(cbk.dict { { "filter_size", 32 }, { "nonlinearity", "gelu" }, { "self_attn", attention } }, changes or {})
  end
  local null = cbk.null
  local function flat(config) return converters.convert.config(conversion.job("gpt2", "cs-2.4-backbone", "cs-2.4"), config).model end

  it("has one layer for all, or a window in every second one", function()
    for _, case in ipairs { { { 8, 8, 8 }, 8 }, { { null, 8 }, 8, true }, { { null, 8, null }, 8, true }, { { null, null }, null } } do
      local layers = {}
      for i, window in ipairs(case[1]) do layers[i] = layer(window) end
      local out = flat(nested(layers))
      same({ out.attention_sliding_window_length, out.sliding_window_every_other_decoder_layer or false }, { case[2], case[3] or false })
      local again = converters.convert.config(conversion.job("gpt2", "cs-2.4", "cs-2.4-backbone"), cbk.dict { model = out }).model
      local stack = again.transformer_decoder
      same(stack.sliding_window_every_other_decoder_layer, nil)
      if case[3] then
        for i, window in ipairs(case[1]) do same(stack.layers[i].self_attn.attention_sliding_window_length, window) end
      else
        same(stack.layers.self_attn.attention_sliding_window_length, case[2])
      end
    end
  end)

  it("refuses layers that differ, and names what it does not know", function()
    fails("has windows that are neither", flat, nested { layer(8), layer(4) })
    fails("has windows that are neither", flat, nested { layer(8), layer(null) })
    fails("layers[1].nonlinearity='relu': only one value", flat, nested { layer(8), layer(8, { nonlinearity = "relu" }) })
    fails("layers[1].norm_first=null: only one value", flat, nested { layer(8, { norm_first = true }), layer(8) })
    fails("has no layer", flat, nested {})
    fails("transformer_decoder.layers[1]=3: only a section", flat, nested { layer(8), 3 })
    local said = conversion.warnings(function() flat(nested { layer(8, { moe_params = cbk.dict { n = 4 } }) }) end)
    assert(table.concat(said):find("left out: transformer_decoder.layers.moe_params.n=4", 1, true), table.concat(said))
  end)
end)

describe("BTLM and JAIS", function()
  for _, name in ipairs { "btlm", "btlm-headless", "jais", "jais-headless" } do
    it(name .. ": muP is a field on both sides, beside the model where it is about training", function()
      local config, root = small(name, mup)
      local to, out = there(name, "cs-2.4", config, root)
      same({ to.model.output_logits_scale, to.model.scale_qk_dot_by_d, to.model.pos_scaling_factor }, { 0.5, true, 4 })
      same(to.optimizer, cbk.dict { adjust_learning_rate = cbk.dict { decoder_kernel = 0.25 } })
      assert(out.model["embedding_layer.position_embed_helper.slopes"] ~= nil)
      local again, hf = back(name, "cs-2.4", to, out)
      for field, value in pairs(mup) do same(again[field], value, field) end
      conversion.equal_tensors(root, hf)
    end)
  end

  it("muP of 2.3 and later comes back as the fields that Hugging Face has", function()
    local config, root = small("btlm", mup)
    local to, out = there("btlm", "cs-2.2", config, root)
    local new, newer = conversion.run("btlm", "cs-2.2", "cs-2.4", to, out)
    same(new.trainer.init.model.mup_base_hidden_size, 2)
    local again, _, said = back("btlm", "cs-2.4", new, newer)
    same({ again.mup_width_scale, again.mup_output_alpha, again.mup_scale_qk_dot_by_d }, { 0.25, 2, true })
    assert(not said:find("decoder_kernel", 1, true), said)
    local by_root = with(new.trainer.init.model, { scale_output_logits_by_d = false })
    again = back("btlm", "cs-2.4", cbk.dict { model = by_root }, newer)
    same({ again.mup_width_scale, again.mup_output_alpha }, { 0.25, 4 })
    refuses {
      { "btlm", "cs-2.4", "hf", { attention_logits_alpha = 2 }, "attention_logits_alpha=2" },
      { "btlm", "cs-2.4", "hf", { mup_base_hidden_size = -1 }, "mup_base_hidden_size=-1" },
      { "jais", "hf", "cs-2.3", { width_scale = 0.5 }, "width_scale=0.5: only 1 or null" },
      { "jais", "hf", "cs-2.3", { embeddings_scale = 14.6 }, "embeddings_scale=14.6: only 1 or null" },
      { "jais", "hf", "cs-2.3", { scale_qk_dot_by_d = true }, "scale_qk_dot_by_d=true: only false or null" },
    }
  end)

  it("without the learning rate's adjustment the logits stay the same, with a warning", function()
    local config, root = small("jais", mup)
    local to, out = there("jais", "cs-2.3", config, root)
    to.optimizer = nil
    local again, _, said = back("jais", "cs-2.3", to, out)
    same({ again.mup_width_scale, again.mup_output_alpha }, { 1, 0.5 })
    assert(said:find("the config has no optimizer.adjust_learning_rate.decoder_kernel", 1, true), said)
    to.optimizer = cbk.config.parse("{optimizer_type: AdamW, adjust_learning_rate: {decoder_kernel: 0.5, embedding: 2}}", "yaml")
    again, _, said = back("jais", "cs-2.3", to, out)
    same({ again.mup_width_scale, again.mup_output_alpha }, { 0.5, 1 })
    for _, name in ipairs { "optimizer.optimizer_type", "optimizer.adjust_learning_rate.embedding" } do
      assert(said:find(name, 1, true), said)
    end
    to.optimizer.adjust_learning_rate.decoder_kernel = 0
    fails("optimizer.adjust_learning_rate.decoder_kernel=0", back, "jais", "cs-2.3", to, out)
  end)

  it("slopes that a file lacks are made, and old ones are read", function()
    local config, root = small("btlm", mup)
    local _, out = there("btlm", "cs-2.4", config, root)
    same(out.model["embedding_layer.position_embed_helper.slopes"]:tolist(), { { 2 ^ -4 }, { 2 ^ -8 } })
    root["transformer.relative_pe.slopes"] = conversion.counted({ 2, 1 }, 6)
    _, out = there("btlm", "cs-2.4", config, root)
    same(out.model["embedding_layer.position_embed_helper.slopes"]:tolist(), { { 7 }, { 8 } })
    config = with(config, { alibi_scaling = cbk.null })
    local to, old = there("btlm", "cs-2.0", config, root)
    same(old.model["relative_pe_helper.slopes"]:tolist(), root["transformer.relative_pe.slopes"]:tolist())
    local _, hf = back("btlm", "cs-2.0", to, old)
    same(hf["transformer.h.0.attn.bias"]:shape(), { 1, 1, 4, 4 })
  end)

  it("a release that lacks a field refuses its values", function()
    local function to(release, more) return there, "btlm", release, small("btlm", more) end
    fails("alibi_scaling", to("cs-2.0", mup))
    fails("scale_attn_by_inverse_layer_idx=true", to("cs-2.0", { scale_attn_by_inverse_layer_idx = true }))
    same(converted({ "btlm", "hf", "cs-2.1", { scale_attn_by_inverse_layer_idx = true } }).scale_qk_dot_by_layer_idx, true)
    local function scaled(map) return { alibi_scaling = cbk.dict(map) } end
    refuses {
      { "jais", "hf", "cs-2.4", scaled { type = "linear", train_seq_len = 8 }, "alibi_scaling.train_seq_len=8" },
      { "jais", "hf", "cs-2.4", scaled { type = "dynamic", factor = 2 }, "alibi_scaling.type='dynamic'" },
      { "jais", "hf", "cs-2.4", scaled { type = "linear" }, "alibi_scaling.factor=null" },
      { "jais", "hf", "cs-2.4", { alibi_scaling = 3 }, "alibi_scaling=3" },
      { "jais", "hf", "cs-2.4", { position_embedding_type = "rotary" }, "position_embedding_type='rotary'" },
      { "jais", "cs-2.4", "hf", { position_embedding_type = "relative" }, "position_embedding_type='relative'" },
      { "jais", "cs-2.4", "hf", { pos_scaling_factor = 0.5 }, "pos_scaling_factor=0.5" },
      { "jais", "cs-2.4", "hf", { output_logits_scale = "x" }, "output_logits_scale='x'" },
    }
  end)
end)

---The numbers of the rows of a weight of counted elements.
local function rows(tensor, first)
  local width, out = tensor:shape()[2], {}
  for i, row in ipairs(tensor:tolist()) do out[i] = (row[1] - first) / width end
  return cbk.list(out)
end

local function proj(part) return ("transformer_decoder.layers.0.self_attn.proj_%s_dense_layer.weight"):format(part) end

describe("Fused projections", function()
  local function check(name, more, key, want)
    local config, root = small(name, more)
    local weight = root[key]
    local first = weight:tolist()[1][1]
    local to, out = there(name, "cs-2.4", config, root)
    for part, numbers in pairs(want) do same(rows(out.model[proj(part)], first), cbk.list(numbers), name .. " " .. part) end
    local _, hf = back(name, "cs-2.4", to, out)
    conversion.equal_tensors(root, hf)
  end

  it("CodeGen: four devices below each other, each with q, v, k", function()
    check("codegen", {}, "transformer.h.0.attn.qkv_proj.weight", {
      q = { 0, 1, 6, 7, 12, 13, 18, 19 }, v = { 2, 3, 8, 9, 14, 15, 20, 21 }, k = { 4, 5, 10, 11, 16, 17, 22, 23 },
    })
  end)

  it("StarCoder: one key head below all queries, or three parts for each head", function()
    local key = "transformer.h.0.attn.c_attn.weight"
    check("starcoder", {}, key, { q = { 0, 1, 2, 3, 4, 5, 6, 7 }, k = { 8, 9, 10, 11 }, v = { 12, 13, 14, 15 } })
    check("starcoder", { multi_query = false }, key, {
      q = { 0, 1, 2, 3, 12, 13, 14, 15 }, k = { 4, 5, 6, 7, 16, 17, 18, 19 }, v = { 8, 9, 10, 11, 20, 21, 22, 23 },
    })
  end)

  it("SantaCoder: keys and values are the columns of one Conv1D", function()
    local config, root = small "santacoder"
    local to, out = there("santacoder", "cs-2.3", config, root)
    local both = root["transformer.h.0.attn.kv_attn.weight"]:transpose(0, 1)
    same(out.model[proj "k"]:tolist(), both:slice(0, 0, 4):tolist())
    same(out.model[proj "v"]:tolist(), both:slice(0, 4, 8):tolist())
    local _, hf = back("santacoder", "cs-2.3", to, out)
    conversion.equal_tensors(root, hf)
    same(hf["transformer.h.0.attn.masked_bias"]:item(), -1e4)
  end)
end)

describe("CodeGen, SantaCoder, StarCoder", function()
  it("refuse what the other side cannot express", function()
    local two = { attention_module = "multiquery_attention", extra_attention_params = cbk.dict { num_kv_groups = 2 }, num_heads = 4 }
    refuses {
      { "codegen", "hf", "cs-2.4", { n_head = 2 }, "n_head=2: only a multiple of 4" },
      { "codegen", "cs-2.4", "hf", { num_heads = 2 }, "num_heads=2: only a multiple of 4" },
      { "codegen", "hf", "cs-2.4", { rotary_dim = cbk.null }, "rotary_dim=null" },
      { "codegen", "cs-2.4", "hf", { position_embedding_type = "learned" }, "position_embedding_type='learned'" },
      { "codegen", "cs-2.4", "hf", { mup_base_hidden_size = 4 }, "codegen" },
      { "santacoder", "hf", "cs-2.4", { attention_head_type = "multihead" }, "attention_head_type='multihead'" },
      { "santacoder", "cs-2.4", "hf", { extra_attention_params = cbk.dict { num_kv_groups = 2 } }, "extra_attention_params=" },
      { "santacoder", "cs-2.4", "hf", { attention_module = "aiayn_attention" }, "attention_module='aiayn_attention'" },
      { "starcoder", "cs-2.4", "hf", two, "extra_attention_params.num_kv_groups=2: only 1, or num_heads (4)," },
      { "starcoder", "cs-2.4", "hf", { attention_module = "aiayn_attention" }, "extra_attention_params.num_kv_groups=1" },
      { "starcoder", "cs-2.4", "hf", { scale_qk_dot_by_layer_idx = true }, "scale_qk_dot_by_layer_idx=true" },
      { "starcoder", "hf", "cs-2.4", { scale_attn_weights = 3 }, "scale_attn_weights=3" },
    }
  end)

  it("StarCoder: the number of key heads decides", function()
    local function of(more) return converted({ "starcoder", "cs-2.4", "hf", more }).multi_query end
    local groups = cbk.dict { num_kv_groups = 2 }
    same(of { extra_attention_params = cbk.null }, true)
    same(of { attention_module = "multiquery_attention", extra_attention_params = groups }, false)
    same(of { attention_module = "aiayn_attention", extra_attention_params = cbk.null }, false)
  end)

  it("fields that say nothing new are not reported", function()
    for field, value in pairs { scale_attention_softmax_in_fp32 = true, attention_softmax_in_fp32 = true } do
      for _, release in ipairs { "cs-2.0", "cs-2.4" } do
        local _, said = converted({ "starcoder", "hf", release, { [field] = value } })
        assert(not said:find(field, 1, true), said)
      end
    end
    local _, said = converted({ "starcoder", "hf", "cs-2.4", { scale_attention_softmax_in_fp32 = false } })
    assert(said:find("scale_attention_softmax_in_fp32=false", 1, true), said)
    _, said = converted({ "codegen", "hf", "cs-2.4", { n_ctx = 4 } })
    assert(not said:find("n_ctx", 1, true), said)
  end)

  it("fields that newer releases refuse are named", function()
    local config, root = small "santacoder"
    local _, _, said = there("santacoder", "cs-2.4", config, root)
    assert(said:find("scale_by_layer_index and softmax_dtype_fp32", 1, true), said)
    _, _, said = there("santacoder", "cs-2.3", config, root)
    assert(not said:find("scale_by_layer_index", 1, true), said)
  end)

  it("releases up to 2.0: masks, names of fields", function()
    local config, root = small "codegen"
    local to, out = there("codegen", "cs-1.9", config, root)
    local _, hf = back("codegen", "cs-1.9", to, out)
    same(hf["transformer.h.0.attn.causal_mask"]:shape(), { 1, 1, 4, 4 })
    config, root = small("starcoder", { scale_attention_softmax_in_fp32 = false })
    to, out = there("starcoder", "cs-2.0", config, root)
    same({ to.model.attention_softmax_fp32, to.model.use_position_embedding }, { false, true })
    same((back("starcoder", "cs-2.0", to, out)).scale_attention_softmax_in_fp32, false)
  end)
end)
