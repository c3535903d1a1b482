-- Rotary positions in configs: whatever of rope_scaling, rope_parameters and fields of their own says them, both ways.

local cbk = require "cbk"
local conversion = require "conversion"
local convert = require("cbk.converters").convert
local harness = require "harness"
local rotary = require "converters.vocabulary.rotary"
local variations = require "variations"

local describe, it = harness.describe, harness.it
local converted, refuses = variations.converted, variations.refuses
local null, list, dict = cbk.null, cbk.list, cbk.dict

local llama3 = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192 }
local longrope = { type = "longrope", factor = 1, long_factor = list { 2, 3 }, short_factor = list { 1, 1 } }
local yarn = { type = "yarn", factor = 2, original_max_position_embeddings = 2 }

---A map with some of its fields changed.
local function of(base, changes) return conversion.with(dict(base), changes) end

local own = {
  falcon = { model_type = "falcon", new_decoder_architecture = true, num_kv_heads = 1, num_attention_heads = 1 },
}

---A case of Hugging Face's config towards a release.
---@param message? string   that refuses it
local function hf(name, changes, message)
  local all = {}
  for field, value in pairs(own[name] or {}) do all[field] = value end
  for field, value in pairs(changes) do all[field] = value end
  return { name, "hf", "cs-2.9", all, message }
end

---Fields of the right: scaled positions.
local function scaled(factor, kind, extra)
  return { pos_scaling_factor = factor, pos_scaling_type = kind, pos_scaling_extra_args = extra and dict(extra) }
end

local scalable = { "llama", "falcon", "gpt-neox" }

describe("Rotary positions: said twice", function()
  local linear = { type = "linear", factor = 4 }

  it("in the same way, and once, they are the same", function()
    for _, name in ipairs(scalable) do
      local want = converted(hf(name, { rope_scaling = dict(linear) }))
      harness.equal({ want.pos_scaling_factor, want.pos_scaling_type, want.pos_scaling_extra_args }, { 4, "linear" }, name)
      for _, same in ipairs {
        { rope_parameters = dict(linear) }, { rope_parameters = dict { rope_type = "linear", factor = 4 } },
        { rope_scaling = dict(linear), rope_parameters = dict { rope_type = "Linear", factor = cbk.float(4) } },
        { rope_scaling = of(linear, { rope_type = "linear" }) }, { rope_scaling = of(linear, { type = "Linear" }) },
        { rope_scaling = dict(linear), rope_parameters = null }, { rope_scaling = of(linear, { foo = null }) },
      } do
        local out, reported = converted(hf(name, same))
        harness.equal(out.pos_scaling_factor, 4, name)
        out.pos_scaling_factor = cbk.raw(want, "pos_scaling_factor")
        harness.equal(out, want, name)
        assert(not reported:find "rope_", reported)
      end
    end
  end)

  it("of no scaling", function()
    for _, name in ipairs(scalable) do
      local want = converted(hf(name, {}))
      for _, kind in ipairs { "default", "Default" } do
        for _, same in ipairs {
          { rope_scaling = dict { rope_type = kind } }, { rope_parameters = dict { rope_type = kind } }, { rope_parameters = dict() },
          { rope_scaling = dict { type = kind }, rope_parameters = dict { rope_type = kind } },
        } do
          local out, reported = converted(hf(name, same))
          harness.equal(out, want, name)
          assert(not reported:find "rope_", reported)
        end
      end
      for _, place in ipairs { "rope_parameters", "rope_scaling" } do
        local _, reported = converted(hf(name, { [place] = dict { rope_type = "default", foo = 3, factor = 8 } }))
        for _, part in ipairs { place .. ".foo=3 is left out", place .. ".factor=8 is left out" } do
          assert(reported:find(part, 1, true), reported)
        end
      end
    end
  end)

  it("the base of the frequencies, in any place", function()
    for _, name in ipairs { "llama", "falcon" } do
      for _, same in ipairs {
        { rope_theta = 500 }, { rope_parameters = dict { rope_theta = 500 } },
        { rope_theta = 500, rope_parameters = dict { rope_theta = 500 } },
        { rope_theta = null, rope_scaling = dict { type = "linear", factor = 4, rope_theta = cbk.float(500) } },
        { rope_scaling = dict { type = "default", rope_theta = 500 }, rope_parameters = dict { rope_theta = 500 } },
      } do
        local out, reported = converted(hf(name, same))
        harness.equal(out.rope_theta, 500, name)
        harness.equal(out.pos_scaling_extra_args, nil)
        assert(not reported:find "rope_", reported)
      end
    end
    local out = converted(hf("llama", { rope_scaling = of(llama3, { rope_theta = 500 }) }))
    harness.equal({ out.rope_theta, out.pos_scaling_extra_args.rope_theta, cbk.count(out.pos_scaling_extra_args) }, { 500, nil, 3 })
  end)

  it("otherwise, both fields are named as the file has them", function()
    local theta = "rope_theta=7: only the value of rope_parameters.rope_theta (8)"
    for _, name in ipairs(scalable) do
      refuses {
        hf(name, { rope_scaling = dict(linear), rope_parameters = dict() },
          "rope_scaling.type='linear': only the value of rope_parameters.rope_type ('default')"),
        hf(name, { rope_scaling = dict(linear), rope_parameters = dict { rope_type = "linear", factor = 2 } },
          "rope_scaling.factor=4: only the value of rope_parameters.factor (2)"),
        hf(name, { rope_scaling = dict { { "type", "linear" }, { "rope_type", "yarn" } } },
          "rope_scaling.rope_type='yarn': only the value of rope_scaling.type ('linear')"),
        hf(name, { rope_theta = 7, rope_parameters = dict { rope_theta = 8 } }, theta),
        hf(name, { rope_theta = 7, rope_scaling = of(linear, { rope_theta = 8 }) },
          "rope_theta=7: only the value of rope_scaling.rope_theta (8)"),
        hf(name, { rope_scaling = of(linear, { rope_theta = 7 }), rope_parameters = of(linear, { rope_theta = 8 }) },
          "rope_scaling." .. theta),
        hf(name, { rope_parameters = dict { partial_rotary_factor = 1 }, partial_rotary_factor = 0.5, rotary_pct = null },
          "partial_rotary_factor=0.5: only the value of rope_parameters.partial_rotary_factor (1)"),
      }
    end
    refuses {
      hf("gpt-neox", { rotary_pct = 0.25, partial_rotary_factor = 0.5 }, "partial_rotary_factor=0.5: only the value of rotary_pct (0.25)"),
      hf("gpt-neox", { rotary_pct = 0.25, rope_parameters = dict { partial_rotary_factor = 0.5 } },
        "rotary_pct=0.25: only the value of rope_parameters.partial_rotary_factor (0.5)"),
      hf("gpt-neox", { rotary_emb_base = 10000, rope_parameters = dict { rope_theta = 500 } },
        "rotary_emb_base=10000: only the value of rope_parameters.rope_theta (500)"),
    }
  end)
end)

