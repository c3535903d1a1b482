-- MPT, BLOOM, GPT-J and GPT-NeoX on small models that are made here: there and back by every release, where rows and slopes
-- go, release steps, what is refused.

local cbk = require "cbk"
local converters = require "cbk.converters"
local conversion = require "conversion"
local harness = require "harness"

local describe, it = harness.describe, harness.it
local same, fails, with = conversion.same, conversion.fails, conversion.with
local catalogue = converters.catalogue

-- --- small models: two layers, two heads of four rows

local function layers(entries, count)
  local out = {}
  for i = 0, count - 1 do
    for _, entry in ipairs(entries) do
      local own = { unpack(entry) }
      own[1] = own[1]:format(i)
      out[#out + 1] = own
    end
  end
  return out
end

local function joined(...)
  local out = {}
  for _, list in ipairs { ... } do
    for _, entry in ipairs(list) do out[#out + 1] = entry end
  end
  return out
end

local mpt = {
  config = cbk.dict {
    model_type = "mpt", d_model = 8, n_heads = 2, n_layers = 2, max_seq_len = 6, vocab_size = 5, expansion_ratio = 4, no_bias = true,
    norm_type = "layernorm", emb_pdrop = 0.5, resid_pdrop = 0.25, tie_word_embeddings = true,
    attn_config = cbk.dict {
      attn_type = "multihead_attention", attn_pdrop = 0.125, alibi = true, alibi_bias_max = 8, softmax_scale = cbk.null,
      attn_impl = "torch", qk_ln = false, clip_qkv = cbk.null, prefix_lm = false, attn_uses_sequence_id = false,
    },
  },
  keys = joined({ { "wte.weight", 5, 8 }, { "norm_f.weight", 8 } }, layers({
    { "blocks.%d.attn.Wqkv.weight", 24, 8 }, { "blocks.%d.attn.out_proj.weight", 8, 8 }, { "blocks.%d.norm_1.weight", 8 },
    { "blocks.%d.norm_2.weight", 8 }, { "blocks.%d.ffn.up_proj.weight", 32, 8 }, { "blocks.%d.ffn.down_proj.weight", 8, 32 },
  }, 2)),
  prefix = "transformer.", head = false, releases = { "cs-2.1", "cs-2.2", "cs-2.3" },
}


local bloom = {
  config = cbk.dict {
    model_type = "bloom", hidden_size = 8, n_head = 2, n_layer = 2, vocab_size = 5, layer_norm_epsilon = 1e-5,
    attention_dropout = 0.5, hidden_dropout = 0, tie_word_embeddings = false,
  },
  keys = joined({
    { "word_embeddings.weight", 5, 8 }, { "word_embeddings_layernorm.{weight,bias}", 8 }, { "ln_f.{weight,bias}", 8 },
  }, layers({
    { "h.%d.self_attention.query_key_value.{weight,bias}", 24, 8 }, { "h.%d.self_attention.dense.{weight,bias}", 8, 8 },
    { "h.%d.input_layernorm.{weight,bias}", 8 }, { "h.%d.post_attention_layernorm.{weight,bias}", 8 },
    { "h.%d.mlp.dense_h_to_4h.{weight,bias}", 32, 8 }, { "h.%d.mlp.dense_4h_to_h.{weight,bias}", 8, 32 },
  }, 2)),
  prefix = "transformer.", head = "lm_head.weight", releases = { "cs-1.9", "cs-2.0", "cs-2.1", "cs-2.9" },
}

local gptj = {
  config = cbk.dict {
    model_type = "gptj", n_embd = 8, n_head = 2, n_layer = 2, n_positions = 6, n_inner = 12, rotary = true, rotary_dim = 2,
    vocab_size = 5, activation_function = "gelu_new", attn_pdrop = 0.5, embd_pdrop = 0.25, resid_pdrop = 0.125,
    tie_word_embeddings = false,
  },
  keys = joined({ { "wte.weight", 5, 8 }, { "ln_f.{weight,bias}", 8 } }, layers({
    { "h.%d.attn.q_proj.weight", 8, 8 }, { "h.%d.attn.k_proj.weight", 8, 8 }, { "h.%d.attn.v_proj.weight", 8, 8 },
    { "h.%d.attn.out_proj.weight", 8, 8 }, { "h.%d.ln_1.{weight,bias}", 8 },
    { "h.%d.mlp.fc_in.{weight,bias}", 12, 8 }, { "h.%d.mlp.fc_out.{weight,bias}", 8, 12 },
  }, 2)),
  prefix = "transformer.", head = "lm_head.{weight,bias}",
  releases = { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0", "cs-2.2", "cs-2.3", "cs-2.9" },
}

local neox = {
  config = cbk.dict {
    model_type = "gpt_neox", hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 2, max_position_embeddings = 6,
    intermediate_size = 12, vocab_size = 5, hidden_act = "gelu", rotary_pct = 0.5, rotary_emb_base = 10000, layer_norm_eps = 1e-5,
    tie_word_embeddings = false,
  },
  keys = joined({ { "embed_in.weight", 5, 8 }, { "final_layer_norm.{weight,bias}", 8 } }, layers({
    { "layers.%d.attention.query_key_value.{weight,bias}", 24, 8 }, { "layers.%d.attention.dense.{weight,bias}", 8, 8 },
    { "layers.%d.input_layernorm.{weight,bias}", 8 }, { "layers.%d.post_attention_layernorm.{weight,bias}", 8 },
    { "layers.%d.mlp.dense_h_to_4h.{weight,bias}", 12, 8 }, { "layers.%d.mlp.dense_4h_to_h.{weight,bias}", 8, 12 },
  }, 2)),
  prefix = "gpt_neox.", head = "embed_out.weight", releases = { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0", "cs-2.1", "cs-2.9" },
}

local models = { mpt = mpt, bloom = bloom, gptj = gptj, ["gpt-neox"] = neox }

local function checkpoint(model, prefix)
  local entries = {}
  for i, entry in ipairs(model.keys) do entries[i] = { prefix .. entry[1], unpack(entry, 2) } end
  if prefix ~= "" and model.head then entries[#entries + 1] = { model.head, 5, 8 } end
  return conversion.checkpoint(entries)
end

---The numbers of the rows of a matrix of 8 columns, of counted elements.
local function rows(tensor, first)
  local out = {}
  for i, row in ipairs(tensor:tolist()) do out[i] = (row[1] - first) / 8 end
  return out
end

local function proj(name) return ("transformer_decoder.layers.0.self_attn.proj_%s_dense_layer.weight"):format(name) end

describe("Decoders: Hugging Face", function()
  for name, model in pairs(models) do
    for _, release in ipairs(model.releases) do
      it(("%s there and back by %s"):format(name, release), function()
        local hf = checkpoint(model, model.prefix)
        local cs_config, cs = conversion.there_and_back(name, release, model.config, hf)
        assert(cs.model["ln_f.weight"] ~= nil and cs_config.model.hidden_size == 8)
        same(cs_config.model.name, release >= "cs-2.4" and name or nil)
      end)

      it(("%s-headless there and back by %s"):format(name, release), function()
        local hf = checkpoint(model, "")
        conversion.warnings(function() -- of a random head
          local cs_config, cs = conversion.there_and_back(name .. "-headless", release, model.config, hf)
          assert(cs.model["lm_head.weight"] ~= nil)
          local bias = cs_config.model.use_bias_in_output == true
          same(cs.model["lm_head.bias"] ~= nil, bias)
        end)
      end)
    end
  end

  it("rows of fused projections are taken head by head, with rotary pairs where there are any", function()
    local from = { mpt = 3, bloom = 4, ["gpt-neox"] = 3 } -- the place of the fused weight in the table above
    local want = {
      mpt = { q = { 0, 1, 2, 3, 4, 5, 6, 7 }, k = { 8, 9, 10, 11, 12, 13, 14, 15 }, v = { 16, 17, 18, 19, 20, 21, 22, 23 } },
      bloom = { q = { 0, 1, 2, 3, 12, 13, 14, 15 }, k = { 4, 5, 6, 7, 16, 17, 18, 19 }, v = { 8, 9, 10, 11, 20, 21, 22, 23 } },
      -- two of four rows are turned, so a pair stays as it is
      ["gpt-neox"] = { q = { 0, 1, 2, 3, 12, 13, 14, 15 }, k = { 4, 5, 6, 7, 16, 17, 18, 19 }, v = { 8, 9, 10, 11, 20, 21, 22, 23 } },
    }
    for name, parts in pairs(want) do
      local model = models[name]
      local _, cs = conversion.run(name, "hf", model.releases[#model.releases], model.config, checkpoint(model, model.prefix))
      for part, numbers in pairs(parts) do same(cbk.list(rows(cs.model[proj(part)], 1000 * from[name] + 1)), cbk.list(numbers), name) end
    end
    local _, cs = conversion.run("gpt-neox", "hf", "cs-2.9", with(neox.config, { rotary_pct = 1 }), checkpoint(neox, neox.prefix))
    same(cbk.list(rows(cs.model[proj "q"], 3001)), cbk.list { 0, 2, 1, 3, 12, 14, 13, 15 })
  end)

  it("slopes of ALiBi for any number of heads", function()
    local function slopes(heads)
      local config = with(mpt.config, { n_heads = heads, n_layers = 1, d_model = 24 })
      local hf = conversion.checkpoint(joined({ { "transformer.wte.weight", 5, 24 }, { "transformer.norm_f.weight", 24 } }, layers({
        { "transformer.blocks.%d.attn.Wqkv.weight", 72, 24 }, { "transformer.blocks.%d.attn.out_proj.weight", 24, 24 },
        { "transformer.blocks.%d.norm_1.weight", 24 }, { "transformer.blocks.%d.norm_2.weight", 24 },
        { "transformer.blocks.%d.ffn.up_proj.weight", 96, 24 }, { "transformer.blocks.%d.ffn.down_proj.weight", 24, 96 },
      }, 1)))
      local _, cs = conversion.run("mpt", "hf", "cs-2.3", config, hf)
      return cs.model["embedding_layer.position_embed_helper.slopes"]
    end
    same(slopes(8):shape(), { 8, 1 })
    same(slopes(8):reshape({ -1 }):tolist(), { 2 ^ -1, 2 ^ -2, 2 ^ -3, 2 ^ -4, 2 ^ -5, 2 ^ -6, 2 ^ -7, 2 ^ -8 })
    -- of six, four are those of four heads, two every second one of eight
    same(slopes(6):reshape({ -1 }):tolist(), { 2 ^ -2, 2 ^ -4, 2 ^ -6, 2 ^ -8, 2 ^ -1, 2 ^ -3 })
    local _, learned = conversion.run("mpt", "hf", "cs-2.3",
      with(mpt.config, { attn_config = with(mpt.config.attn_config, { alibi = false }) }),
      with(checkpoint(mpt, "transformer."), { ["transformer.wpe.weight"] = conversion.counted({ 6, 8 }, 0) }))
    assert(learned.model["embedding_layer.position_embed_helper.slopes"] == nil)
  end)

  it("MPT's weights show its positions and biases where the config does not say", function()
    local silent = with(mpt.config, { attn_config = cbk.dict { model_type = "" } }, { "no_bias" })
    local plain = checkpoint(mpt, "transformer.")
    local learned = with(plain, { ["transformer.wpe.weight"] = conversion.counted({ 6, 8 }, 0) })
    local biased = cbk.copy(plain)
    for key, tensor in cbk.items(plain) do
      if key:find "blocks" or key:find "norm_f" then
        biased[key:gsub("weight$", "bias")] = conversion.counted({ tensor:shape()[1] }, 0)
      end
    end
    for _, case in ipairs { { plain, "alibi", false }, { learned, "learned", false }, { biased, "alibi", true } } do
      local hf, position, bias = unpack(case)
      local config, cs, back, _
      local reported = table.concat(conversion.warnings(function() config, cs = conversion.run("mpt", "hf", "cs-2.3", silent, hf) end))
      assert(not reported:find "alibi", reported)
      same({ config.model.position_embedding_type, config.model.use_ffn_bias }, { position, bias })
      conversion.warnings(function() _, back = conversion.run("mpt", "cs-2.3", "hf", config, cs) end)
      conversion.equal_tensors(hf, back)
    end
    local out
    local reported = conversion.warnings(function() out = converters.convert.config(conversion.job("mpt", "hf", "cs-2.3"), silent) end)
    same(out.model.position_embedding_type, "learned")
    assert(reported[1]:find("attn_config.alibi is not given: false is assumed", 1, true), reported[1])
    local no_positions = with(silent, { attn_config = cbk.dict { alibi = false } })
    fails("1 weight is missing: transformer.wpe.weight", conversion.run, "mpt", "hf", "cs-2.3", no_positions, plain)
  end)

  it("masks and frequencies that old files carry are made", function()
    local function back(name, release)
      local model = models[name]
      local _, _, _, hf = conversion.there_and_back(name, release, model.config, checkpoint(model, model.prefix))
      return hf
    end
    same(back("gptj", "cs-1.9")["transformer.h.1.attn.bias"]:shape(), { 1, 1, 6, 6 })
    same(back("gptj", "cs-2.0")["transformer.h.1.attn.bias"], nil)
    local hf = back("gpt-neox", "cs-2.1")
    same(hf["gpt_neox.layers.0.attention.masked_bias"]:item(), -1e9)
    same(hf["gpt_neox.layers.0.attention.rotary_emb.inv_freq"]:tolist(), { 1 })
    -- and passed over where they are read
    conversion.there_and_back("gpt-neox", "cs-2.1", neox.config, hf)
  end)
end)

describe("Decoders: releases", function()
  it("norms are named by type from 2.0 on", function()
    local config, root = conversion.run("gptj", "hf", "cs-1.9", gptj.config, checkpoint(gptj, "transformer."))
    config.model.use_biasless_norm = true
    local newer = conversion.run("gptj", "cs-1.9", "cs-2.0", config, root)
    same(newer.model.norm_type, "biasless-layernorm")
    same(newer.model.use_biasless_norm, nil)
  end)

  it("slopes move from 2.0 to 2.1", function()
    local config, root = conversion.run("bloom", "hf", "cs-2.0", bloom.config, checkpoint(bloom, "transformer."))
    local _, newer = conversion.run("bloom", "cs-2.0", "cs-2.1", config, root)
    same(newer.model["embedding_layer.position_embed_helper.slopes"]:tolist(), root.model["relative_pe_helper.slopes"]:tolist())
  end)

  it("every pair is listed", function()
    for name, model in pairs(models) do
      for _, release in ipairs(model.releases) do
        assert(catalogue.path(catalogue.find(name), "hf", release), name .. " " .. release)
        assert(catalogue.path(catalogue.find(name .. "-headless"), release, "hf"), name .. " " .. release)
      end
    end
  end)
end)

describe("Decoders: what cannot be said", function()
  local function to_cs(name, more, release)
    local model = models[name]
    return conversion.run, name, "hf", release or model.releases[#model.releases], with(model.config, more),
      checkpoint(model, model.prefix)
  end
  local function to_hf(name, more, release)
    local model = models[name]
    release = release or model.releases[#model.releases]
    local config, root = conversion.run(name, "hf", release, model.config, checkpoint(model, model.prefix))
    for field, value in pairs(more) do config.model[field] = value end
    return conversion.run, name, release, "hf", config, root
  end
  local function attention(more) return { attn_config = with(mpt.config.attn_config, more) } end

  it("BLOOM's dropout is not that of its embedding", function()
    for _, rate in ipairs { 0.2, 0 } do
      local given = with(bloom.config, { hidden_dropout = rate })
      local config, root = conversion.run("bloom", "hf", "cs-2.9", given, checkpoint(bloom, bloom.prefix))
      harness.equal({ config.model.dropout_rate, config.model.embedding_dropout_rate }, { rate, rate > 0 and 0 or nil })
      harness.equal((conversion.run("bloom", "cs-2.9", "hf", config, root)).hidden_dropout, rate)
    end
  end)

  it("is refused by name", function()
    fails("attn_config.softmax_scale=0.5", to_cs("mpt", attention { softmax_scale = 0.5 }))
    fails("attn_config.alibi_bias_max=4", to_cs("mpt", attention { alibi_bias_max = 4 }))
    fails("attn_config=3", to_cs("mpt", { attn_config = 3 }))
    fails("such as 'transformer.wte.weight': expected [5, 4] (d_model=4), found [5, 8], and '", to_cs("mpt", { d_model = 4 }))
    fails("logit_scale", to_cs("mpt", { logit_scale = "inv_sqrt_d_model" }))
    fails("expansion_ratio='4'", to_cs("mpt", { expansion_ratio = "4" }))
    fails("attention_module='gqa'", to_hf("mpt", { attention_module = "gqa" }))
    fails("filter_size=30", to_hf("mpt", { filter_size = 30 }))
    fails("these must be the same", to_hf("mpt", { use_ffn_bias = true }))
    fails("layer_norm_epsilon", to_hf("mpt", { layer_norm_epsilon = 1e-6 }))
    fails("mpt", to_hf("mpt", { mup_base_hidden_size = 4 }))
    fails("apply_residual_connection_post_layernorm=true", to_cs("bloom", { apply_residual_connection_post_layernorm = true }))
    fails("filter_size=16: only 4 * hidden_size (32)", to_hf("bloom", { filter_size = 16 }))
    fails("attention_inner_dim=4", to_hf("bloom", { attention_inner_dim = 4 }))
    fails("embedding_dropout_rate=0.2: only 0", to_hf("bloom", { dropout_rate = 0.2, embedding_dropout_rate = 0.2 }))
    fails("embedding_layer_norm=false", to_hf("bloom", { embedding_layer_norm = false }))
    fails("rotary=false", to_cs("gptj", { rotary = false }))
    fails("position_embedding_type='learned'", to_hf("gptj", { position_embedding_type = "learned" }))
    fails("use_untied_layer_norm=true", to_hf("gptj", { use_untied_layer_norm = true }))
    fails("gptj", to_hf("gptj", { mup_base_hidden_size = 4 }, "cs-2.2"))
    fails("rope_scaling.type='llama3'", to_cs("gpt-neox", { rope_scaling = cbk.dict { type = "llama3", factor = 2 } }))
    fails("rotary_emb_base=500", to_cs("gpt-neox", { rotary_emb_base = 500 }))
    fails("attention_dropout_rate=0.5", to_hf("gpt-neox", { attention_dropout_rate = 0.5 }, "cs-2.0"))
    fails("use_parallel_residual=false", to_cs("gpt-neox", { use_parallel_residual = false }))
  end)

  it("losses are named", function()
    local function named(part, ...)
      local text = table.concat(conversion.warnings(...), "\n")
      assert(text:find(part, 1, true), text)
    end
    named("attn_config.clip_qkv=8 is left out", to_cs("mpt", attention { clip_qkv = 8 }))
    named("attn_config.qk_ln=true is left out", to_cs("mpt", attention { qk_ln = true }))
    named("norm_type=low_precision_layernorm", to_cs("mpt", { norm_type = "low_precision_layernorm" }))
    named("'lm_head' is left out", to_hf("mpt", { share_embedding_weights = false }))
  end)

  it("a second norm of a GPT-J layer is refused, a null one passed over", function()
    local config, root = conversion.run("gptj", "hf", "cs-2.4", gptj.config, checkpoint(gptj, "transformer."))
    local norm = "transformer_decoder.layers.0.norm3.weight"
    root.model[norm] = cbk.null
    conversion.run("gptj", "cs-2.4", "hf", config, root)
    root.model[norm] = conversion.counted({ 8 }, 0)
    fails("one norm", conversion.run, "gptj", "cs-2.4", "hf", config, root)
  end)

  it("a checkpoint that lacks a layer is incomplete", function()
    for name, model in pairs(models) do
      local hf = checkpoint(model, model.prefix)
      for key in cbk.items(hf) do
        if key:find "%.1%." then hf[key] = nil end
      end
      fails("incomplete", conversion.run, name, "hf", model.releases[#model.releases], model.config, hf)
    end
  end)

  it("muP is folded into all that logits are made of", function()
    for _, name in ipairs { "bloom", "gptj" } do
      local model = models[name]
      local config, root = conversion.run(name, "hf", "cs-2.4", model.config, checkpoint(model, model.prefix))
      config.model.mup_base_hidden_size = 2
      local hf_config, hf = conversion.run(name, "cs-2.4", "hf", config, root)
      for key, tensor in cbk.items(root.model) do -- a bias of the head is a part of the logits
        if key:find "^lm_head" then same(hf[key]:tolist(), tensor:affine(1 / 4, 0):tolist(), key) end
      end
      same(hf_config.tie_word_embeddings, false)
    end
  end)

  it("a factor of attention without muP is folded into the keys", function()
    local model = models.gptj
    local config, root = conversion.run("gptj", "hf", "cs-2.4", model.config, checkpoint(model, model.prefix))
    local _, before = conversion.run("gptj", "cs-2.4", "hf", config, root)
    config.model.attention_logits_alpha = 3
    local hf_config, hf
    local said = conversion.warnings(function() hf_config, hf = conversion.run("gptj", "cs-2.4", "hf", config, root) end)
    same(#said, 0)
    for key, tensor in cbk.items(before) do
      same(hf[key]:tolist(), tensor:affine(key:find "k_proj" and 3 or 1, 0):tolist(), key)
    end
    same(hf_config.attention_logits_alpha, nil)
    config.model.attention_logits_alpha, config.model.embeddings_scale = nil, 2
    said = conversion.warnings(conversion.run, "gptj", "cs-2.4", "hf", config, root)
    assert(said[1]:find("embeddings_scale=2.* multiplies the embeddings in the Model Zoo, also without muP, and is left out"), said[1])
  end)

  it("a factor of attention that no key can take over is refused", function()
    local model = models.mpt
    local config, root = conversion.run("mpt", "hf", "cs-2.4", model.config, checkpoint(model, model.prefix))
    config.model.attention_logits_alpha = 3
    fails("the config has attention_logits_alpha=3, which cannot be converted for mpt", conversion.run, "mpt", "cs-2.4", "hf", config,
      root)
  end)
end)
