-- The converter engine on small models that are made here: both directions, errors, chains, and the tutorials' examples.

local cbk = require "cbk"
local converters = require "cbk.converters"
local classes = require "cbk.classes"
local converter_list = require "cbk.converters.list"
local catalogue, convert = converters.catalogue, converters.convert
local rules = require "converters.engine.rules"
local patterns = require "converters.engine.patterns"
local sections = require "converters.engine.sections"
local fields = require "converters.engine.fields"
local keys = require "converters.engine.keys"
local mup = require "converters.modelzoo.mup"
local harness = require "harness"
local conversion = require "conversion"
local tiny = require "tiny"

local describe, it = harness.describe, harness.it

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

local same, fails, job = conversion.same, conversion.fails, conversion.job
local counted, equal_tensors = conversion.counted, conversion.equal_tensors

---Adds what the model of a job's config, which is converted, has beside these weights.
---@param one Job
---@param weights Dict
local function completed(one, weights)
  local step = one.path[1]
  local class, release = catalogue.class_of(one.model, step.converter, step.src)
  for key, tensor in cbk.items(tiny.checkpoint(class, one.configs[1][step.side], release)) do
    if weights[key] == nil and weights["model." .. key] == nil then weights[key] = tensor end
  end
  return weights
end

local gpt2_config = cbk.dict {
  model_type = "gpt2", n_embd = 4, n_head = 2, n_layer = 1, n_positions = 3, vocab_size = 5, activation_function = "gelu_new",
  attn_pdrop = 0.5, embd_pdrop = 0.5, resid_pdrop = 0.5, layer_norm_epsilon = 1e-5, initializer_range = 0.02,
}

local function gpt2_checkpoint() return tiny.checkpoint(classes.find("gpt2", "hf"), gpt2_config) end

local function run(set, side, source, options)
  return keys.convert(rules.keys(set), side, cbk.dict(source), rules.variant({ left = {}, right = {} }, options))
end