describe("Rotary positions: what neither side can express", function()
  it("from Hugging Face, by the name that the file has", function()
    local types = { llama = "'linear' or 'yarn' or 'llama3' or 'longrope'" }
    for _, name in ipairs(scalable) do
      local only = ("only %s is"):format(types[name] or "'linear' or 'yarn' or 'longrope'")
      for _, place in ipairs { "rope_scaling", "rope_parameters" } do
        local function case(map, message) return hf(name, { [place] = map }, place .. message:format(place)) end
        refuses {
          case(3, "=3: only null or a map"),
          case(dict { type = "dynamic", factor = 2 }, ".type='dynamic': " .. only),
          case(dict { rope_type = "dynamic", factor = 2 }, ".rope_type='dynamic': " .. only),
          case(dict { rope_type = 3, factor = 2 }, ".rope_type=3: only a string"),
          case(dict { type = "linear" }, " has no 'factor'"),
          case(dict { type = "linear", factor = -1 }, ".factor=-1: only a number above 0"),
          case(dict { type = "linear", factor = "x" }, ".factor='x': only a number above 0"),
          case(dict { type = "yarn", factor = 2 }, " has no 'original_max_position_embeddings', which type yarn needs"),
          case(of(yarn, { attention_factor = 2 }), ".attention_factor=2: only null"),
          case(of(yarn, { mscale = 0.7 }), ".mscale=0.7: only null"),
          case(of(yarn, { truncate = false }), ".truncate=false: only true"),
          case(of(longrope, { long_factor = 3 }), ".long_factor=3: only a list of numbers"),
          case(dict { type = "longrope", factor = 2, short_factor = list { 1 } }, " has no 'long_factor', which type longrope needs"),
        }
      end
      refuses { hf(name, { rope_scaling = dict() }, "rope_scaling has neither 'type' nor 'rope_type'") }
    end
    refuses {
      hf("llama", { rope_scaling = dict { type = "llama3", factor = 2 } },
        "rope_scaling has no 'low_freq_factor', which type llama3 needs"),
      hf("falcon", { rope_scaling = dict(llama3) }, "rope_scaling.rope_type='llama3': only 'linear' or 'yarn' or 'longrope'"),
      hf("llama", { rope_parameters = dict { partial_rotary_factor = 0.5 } }, "rope_parameters.partial_rotary_factor=0.5: only 1 is"),
      hf("falcon", { rope_parameters = dict { partial_rotary_factor = 0.5 } }, "rope_parameters.partial_rotary_factor=0.5: only 1 is"),
      hf("falcon", { partial_rotary_factor = 0.5 }, "partial_rotary_factor=0.5: only 1 is"),
      hf("gpt-neox", { rope_parameters = dict { rope_theta = 500 } }, "rope_parameters.rope_theta=500: only 10000 is"),
      hf("gpt-neox", { rotary_emb_base = 500 }, "rotary_emb_base=500: only 10000 is"),
    }
  end)

  it("from a release, by the types that the way there has", function()
    for _, name in ipairs(scalable) do
      local function case(fields, message) return { name, "cs-2.9", "hf", fields, message } end
      for shown, bad in pairs { ["'foo'"] = "foo", ["'dynamic'"] = "dynamic", ["'default'"] = "default" } do
        refuses { case(scaled(8, bad), ("pos_scaling_type=%s: only 'linear' or 'yarn' or "):format(shown)) }
      end
      refuses {
        case(scaled(8, 3), "pos_scaling_type=3: only a string"),
        case(scaled(-1, "linear"), "pos_scaling_factor=-1: only a number above 0"),
        case(scaled("x", "linear"), "pos_scaling_factor='x': only a number above 0"),
        case(scaled(8, "linear", { factor = 3 }), "pos_scaling_extra_args.factor=3: only the value of pos_scaling_factor (8)"),
        case(scaled(1, "linear", { factor = 3 }), "pos_scaling_extra_args.factor=3: only the value of pos_scaling_factor (1)"),
        case(scaled(8, "linear", { rope_type = "yarn" }), "pos_scaling_extra_args.rope_type='yarn': only the value of pos_scaling_type"),
        case(scaled(8, "linear", { type = "yarn" }), "pos_scaling_extra_args.type='yarn': only the value of pos_scaling_type ('linear')"),
        case(scaled(8, "linear", { rope_theta = 7 }), "pos_scaling_extra_args.rope_theta=7: only the value of rope_theta (10000"),
        case(scaled(8, "yarn"), "pos_scaling_extra_args has no 'original_max_position_embeddings', which type yarn needs"),
        case(scaled(8, "yarn", { original_max_position_embeddings = 2, mscale_a = 0.2 }), "pos_scaling_extra_args.mscale_a=0.2: only 0.1"),
        case(scaled(8, "longrope"), "pos_scaling_extra_args has no 'short_factor', which type longrope needs"),
        { name, "cs-2.9", "hf", { pos_scaling_factor = 8, pos_scaling_type = "linear", pos_scaling_extra_args = 3 },
          "pos_scaling_extra_args=3: only null or a map" },
      }
    end
    refuses {
      { "llama", "cs-2.9", "hf", scaled(8, "llama3"), "pos_scaling_extra_args has no 'low_freq_factor', which type llama3 needs" },
      { "llama", "cs-2.9", "hf", { pos_scaling_factor = 8 }, "pos_scaling_factor is not 1, but pos_scaling_type is missing" },
      { "falcon", "cs-2.9", "hf", scaled(8, "llama3"), "pos_scaling_type='llama3': only 'linear' or 'yarn' or 'longrope'" },
      { "gpt-neox", "cs-2.9", "hf", { rope_theta = 5 }, "rope_theta=5: only 10000" },
      { "gptj", "cs-2.9", "hf", { rope_theta = 5 }, "rope_theta=5: only 10000" },
      { "gptj", "cs-2.9", "hf", { pos_scaling_factor = 2 }, "pos_scaling_factor=2: only 1" },
      { "bloom", "cs-2.9", "hf", { pos_scaling_factor = 2 }, "pos_scaling_factor=2: only 1" }, -- which scales ALiBi, too
      { "mpt", "cs-2.3", "hf", { pos_scaling_factor = 2 }, "pos_scaling_factor=2: only 1" },
    }
  end)

  it("what models that are never scaled may say", function()
    local function web(changes)
      changes.model_type, changes.multi_query, changes.n_head_kv = "RefinedWeb", null, 1
      return changes
    end
    for name, with in pairs { gptj = function(changes) return changes end, falcon = web } do
      for message, changes in pairs {
        ["rope_scaling.type='linear': only 'default'"] = { rope_scaling = dict { type = "linear", factor = 2 } },
        ["rope_parameters.rope_type='linear': only 'default'"] = { rope_parameters = dict { rope_type = "linear", factor = 2 } },
        ["rope_parameters.rope_theta=500: only 10000"] = { rope_parameters = dict { rope_theta = 500 } },
        ["rope_theta=500: only 10000"] = { rope_theta = 500 },
      } do
        refuses { { name, "hf", "cs-2.9", with(changes), message } }
      end
      local same = { rope_theta = 10000, rope_scaling = null, rope_parameters = dict { rope_type = "default", rope_theta = 10000 } }
      local out, reported = converted { name, "hf", "cs-2.9", with(same) }
      assert(not reported:find "rope_" and out.rope_theta == nil, reported)
    end
    for field, key in pairs { rope_scaling = "type", rope_parameters = "rope_type" } do
      for _, kind in ipairs { "linear", "yarn", "dynamic", "llama3" } do
        refuses { { "gemma2", "hf", "cs-2.9", { [field] = dict { [key] = kind, factor = 4 } }, "only null or of type 'default'" } }
      end
      local out = converted { "gemma2", "hf", "cs-2.9", { [field] = dict { [key] = "default", rope_theta = 500 } } }
      harness.equal(out.pos_scaling_type, nil)
    end
    for _, name in ipairs { "gptj", "gpt-neox" } do
      for _, usual in ipairs { 10000, cbk.float(10000), null } do
        local unscaled = { rope_theta = usual, pos_scaling_factor = 1, pos_scaling_type = "linear" }
        local out, reported = converted { name, "cs-2.9", "hf", unscaled }
        assert(not reported:find "rope_theta" and not reported:find "pos_scaling" and out.rope_theta == nil, reported)
      end
    end
  end)
end)

