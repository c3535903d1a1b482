-- What a family of the Model Zoo may say and Hugging Face's model does not have, and the other way round: refused with the values that
-- are possible; what the reference lets through in some releases is reported with its value and what comes of it.

local cbk = require "cbk"
local harness = require "harness"
local conversion = require "conversion"
local tiny = require "tiny"
local variations = require "variations"
local converters = require "cbk.converters"

local catalogue, convert = converters.catalogue, converters.convert
local describe, it = harness.describe, harness.it
local refuses, converted = variations.refuses, variations.converted

local null, dict, list = cbk.null, cbk.dict, cbk.list

local function shown(value)
  if value == null then return "null" end
  return type(value) == "string" and "'" .. value .. "'" or type(value) == "userdata" and "" or tostring(value)
end

---Refuses each value of a field from CS to HF, with what is possible.
---@param format string
---@param limits table[]   model, field, values that are refused, what the message says is possible, values that pass
local function limit(format, limits)
  for _, case in ipairs(limits) do
    local model, field, bad, possible, good = unpack(case)
    for _, value in ipairs(bad) do
      refuses { { model, format, "hf", { [field] = value }, ("%s=%s"):format(field, shown(value)) } }
      refuses { { model, format, "hf", { [field] = value }, ": only " .. possible } }
    end
    for _, value in ipairs(good or {}) do converted { model, format, "hf", { [field] = value } } end
  end
end

describe("Limits of a family: towards Hugging Face", function()
  it("norms and their places", function()
    limit("cs-2.9", {
      { "falcon", "norm_type", { "rmsnorm", "foo" }, "'layernorm' is", { "layernorm" } },
      { "falcon", "norm_first", { false }, "true is", { true } },
      { "falcon", "embedding_layer_norm", { true }, "false is", { false } },
      { "falcon", "position_embedding_type", { "learned", "foo" }, "'rotary' or 'alibi'", { "rotary" } },
      { "t5", "norm_first", { false }, "true is", { true } },
      { "bert", "use_position_embedding", { false }, "true is", { true } },
    })
    for _, model in ipairs { "gpt2", "gptj", "gpt-neox", "llama", "bloom", "falcon" } do
      limit("cs-2.9", { { model, "use_biasless_norm", { true }, "false", { false, null } } })
    end
    limit("cs-2.3", { { "mpt", "norm_type", { "foo", "group", null }, "'biasless-layernorm' or 'layernorm' or 'rmsnorm'", { "rmsnorm" } } })
  end)

  it("attention", function()
    local one = dict { num_kv_groups = 1 } -- of two heads
    for _, model in ipairs { "gpt2", "gptj", "gpt-neox", "bloom", "bert", "t5" } do
      limit("cs-2.9", { { model, "extra_attention_params", { one }, "null", { dict(), null } } })
    end
    for _, model in ipairs { "gpt2", "gptj", "gpt-neox", "llama", "bloom", "falcon" } do
      limit("cs-2.9", {
        { model, "attention_sink_tokens", { 4 }, "null", { null } }, { model, "alibi_trainable_slopes", { true }, "false", { false } },
      })
    end
    for _, model in ipairs { "gpt2", "llama", "bloom" } do
      limit("cs-2.9", {
        { model, "attention_chunk_size", { 4 }, "null", { null } }, { model, "attention_vertical_column_width", { 4 }, "null" },
        { model, "sliding_window_every_other_decoder_layer", { true }, "false" },
        { model, "constant_pos_embedding", { 4 }, "null" }, { model, "rel_distance_mode", { "foo" }, "'default'", { "default" } },
      })
    end
    limit("cs-2.9", { { "bert", "attention_sliding_window_length", { 3 }, "null", { null } } })
    for _, model in ipairs { "falcon", "t5", "gpt2" } do
      refuses { { model, "cs-2.9", "hf", { moe_params = dict { num_experts = 4 } }, "moe_params={" } }
    end
  end)

  it("BERT's pooler, which without a field of its own is as the encoder", function()
    for _, absent in ipairs { "missing", "null" } do
      local config = dict { model = cbk.deep_copy((converted { "bert", "hf", "cs-2.9", {} })) }
      config.model.pooler_nonlinearity = absent == "null" and null or nil
      local function run() return convert.config(conversion.job("bert", "cs-2.9", "hf"), config) end
      conversion.fails("pooler_nonlinearity=null: only 'tanh' is supported; without it the pooler uses encoder_nonlinearity, which is "
        .. "'gelu'; add pooler_nonlinearity: tanh", run)
      config.model.encoder_nonlinearity, config.model.mlm_nonlinearity = "tanh", null
      conversion.warnings(run)
    end
  end)

  it("shared embeddings are, or are not", function()
    for _, model in ipairs { "gpt2", "llama", "bert", "t5", "falcon" } do
      refuses {
        { model, "cs-2.9", "hf", { share_embedding_weights = null }, "share_embedding_weights=null: only true or false" },
        { model, "hf", "cs-2.9", { tie_word_embeddings = null }, "tie_word_embeddings=null: " },
      }
    end
  end)

  it("what releases up to 2.0 let through of Falcon is reported", function()
    local hf = dict {
      model_type = "RefinedWebModel", hidden_size = 8, n_head = 2, n_layer = 1, vocab_size = 5, multi_query = true, bias = false,
      hidden_dropout = 0, attention_dropout = 0, initializer_range = 0.02, layer_norm_epsilon = 1e-5,
    }
    for _, release in ipairs { "cs-1.9", "cs-2.0" } do
      local config
      conversion.warnings(function() config = convert.config(conversion.job("falcon", "hf", release), hf) end)
      local function back(field, value)
        local other = dict { model = conversion.with(config.model, { [field] = value }) }
        return table.concat(conversion.warnings(convert.config, conversion.job("falcon", release, "hf"), other), "\n")
      end
      for field, value in pairs { norm_first = false, position_embedding_type = "learned" } do
        local reported = back(field, value)
        assert(reported:find(("%s=%s is left out: Falcon's Hugging Face code"):format(field, shown(value)), 1, true), reported)
      end
      conversion.fails("norm_type='rmsnorm': only 'layernorm'", back, "norm_type", "rmsnorm")
      conversion.fails("embedding_layer_norm=true: only false", back, "embedding_layer_norm", true)
    end
  end)

  it("a field of the other side is reported with its possible values", function()
    refuses {
      { "bert-qa", "cs-2.9", "hf", { num_labels = 2 }, "'num_labels' (=2) should not appear in the config, because it is a "
        .. "field of the other format; remove it if 2 is meant" },
      { "gpt2", "hf", "cs-2.9", { norm_type = "rmsnorm" }, "remove it if 'layernorm' is meant" },
    }
  end)
end)