describe("Converters: patterns", function()
  it("first match wins and captures are carried", function()
    local set = rules.keys {
      { "a.0.w", "first" },
      { "a.N.{w,b}", "second.N.{w,b}" },
      { "a.*", "third.*" },
      { "[model.]x", "[model.]y" },
    }
    local compiled = patterns.compile(set, "left")
    local function target(key)
      local hit = patterns.match(compiled, key)[1]
      return hit and patterns.render(hit.ending.to[1], hit.caught)
    end
    assert(target "a.0.w" == "first")
    assert(target "a.12.w" == "second.12.w")
    assert(target "a.12.b" == "second.12.b")
    assert(target "a.12.c.d" == "third.12.c.d")
    assert(target "model.x" == "model.y" and target "x" == "y")
    assert(target "b" == nil and target "a" == nil and target "a.0.w.z" == "third.0.w.z")
  end)

  it("a key has one reading", function()
    for _, pattern in ipairs { "*.a.*", "a.*.*", "a.w{N}{K:2}", "{N}{K}.a" } do
      fails(pattern:find("*", 1, true) and "has several '*'" or "has two numbers side by side", rules.only.left, pattern, "test")
    end
    for _, pattern in ipairs { "a.*", "*.'*'", "w{N}x{K}.b" } do rules.only.left(pattern, "test") end
  end)

  it("parts may have any characters, and numbers inside them", function()
    ---Whether a key fits a pattern, part by part. A letter that comes again has the same number.
    local function fits(pattern, key)
      local own, parts, i, numbers = patterns.split(pattern), patterns.split(key), 1, {}
      for k, part in ipairs(own) do
        local letter = part:match "^%u$" or part:match "{(%u)"
        local number = letter and parts[i] and tonumber(parts[i]:match "%d+")
        if number and numbers[letter] and numbers[letter] ~= number then return false end
        numbers[letter or ""] = number
        if part == "*" then
          local last = #parts - (#own - k)
          if last < i then return false end
          i = last + 1
        else
          if not parts[i] or not patterns.fits(part, parts[i]) then return false end
          i = i + 1
        end
      end
      return i == #parts + 1
    end
    local words = { "N", "*", "block_{K}", "b{K:2}", "'D'", "norm1", "a-b", "%d", "0", "w#", "x\0y" }
    local parts = { "0", "7", "12", "block_3", "block_03", "b07", "b7", "b123", "D", "norm1", "norm2", "a-b", "%d", "w#", "w1", "x\0y", "" }
    local random, seen = math.random, { [true] = 0, [false] = 0 }
    math.randomseed(5)
    for _ = 1, 4000 do
      local pattern, key, has_star = {}, {}, false
      for i = 1, random(3) do
        local word = words[random(#words)]
        pattern[i] = (word ~= "*" or not has_star) and word or "0"
        has_star = has_star or word == "*"
      end
      for i = 1, #pattern + (has_star and random(2) - 1 or 0) do key[i] = parts[random(#parts)] end
      pattern, key = table.concat(pattern, "."), table.concat(key, ".")
      local expected = fits(pattern, key)
      local set = rules.keys { rules.only.left(pattern, "test") }
      assert((patterns.match(patterns.compile(set, "left"), key)[1] ~= nil) == expected, ("'%s' and '%s'"):format(pattern, key))
      seen[expected] = seen[expected] + 1
    end
    assert(seen[true] > 100 and seen[false] > 100, seen[true])
  end)

  it("a rule table runs backwards", function()
    local set = rules.keys { { "h.N", "layers.N", rules.keys { { "ln.{weight,bias}", "norm.{weight,bias}" } } } }
    local hit = patterns.match(patterns.compile(set, "right"), "layers.3.norm.bias")[1]
    assert(patterns.render(hit.ending.to[1], hit.caught) == "h.3.ln.bias")
  end)

  it("two sources for one target are an error", function()
    local t = counted({ 2 }, 0)
    fails("both become 'c'", run, { { "a", "c" }, { "b", "c" } }, "left", { a = t, b = t })
  end)

  it("missing parts are named", function()
    local split = require("converters.vocabulary.actions").split(2)
    fails("k (its partner is q)", run, { { "qk", { "q", "k" }, split } }, "right", { q = counted({ 2 }, 0) })
  end)

  it("one tensor may be made of a key per expert", function()
    local stack = {
      name = "experts",
      forward = function(parts) return cbk.stack(parts, 1) end,
      backward = function(t)
        local parts = {}
        for i = 1, t:shape()[2] do parts[i] = t:select(1, i - 1) end
        return parts
      end,
    }
    local count = function(at) return at.right.experts end
    local set = { { rules.each("h.N.experts.E.w", "E", count), "layers.N.expert_weights", stack } }
    local options = { right = { experts = 2 }, left = {} }
    local source = { ["h.3.experts.0.w"] = counted({ 2, 2 }, 0), ["h.3.experts.1.w"] = counted({ 2, 2 }, 9) }
    local there = run(set, "left", source, options)
    same(there["layers.3.expert_weights"]:shape(), { 2, 2, 2 })
    equal_tensors(cbk.dict(source), (run(set, "right", there, options)))
  end)

  it("a rule may depend on the config", function()
    local set = { { "ln_attn", "norm1", when = function(at) return at.left.new == true end }, { "input_layernorm", "norm1" } }
    local source = { norm1 = counted({ 2 }, 0) }
    assert(run(set, "right", source, { left = { new = true } }).ln_attn ~= nil)
    assert(run(set, "right", source, { left = {} }).input_layernorm ~= nil)
  end)
end)

describe("Converters: configs", function()
  it("numbers keep their spelling", function()
    local hf = cbk.config.parse([[{"model_type": "gpt2", "n_embd": 4, "n_head": 1, "n_layer": 1, "vocab_size": 5,
      "layer_norm_epsilon": 1e-05, "attn_pdrop": 0.0}]], "json")
    local out = convert.config(job("gpt2", "hf", "cs-2.4"), hf)
    local text = cbk.config.dump(out, "json")
    assert(text:find("1e-05", 1, true) and text:find('"attention_dropout_rate": 0.0', 1, true), text)
    assert(out.model.filter_size == 16 and out.model.name == "gpt2")
  end)

  it("what a config cannot say is named", function()
    local config = cbk.dict { model = cbk.dict { norm_type = "rmsnorm", dropout_rate = 0.1 } }
    fails("norm_type='rmsnorm': only 'layernorm'", convert.config, job("gpt2", "cs-2.3", "hf"), config)
    fails("should not appear", convert.config, job("gpt2", "hf", "cs-2.3"), cbk.dict { norm_first = true })
    local llama = cbk.dict { num_key_value_heads = 3, num_attention_heads = 4 }
    fails("num_key_value_heads=3", convert.config, job("llama", "hf", "cs-2.3"), llama)
  end)

  it("a field of which a function makes nothing is left out by name", function()
    local function nothing() end
    local function other(value, at) at:set("other", value) end
    local step = { config = fields.config {
      { "lost", "x", { forward = nothing, backward = nothing } }, { "moved", "y", { forward = other, backward = nothing } },
      { "reported", "z", { forward = function(_, at) at:leave_out "reported.part" end, backward = nothing } },
      { "left", false, { forward = nothing } },
    } }
    local to, _, dropped = sections.convert(step, "left", cbk.dict { lost = 1, moved = 2, reported = 3, left = 4 })
    same(to, cbk.dict { other = 2 })
    table.sort(dropped)
    same(cbk.list(dropped), cbk.list { "lost", "reported.part" })
    same(cbk.list(select(3, sections.convert(step, "left", cbk.dict { lost = cbk.null }))), cbk.list {})
  end)

  it("a field that a function sets is no other rule's, but for the same value", function()
    local function pair(f) return { forward = f, backward = f } end
    local sets = { "heads", "h", pair(function(value, at)
      at:set("d", 9)
      return value
    end) }
    local plain, acted = { "width", "d" }, { "width", "d", pair(function(value) return value end) }
    for place, rows in ipairs { { plain, sets }, { sets, plain }, { sets, acted } } do
      local step = { config = fields.config(rows) }
      for _, order in ipairs { { "width", "heads" }, { "heads", "width" } } do
        local function from(width)
          local out = cbk.dict()
          for _, name in ipairs(order) do out[name] = name == "width" and width or 2 end
          return out
        end
        same((sections.convert(step, "left", from(9))), cbk.dict { d = 9, h = 2 }, tostring(place))
        fails("both give 'd', with the values ", sections.convert, step, "left", from(8))
      end
    end
  end)

  it("a rule that would never run is refused with the table", function()
    fails("the config rule of 'a' would never run: an earlier one of the left takes the field", fields.config,
      { fields.used.left { "a" }, { "a", "b" } })
    fails("the config rule of 'b' would never run: an earlier one of the right takes the field", fields.config,
      { fields.fixed.right { b = 1 }, { "a", "b" } })
    fails('the config rule of \'a\' comes after { "*" }, which takes all fields: put that last', fields.config, { { "*" }, { "a", "b" } })
    fields.config { { "a", "b" }, fields.drop.left { "a" }, { "*" } } -- which may follow
  end)

  it("one field has one value, whoever gives it", function()
    local function pair(f) return { forward = f, backward = f } end
    local function to(config, rows, more)
      local step = { config = fields.config(rows) }
      for name, value in pairs(more or {}) do step[name] = value end
      return (sections.convert(step, "left", cbk.dict(config)))
    end
    local direct = { "a", "b", pair(function(value, at)
      at.to.d = 9
      return value
    end) }
    local section = { "a", false, { forward = function(_, at) at:set("s", cbk.dict { x = 1 }) end } }
    local fixed = fields.fixed.right { d = "rms" }
    same(to({ a = 1, w = 9 }, { { "w", "d" }, direct }), cbk.dict { b = 1, d = 9 })
    local from = cbk.dict { w = 8 }
    from.a = 1
    fails("a function changes 'd' to 9, but the field 'w' gives it the value 8", to, from, { { "w", "d" }, direct })
    from = cbk.dict { a = 1 }
    from.w = 8
    fails("a function and the field 'w' both give 'd', with the values 9 and 8", to, from, { { "w", "d" }, direct })
    fails("the field 'a' and the field 'w' both give 'd', with the values 1 and 8", to, from,
      { { "a", "d" }, { "w", "d" } })
    fails("a rule gives the config field 's', and others its fields y: only one", to, { a = 1, w = 2 }, { section, { "w", "s.y" } },
      { nested = { right = { "s" } } })
    same(to({ w = "rms" }, { { "w", "d" }, fixed }), cbk.dict { d = "rms" })
    fails("the field 'w' gives 'd' the value 'layer', but a rule demands 'rms'", to, { w = "layer" }, { { "w", "d" }, fixed })
  end)

  it("sizes are whole numbers", function()
    local values = { null = cbk.null, ["true"] = true, ["[]"] = cbk.list(), ["99999999999999999999"] = cbk.int "99999999999999999999",
      ["'8'"] = "8", ["0"] = 0, ["-8"] = -8, ["2.5"] = 2.5 }
    for shown, value in pairs(values) do
      local config = cbk.dict { hidden_size = 64, num_attention_heads = value }
      local wanted = shown:find "^9" and "up to 2^53" or "of at least 1"
      fails(("num_attention_heads=%s: only a whole number %s"):format(shown, wanted), convert.config,
        job("llama", "hf", "cs-2.4"), config)
    end
    fails("num_hidden_layers=1000000000: only a whole number from 1 to", convert.config, job("llama", "hf", "cs-2.4"),
      cbk.dict { num_hidden_layers = 1e9 })
    fails("rope_scaling=3: only null or a map", convert.config, job("llama", "hf", "cs-2.4"), cbk.dict { rope_scaling = 3 })
  end)

  it("heads share the width", function()
    local wide = { -- model, from, to, heads, width
      { "llama", "hf", "cs-2.4", "num_attention_heads", "hidden_size" }, { "llama", "cs-2.4", "hf", "num_heads", "hidden_size" },
      { "llama", "cs-2.2", "cs-2.3", "num_heads", "hidden_size" }, { "gpt2", "hf", "cs-2.4", "n_head", "n_embd" },
      { "bert", "hf", "cs-2.4", "num_attention_heads", "hidden_size" }, { "falcon", "hf", "cs-2.4", "num_attention_heads", "hidden_size" },
      { "mpt", "hf", "cs-2.3", "n_heads", "d_model" }, { "bloom", "hf", "cs-2.4", "n_head", "hidden_size" },
    }
    for _, case in ipairs(wide) do
      local model, src, tgt, heads, width = unpack(case)
      local config = cbk.dict { [width] = 16, [heads] = 3 }
      if src ~= "hf" then config = cbk.dict { model = config } end
      fails(("%s=3: only a divisor of %s (16)"):format(heads, width), convert.config, job(model, src, tgt), config)
    end
    local t5 = cbk.dict { model = cbk.dict { d_model = 16, num_heads = 3, d_kv = 8 } } -- whose heads are as wide as d_kv
    same(convert.config(job("t5", "cs-2.1", "cs-2.2"), t5).model.num_heads, 3)
  end)

  it("numbers are numbers; one in quotes stays as it is written, with a warning", function()
    local function neox(field, value)
      return cbk.dict { hidden_size = 16, rotary_pct = 0.5, num_attention_heads = 4, num_hidden_layers = 1, vocab_size = 5,
        intermediate_size = 8, [field] = value }
    end
    for field, value in pairs { layer_norm_eps = "small", hidden_dropout = cbk.list { 1 }, initializer_range = true } do
      fails(": only a number", convert.config, job("gpt-neox", "hf", "cs-2.4"), neox(field, value))
    end
    fails("intermediate_size='8k': only a whole number", convert.config, job("gpt-neox", "hf", "cs-2.4"), neox("intermediate_size", "8k"))
    fails("layer_norm_epsilon='1e-5x': only a number", convert.config, job("gpt2", "cs-2.2", "cs-2.3"),
      cbk.dict { model = cbk.dict { layer_norm_epsilon = "1e-5x" } })
    local out
    local reported = conversion.warnings(function()
      out = convert.config(job("gpt-neox", "hf", "cs-2.4"), neox("layer_norm_eps", "1e-5"))
    end)
    same(reported[1], "numbers in quotes are kept as text, which not every program reads: layer_norm_eps='1e-5'")
    same(out.model.layer_norm_epsilon, "1e-5")
    local quoted = cbk.dict { model = cbk.dict { layer_norm_epsilon = "1e-5" } }
    assert(not table.concat(conversion.warnings(convert.config, job("gpt2", "cs-2.3", "cs-2.9"), quoted)):find "quotes")
    local plain = cbk.config.parse("model:\n  layer_norm_epsilon: 1e-5\n", "yaml")
    assert(not table.concat(conversion.warnings(convert.config, job("gpt2", "cs-2.4", "cs-2.5"), plain)):find "quotes")
    same(cbk.config.dump(plain, "yaml"):match "1e%-5", "1e-5")
  end)

  it("something else than a config is refused, and what is missing is named", function()
    fails("should be a map of fields, found a list", convert.config, job("llama", "hf", "cs-2.4"), cbk.list())
    fails("the config is empty", convert.config, job("llama", "hf", "cs-2.4"), cbk.dict())
    fails("no 'filter_size', 'hidden_size', 'num_heads', 'num_hidden_layers'", convert.config, job("gpt2", "cs-2.4", "hf"),
      cbk.dict { model = cbk.dict { vocab_size = 5, dropout_rate = 0 } })
    for shown, bad in pairs { ["[]"] = cbk.list(), ["'x'"] = "x", null = cbk.null } do
      fails(("with model=%s: only a map of fields"):format(shown), convert.config, job("llama", "cs-2.4", "hf"), cbk.dict { model = bad })
    end
    fails("with trainer.init.model=3: only a map of fields", convert.config, job("llama", "cs-2.4", "hf"),
      cbk.dict { trainer = cbk.dict { init = cbk.dict { model = 3 } } })
    fails("without 'init'", convert.config, job("llama", "cs-2.4", "hf"), cbk.dict { trainer = 4 })
  end)

  it("both layouts are read", function()
    local model = { dropout_rate = 0.1, hidden_size = 4, num_heads = 1, num_hidden_layers = 1, vocab_size = 5, filter_size = 8 }
    local legacy = convert.config(job("gpt2", "cs-2.4", "hf"), cbk.dict { model = cbk.dict(model) })
    local init = cbk.dict { model = cbk.dict(model) }
    local trainer = convert.config(job("gpt2", "cs-2.4", "hf"), cbk.dict { trainer = cbk.dict { init = init } })
    same(legacy, trainer)
  end)

  it("incomplete mup is refused", function()
    fails("scale_qk_dot_by_d", mup.style, cbk.dict { output_logits_scale = 0.5 })
    local old = { output_logits_scale = 0.5, embeddings_scale = 2, scale_qk_dot_by_d = true, hidden_size = 4, num_heads = 2 }
    for name, value in pairs { attention_logits_alpha = 3, output_logits_alpha = 0.5 } do
      local config = cbk.dict(old)
      config[name] = 1
      mup.fold(config, "gpt", "gpt2")
      config[name] = value
      fails(name .. "=", mup.fold, config, "gpt", "gpt2")
    end
    local key = "transformer_decoder.layers.0.self_attn.proj_k_dense_layer.weight"
    for _, case in ipairs { { {}, 0.5 }, { { attention_inner_dim = 32 }, 0.25 }, { { attention_type = "dot_product" }, 1 },
      { { scale_qk_dot_by_d = false }, 1 }, { { attention_inner_dim = cbk.null }, 0.5 } } do
      local config = cbk.dict { mup_base_hidden_size = 2, hidden_size = 8, num_heads = 2 }
      for name, value in pairs(case[1]) do config[name] = value end
      local _, view = mup.fold(config, "gpt", "llama")
      same(view(key, cbk.tensor { 4 }):tolist(), { 4 * case[2] })
    end
    local new = cbk.dict { mup_base_hidden_size = 2, output_logits_scale = 0.5, hidden_size = 4, num_heads = 2 }
    fails("output_logits_scale=0.5", mup.fold, new, "gpt", "gpt2")
    assert(mup.style(cbk.dict { mup_base_hidden_size = 4 }) == "2.3")
    assert(mup.style(cbk.dict { embeddings_scale = 4 }) == nil)
  end)
end)

describe("Converters: checkpoints, there and back", function()
  it("gpt2 there and back", function()
    local there = job("gpt2", "hf", "cs-2.3")
    local config = convert.config(there, gpt2_config)
    local hf = gpt2_checkpoint()
    local cs = convert.checkpoint(there, hf)
    assert(cs.model["ln_f.weight"] ~= nil and cs.model["transformer_decoder.layers.0.self_attn.proj_q_dense_layer.bias"] ~= nil)
    local q = cs.model["transformer_decoder.layers.0.self_attn.proj_q_dense_layer.weight"]:tolist()
    assert(q[1][2] == hf["transformer.h.0.attn.c_attn.weight"]:tolist()[2][1])
    local back = job("gpt2", "cs-2.3", "hf")
    convert.config(back, config)
    local again = convert.checkpoint(back, cs)
    equal_tensors(hf, again)
    same(again["transformer.h.0.attn.bias"]:shape(), { 1, 1, 3, 3 })
    assert(again["transformer.h.0.attn.masked_bias"]:item() == -10000)
  end)

  it("rotary rows are interleaved with grouped keys", function()
    local config = cbk.dict {
      hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, num_hidden_layers = 1, model_type = "llama", vocab_size = 5,
      intermediate_size = 12,
    }
    local prefix = "model.layers.0.self_attn."
    local hf = cbk.dict { [prefix .. "q_proj.weight"] = counted({ 16, 16 }, 0), [prefix .. "k_proj.weight"] = counted({ 8, 16 }, 0) }
    local there = job("llama", "hf", "cs-2.5")
    local cs_config = convert.config(there, config)
    completed(there, hf)
    assert(cs_config.model.attention_module == "multiquery_attention" and cs_config.model.rotary_dim == 4)
    local cs = convert.checkpoint(there, hf)
    local k = cs.model["transformer_decoder.layers.0.self_attn.proj_k_dense_layer.weight"]:tolist()
    local rows = {}
    for i, row in ipairs(k) do rows[i] = (row[1] - 1) / 16 end
    same(rows, { 0, 2, 1, 3, 4, 6, 5, 7 })
    local back = job("llama", "cs-2.5", "hf")
    convert.config(back, cs_config)
    equal_tensors(hf, convert.checkpoint(back, cs))
  end)

  it("a null is read from the tensor's other name", function()
    local back = job("gpt2", "cs-1.8", "hf")
    convert.config(back, cbk.dict { model = cbk.dict {
      dropout_rate = 0.1, max_position_embeddings = 3, hidden_size = 2, num_heads = 1, num_hidden_layers = 1, vocab_size = 2,
      filter_size = 8,
    } })
    local weights = cbk.dict {
      ["embedding_layer.word_embeddings.weight"] = counted({ 2, 2 }, 0), ["lm_head.weight"] = cbk.null,
      ["transformer_decoder.norm.weight"] = cbk.null, ["ln_f.weight"] = counted({ 2 }, 5),
    }
    completed(back, weights)
    local out = convert.checkpoint(back, cbk.dict { model = weights })
    same(out["lm_head.weight"]:tolist(), { { 1, 2 }, { 3, 4 } })
    same(out["transformer.ln_f.weight"]:tolist(), { 6, 7 })
    weights["embedding_layer.word_embeddings.weight"] = cbk.null
    fails("is null", convert.checkpoint, back, cbk.dict { model = weights })
  end)

  it("unmatched keys are named or dropped", function()
    local hf = gpt2_checkpoint()
    hf["transformer.h.0.stranger"] = counted({ 1 }, 0)
    local strict = job("gpt2", "hf", "cs-2.3")
    convert.config(strict, gpt2_config)
    fails("transformer.h.0.stranger", convert.checkpoint, strict, hf)
    local lenient = job("gpt2", "hf", "cs-2.3", { drop_unmatched = true })
    convert.config(lenient, gpt2_config)
    assert(convert.checkpoint(lenient, hf).model["transformer_decoder.norm.weight"] ~= nil)
  end)

  it("an incomplete checkpoint is refused", function()
    local one = job("gpt2", "hf", "cs-2.3")
    local config = cbk.copy(gpt2_config)
    config.n_layer = 3
    convert.config(one, config)
    fails("24 weights are missing: transformer.h.{1,2}.ln_1.weight", convert.checkpoint, one, gpt2_checkpoint())
    local hf = gpt2_checkpoint()
    hf["transformer.h.0.mlp.c_fc.weight"] = nil
    convert.config(one, gpt2_config)
    fails("1 weight is missing: transformer.h.0.mlp.c_fc.weight", convert.checkpoint, one, hf)
  end)

  it("mup is folded on the way to hugging face", function()
    local model = cbk.dict {
      hidden_size = 4, num_heads = 1, num_hidden_layers = 1, dropout_rate = 0.1, max_position_embeddings = 3, mup_base_hidden_size = 2,
      embeddings_scale = 10, vocab_size = 1, filter_size = 8,
    }
    local one = job("gpt2", "cs-2.3", "hf")
    local config = convert.config(one, cbk.dict { model = model })
    assert(config.tie_word_embeddings == false)
    local weights = cbk.dict {
      ["embedding_layer.word_embeddings.weight"] = counted({ 1, 4 }, 0), ["model.lm_head.weight"] = counted({ 1, 4 }, 1),
    }
    local out = convert.checkpoint(one, cbk.dict { model = completed(one, weights) })
    same(out["transformer.wte.weight"]:tolist(), { { 10, 20, 30, 40 } })
    same(out["lm_head.weight"]:tolist(), { { 1, 1.5, 2, 2.5 } })
  end)

  it("weights without fractions are refused, with mup and without", function()
    for _, base in ipairs { 0.5, false } do
      local model = { num_heads = 1, num_hidden_layers = 1, dropout_rate = 0.1, max_position_embeddings = 3, vocab_size = 1,
        filter_size = 8, hidden_size = 2, mup_base_hidden_size = base or nil }
      for _, dtype in ipairs { "int16", "int64", "bool" } do
        local one = job("gpt2", "cs-2.3", "hf")
        convert.config(one, cbk.dict { model = model })
        local weights = cbk.dict { ["lm_head.weight"] = cbk.tensor({ 1, 1 }, { shape = { 1, 2 } }):to(dtype) }
        fails(("1 weight of GPT2LMHeadModel is no floats, such as 'lm_head.weight' (%s)"):format(dtype), convert.checkpoint, one,
          cbk.dict { model = completed(one, weights) })
      end
    end
  end)

  it("mup says what it rounds", function()
    local model = { num_heads = 1, num_hidden_layers = 1, dropout_rate = 0.1, max_position_embeddings = 3, vocab_size = 1, filter_size = 8,
      hidden_size = 2, mup_base_hidden_size = 0.6 }
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local one = job("gpt2", "cs-2.3", "hf")
      convert.config(one, cbk.dict { model = model })
      local weights = completed(one, cbk.dict())
      for key, tensor in cbk.items(cbk.copy(weights)) do weights[key] = tensor:to(dtype) end
      local said = table.concat(conversion.warnings(convert.checkpoint, one, cbk.dict { model = weights }))
      same(said:find("each result is rounded to " .. dtype, 1, true) ~= nil, dtype ~= "float32", said)
    end
  end)

  it("fields that mup computes with are numbers", function()
    local wrong = {
      { "mup_base_hidden_size", "abc", "mup_base_hidden_size='abc'" }, { "mup_base_hidden_size", 0, "a number above 0" },
      { "mup_base_hidden_size", cbk.list { 1 }, "mup_base_hidden_size=[1]" }, { "mup_base_filter_size", "x", "mup_base_filter_size" },
      { "attention_logits_alpha", "x", "attention_logits_alpha" }, { "output_logits_alpha", true, "output_logits_alpha=true" },
      { "embeddings_scale", cbk.dict { a = 1 }, "embeddings_scale" }, { "scale_output_logits_by_d", "no", "scale_output_logits_by_d" },
    }
    for _, case in ipairs(wrong) do
      local model = cbk.dict { hidden_size = 4, num_heads = 1, num_hidden_layers = 1, mup_base_hidden_size = 2, vocab_size = 1 }
      model[case[1]] = case[2]
      fails(case[3], convert.config, job("gpt2", "cs-2.3", "hf"), cbk.dict { model = model })
    end
    local function upgraded(change)
      local model = cbk.dict { hidden_size = 4, filter_size = 8, num_hidden_layers = 1, output_logits_scale = 0.5, embeddings_scale = 10,
        scale_qk_dot_by_d = true, initializer = { name = "truncated_normal", std = 0.5, a = -1, b = 1 } }
      local optimizer = cbk.dict { adjust_learning_rate = { decoder_kernel = 0.5 } }
      change(model, optimizer)
      mup.upgrade(model, optimizer, {})
      return model
    end
    assert(upgraded(function() end).mup_base_hidden_size == 2)
    local kept
    upgraded(function(_, optimizer)
      optimizer.adjust_learning_rate.embedding, kept = 0.5, optimizer
    end)
    harness.equal(kept.adjust_learning_rate, { embedding = 0.5 }) -- it has nothing to do with muP
    fails("decoder_kernel='x'", upgraded, function(_, optimizer) optimizer.adjust_learning_rate.decoder_kernel = "x" end)
    fails("needs optimizer.adjust", upgraded, function(_, optimizer) optimizer.adjust_learning_rate = 3 end)
    fails("output_logits_scale='x'", upgraded, function(model) model.output_logits_scale = "x" end)
    fails("initializer.std='x'", upgraded, function(model) model.initializer.std = "x" end)
    fails("initializer.b='x'", upgraded, function(model) model.initializer.b = "x" end)
  end)
end)

describe("Converters: releases", function()
  it("chains equal their steps", function()
    local model = cbk.dict { hidden_size = 4, num_heads = 1, num_hidden_layers = 1, use_rms_norm = false, vocab_size = 2,
      max_position_embeddings = 2 }
    local config = cbk.dict { model = model, runconfig = cbk.dict { keep_checkpoint_max = 3, seed = 1 } }
    local weights = cbk.dict {
      ["model.embedding_layer.word_embeddings.weight"] = counted({ 2, 4 }, 0), ["model.lm_head.weight"] = cbk.null,
      ["model.embedding_layer.position_embeddings.weight"] = counted({ 2, 4 }, 9),
    }
    local root = cbk.dict { model = weights, global_step = 7 }
    local chain = job("gpt2", "cs-1.8", "cs-2.5")
    local chain_config = convert.config(chain, config)
    local chain_root = convert.checkpoint(chain, root)
    local step_config, step_root = config, root
    for _, step in ipairs(chain.path) do
      local one = job("gpt2", step.src, step.tgt)
      step_config = convert.config(one, step_config)
      step_root = convert.checkpoint(one, step_root)
    end
    same(chain_config, step_config)
    equal_tensors(step_root.model, chain_root.model)
    same(chain_root.__metadata__, step_root.__metadata__)
    assert(#chain_root.__metadata__ == #chain.path and chain_root.global_step == 7)
    assert(chain_root.model["model.embedding_layer.position_embeddings.embed.weight"] ~= nil)
    same(chain_root.model["model.lm_head.weight"]:tolist(), weights["model.embedding_layer.word_embeddings.weight"]:tolist())
  end)

  it("what a conversion over several releases at once leaves unchanged is reported", function()
    local function reported(src, tgt, text)
      return table.concat(conversion.warnings(convert.config, job("gpt2", src, tgt), cbk.config.parse(text, "yaml")), "\n")
    end
    local options = "model: {use_rms_norm: false}\ncsconfig: {}\nrunconfig: {seed: 1, num_act_servers: 1, is_pretrained_checkpoint: true}"
    local names = "csconfig, runconfig.num_act_servers, runconfig.is_pretrained_checkpoint"
    assert(reported("cs-1.8", "cs-2.0", options):find("does not know: " .. names))
    assert(not reported("cs-1.8", "cs-2.0", "model: {use_rms_norm: false}\nrunconfig: {seed: 1}"):find "direct conversion")
    assert(reported("cs-2.2", "cs-2.9", "model: {hidden_size: 8}"):find "keeps the file's layout")
    local incomplete = "model: {scale_qk_dot_by_d: true, embeddings_scale: 1.0, output_logits_scale: 0.5}"
    fails("decoder_kernel", reported, "cs-2.2", "cs-2.9", incomplete)
  end)

  it("formats and names", function()
    same(catalogue.formats "cs-1.8, cs-2.0 .. cs-2.2", { "cs-1.8", "cs-2.0", "cs-2.1", "cs-2.2" })
    assert(catalogue.resolve "cs-2.10" == "cs-2.9" and catalogue.resolve "cs-current" == "cs-2.9")
    for _, name in ipairs(catalogue.names()) do
      local model = catalogue.find(name)
      for _, target in ipairs { "cs-2.10", "cs-current" } do
        if catalogue.path(model, "hf", "cs-2.9") then assert(catalogue.path(model, "hf", catalogue.resolve(target)), name) end
      end
    end
    local gpt2 = catalogue.find "gpt2"
    assert(catalogue.path(gpt2, "hf", "cs-1.6") == nil and catalogue.path(gpt2, "cs-2.2", "cs-2.9").at_once)
    assert(select(2, catalogue.find "code-llama-headless") == "llama")
    same(converter_list.nearest("lama", catalogue.names())[1], "llama")
    local function nearest(format, model)
      return table.concat(converter_list.nearest_formats(format, catalogue.formats_of(catalogue.find(model))), " ")
    end
    same(nearest("cs-2.11", "llama"), "cs-2.9 cs-2.8 cs-2.7") -- by release, not by spelling
    same(nearest("cs-1.5", "llama"), "cs-1.9 cs-2.0 cs-2.1")
    same(nearest("cs-2.4", "dpo"), "cs-2.4-dpo cs-2.3-dpo cs-2.5-dpo")
    same(nearest("cs-2.2-no-dpo", "dpo"), "cs-2.1-no-dpo cs-2.2-dpo cs-2.1-dpo")
    same(nearest("hff", "llama"), "hf")
    same(nearest("cs-2.55", "llama"), "cs-2.5") -- a digit too many
    same(nearest("cs-2.41-dpo", "dpo"), "cs-2.4-dpo")
  end)
end)

describe("Converters: several tables for one pair of formats", function()
  ---A converter's two jobs, there and back.
  local function with(converter)
    local model = { model = "made", converter }
    local function one(src, tgt) return { model = model, path = catalogue.path(model, src, tgt), seed = 0 } end
    return one("hf", "cs-2.4"), one("cs-2.4", "hf")
  end

  it("the config chooses the table", function()
    local function variant(name) return { keys = rules.keys { { name, "w" } }, config = fields.config { { "kind", name } } } end
    local there, back = with {
      "hf", "cs-2.4", variants = { old = variant "a", new = variant "b" },
      choose = function(config, side) return side == "left" and config.kind or config.a and "old" or config.b and "new" end,
    }
    for name, key in pairs { old = "a", new = "b" } do
      local config = convert.config(there, cbk.dict { kind = name })
      local cs = convert.checkpoint(there, cbk.dict { [key] = counted({ 2 }, 0) })
      assert(config.model[key] == name and cs.model.w ~= nil)
      convert.config(back, config)
      assert(convert.checkpoint(back, cs)[key] ~= nil)
    end
    fails("'choose' returned 'other'; the variants are new, old", convert.config, there, cbk.dict { kind = "other" })
  end)

  it("functions on a config return one, or nothing", function()
    for name, side in pairs { prepare = "left", finish = "right" } do
      for _, wrong in ipairs { 42, "text", true } do
        local there = with { "hf", "cs-2.4", keys = rules.keys { { "a" } }, config = fields.config { { "kind" } },
          [name] = { [side] = function() return wrong end } }
        fails(("%s.%s must return a config, or nothing; it returned "):format(name, side), convert.config, there, cbk.dict { kind = "x" })
      end
    end
  end)

  it("a composite has its parts in folders on one side", function()
    local function part(name)
      return {
        left = name .. "_model", right = name,
        keys = rules.keys { { "w", name .. ".weight" } }, config = fields.config { { "size", "hidden_size" } },
      }
    end
    local there, back = with {
      "hf", "cs-2.4", components = { part "eye", part "tongue" }, config = fields.config { { "layer", "layer_index" } },
    }
    local hf_config = cbk.dict { eye_model = cbk.dict { size = 3 }, tongue_model = cbk.dict { size = 4 }, layer = 7 }
    local config = convert.config(there, hf_config)
    assert(config.model.eye.hidden_size == 3 and config.model.tongue.hidden_size == 4 and config.model.layer_index == 7)
    local hf = cbk.dict { eye_model = cbk.dict { w = counted({ 3 }, 0) }, tongue_model = cbk.dict { w = counted({ 4 }, 5) } }
    local cs = convert.checkpoint(there, hf)
    equal_tensors(cbk.dict { ["eye.weight"] = counted({ 3 }, 0), ["tongue.weight"] = counted({ 4 }, 5) }, cs.model)
    same(convert.config(back, config), hf_config)
    local again = convert.checkpoint(back, cs)
    equal_tensors(hf.eye_model, again.eye_model)
    equal_tensors(hf.tongue_model, again.tongue_model)
    cs.model.stranger = counted({ 1 }, 0)
    fails("1 key was not matched: stranger", convert.checkpoint, back, cs)
    hf.eye_model.stranger = counted({ 1 }, 0)
    fails("eye_model/stranger", convert.checkpoint, there, hf)
    config.model.eye = nil
    fails("no section 'eye'", convert.config, back, config)
  end)
end)

describe("Converters: nothing is lost or invented in silence", function()
  local function warned(f, ...) return table.concat(conversion.warnings(f, ...), "\n") end
  local function says(text, part)
    harness.checked()
    if not text:find(part, 1, true) then error(("'%s' does not say '%s'"):format(text, part), 2) end
  end

  local function config(more)
    local out = cbk.dict { hidden_size = 8, num_attention_heads = 2, num_hidden_layers = 1, vocab_size = 5 }
    for name, value in pairs(more) do out[name] = value end
    return out
  end

  it("keys and fields that have no place are named, those that go without saying are not", function()
    local set = {
      rules.drop.left("h.N.gone", "no place"), rules.only.left("h.N.freq", "computed"), rules.only.left("twin", "a copy", "a"),
      { "a", "b", also_left = "again" },
    }
    local t = counted({ 1 }, 0)
    local text = warned(run, set, "left", { a = t, ["h.0.gone"] = t, ["h.1.gone"] = t, ["h.0.freq"] = t, twin = t, again = t })
    same(text, "2 keys are left out: h.{0,1}.gone (no place)")
    text = warned(run, set, "left", { twin = t, again = t })
    says(text, "2 keys are left out: again, twin (it is known only as a copy of 'a', which is missing)")
    local table = { config = fields.config {
      fields.drop.left { "seed", bias = false }, fields.used.left { "kind" }, { "width", "size" },
    } }
    local function dropped(from) return select(3, sections.convert(table, "left", cbk.dict(from))) end
    same(dropped { seed = 3, bias = true, kind = "x", width = 4, other = 1 }, { "bias", "other", "seed" })
    assert(#dropped { seed = cbk.null, bias = false, kind = "x" } == 0)
    assert(#dropped { bias = 0 } == 0)
  end)

  it("a value that the function of a one-sided field gives has nowhere to go", function()
    local table = { config = fields.config { { "width", false, { forward = function(width) return width end } } } }
    fails("the function of the config field 'width' gives 4, but its rule has no name on the other side", sections.convert, table, "left",
      cbk.dict { width = 4 })
  end)

  it("parts of a field are named too", function()
    local yarn = cbk.dict { rope_type = "yarn", type = "yarn", factor = 2, original_max_position_embeddings = 4, finetuned = true }
    same(warned(convert.config, job("llama", "hf", "cs-2.4"), config { rope_scaling = yarn }),
      "config fields without a counterpart are left out: rope_scaling.finetuned=true")
    local cs = convert.config(job("llama", "hf", "cs-2.4"), config { num_key_value_heads = 1 })
    cs.model.extra_attention_params.window, cs.model.name = 3, nil
    says(warned(convert.config, job("llama", "cs-2.4", "hf"), cs), "left out: extra_attention_params.window")
    local function t5(more)
      local sizes = { d_model = 4, d_kv = 2, d_ff = 6, num_heads = 2, num_layers = 1, num_decoder_layers = 1, vocab_size = 5 }
      for name, value in pairs(more) do sizes[name] = value end
      return warned(convert.config, job("t5", "hf", "cs-2.4"), cbk.dict(sizes))
    end
    same(t5 { feed_forward_proj = "gated-silu", dense_act_fn = "silu", is_gated_act = true }, "")
    says(t5 { feed_forward_proj = "gated-silu", dense_act_fn = "gelu" }, "dense_act_fn='gelu' is left out: feed_forward_proj='gated-silu'")
  end)

  it("what comes from Hugging Face goes back without a word of fields that are lost", function()
    for _, name in ipairs(catalogue.names()) do
      local model = catalogue.find(name)
      local format = catalogue.format_at(model, "2.9")
      local there, back = catalogue.path(model, "hf", format), catalogue.path(model, format, "hf")
      if there and model.model == name then
        local source = tiny.model { name = name, converter = there[1].converter, format = there[1].tgt }
        local cs_config
        warned(function() cs_config = convert.config({ model = model, zoo_name = name, path = there }, source) end)
        local text = warned(convert.config, { model = model, zoo_name = name, path = back }, cs_config)
        assert(not text:find "left out: ", name .. ": " .. text)
      end
    end
  end)

  it("a null field is absent; LLaMA has no sliding window", function()
    local job_2_4 = job("llama", "hf", "cs-2.4")
    same(warned(convert.config, job_2_4, config { sliding_window = cbk.null, stranger = cbk.null }), "")
    fails("sliding_window=4096: only null", convert.config, job_2_4, config { sliding_window = 4096 })
  end)

  it("rotary positions in one map, and of releases that have no field for them", function()
    local both = cbk.dict { { "rope_type", "llama3" }, { "factor", 8 }, { "low_freq_factor", 1 }, { "high_freq_factor", 4 },
      { "original_max_position_embeddings", 8192 }, { "rope_theta", 500000 } }
    local model = convert.config(job("llama", "hf", "cs-2.3"), config { rope_parameters = both }).model
    same({ model.rope_theta, model.pos_scaling_type, model.pos_scaling_factor }, { 500000, "llama3", 8 })
    fails("before release 2.1", convert.config, job("llama", "hf", "cs-2.0"), config { rope_parameters = both })
    same(warned(convert.config, job("llama", "hf", "cs-2.0"), config { rope_theta = 10000, rope_scaling = cbk.null }), "")
    fails("num_key_value_heads=1", convert.config, job("llama", "hf", "cs-1.9"), config { num_key_value_heads = 1 })
  end)

  it("all that is left out is named", function()
    local hf, lenient = gpt2_checkpoint(), job("gpt2", "hf", "cs-2.3", { drop_unmatched = true })
    convert.config(lenient, gpt2_config)
    local function name(i) return "stranger_" .. string.char(64 + i) end
    for i = 1, 10 do hf[name(i)] = counted({ 1 }, 0) end -- with the others, fewer than half of the keys
    for i = 0, 4 do hf[("other.%d.weight"):format(i)] = counted({ 1 }, 0) end
    local text = warned(convert.checkpoint, lenient, hf)
    for i = 1, 10 do says(text, name(i)) end
    says(text, "15 keys were not matched: ")
    says(text, "other.{0..4}.weight")
    local back, cs = job("gpt2", "cs-2.3", "hf"), convert.config(job("gpt2", "hf", "cs-2.3"), gpt2_config)
    local root = convert.checkpoint(lenient, gpt2_checkpoint())
    for i = 1, 25 do cs[name(i)], root[name(i)] = i, i end
    for what, reported in pairs { config = warned(convert.config, back, cs), checkpoint = warned(convert.checkpoint, back, root) } do
      says(reported, ("left out of the %s: "):format(what))
      for i = 1, 25 do says(reported, name(i)) end
    end
  end)

  it("parts besides the model are named if only the model is converted", function()
    local back = job("gpt2", "cs-2.4", "hf")
    local model = cbk.dict {
      dropout_rate = 0.1, hidden_size = 4, num_heads = 1, num_hidden_layers = 1, vocab_size = 5, filter_size = 8,
      max_position_embeddings = 3,
    }
    says(warned(convert.config, back, cbk.dict { model = model, optimizer = cbk.dict { a = 1 }, empty = cbk.null }),
      "left out of the config: optimizer")
    local init = cbk.dict { model = model, seed = 3 }
    says(warned(convert.config, back, cbk.dict { trainer = cbk.dict { init = init, fit = cbk.dict { a = 1 } } }),
      "left out of the config: trainer.fit, trainer.init.seed")
    local root = cbk.dict { model = completed(back, cbk.dict()), global_step = 7 }
    says(warned(convert.checkpoint, back, root), "left out of the checkpoint: global_step")
    local legacy = cbk.dict { model = model, cerebras = cbk.dict { a = 1 }, runconfig = cbk.dict { save_losses = true } }
    says(warned(convert.config, job("gpt2", "cs-2.0", "cs-2.1"), legacy),
      "config fields that release 2.1 no longer has are left out: cerebras.a, runconfig.save_losses")
    legacy = cbk.dict { model = model, runconfig = cbk.dict { mode = "eval" }, stranger = 5 }
    says(warned(convert.config, job("gpt2", "cs-2.2", "cs-2.3"), legacy), "are dropped: runconfig.mode, stranger")
  end)

  it("invented values are named, come from the seed, and differ from key to key", function()
    local function made(seed)
      local out
      local fill = { right = {
        { "one", function(at) return at:invent({ 8 }, 0.02) end }, { "two", function(at) return at:invent({ 8 }, 0.02) end },
        { "zeros", function(at) return at:invent { 2 } end },
      } }
      local text = warned(function() out = run({}, "left", {}, { fill = fill, seed = seed }) end)
      return out, text
    end
    local first, text = made(3)
    says(text, "'one' is not in the checkpoint: normal random values (0, 0.02) of seed 3 are written")
    says(text, "'zeros' is not in the checkpoint: zeros are written")
    equal_tensors(first, (made(3)))
    same(first.zeros:tolist(), { 0, 0 })
    assert(not cbk.equal(first.one, first.two) and not cbk.equal(first.one, made(4).one))
  end)

  it("every model without a head gets one that is named", function()
    for _, name in ipairs(catalogue.names()) do
      local model = catalogue.find(name)
      if name:find "headless$" and name ~= "mpt-headless" and model.model == name then -- MPT's embedding is its head
        for _, converter in ipairs(model) do
          for _, own in pairs(converter[1] == "hf" and (converter.variants or { converter }) or {}) do
            assert(own.fill, name)
            local run_of = { out = {}, seed = 1, invented = {}, tell = function() end, read = function() end }
            local at = setmetatable({ prefix = "", run = run_of, left = {}, right = {
              vocab_size = 3, num_classes = 3, hidden_size = 2, use_bias_in_output = true,
            } }, keys.At)
            for i, part in ipairs { "weight", "bias" } do
              local key, invent = unpack(own.fill.right[i])
              assert(key == "lm_head." .. part or key == "classifier.classifier.ffn.0.linear_layer." .. part, name)
              at.key = key
              says(warned(invent, at), ("'%s' is not in the checkpoint%s"):format(key, part == "bias" and ": zeros" or ""))
            end
          end
        end
      end
    end
  end)
end)

describe("Converters: the tutorials", function()
  local readme, about_actions = cbk.fs.read(here .. "converters/README.md"), cbk.fs.read(here .. "converters/ACTIONS.md")
  local function example(text, heading) return text:match(heading .. ".-```lua\n(.-)```") end

  ---There and back by the one model of a file's text: its configs and checkpoints.
  local function there_and_back(code, config, hf)
    local model = assert(loadstring(code, "example"))()[1]
    local function job_of(src, tgt) return { model = model, zoo_name = model.model, path = catalogue.path(model, src, tgt), seed = 0 } end
    local there, back = job_of("hf", "cs-2.4"), job_of("cs-2.4", "hf")
    local cs_config = convert.config(there, config)
    local cs = convert.checkpoint(there, hf)
    same(convert.config(back, cs_config), config)
    equal_tensors(hf, convert.checkpoint(back, cs))
    return cs_config.model, cs.model
  end

  it("the first example works", function()
    local given = cbk.dict { model_type = "tiny", width = 2, depth = 1, heads = 1 }
    local config, cs = there_and_back(example(readme, "in twenty lines"), given, cbk.dict {
      ["embed.weight"] = counted({ 3, 2 }, 0), ["blocks.0.attn.qkv.weight"] = counted({ 6, 2 }, 0),
      ["blocks.0.attn.out.weight"] = counted({ 2, 2 }, 0), ["blocks.0.norm.weight"] = counted({ 2 }, 0),
    })
    same(config, cbk.dict { hidden_size = 2, num_hidden_layers = 1, num_heads = 1, norm_type = "layernorm", name = "tiny" })
    same(cs["transformer_decoder.layers.0.self_attn.proj_v_dense_layer.weight"]:tolist(), { { 9, 10 }, { 11, 12 } })
  end)

  it("so does the one with classes, from a config alone", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/small.lua", example(readme, "## With classes"))
    cbk.fs.write(dir .. "/config.json", assert(readme:match '`({ "model_type".-})`'))
    local function cbk_runs(...)
      local status, stdout, stderr = harness.cbk(dir, ...)
      harness.equal(status, 0, stdout .. stderr)
      return stdout
    end
    assert(cbk_runs("params", "config.json", "--converter", "small.lua"):find "\nblocks.0.qkv.weight +%[48, 16%]")
    cbk_runs("new", "config.json", "--converter", "small.lua", "--output", "model.safetensors")
    assert(cbk_runs("rules", "small.lua", "model.safetensors", "--config", "config.json"):find "clean\n$")
    local wrong, count = cbk.fs.read(dir .. "/small.lua"):gsub('"norm3', '"norm2')
    cbk.fs.write(dir .. "/wrong.lua", wrong)
    local code, found = harness.cbk(dir, "rules", "wrong.lua", "model.safetensors", "--config", "config.json")
    harness.equal({ count, code }, { 1, 1 })
    assert(found:find("warns: the output lacks 2 weights that its model needs: transformer_decoder.layers.0.norm3", 1, true), found)
    assert(found:find("warns: the output has 2 tensors that GPT2LMHeadModel does not have", 1, true), found)
    cbk_runs("convert", "model.safetensors", "--converter", "small.lua", "--to", "cs-2.4", "--output-dir", "there")
    cbk_runs("convert", "there/model_to_cs-2.4.mdl", "--converter", "small.lua", "--to", "hf", "--output-dir", "back")
    cbk_runs("diff", "model.safetensors", "back/model_to_cs-2.4_to_hf")
  end)

  it("so does the one with an action of its own, and `cbk rules` finds nothing", function()
    local code, config = example(about_actions, "An action of your own"), cbk.dict {
      model_type = "fused", hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
      intermediate_size = 12,
    }
    local hf, dir = cbk.dict(), harness.temp_dir()
    for i = 0, 1 do
      local layer = ("h.%d."):format(i)
      hf[layer .. "fused_in.weight"] = counted({ 44, 16 }, 1000 * i)
      hf[layer .. "attn_out.weight"], hf[layer .. "ff_out.weight"] = counted({ 16, 16 }, 0), counted({ 16, 12 }, 0)
    end
    local _, cs = there_and_back(code, config, hf)
    local function first_numbers(name)
      local out = {}
      for i, row in ipairs(cs["transformer_decoder.layers.1." .. name]:tolist()) do out[i] = (row[1] - 1001) / 16 end
      return out
    end
    same(first_numbers "self_attn.proj_k_dense_layer.weight", { 16, 18, 17, 19, 20, 22, 21, 23 })
    same(first_numbers "self_attn.proj_v_dense_layer.weight", { 24, 25, 26, 27, 28, 29, 30, 31 })
    same(first_numbers "ffn.ffn.0.linear_layer.weight", { 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43 })
    cbk.fs.write(dir .. "/fused.lua", code)
    cbk.create(dir .. "/model.safetensors", { root = hf }):commit { progress = false }
    cbk.config.save(config, dir .. "/config.json")
    local status, stdout = harness.cbk(dir, "rules", "fused.lua", "model.safetensors", "--config", "config.json")
    harness.equal({ status, stdout }, { 0, "fused.lua: 1 table, 3 rules\n"
      .. "fused, hf to cs-2.1 .. cs-2.9: 6 of 6 keys fit; every rule has a key\nclean\n" })
    hf["h.0.fused_in.weight"] = counted({ 43, 16 }, 0)
    fails("expected 32 rows (4 + 2 + 2 heads of 4: ", there_and_back, code, config, hf)
    config.num_key_value_heads = nil
    fails("expected 48 rows (4 + 4 + 4 heads of 4: ", there_and_back, code, config, hf)
  end)

  it("defaults do not reach the input", function()
    local from = cbk.dict { a = 1 }
    sections.convert({ config = fields.config { { "*" } }, defaults = { left = { b = 2 } } }, "left", from)
    assert(from.b == nil)
  end)
end)