describe("Rotary positions: there and back", function()
  local function back(name, fields)
    local out, reported = converted { name, "cs-2.9", "hf", fields }
    return out.rope_scaling, reported
  end

  it("every type", function()
    for _, map in ipairs { dict { type = "linear", factor = 4 }, dict(yarn), of(yarn, { beta_fast = 64, beta_slow = 2 }),
      dict(longrope), of(longrope, { factor = 2, attention_factor = 1.5, original_max_position_embeddings = 2 }), dict(llama3) } do
      local there, reported = converted(hf("llama", { rope_scaling = map }))
      assert(not reported:find "rope_", reported)
      local fields = scaled(cbk.raw(there, "pos_scaling_factor"), there.pos_scaling_type, there.pos_scaling_extra_args)
      harness.equal((back("llama", fields)), map)
      local qwen2 = converted { "qwen2", "hf", "cs-2.9", { rope_scaling = map } }
      harness.equal({ qwen2.pos_scaling_type, qwen2.pos_scaling_factor }, { there.pos_scaling_type, there.pos_scaling_factor })
      harness.equal((back("qwen2", fields)), map)
    end
  end)

  it("Qwen2 says nothing of positions that are not scaled", function()
    local there = converted { "qwen2", "hf", "cs-2.9", { rope_scaling = null } }
    harness.equal(there.pos_scaling_factor, nil)
    local scaling = back("qwen2", scaled(1, "linear"))
    harness.equal(scaling, nil)
    refuses { { "qwen2", "hf", "cs-2.9", { rope_scaling = dict { type = "dynamic", factor = 4 } }, "rope_scaling.type='dynamic'" } }
  end)

  it("longrope has the shorter length beside it in Hugging Face's files, and needs no factor", function()
    for _, name in ipairs { "phi3", "llama" } do
      local map = dict(longrope)
      map.factor = nil
      local there = converted(hf(name, { rope_scaling = map, original_max_position_embeddings = 32, max_position_embeddings = 128 }))
      harness.equal({ there.pos_scaling_factor, there.pos_scaling_extra_args.original_max_position_embeddings }, { 4, 32 }, name)
      local out = back(name, scaled(there.pos_scaling_factor, "longrope", there.pos_scaling_extra_args))
      harness.equal({ out.factor, out.original_max_position_embeddings }, { 4, 32 }, name)
      refuses { hf(name, { rope_scaling = of(longrope, { original_max_position_embeddings = 16 }), original_max_position_embeddings = 32 },
        "original_max_position_embeddings=32: only the value of rope_scaling.original_max_position_embeddings (16)") }
    end
    refuses { hf("llama", { rope_scaling = of(longrope, { factor = null }) }, "rope_scaling has no 'factor'"),
      hf("phi3", { rope_scaling = of(longrope, { factor = 8 }), original_max_position_embeddings = 32, max_position_embeddings = 64 },
        "rope_scaling.factor=8: only max_position_embeddings / original_max_position_embeddings (2)") }
    local fields = scaled(4, "longrope", { original_max_position_embeddings = 32, long_factor = list { 2, 3 },
      short_factor = list { 1, 1 } })
    fields.max_position_embeddings = 128
    local out, reported = converted { "phi3", "cs-2.9", "hf", fields } -- whose class accepts three fields
    harness.equal({ out.rope_scaling, out.original_max_position_embeddings },
      { dict { type = "longrope", long_factor = list { 2, 3 }, short_factor = list { 1, 1 } }, 32 })
    assert(reported:find("longrope: for inputs of up to 32 positions", 1, true), reported)
    local inside = of(longrope, { factor = null, original_max_position_embeddings = 32, rope_theta = 10000 }) -- transformers 5
    harness.equal(converted(hf("phi3", { rope_parameters = inside, max_position_embeddings = 128 })).pos_scaling_factor, 4)
    local whole = converted { "phi3", "cs-2.9", "hf", scaled(2, "longrope", { original_max_position_embeddings = 2,
      long_factor = list { 2, 3 }, short_factor = list { 1, 1 } }) }
    harness.equal(whole.original_max_position_embeddings, 2)
  end)

  it("longrope's factors of attention that one side has are refused, and its shorter length named", function()
    for name, value in pairs { long_mscale = 1.5, short_mscale = 1.2 } do
      local extra = { long_factor = list { 2, 3 }, short_factor = list { 1, 1 }, [name] = value }
      local said = (".%s=%g: only null"):format(name, value)
      refuses {
        hf("llama", { rope_scaling = of(longrope, { [name] = value }) }, "rope_scaling" .. said),
        { "llama", "cs-2.9", "hf", scaled(4, "longrope", extra), "pos_scaling_extra_args" .. said },
      }
    end
    local _, reported = back("llama", scaled(4, "longrope", { original_max_position_embeddings = 2, long_factor = list { 2, 3 },
      short_factor = list { 1, 1 } }))
    assert(reported:find("add original_max_position_embeddings=2 there", 1, true), reported)
  end)

  it("defaults are not written", function()
    local out, reported = converted(hf("llama", { rope_scaling = of(yarn, { beta_fast = 32, beta_slow = 1, truncate = true }) }))
    harness.equal(out.pos_scaling_extra_args, { original_max_position_embeddings = 2 })
    assert(not reported:find "rope_", reported)
    local same = { original_max_position_embeddings = 2, mscale_a = 0.1, mscale_b = 1, extrapolation_factor = 1, factor = 2, type = "YaRN" }
    harness.equal((back("llama", scaled(2, "YaRN", same))), yarn)
    for _, fields in ipairs { { pos_scaling_factor = null }, scaled(1, "linear"), scaled(cbk.float(1), "llama3"), scaled(1, null) } do
      harness.equal((back("llama", fields)), null)
    end
    harness.equal(select(2, back("llama", scaled(1, "yarn", { original_max_position_embeddings = 2 }))):find "left out" ~= nil, true)
  end)

  it("fields without a place are reported by their names in the file", function()
    for _, place in ipairs { "rope_scaling", "rope_parameters" } do
      local config = dict { [place] = of(yarn, { finetuned = true }) }
      local reported = table.concat(conversion.warnings(convert.config, conversion.job("llama", "hf", "cs-2.4"), config))
      harness.equal(reported, ("config fields without a counterpart are left out: %s.finetuned=true"):format(place))
    end
  end)
end)

