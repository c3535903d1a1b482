-- Configs that the other side cannot express: a table of models, fields and bad values. Converting the config finds each of them,
-- with the field and its value in the message. Configs are those of tiny models (tiny.lua).

local cbk = require "cbk"
local converters = require "cbk.converters"
local convert = converters.convert
local conversion = require "conversion"
local harness = require "harness"
local quietly = require("cbk.warnings").quietly
local known_fields = require("converters.engine.sections").known_fields
local tiny = require "tiny"
local trainer = require "converters.modelzoo.trainer"
local variations = require "variations"

local describe, it = harness.describe, harness.it
local fails, job, warnings = conversion.fails, conversion.job, conversion.warnings
local hf_config, run, refuses, ways = variations.hf_config, variations.run, variations.refuses, variations.ways

local null, list, dict = cbk.null, cbk.list, cbk.dict

describe("Configs: lists and maps", function()
  -- a mistake of Lua in a rule's function is not a word about the config
  it("are read or refused by their field, in every field", function()
    local count, wrong = 0, {}
    local function try(name, field, src, tgt, changed)
      count = count + 1
      local _, fine, problem = quietly(pcall, convert.config, job(name, src, tgt), changed)
      local is_said = fine or type(problem) == "table" and (problem.code == "config" or problem.code == "unsupported")
      if not is_said then wrong[#wrong + 1] = ("%s %s: %s"):format(name, field, tostring(problem)) end
    end
    for name, way in pairs(tiny.newest_ways()) do
      local config = tiny.model(way)
      local _, _, there = quietly(pcall, convert.config, job(name, "hf", way.format), config)
      for _, value in ipairs { list {}, list { 1 }, dict { a = 1 } } do
        for field in pairs(known_fields(way.converter, "left")) do
          local changed = cbk.copy(config)
          changed[field] = value
          try(name, field, "hf", way.format, changed)
        end
        for field in pairs(known_fields(way.converter, "right")) do
          local changed = cbk.deep_copy(there)
          trainer.model(changed)[field] = value
          try(name, field, way.format, "hf", changed)
        end
      end
    end
    table.sort(wrong)
    harness.equal(table.concat(wrong, "\n"), "")
    harness.is_true(count > 6000, tostring(count))
  end)

  it("Qwen3's layers without experts are none", function()
    local out = variations.converted { "qwen3-moe", "hf", "cs-2.9", { mlp_only_layers = list {} } }
    harness.equal(out.mlp_only_layers, nil)
    refuses { { "qwen3-moe", "hf", "cs-2.9", { mlp_only_layers = list { 0 } }, "mlp_only_layers=[0]: only an empty list" } }
  end)
end)

describe("Configs: what the other side cannot express", function()
  it("key heads and how they are grouped", function()
    local no_groups = "attention_module=multiquery_attention needs extra_attention_params.num_kv_groups"
    local field = "extra_attention_params.num_kv_groups"
    refuses {
      { "llama", "cs-2.9", "hf", { attention_module = "multiquery_attention" }, no_groups },
      { "llama", "cs-2.0", "hf", { attention_module = "multiquery_attention" }, no_groups },
      { "llama", "cs-2.9", "hf", { attention_module = "foo" }, "attention_module='foo': only 'aiayn_attention' or 'multiquery" },
      { "llama", "cs-2.0", "hf", { attention_module = "foo" }, "attention_module='foo': only 'aiayn_attention' or 'multiquery" },
      { "llama-headless", "cs-2.9", "hf", { attention_module = list { 1 } }, "attention_module=[1]: only" },
      { "llama", "cs-2.9", "hf", { attention_module = "multiquery_attention", [field] = 3 },
        "num_kv_groups=3: only a divisor of num_heads (2)" },
      { "falcon", "cs-2.9", "hf", { [field] = 3 }, "extra_attention_params.num_kv_groups=3: only a divisor of num_heads (2)" },
    }
    for _, bad in ipairs { 3, 8, -3, 0.37, "2", list { 1, 2 }, dict { a = 1 } } do
      refuses {
        { "falcon", "hf", "cs-2.9", { model_type = "RefinedWeb", multi_query = null, n_head_kv = bad }, "n_head_kv=" },
        { "falcon", "hf", "cs-2.9", { model_type = "falcon", new_decoder_architecture = true, num_kv_heads = bad }, "num_kv_heads=" },
        { "llama", "hf", "cs-2.9", { num_key_value_heads = bad }, "num_key_value_heads=" },
      }
    end
    local reported = warnings(run, { "falcon", "cs-2.9", "hf", { extra_attention_params = null } })
    assert(table.concat(reported):find("extra_attention_params is not given: num_kv_groups=1 is assumed", 1, true))
  end)

  it("but as many groups of keys as heads are plain attention", function()
    local plain = { attention_module = "multiquery_attention", extra_attention_params = dict { num_kv_groups = 2 } }
    for _, case in ipairs {
      { "llama", "cs-1.9", "cs-2.0", "cs-2.1", "cs-2.9" }, { "llama-headless", "cs-1.9" }, { "mistral", "cs-2.9" }, { "qwen2", "cs-2.9" },
      { "gpt2", "cs-1.9", "cs-2.9" }, { "bloom", "cs-2.9" }, { "gptj", "cs-2.0", "cs-2.9" }, { "gpt-neox", "cs-2.9" },
      { "bert", "cs-2.9" }, { "t5", "cs-2.1", "cs-2.9" }, { "starcoder", "cs-2.9" },
    } do
      for i = 2, #case do
        local out = variations.converted { case[1], case[i], "hf", plain }
        assert(out.num_key_value_heads == nil or out.num_key_value_heads == 2, case[1] .. " " .. case[i])
        assert(out.multi_query ~= true, case[1])
      end
    end
    for _, release in ipairs { "cs-1.9", "cs-2.9" } do
      local out = variations.converted { "llama", release, "hf", { extra_attention_params = dict { num_kv_groups = 2 } } }
      assert(out.num_key_value_heads == nil or out.num_key_value_heads == 2)
      local one = { attention_module = "multiquery_attention", extra_attention_params = dict { num_kv_groups = 1 } }
      if release == "cs-1.9" then refuses { { "llama", release, "hf", one, 'extra_attention_params={"num_kv_groups": 1}: only null' } } end
    end
  end)

  it("Falcon's layouts", function()
    local modern = { model_type = "falcon", new_decoder_architecture = true, num_kv_heads = 2 }
    refuses {
      { "falcon", "hf", "cs-2.0", modern, "model_type='falcon': only 'RefinedWebModel' (7B) or 'RefinedWeb' (40B)" },
      { "falcon-headless", "hf", "cs-1.9", modern, "model_type='falcon': only 'RefinedWebModel' (7B) or 'RefinedWeb' (40B)" },
    }
  end)

  it("MPT's attention and positions", function()
    refuses {
      { "mpt", "hf", "cs-2.3", { ["attn_config.attn_type"] = "multiquery_attention" }, "attn_config.attn_type='multiquery_att" },
      { "mpt", "hf", "cs-2.3", { ["attn_config.attn_type"] = "grouped_query_attention" }, "attn_config.attn_type=" },
      { "mpt", "cs-2.3", "hf", { attention_module = "multiquery_attention" }, "attention_module='multiquery_attention': only" },
      { "mpt", "hf", "cs-2.3", { ["attn_config.rope"] = true }, "attn_config.rope=true: only false" },
      { "mpt", "hf", "cs-2.3", { ["attn_config.rope"] = true, ["attn_config.alibi"] = true }, "attn_config.rope=true" },
      { "mpt", "hf", "cs-2.3", { learned_pos_emb = false }, "learned_pos_emb=false: only true, where attn_config.alibi is false" },
      { "mpt", "hf", "cs-2.3", { ["attn_config.alibi"] = "yes" }, "attn_config.alibi='yes': only true or false" },
    }
    local config
    warnings(function() config = run { "mpt", "hf", "cs-2.3", { learned_pos_emb = false, ["attn_config.alibi"] = true } } end)
    harness.equal(config.model.position_embedding_type, "alibi")
  end)

  it("muP that cannot be folded", function()
    local t5 = { scale_qk_dot_by_d = true, embeddings_scale = 2, output_logits_scale = 0.5 }
    refuses {
      { "bert-qa", "cs-2.9", "hf", { mup_base_hidden_size = 4 }, "mup_base_hidden_size=4), which cannot be" },
      { "mpt-headless", "cs-2.3", "hf", { mup_base_hidden_size = 4 }, "mup_base_hidden_size=4)" },
      { "t5", "cs-2.9", "hf", t5, "scale_qk_dot_by_d=true: only muP by this model's own fields (mup_base_d_model, mup_base_d_ff, mup" },
      { "t5", "cs-2.9", "hf", { mup_base_hidden_size = 4 }, "mup_base_hidden_size=4: only muP by this model's own fields" },
      { "gpt2", "cs-2.9", "hf", { mup_base_d_model = 4 }, "mup_base_d_model=4: only muP by this model's own fields" },
    }
  end)

  it("heads of BERT", function()
    local three = dict { ["0"] = "a", ["1"] = "b", ["2"] = "c" }
    for _, model in ipairs { "bert-sequence-classifier", "bert-token-classifier", "bert-qa" } do
      for shown, bad in pairs { ['["a"]'] = list { "a" }, ["'x'"] = "x", ["3"] = 3 } do
        refuses { { model, "hf", "cs-2.9", { id2label = bad, num_labels = null }, ("id2label=%s: only a map"):format(shown) } }
      end
      refuses { { model, "hf", "cs-2.9", { num_labels = 5, id2label = three }, "num_labels=5: only the number of names in id2label (3)" } }
    end
    refuses {
      { "bert-sequence-classifier", "hf", "cs-2.9", { problem_type = "foo" }, "problem_type='foo': only" },
      { "bert-sequence-classifier", "cs-2.9", "hf", { problem_type = "foo" }, "problem_type='foo': only" },
    }
    local config = run { "bert-token-classifier", "hf", "cs-2.9", { num_labels = null, id2label = three } }
    harness.equal(config.trainer == nil and config.model.num_classes, 3)
  end)

  it("null where a function computes with the value", function()
    refuses {
      { "qwen3-moe", "hf", "cs-2.5", { head_dim = null }, "head_dim=null: only a whole number of at least 1 is supported" },
      { "gemma2", "hf", "cs-2.5", { query_pre_attn_scalar = null }, "query_pre_attn_scalar=null: only a number above 0 is supported" },
      { "btlm", "hf", "cs-2.5", { mup_width_scale = null }, "mup_width_scale=null: only a number above 0 is supported" },
      { "jais", "hf", "cs-2.5", { mup_width_scale = null }, "mup_width_scale=null: only a number above 0 is supported" },
      { "roberta", "cs-2.5", "hf", { max_position_embeddings = null }, "max_position_embeddings=null: only a whole number of at least 1" },
    }
  end)

  it("what would be written, and is not what it must be", function()
    local wide = { d_model = 4096, n_heads = 32, expansion_ratio = 2.67 }
    refuses { { "mpt", "hf", "cs-2.3", wide, "expansion_ratio=2.67: filter_size would be 10936.32, which must be a whole number" } }
    local reported = table.concat(warnings(run, { "mpt", "hf", "cs-2.3", { expansion_ratio = 2.5 } }))
    assert(reported:find("expansion_ratio=2.5: only whole ratios can be converted back", 1, true), reported)
  end)

  it("what is left out, though the model computes something else without it", function()
    local function tells(part, case)
      local reported = table.concat(warnings(run, case), "\n")
      assert(reported:find(part, 1, true), reported)
    end
    for field, value in pairs { clip_qkv = 6, qk_ln = true } do
      local name = "attn_config." .. field
      tells(("%s=%s is left out: the Model Zoo"):format(name, tostring(value)), { "mpt", "hf", "cs-2.3", { [name] = value } })
    end
    local other = { "mpt", "hf", "cs-2.3", { ["ffn_config.ffn_type"] = "mptgeglu" } }
    warnings(function() fails("ffn_config.ffn_type='mptgeglu': only 'mptmlp'", run, other) end)
  end)

  it("cross-attention of GPT-2", function()
    refuses { { "gpt2", "hf", "cs-2.9", { add_cross_attention = true }, "add_cross_attention=true: only false" } }
    run { "gpt2", "hf", "cs-2.9", { add_cross_attention = false } }
  end)
end)

describe("Configs: fields with two names", function()
  -- by the families' own names: what Hugging Face's programs read them as, too (attribute_map)
  local gpt2 = {
    n_embd = "hidden_size", n_positions = "max_position_embeddings", n_head = "num_attention_heads", n_layer = "num_hidden_layers",
  }
  local rw = { n_head = "num_attention_heads", n_layer = "num_hidden_layers", hidden_size = "n_embed" }
  local families = {
    gpt2 = gpt2, gptj = gpt2, bloom = rw,
    mpt = { d_model = "hidden_size", n_heads = "num_attention_heads", n_layers = "num_hidden_layers" },
    t5 = { d_model = "hidden_size", num_heads = "num_attention_heads", num_layers = "num_hidden_layers", d_kv = "head_dim" },
  }

  local function each(visit)
    for name, aliases in pairs(families) do
      local format = name == "mpt" and "cs-2.3" or "cs-2.9"
      for own, alias in pairs(aliases) do visit(name, format, own, alias) end
    end
  end

  it("are read by either, and written by their own", function()
    each(function(name, format, own, alias)
      warnings(function()
        local config = hf_config(name)
        local other = conversion.with(config, { [alias] = cbk.raw(config, own) }, { own })
        local both = conversion.with(config, { [alias] = cbk.raw(config, own) })
        local want = convert.config(job(name, "hf", format), config)
        for _, one in ipairs { other, both, conversion.with(config, { [alias] = null }) } do
          local out
          local left_out = table.concat(warnings(function() out = convert.config(job(name, "hf", format), one) end))
          harness.equal(out, want, name .. ": " .. alias)
          assert(not left_out:find("%f[%w_]" .. alias .. "%f[^%w_]"), left_out)
        end
        local back = convert.config(job(name, format, "hf"), want)
        harness.equal({ back[own], back[alias] }, { config[own] }, name .. ": " .. own)
      end)
    end)
    local old = { "falcon", "hf", "cs-2.0", { model_type = "RefinedWebModel", n_head = null, num_attention_heads = 4 } }
    local out
    warnings(function() out = run(old) end)
    harness.equal(out.model.num_heads, 4)
  end)

  it("as BLOOM's published configs have them", function()
    local published = dict { -- of bloom-560m
      apply_residual_connection_post_layernorm = false, attention_dropout = 0.0, attention_softmax_in_fp32 = true, bos_token_id = 1,
      eos_token_id = 2, hidden_dropout = 0.0, initializer_range = 0.02, layer_norm_epsilon = 1e-05, masked_softmax_fusion = true,
      model_type = "bloom", n_embed = 1024, n_inner = null, n_layer = 24, num_attention_heads = 16, offset_alibi = 100, pad_token_id = 3,
      pretraining_tp = 1, skip_bias_add = true, slow_but_exact = false, use_cache = true, vocab_size = 250880,
    }
    local out
    warnings(function() out = convert.config(job("bloom", "hf", "cs-2.9"), published) end)
    local model = out.model
    harness.equal({ model.num_heads, model.num_hidden_layers, model.hidden_size, model.filter_size }, { 16, 24, 1024, 4096 })
  end)

  it("as Hugging Face's classes read two values: the other name's holds, with a warning", function()
    for _, case in ipairs {
      { "gpt2", { n_layer = 2, num_hidden_layers = 3 }, "num_hidden_layers", 3, "n_layer=2 and num_hidden_layers=3" },
      { "bloom", { hidden_size = 8, n_embed = 16 }, "hidden_size", 16, "hidden_size=8 and n_embed=16" },
    } do
      local model, changes, field, value, message = unpack(case)
      local out
      local reported = table.concat(warnings(function() out = run { model, "hf", "cs-2.9", changes } end))
      harness.equal((out.trainer and out.trainer.init or out).model[field], value, model)
      assert(reported:find("the config has " .. message .. ", which are two names of one field", 1, true), reported)
    end
  end)
end)

describe("Configs: what a field must be", function()
  -- model, formats, a field, bad values, what the message calls for
  local size, positive, rate, switch = "a whole number of at least 1", "a number above 0", "a number from 0 to 1", "true or false"
  local sizes, numbers = { null, "32", list { 1, 2 }, -3, 0, 0.5, true }, { "x", list { 1 }, true, 0 / 0, dict { a = 1 } }
  local cases = {
    { "bert", "cs-2.9", "hf", "max_position_embeddings", { "32", -3, 0.5 }, size },
    { "bert", "hf", "cs-2.9", "intermediate_size", sizes, size },
    { "bert-qa", "cs-2.9", "hf", "max_position_embeddings", sizes, size },
    { "dpo", "cs-2.9-dpo", "hf", "max_position_embeddings", sizes, size },
    { "bert-sequence-classifier", "hf", "cs-2.9", "num_labels", { 0, -1, 1.5, "2" }, size },
    { "llama", "hf", "cs-2.9", "intermediate_size", sizes, size }, { "llama", "hf", "cs-1.9", "max_position_embeddings", sizes, size },
    { "llama", "cs-2.9", "hf", "filter_size", sizes, size },
    { "llama", "hf", "cs-2.9", "num_hidden_layers", sizes, "a whole number from 1" },
    { "gpt2", "hf", "cs-2.9", "n_positions", sizes, size }, { "gpt2", "hf", "cs-2.9", "n_inner", { "32", -3, 0.5 }, size },
    { "gpt2", "hf", "cs-2.9", "attn_pdrop", { -0.5, 1.5, "x", list { 1 } }, rate },
    { "gpt2", "hf", "cs-2.9", "tie_word_embeddings", { "yes", 2, list() }, switch },
    { "gpt2", "hf", "cs-2.9", "activation_function", { 3, list { "gelu" } }, "a string" },
    { "t5", "hf", "cs-2.9", "d_kv", sizes, size }, { "t5", "hf", "cs-2.9", "d_ff", sizes, size },
    { "t5", "hf", "cs-2.9", "relative_attention_num_buckets", sizes, size }, { "t5", "cs-2.9", "hf", "d_model", sizes, size },
    { "gpt-neox", "hf", "cs-2.9", "layer_norm_eps", numbers, positive }, { "llama", "hf", "cs-2.9", "rope_theta", { 0, -1 }, positive },
    { "clip-vit", "hf", "cs-2.9", "image_size", sizes, size }, { "clip-vit", "hf", "cs-2.9", "num_channels", sizes, size },
    { "mpt", "hf", "cs-2.3", "max_seq_len", sizes, size }, { "mpt", "hf", "cs-2.3", "no_bias", { "no", 2 }, switch },
    { "bloom", "hf", "cs-2.9", "n_embed", { "8", -8, 0.5 }, size, { hidden_size = null } },
    { "gpt2", "hf", "cs-2.9", "num_attention_heads", { "8", -8, 0.5 }, size },
    { "llama", "cs-2.4", "cs-2.5", "filter_size", sizes, size }, { "gpt2", "cs-2.4", "cs-2.2", "dropout_rate", { -1, "x" }, rate },
    { "falcon", "cs-2.1", "cs-2.2", "num_hidden_layers", sizes, "a whole number from 1" },
  }
  for _, field in ipairs { "multi_query", "new_decoder_architecture", "parallel_attn", "bias", "alibi" } do
    cases[#cases + 1] = { "falcon", "hf", "cs-2.9", field, { "yes", list { true }, 3 }, switch, { model_type = "falcon" } }
  end

  it("is said by its rule", function()
    for _, case in ipairs(cases) do
      local name, src, tgt, field, values, wanted, others = unpack(case)
      for _, bad in ipairs(values) do
        local change = { [field] = bad }
        for other, value in pairs(others or {}) do change[other] = value end
        local shown = require("converters.engine.fields").shown(bad)
        refuses { { name, src, tgt, change, ("%s=%s: only %s"):format(field, shown, wanted) } }
      end
    end
  end)

  it("1 and 0 are true and false, as every program reads them", function()
    local switches = {
      { "gpt2", "hf", "cs-2.9", "tie_word_embeddings", "share_embedding_weights" },
      { "gpt2", "cs-2.9", "hf", "share_embedding_weights", "tie_word_embeddings" },
      { "llama", "cs-2.9", "hf", "share_embedding_weights", "tie_word_embeddings" },
      { "gpt2", "cs-2.1", "cs-2.2", "share_embedding_weights", "share_embedding_weights" },
      { "mpt", "hf", "cs-2.3", "no_bias", "use_ffn_bias", true },
      { "falcon", "hf", "cs-2.9", "bias", "use_ffn_bias", false, { model_type = "falcon" } },
    }
    for _, case in ipairs(switches) do
      local model, src, tgt, field, target, is_negated, others = unpack(case, 1, 7)
      for _, number in ipairs { 0, 1 } do
        local change = { [field] = number }
        for name, value in pairs(others or {}) do change[name] = value end
        harness.equal(variations.converted({ model, src, tgt, change })[target], (number == 1) ~= (is_negated == true))
      end
    end
  end)

  it("also of a model without any table towards Hugging Face", function()
    local config = dict { model = dict { hidden_size = 8, num_heads = 3, num_hidden_layers = 1 } }
    fails("num_heads=3: only a divisor of hidden_size (8)", convert.config, job("bert-summarization", "cs-2.1", "cs-2.2"), config)
    fails("num_heads=3: only a divisor of hidden_size (8)", convert.config, job("bert-summarization", "cs-1.7", "cs-1.8"), config)
  end)

  it("of names that the engine has never heard", function()
    local sections = require "converters.engine.sections"
    local fields = require "converters.engine.fields"
    local class = require "converters.engine.class"
    local makers = class.kinds
    local function described(own) return class.new "Own" { fields = own, tensors = function() return {} end } end
    local own = { config = fields.config { { "ffn_dim", "filter_size" }, { "slope" } }, classes = {
      left = described { ffn_dim = makers.size(4), slope = makers.rate() },
      right = described { filter_size = makers.size(4), slope = makers.rate() } } }
    fails("the config has no 'filter_size' in its model section", sections.convert, own, "right", dict())
    harness.equal(sections.convert(own, "left", dict()).filter_size, 4) -- as its class has it
    fails("ffn_dim=-8: only a whole number of at least 1", sections.convert, own, "left", dict { ffn_dim = -8 })
    fails("filter_size='8': only a whole number of at least 1", sections.convert, own, "right", dict { filter_size = "8" })
    fails("slope=2: only a number from 0 to 1", sections.convert, own, "left", dict { ffn_dim = 8, slope = 2 })
    harness.equal((sections.convert(own, "left", dict { ffn_dim = 8, slope = null })), { filter_size = 8, slope = null })
  end)

  it("a number in quotes is one where no size is meant, and stays as it is", function()
    local out
    warnings(function() out = run { "llama", "hf", "cs-2.9", { rms_norm_eps = "1e-5", rope_theta = "1e6" } } end)
    harness.equal({ out.model.layer_norm_epsilon, out.model.rope_theta }, { "1e-5", "1e6" })
    warnings(function() out = run { "gpt2", "hf", "cs-2.9", { attn_pdrop = "0.5", n_inner = null } } end)
    harness.equal({ out.model.attention_dropout_rate, out.model.filter_size }, { "0.5", 32 })
  end)

  it("heads may be as wide as the config says", function()
    refuses { { "llama", "cs-2.4", "cs-2.5", { num_heads = 3 }, "num_heads=3: only a divisor of hidden_size (8)" } }
    warnings(run, { "llama", "cs-2.4", "cs-2.5", { num_heads = 3, attention_inner_dim = 12 } })
    refuses { { "gpt2", "cs-2.4", "hf", { attention_inner_dim = 12 }, "attention_inner_dim=12: only null" } }
  end)
end)

describe("Configs: muP of tied embeddings", function()
  local function folded(name, change, without, as_null)
    local way = ways[name]
    local config, root = tiny.model(way)
    warnings(function() config, root = conversion.run(name, "hf", way.format, config, root) end)
    local model = config.trainer and config.trainer.init.model or config.model
    for field, value in pairs(change) do model[field] = value end
    for _, key in ipairs(without) do root.model[key] = as_null and null or nil end
    local out
    warnings(function() out = select(2, conversion.run(name, way.format, "hf", config, root)) end)
    return out, root.model
  end

  it("a head that is not there is made of the embedding, with its own multiplier", function()
    local change = { mup_base_d_model = 4, output_logits_alpha = 5, share_embedding_weights = true }
    local out, zoo = folded("t5", change, { "lm_head.weight" })
    local want = zoo["decoder_embeddings.word_embeddings.weight"] * (5 / 2 ^ 0.5)
    assert(out["lm_head.weight"]:compare(want, { rtol = 1e-6, atol = 0 }).max_rel < 1e-6)
    out, zoo = folded("gpt2", { mup_base_hidden_size = 4, embeddings_scale = 10, output_logits_alpha = 5, share_embedding_weights = true },
      { "lm_head.weight" }, true)
    want = zoo["embedding_layer.word_embeddings.weight"] * (5 / 2)
    assert(out["lm_head.weight"]:compare(want, { rtol = 1e-6, atol = 0 }).max_rel < 1e-6)
  end)
end)

describe("Configs: muP without a checkpoint", function()
  it("a config whose fields are folded into weights says so", function()
    local way = ways.gpt2
    local config, said
    warnings(function() config = conversion.run("gpt2", "hf", way.format, tiny.model(way)) end)
    local model = config.trainer and config.trainer.init.model or config.model
    local function step() converters.convert.config(conversion.job("gpt2", way.format, "hf", { is_config_only = true }), config) end
    local text = "`cbk convert` folds the config's muP fields into the weights"
    assert(not table.concat(conversion.warnings(step), "\n"):find(text, 1, true))
    model.mup_base_hidden_size = 4
    said = table.concat(conversion.warnings(step), "\n")
    assert(said:find(text, 1, true), said)
  end)
end)

describe("Configs: precision", function()
  it("is bfloat16 or not, and never guessed", function()
    for shown, bad in pairs { ["'true'"] = "true", ["'x'"] = "x", ["2"] = 2, ["[1]"] = list { 1 } } do
      for _, target in ipairs { "cs-2.1", "cs-2.2", "cs-2.3" } do
        refuses { { "gpt2", "hf", target, { use_bfloat16 = bad }, ("use_bfloat16=%s: only true or false"):format(shown) } }
      end
      refuses { { "gpt2", "cs-2.0", "cs-2.1", { use_bfloat16 = bad }, ("use_bfloat16=%s: only true or false"):format(shown) } }
    end
    for _, case in ipairs { { true, "bfloat16" }, { 1, "bfloat16" }, { false, "float16" }, { 0, "float16" }, { null, nil } } do
      local value, want = case[1], case[2]
      harness.equal(variations.converted({ "gpt2", "hf", "cs-2.2", { use_bfloat16 = value } }).fp16_type, want)
      harness.equal(variations.converted({ "gpt2", "cs-2.0", "cs-2.1", { use_bfloat16 = value } }).fp16_type, want)
    end
  end)

  it("between releases must be known; if the older release has another field, there is a warning", function()
    for _, way in ipairs { { "cs-2.1", "cs-2.0" }, { "cs-2.1", "cs-2.3" }, { "cs-2.2", "cs-2.3" }, { "cs-2.1", "cs-1.9" } } do
      local src, tgt = unpack(way)
      refuses { { "gpt2", src, tgt, { fp16_type = "bf16" }, "model.fp16_type='bf16': only 'bfloat16' or 'cbfloat16' or 'float16'" } }
      local _, reported = variations.converted { "gpt2", src, tgt, { fp16_type = "bfloat16" } }
      local is_lost = tgt == "cs-2.0" or tgt == "cs-1.9"
      harness.equal(reported:find("model.fp16_type='bfloat16' is kept, but release 2.0 does not know it", 1, true) ~= nil, is_lost)
      local same = { bfloat16 = "; there it is use_bfloat16: true", float16 = "; there it is use_bfloat16: false",
        cbfloat16 = "; it has no such type" }
      for kind, instead in pairs(same) do
        _, reported = variations.converted { "gpt2", src, tgt, { fp16_type = kind } }
        harness.equal(reported:find("does not know it" .. instead, 1, true) ~= nil, is_lost)
      end
    end
    variations.converted { "gpt2", "cs-2.0", "cs-1.9", { fp16_type = "bf16" } } -- which neither of them knows
    local init = dict { model = run({ "gpt2", "hf", "cs-2.9", {} }).model, precision = dict { fp16_type = "bf16" } }
    fails("trainer.init.precision.fp16_type='bf16': only 'bfloat16' or", convert.config, job("gpt2", "cs-2.4", "cs-2.9"),
      dict { trainer = dict { init = init } })
  end)

  it("beside a model is no loss on the way to Hugging Face", function()
    local config
    warnings(function() config = convert.config(job("gpt2", "hf", "cs-2.2"), hf_config "gpt2") end)
    for kind, flag in pairs { bfloat16 = true, cbfloat16 = true, float16 = false } do
      config.fp16_type = kind
      local out
      local reported = table.concat(warnings(function() out = convert.config(job("gpt2", "cs-2.2", "hf"), config) end))
      assert(out.use_bfloat16 == flag and not reported:find "fp16_type", reported)
    end
    config.fp16_type = null
    local out
    warnings(function() out = convert.config(job("gpt2", "cs-2.2", "hf"), config) end)
    harness.equal(out.use_bfloat16, nil)
    config.fp16_type = "float32"
    fails("fp16_type='float32': only 'bfloat16' or 'cbfloat16' or 'float16'", convert.config, job("gpt2", "cs-2.2", "hf"), config)
  end)
end)

describe("Configs: what every class of Hugging Face has", function()
  -- what a dump of all fields has (to_json_file with use_diff=False, Transformers 4)
  local defaults = {
    add_cross_attention = false, architectures = null, bad_words_ids = null, begin_suppress_tokens = null, bos_token_id = null,
    chunk_size_feed_forward = 0, cross_attention_hidden_size = null, decoder_start_token_id = null, diversity_penalty = 0.0,
    do_sample = false, early_stopping = false, encoder_no_repeat_ngram_size = 0, eos_token_id = null,
    exponential_decay_length_penalty = null, finetuning_task = null, forced_bos_token_id = null, forced_eos_token_id = null,
    is_decoder = false, length_penalty = 1.0, max_length = 20, min_length = 0, no_repeat_ngram_size = 0, num_beam_groups = 1,
    num_beams = 1, num_return_sequences = 1, output_attentions = false, output_hidden_states = false, output_scores = false,
    pad_token_id = null, prefix = null, pruned_heads = dict(), remove_invalid_values = false, repetition_penalty = 1.0,
    return_dict = true, return_dict_in_generate = false, sep_token_id = null, suppress_tokens = null, task_specific_params = null,
    temperature = 1.0, tf_legacy_loss = false, tie_encoder_decoder = false, tie_word_embeddings = true, tokenizer_class = null,
    top_k = 50, top_p = 1.0, torch_dtype = null, torchscript = false, typical_p = 1.0,
    use_bfloat16 = false, _attn_implementation_autoset = false, _name_or_path = "",
  }

  ---What is reported of the fields of a config.
  local function told_of(way, config)
    return table.concat(warnings(convert.config, job(way.name, "hf", way.format), config), "\n")
  end

  it("converts with every family, to every release, and needs no word at its usual value", function()
    for _, way in ipairs(tiny.ways()) do
      local config = tiny.config(way.name, way.converter, way.layout)
      local before, full = told_of(way, config), cbk.copy(config)
      for name, value in pairs(defaults) do
        if full[name] == nil then full[name] = value end
      end
      if full.is_encoder_decoder == nil then full.is_encoder_decoder = way.name == "t5" end
      harness.equal(told_of(way, full), before, way.name .. " to " .. way.format)
    end
    local reported = table.concat(warnings(run, { "gpt2", "hf", "cs-2.9", { is_decoder = true, chunk_size_feed_forward = 3 } }))
    assert(reported:find("chunk_size_feed_forward=3", 1, true) and reported:find("is_decoder=true", 1, true), reported)
    refuses { { "t5", "hf", "cs-2.9", { tie_encoder_decoder = true }, "tie_encoder_decoder=true: only false" } }
    refuses { { "t5", "cs-2.9", "hf", { tie_encoder_decoder = true }, "tie_encoder_decoder=true: only false" } }
  end)
end)