-- what the classes of Hugging Face (Transformers 4) have beside sizes, at its defaults; save_pretrained writes each
local classes = {
  gpt2 = {
    attn_pdrop = 0.1, embd_pdrop = 0.1, resid_pdrop = 0.1,
    activation_function = "gelu_new", initializer_range = 0.02, layer_norm_epsilon = 1e-5, n_inner = null,
    reorder_and_upcast_attn = false, scale_attn_by_inverse_layer_idx = false, scale_attn_weights = true, summary_activation = null,
    summary_first_dropout = 0.1, summary_proj_to_labels = true, summary_type = "cls_index", summary_use_proj = true, use_cache = true,
  },
  gptj = {
    attn_pdrop = 0, embd_pdrop = 0, resid_pdrop = 0,
    activation_function = "gelu_new", initializer_range = 0.02, layer_norm_epsilon = 1e-5, n_inner = null, use_cache = true,
    rotary_dim = 2, rotary = true, scale_attn_weights = true, gradient_checkpointing = false,
  },
  ["gpt-neox"] = {
    attention_bias = true, attention_dropout = 0, classifier_dropout = 0.1, hidden_act = "gelu", hidden_dropout = 0,
    initializer_range = 0.02, layer_norm_eps = 1e-5, rope_scaling = null, rotary_emb_base = 10000, rotary_pct = 0.5,
    use_cache = true, use_parallel_residual = true,
  },
  llama = {
    attention_bias = false, attention_dropout = 0, head_dim = 4, hidden_act = "silu", initializer_range = 0.02, mlp_bias = false,
    num_key_value_heads = 2, pretraining_tp = 1, rms_norm_eps = 1e-6, rope_scaling = null, rope_theta = 10000, use_cache = true,
  },
  falcon = {
    model_type = "falcon", activation = "gelu", alibi = false, attention_dropout = 0, bias = false, ffn_hidden_size = 32,
    hidden_dropout = 0, initializer_range = 0.02, layer_norm_epsilon = 1e-5, multi_query = true, new_decoder_architecture = false,
    num_kv_heads = 2, num_ln_in_parallel_attn = null, parallel_attn = true, rope_scaling = null, rope_theta = 10000, use_cache = true,
  },
  bloom = {
    apply_residual_connection_post_layernorm = false, attention_dropout = 0, hidden_dropout = 0, initializer_range = 0.02,
    layer_norm_epsilon = 1e-5, pretraining_tp = 1, slow_but_exact = false, use_cache = true,
  },
  mpt = {
    attn_config = dict {
      alibi = true, alibi_bias_max = 8, attn_impl = "torch", attn_pdrop = 0, attn_type = "multihead_attention",
      attn_uses_sequence_id = false, clip_qkv = null, model_type = "", prefix_lm = false, qk_ln = false, softmax_scale = null,
    },
    emb_pdrop = 0, embedding_fraction = 1, expansion_ratio = 4, init_device = "cpu", initializer_range = 0.02,
    layer_norm_epsilon = 1e-5, learned_pos_emb = true, logit_scale = null, no_bias = true, norm_type = "low_precision_layernorm",
    resid_pdrop = 0, use_cache = false, verbose = 0,
  },
  bert = {
    attention_probs_dropout_prob = 0.1, classifier_dropout = null, hidden_act = "gelu", hidden_dropout_prob = 0.1,
    initializer_range = 0.02, layer_norm_eps = 1e-12, pad_token_id = 0, position_embedding_type = "absolute", type_vocab_size = 2,
    use_cache = true,
  },
  t5 = {
    classifier_dropout = 0, dense_act_fn = "relu", dropout_rate = 0.1, feed_forward_proj = "relu", initializer_factor = 1,
    is_encoder_decoder = true, is_gated_act = false, layer_norm_epsilon = 1e-6, relative_attention_max_distance = 128,
    relative_attention_num_buckets = 32, use_cache = true,
  },
  ["clip-vit"] = {
    attention_dropout = 0, hidden_act = "quick_gelu", initializer_factor = 1, initializer_range = 0.02, layer_norm_eps = 1e-5,
    num_channels = 3, projection_dim = 512,
  },
}
for _, name in ipairs { "bert-qa", "bert-token-classifier", "bert-sequence-classifier" } do classes[name] = classes.bert end