describe("Rotary positions: the part of a head", function()
  it("is an even number of rows, at most the head's, also by default", function()
    local config = cbk.deep_copy(variations.hf_config "gptj")
    config.rotary_dim = nil
    local usual = "the config has no 'rotary_dim', and the default 64 is not an even number, at most the head size, n_embd // n_head (4)"
    conversion.fails(usual, convert.config, conversion.job("gptj", "hf", "cs-2.9"), config)
    for _, bad in ipairs { 3, 5, 300 } do
      refuses {
        hf("gptj", { rotary_dim = bad }, ("rotary_dim=%d: only an even number, at most the head size, n_embd // n_head"):format(bad)),
        { "gptj", "cs-2.9", "hf", { rotary_dim = bad }, ("rotary_dim=%d: only an even number, at most the head size"):format(bad) },
        { "gpt-neox", "cs-2.9", "hf", { rotary_dim = bad }, ("rotary_dim=%d: only an even number, at most the head size"):format(bad) },
      }
    end
    refuses {
      hf("gptj", { rotary_dim = "2" }, "rotary_dim='2': only a whole number"),
      hf("gptj", { rotary_dim = 0 }, "rotary_dim=0: only a whole number"),
      { "gpt-neox", "cs-2.9", "hf", { rotary_dim = 0 }, "rotary_dim=0: only a whole number of at least 1" },
      hf("gpt-neox", { rotary_pct = 1.5 }, "rotary_pct=1.5: only a number from 0 to 1"),
      hf("gpt-neox", { rotary_pct = 0.25 }, "rotary_pct=0.25: only a share that gives an even number of a head's 4 rows (not 1)"),
      hf("gpt-neox", { rotary_pct = 0 }, "rotary_pct=0: only a share that gives"),
      hf("llama", { partial_rotary_factor = 0.5 }, "partial_rotary_factor=0.5: only 1"),
    }
    local out = converted(hf("gpt-neox", { rotary_pct = null, rope_parameters = dict { partial_rotary_factor = 1 } }))
    harness.equal(out.rotary_dim, 4)
  end)

  it("is of the width that the heads have together, where that is not the model's", function()
    local wide = dict { hidden_size = 24, num_heads = 4, attention_inner_dim = 32 }
    rotary.set_dim(wide)
    harness.equal(wide.rotary_dim, 8)
    rotary.check_dim(wide)
    wide.rotary_dim = 6
    local refused = "rotary_dim=6: only the head_dim, attention_inner_dim // num_heads (8), is supported"
    harness.raises(refused, function() rotary.check_dim(wide) end)
  end)
end)

