-- DPO: any family inside, both ways; the reference copy; releases; what names no model.

local cbk = require "cbk"
local converters = require "cbk.converters"
local conversion = require "conversion"
local harness = require "harness"
local tiny = require "tiny"

local explain = require "converters.authoring.explain"
local dry_run = require "converters.authoring.dry_run"

local describe, it = harness.describe, harness.it

local function has(lines, part)
  local text = table.concat(lines, "\n")
  assert(text:find(part, 1, true), text)
end
local same, fails, with, run = conversion.same, conversion.fails, conversion.with, conversion.run
local catalogue = converters.catalogue

local function decoder_layer(prefix, names)
  local out = {}
  for _, name in ipairs(names) do out[#out + 1] = { prefix .. name[1], unpack(name, 2) } end
  return out
end

local function hf_of(first, layer)
  local entries = { unpack(first) }
  for _, entry in ipairs(layer) do entries[#entries + 1] = entry end
  return conversion.checkpoint(entries)
end

local families = {
  llama = {
    config = cbk.dict {
      model_type = "llama", hidden_size = 8, num_attention_heads = 2, num_key_value_heads = 1, num_hidden_layers = 1, vocab_size = 5,
      intermediate_size = 6, hidden_act = "silu", tie_word_embeddings = false,
    },
    hf = hf_of({ { "model.embed_tokens.weight", 5, 8 }, { "model.norm.weight", 8 }, { "lm_head.weight", 5, 8 } },
      decoder_layer("model.layers.0.", {
        { "self_attn.q_proj.weight", 8, 8 }, { "self_attn.k_proj.weight", 4, 8 }, { "self_attn.v_proj.weight", 4, 8 },
        { "self_attn.o_proj.weight", 8, 8 }, { "mlp.up_proj.weight", 6, 8 }, { "mlp.gate_proj.weight", 6, 8 },
        { "mlp.down_proj.weight", 8, 6 }, { "input_layernorm.weight", 8 }, { "post_attention_layernorm.weight", 8 },
      })),
  },
  falcon = {
    config = cbk.dict {
      model_type = "falcon", hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1, vocab_size = 5,
      max_position_embeddings = 4, new_decoder_architecture = true, num_kv_heads = 2, multi_query = false,
    },
    hf = hf_of(
      { { "transformer.word_embeddings.weight", 5, 8 }, { "transformer.ln_f.{weight,bias}", 8 }, { "lm_head.weight", 5, 8 } },
      decoder_layer("transformer.h.0.", {
        { "self_attention.query_key_value.weight", 24, 8 }, { "self_attention.dense.weight", 8, 8 },
        { "mlp.dense_h_to_4h.weight", 32, 8 }, { "mlp.dense_4h_to_h.weight", 8, 32 },
        { "ln_attn.{weight,bias}", 8 }, { "ln_mlp.{weight,bias}", 8 },
      })),
  },
  ["gpt-neox"] = {
    config = cbk.dict {
      model_type = "gpt_neox", hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1, vocab_size = 5,
      max_position_embeddings = 4, intermediate_size = 6, rotary_pct = 0.5,
    },
    hf = hf_of({ { "gpt_neox.embed_in.weight", 5, 8 }, { "gpt_neox.final_layer_norm.{weight,bias}", 8 }, { "embed_out.weight", 5, 8 } },
      decoder_layer("gpt_neox.layers.0.", {
        { "attention.query_key_value.{weight,bias}", 24, 8 }, { "attention.dense.{weight,bias}", 8, 8 },
        { "input_layernorm.{weight,bias}", 8 },
        { "post_attention_layernorm.{weight,bias}", 8 }, { "mlp.dense_h_to_4h.{weight,bias}", 6, 8 },
        { "mlp.dense_4h_to_h.{weight,bias}", 8, 6 },
      })),
  },
}

local policy, reference = "policy_model.model.", "ref_model.model."

local function llama_dpo() return run("dpo", "hf", "cs-2.4-dpo", families.llama.config, families.llama.hf) end

---The policy is another model than the reference.
local function trained(cs)
  for key, tensor in cbk.items(cbk.copy(cs.model)) do
    if key:find(policy, 1, true) == 1 then cs.model[key] = tensor:affine(2, 1) end
  end
end

describe("DPO", function()
  for name, family in pairs(families) do
    it("holds a " .. name .. " twice, and gives it back", function()
      local config, cs = conversion.there_and_back("dpo", "cs-2.6-dpo", family.config, family.hf)
      same(config.model.model_name, name)
      same(config.model.name, "dpo")
      same(config.model.dpo, cbk.dict { beta = 0.1, reference_free = false })
      local inner_config, inner = run(name, "hf", "cs-2.9", family.config, family.hf)
      same(cbk.count(cs.model), 2 * cbk.count(inner.model))
      for key, tensor in cbk.items(inner.model) do
        same(cs.model[policy .. key]:tolist(), tensor:tolist(), key)
        assert(cs.model[policy .. key] == cs.model[reference .. key], key .. " is not one tensor")
      end
      for field, value in cbk.items(inner_config.model) do
        if field ~= "name" then same(config.model[field], value, field) end
      end
    end)
  end

  for _, name in ipairs { "mistral", "santacoder", "starcoder" } do
    it("holds a " .. name .. ", whatever Hugging Face calls it", function()
      conversion.warnings(function()
        local config, hf = tiny.model(tiny.newest_ways()[name])
        if name == "santacoder" then config.attention_head_type = "multiquery" end
        local there = conversion.there_and_back("dpo", "cs-2.6-dpo", config, hf)
        same(there.model.model_name, name)
      end)
    end)
  end

  it("reads the trainer's layout, and keys with 'model.'", function()
    local config, cs = llama_dpo()
    local again = cbk.dict()
    for key, tensor in cbk.items(cs.model) do again[key:gsub("^policy_model%.model%.", "policy_model.model.model.")] = tensor end
    local trainer = cbk.dict { trainer = cbk.dict { init = cbk.dict { model = config.model } } }
    local _, hf = run("dpo", "cs-2.4-dpo", "hf", trainer, cbk.dict { model = again })
    conversion.equal_tensors(families.llama.hf, hf)
  end)

  it("names the copy that is left out, its own options, and keys of neither", function()
    local config, cs = llama_dpo()
    local text = table.concat(conversion.warnings(run, "dpo", "cs-2.4-dpo", "hf", config, cs), "\n")
    assert(not text:find("ref_model", 1, true) and not text:find("dpo", 1, true), text) -- the very same tensors, the usual loss
    config.model.dpo.beta = 0.5
    trained(cs)
    text = table.concat(conversion.warnings(run, "dpo", "cs-2.4-dpo", "hf", config, cs), "\n")
    assert(text:find("13 keys below 'ref_model.model' are left out", 1, true), text)
    assert(text:find("left out: dpo", 1, true), text)
    cs.model["lm_head.weight"] = conversion.counted({ 2 }, 0)
    cs.model[policy .. "strange"] = conversion.counted({ 2 }, 0)
    fails("2 keys were not matched: lm_head.weight, policy_model.model.strange", run, "dpo", "cs-2.4-dpo", "hf", config, cs)
  end)

  it("refuses a config with the policy's fields in a section of their own, by its name", function()
    local config, cs = llama_dpo()
    config = cbk.deep_copy(config)
    config.model.policy_model = cbk.dict { name = "llama", hidden_size = 8 }
    for _, tgt in ipairs { "hf", "cs-2.1-no-dpo" } do
      fails("the fields of the model inside in a section 'policy_model'", run, "dpo", "cs-2.4-dpo", tgt, config, cs)
    end
  end)

  it("the plan has both copies, and what is passed over", function()
    local function watched(src, tgt, config, root)
      local job = conversion.job("dpo", src, tgt)
      converters.convert.config(job, config)
      local watch = dry_run.watch(job)
      job.trace = watch.trace
      pcall(converters.convert.checkpoint, job, root)
      return watch, dry_run.totals(dry_run.rows(watch))
    end
    local watch, totals = watched("hf", "cs-2.9-dpo", families.llama.config, families.llama.hf)
    same(totals.written, 26) -- of 12 keys: the last norm has two names
    local reported, count = explain.lines(watch, "ref_model.*lm_head*")
    same({ count, reported[1] }, { 1, "lm_head.weight" })
    local config, cs = llama_dpo()
    cs.model["stranger.weight"] = conversion.counted({ 2 }, 0)
    watch, totals = watched("cs-2.9-dpo", "hf", config, cs)
    same({ totals.written, totals.left_out, totals.not_matched }, { 12, 14, 1 })
    has(explain.lines(watch, "ref_model.*ln_f*"), "a copy; the model below 'policy_model.model' is used")
    has(explain.lines(watch, "policy_model.model.lm_haed.weight"), "    lm_head.{weight,bias}")
  end)

  it("muP of the inner model is folded", function()
    local config, cs = llama_dpo()
    config.model.mup_base_hidden_size = 2
    local _, hf = run("dpo", "cs-2.4-dpo", "hf", config, cs)
    same(hf["lm_head.weight"]:tolist()[1][1], families.llama.hf["lm_head.weight"]:tolist()[1][1] / 4)
  end)

  it("an incomplete policy is refused", function()
    local config, cs = llama_dpo()
    cs.model[policy .. "transformer_decoder.layers.0.norm3.weight"] = nil
    fails("incomplete", run, "dpo", "cs-2.4-dpo", "hf", config, cs)
  end)

  it("the model inside must be named, known, and have a converter", function()
    local config = families.llama.config
    local hf = families.llama.hf
    fails("the config has no 'model_type'", run, "dpo", "hf", "cs-2.4-dpo", with(config, {}, { "model_type" }), hf)
    fails("model_type='bert': only 'bloom'", run, "dpo", "hf", "cs-2.4-dpo", with(config, { model_type = "bert" }), hf)
    fails("model_type='opt': only 'bloom' or 'falcon'", run, "dpo", "hf", "cs-2.4-dpo", with(config, { model_type = "opt" }), hf)
    local cs_config, cs = llama_dpo()
    cs_config.model.model_name = nil
    fails("which names the model inside: add model_name: llama, or another one of bloom,", run, "dpo", "cs-2.4-dpo", "hf", cs_config, cs)
  end)
end)

describe("DPO: releases", function()
  local function plain(release)
    local config, cs = run("llama", "hf", release, families.llama.config, families.llama.hf)
    config.model.model_name = "llama"
    cs.optimizer = cbk.dict { step = 3 }
    return config, cs
  end

  it("a plain model becomes a DPO model, and back", function()
    local config, cs = plain "cs-2.1"
    local dpo_config, dpo = run("dpo", "cs-2.1-no-dpo", "cs-2.1-dpo", config, cs)
    same(dpo_config.model.dpo.beta, 0.1)
    same(dpo.optimizer.step, 3)
    same(cbk.count(dpo.model), 2 * cbk.count(cs.model))
    local back_config, back = run("dpo", "cs-2.1-dpo", "cs-2.1-no-dpo", dpo_config, dpo)
    same(back_config, config)
    same(cbk.count(back.model), cbk.count(cs.model))
    conversion.equal_tensors(cs.model, back.model)
    fails("no section 'dpo'", run, "dpo", "cs-2.1-dpo", "cs-2.1-no-dpo", config, cs)
    fails("model_name='t5'", run, "dpo", "cs-2.1-no-dpo", "cs-2.1-dpo", cbk.dict { model = with(config.model, { model_name = "t5" }) }, cs)
  end)

  it("back to a plain model: the reference is reported in one line, the policy not at all", function()
    local function back(change)
      local config, dpo = run("dpo", "cs-2.1-no-dpo", "cs-2.1-dpo", plain "cs-2.1")
      change(dpo)
      return conversion.warnings(run, "dpo", "cs-2.1-dpo", "cs-2.1-no-dpo", config, dpo)
    end
    same(#back(function() end), 0)
    local reported = back(trained)
    same(#reported, 1)
    has(reported, "13 keys are left out: ref_model.model.")
    has(reported, "(it differs from 'policy_model.model.*', which is kept)")
    local function lacking(part)
      return function(dpo)
        for key in cbk.items(cbk.copy(dpo.model)) do
          if key:find(policy .. part, 1, true) == 1 then dpo.model[key] = nil end
        end
      end
    end
    local message = "the policy, below 'policy_model.model', has no such key, and the reference does not replace it"
    for _, part in ipairs { "", "lm_head.weight" } do fails(message, back, lacking(part)) end
  end)

  it("warns of nothing that was not in the input", function()
    local there = conversion.warnings(run, "dpo", "hf", "cs-2.1-no-dpo", families.llama.config, families.llama.hf)
    local back = conversion.warnings(run, "dpo", "cs-2.1-no-dpo", "hf", plain "cs-2.1")
    for _, reported in ipairs { there, back } do
      for _, one in ipairs(reported) do assert(not one:find "dpo" and not one:find "ref_model", one) end
    end
  end)

  it("release by release: the formats keep their kind", function()
    local model = catalogue.find "dpo"
    same(#catalogue.path(model, "cs-2.1-dpo", "cs-2.9-dpo"), 8)
    same(#catalogue.path(model, "cs-2.1-no-dpo", "cs-2.9-dpo"), 9)
    same(#catalogue.path(model, "cs-2.1-no-dpo", "hf"), 2)
    for _, name in ipairs { "cs-current", "cs-current-dpo", "cs-2.10-dpo" } do same(catalogue.resolve(name, model), "cs-2.9-dpo") end
    same(catalogue.resolve("cs-2.4", model), "cs-2.4") -- which it does not have
    same(catalogue.path(model, "cs-2.1", "cs-2.2"), nil)
    same(catalogue.path(model, "hf", "cs-2.4"), nil)
    same(catalogue.path(catalogue.find "gpt2", "cs-2.4-backbone", "cs-2.5-backbone"), nil)
    same(catalogue.resolve "cs-2.10-dpo", "cs-2.9-dpo")
  end)
end)

describe("DPO: as commands", function()
  it("cs-current and cs-auto know the kind", function()
    local dir = harness.temp_dir()
    local function convert(src, tgt, config, file)
      local code, out, err = harness.cbk(dir, "convert", "--model", "dpo", "--src-fmt", src, "--tgt-fmt", tgt, "--config", config, file)
      harness.equal(code, 0, err)
      return out:match "Checkpoint saved to (%S+)", out:match "Config saved to (%S+)"
    end
    cbk.config.save(families.llama.config, dir .. "/config.json")
    cbk.create(dir .. "/model.bin", { root = families.llama.hf }):commit { progress = false }
    same(convert("hf", "cs-current", "config.json", "model.bin"), "./model_to_cs-2.9-dpo.mdl")
    local file, config = convert("hf", "cs-2.4-dpo", "config.json", "model.bin")
    local _, _, advice = harness.cbk(dir, "convert", file, "--config", config, "--to", "hf")
    assert(advice:find("name=dpo, for which --model dpo and --src-fmt (such as cs-2.9-dpo) are needed", 1, true), advice)
    file, config = convert("cs-2.4-dpo", "cs-2.5-dpo", config, file) -- which says its release
    local code, out, err = harness.cbk(dir, "upgrade", "-y", "--model", "dpo", "--to", "cs-current", "--config", config, file)
    harness.equal(code, 0, err)
    assert(out:find("from cs-2.5-dpo to cs-2.9-dpo", 1, true), out)
    local back = convert("cs-auto", "hf", config, file)
    conversion.equal_tensors(families.llama.hf, cbk.open(cbk.fs.join(dir, back)).root)
  end)
end)