-- of these the value above is not the class's default, or the weights say it where the config does not
local own_values = {
  mpt = { "attn_config", "no_bias" },
}
-- without these, the config is refused: the default is no part of such small heads
local needed = { gptj = "rotary_dim", ["gpt-neox"] = "rotary_pct" }

---Each way from Hugging Face whose class is known, and a config with all of its fields.
local function each_class(visit)
  for _, way in ipairs(tiny.ways()) do
    local name = way.name:gsub("%-headless$", "")
    local is_there = classes[name] and not (name == "falcon" and not catalogue.since(catalogue.release(way.format), "2.1"))
    if is_there and not way.layout then visit(way, name, conversion.with(tiny.config(way.name, way.converter), classes[name])) end
  end
end

describe("Limits of a family: towards the Model Zoo", function()
  it("the attention of each layer, by its name", function()
    local full, sliding = "full_attention", "sliding_attention"
    for model, case in pairs {
      qwen2 = { { full, sliding }, { full, full } }, qwen3 = { { sliding, full }, { full, full } },
      gemma2 = { { full, full }, { sliding, full } },
    } do
      local config, root = tiny.model(tiny.newest_ways()[model])
      config.layer_types = list(case[1])
      conversion.fails("with layer_types='", conversion.run, model, "hf", "cs-2.9", config, root)
      config.layer_types = list(case[2])
      local reported = table.concat(conversion.warnings(conversion.run, model, "hf", "cs-2.9", config, root), "\n")
      assert(not reported:find("layer_types", 1, true), reported)
    end
  end)

  it("Gemma 2: both ways of attention, and a scale that is the usual one", function()
    local config, root = tiny.model(tiny.newest_ways().gemma2)
    conversion.fails("use_bidirectional_attention=true: only false", conversion.run, "gemma2", "hf", "cs-2.9",
      conversion.with(config, { use_bidirectional_attention = true }), root)
    config.query_pre_attn_scalar = config.head_dim
    local reported = table.concat(conversion.warnings(conversion.run, "gemma2", "hf", "cs-2.9", config, root), "\n")
    assert(not reported:find("query_pre_attn_scalar", 1, true), reported)
  end)

  it("no field of a class of Hugging Face is one of the other side only", function()
    local checked = {}
    each_class(function(way, _, config)
      conversion.warnings(convert.config, conversion.job(way.name, "hf", way.format), config)
      checked[way.name] = true
    end)
    for name in pairs(classes) do assert(checked[name], name) end
  end)

  it("a field that a config leaves out has its class's default", function()
    each_class(function(way, name, config)
      local function model(gone)
        local out
        conversion.warnings(function()
          out = convert.config(conversion.job(way.name, "hf", way.format), conversion.with(config, {}, gone)).model
        end)
        return out
      end
      local want = model(own_values[name])
      for field in pairs(classes[name]) do
        local gone = field ~= needed[name] and { field, unpack(own_values[name] or {}) } or {}
        for made, value in cbk.items(model(gone)) do
          conversion.same(value, want[made], ("%s, %s without %s: %s"):format(way.name, way.format, field, made))
        end
      end
    end)
  end)

  it("a GPT-2 without dropout rates comes back from old releases", function()
    for _, name in ipairs { "gpt2", "gpt2-headless" } do
      for _, format in ipairs { "cs-1.7", "cs-1.9", "cs-2.0" } do
        local plain, zoo, back = conversion.with(variations.hf_config(name), {}, { "resid_pdrop", "attn_pdrop", "embd_pdrop" }), nil, nil
        local reported = conversion.warnings(function()
          zoo = convert.config(conversion.job(name, "hf", format), plain)
          back = convert.config(conversion.job(name, format, "hf"), zoo)
        end)
        harness.has(reported[1], "has no model.nonlinearity (default: gelu); add 'nonlinearity: gelu_new' to its section 'model'")
        harness.has(reported[2], "has no resid_pdrop, so the new config has no model.dropout_rate, which the Model Zoo's programs of this "
          .. "release need; in its section 'model', add 'dropout_rate' with the rate of the training, such as 0.1, or 0.0 (no dropout)")
        harness.equal({ back.resid_pdrop, back.attn_pdrop, back.embd_pdrop }, {})
        zoo.model.dropout_rate = 0.5
        conversion.warnings(function() back = convert.config(conversion.job(name, format, "hf"), zoo) end)
        harness.equal({ back.resid_pdrop, back.attn_pdrop, back.embd_pdrop }, { 0.5, 0.5, 0.5 })
      end
    end
  end)

  it("every config that is written for Hugging Face names its model_type", function()
    each_class(function(way, _, config)
      local there, back = conversion.job(way.name, "hf", way.format), conversion.job(way.name, way.format, "hf")
      conversion.warnings(function()
        harness.equal(convert.config(back, convert.config(there, config)).model_type, config.model_type)
      end)
    end)
  end)

  it("CLIP's embedding has one epsilon in the Model Zoo", function()
    for _, way in ipairs { { "hf", "cs-2.9", "layer_norm_eps" }, { "cs-2.9", "hf", "layer_norm_epsilon" } } do
      local src, tgt, field = unpack(way)
      local config, reported = converted { "clip-vit", src, tgt, { [field] = 0.5 } }
      assert(reported:find(field .. "=0.5: the norm behind the embeddings always uses 1e-05 in the Model Zoo", 1, true), reported)
      harness.equal(config.layer_norm_eps or config.layer_norm_epsilon, 0.5)
      harness.equal(select(2, converted { "clip-vit", src, tgt, { [field] = 1e-5 } }):find("norm behind", 1, true), nil)
    end
  end)

  it("a field that both have, though only one value of it: MPT's layer_norm_epsilon", function()
    for _, model in ipairs { "mpt", "mpt-headless" } do
      local plain = converted { model, "hf", "cs-2.3", {} }
      local config, reported = converted { model, "hf", "cs-2.3", { layer_norm_epsilon = 1e-5 } }
      conversion.same(config, plain)
      harness.equal(reported:find("layer_norm_epsilon", 1, true), nil)
      refuses { { model, "hf", "cs-2.3", { layer_norm_epsilon = 1e-6 }, "layer_norm_epsilon=1e-06: only 1e-05 is supported" } }
    end
  end)

  it("MPT's prefixes and norms", function()
    refuses {
      { "mpt", "hf", "cs-2.3", { ["attn_config.prefix_lm"] = true }, "attn_config.prefix_lm=true: only false" },
      { "mpt", "hf", "cs-2.3", { norm_type = "foo" }, "norm_type='foo': only 'layernorm' or 'low_precision_layernorm' or" },
      { "mpt", "hf", "cs-2.3", { norm_type = null }, "norm_type=null: only 'layernorm'" },
    }
    for name, plain in pairs { layernorm = "layernorm", low_precision_rmsnorm = "rmsnorm", rmsnorm = "rmsnorm" } do
      harness.equal(converted({ "mpt", "hf", "cs-2.3", { norm_type = name } }).norm_type, plain)
    end
  end)

  it("GPT-NeoX has no dropout before 2.1", function()
    for _, format in ipairs { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0" } do
      local _, silent = converted { "gpt-neox", "hf", format, { hidden_dropout = 0, attention_dropout = 0 } }
      harness.equal(silent:find("dropout", 1, true), nil)
      for _, field in ipairs { "hidden_dropout", "attention_dropout" } do
        local _, reported = converted { "gpt-neox", "hf", format, { [field] = 0.5 } }
        assert(reported:find(field .. "=0.5", 1, true), reported)
      end
    end
  end)

  it("BERT is no decoder, and T5 is T5", function()
    for _, field in ipairs { "is_decoder", "add_cross_attention" } do
      for _, model in ipairs { "bert", "bert-qa" } do
        for _, good in ipairs { null, false } do converted { model, "hf", "cs-2.9", { [field] = good } } end
        refuses { { model, "hf", "cs-2.9", { [field] = true }, field .. "=true: only false" } }
      end
    end
    for _, format in ipairs { "cs-1.7", "cs-1.8", "cs-1.9", "cs-2.0", "cs-2.9" } do
      refuses { { "t5", "hf", format, { model_type = "mt5" }, "model_type='mt5': only 't5' is" } }
    end
  end)

  it("GPT-J's rotary_dim of null: whole heads here, a quarter there", function()
    for _, format in ipairs { "cs-1.7", "cs-1.9", "cs-2.2", "cs-2.9" } do
      local config, reported = converted { "gptj", "hf", format, { rotary_dim = null } }
      harness.equal(config.rotary_dim, 4)
      assert(reported:find("rotary_dim=null becomes 4, the head size: Hugging Face", 1, true), reported)
      conversion.warnings(function()
        harness.equal(convert.config(conversion.job("gptj", format, "hf"), dict { model = config }).rotary_dim, 4)
      end)
    end
    refuses { { "gptj", "hf", "cs-2.9", { rotary_dim = null, n_embd = 6 }, "rotary_dim=3: only an even number" } }
  end)

  it("a Falcon whose config does not come back alone is reported", function()
    local part = "num_ln_in_parallel_attn=1 with num_kv_heads=%d: the new config can be converted back"
    for _, case in ipairs { { 1, 2, true }, { 2, 2, false }, { 1, 1, false }, { 1, 4, false } } do
      local norms, groups, is_one_way = unpack(case)
      local there = { "falcon", "hf", "cs-2.9", { model_type = "falcon", new_decoder_architecture = true, num_attention_heads = 4,
        n_head = 4, num_kv_heads = groups, num_ln_in_parallel_attn = norms } }
      local config, reported = converted(there)
      harness.equal(reported:find(part:format(groups), 1, true) ~= nil, is_one_way)
      conversion.warnings(function()
        harness.equal(not pcall(convert.config, conversion.job("falcon", "cs-2.9", "hf"), dict { model = config }), is_one_way)
      end)
    end
  end)

  it("images are whole patches", function()
    refuses {
      { "clip-vit", "hf", "cs-2.9", { image_size = 9 }, "image_size=9: only a multiple of patch_size (4)" },
      { "clip-vit", "cs-2.9", "hf", { image_size = list { 9, 9 } }, "image_size=[9, 9]: only a multiple of patch_size (4)" },
    }
  end)
end)