describe("Rotary positions: a table without rotary.in_one_form", function()
  local fields, sections = require "converters.engine.fields", require "converters.engine.sections"
  local function said(list_of_rules, config, prepare)
    local step = { config = fields.config(list_of_rules), prepare = prepare and { left = prepare } }
    return (sections.convert(step, "left", dict(config)))
  end
  local linear = dict { rope_type = "linear", factor = 4, rope_theta = 500 }
  local scaling, never = { { "rope_theta" }, rotary.scaling { "linear" } }, { rotary.unscaled() }

  it("is refused with rope_parameters that it does not read", function()
    for part, case in pairs {
      ["rope_parameters.rope_type='linear': only 'default' is supported; the table needs prepare = { left = rotary.in_one_form"] =
        { scaling, { rope_parameters = linear } },
      ["rope_parameters.rope_theta=500: only the value of a field beside the map"] =
        { scaling, { rope_theta = 10000, rope_parameters = dict { rope_theta = 500 } } },
      ["rope_scaling.rope_theta=500"] = { scaling, { rope_theta = 10000, rope_scaling = linear } },
      ["with rope_parameters.rope_theta=500"] = { never, { rope_parameters = dict { rope_theta = 500 } } },
      ["with rope_theta=500: only 10000 is supported"] = { never, { rope_theta = 500 } },
    } do
      harness.raises(part, function() said(case[1], case[2]) end)
    end
    said(never, { rope_theta = 10000, rope_parameters = dict { rope_theta = 10000 } })
    harness.equal(said(scaling, { rope_theta = 500, rope_scaling = linear }).pos_scaling_factor, 4)
    local out = said(scaling, { rope_parameters = linear }, rotary.in_one_form {})
    harness.equal({ out.pos_scaling_factor, out.rope_theta }, { 4, 500 })
  end)
end)
