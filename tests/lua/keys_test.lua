-- What rules of several keys, letters that are counted, and choices do to a checkpoint: all of it is written, or an error says why.

local cbk = require "cbk"
local harness = require "harness"
local conversion = require "conversion"
local actions = require "converters.vocabulary.actions"
local keys = require "converters.engine.keys"
local fields = require "converters.engine.fields"
local rules = require "converters.engine.rules"

local describe, it, equal = harness.describe, harness.it, harness.equal
local counted, fails, equal_tensors = conversion.counted, conversion.fails, conversion.equal_tensors

local function run(set, side, source, options)
  return keys.convert(rules.keys(set), side, cbk.dict(source), rules.variant({ left = {}, right = {} }, options))
end

---Puts matrices of one row each below each other, and takes them apart.
local stack = actions.pair("stack", function(parts) return cbk.cat(parts, 0) end, function(t) return t:split(1, 0) end)

describe("Keys: several for one tensor", function()
  local three = actions.qkv.keys "proj_%s.weight"
  local fused = { qkv = counted({ 4, 2 }, 0) }
  local function giving(...)
    local results = { ... }
    return actions.pair("giver", function() return unpack(results) end, function() return unpack(results) end)
  end

  it("an action gives as many tensors as there are keys", function()
    local t = counted({ 2 }, 0)
    for _, case in ipairs {
      { giving { t, t }, "expected 3 tensors, found 2 x float32 [2]" },
      { giving { t, t, t, t }, "expected 3 tensors, found 4 x float32 [2]" },
      { giving(t), "expected 3 tensors, found float32 [2]" }, { giving { t, t, 5 }, "expected 3 tensors, found int" },
      { giving {}, "expected 3 tensors, found no tensors" }, { giving { t, nil, t }, "expected 3 tensors, found nothing as number 2" },
      { giving(nil), "expected 3 tensors, found nothing (does it return a value?)" },
    } do
      fails("cannot convert key 'qkv' (float32 [4, 2]) with 'giver': " .. case[2], run, { { "qkv", three, case[1] } }, "left", fused)
    end
    fails("(rule 'qkv <-> proj_{q,k,v}.weight' at tests/lua/keys_test.lua:", function()
      run({ { "qkv", three, giving(t) } }, "left", fused)
    end)
  end)

  it("and one tensor for one key", function()
    local t = counted({ 2 }, 0)
    for _, case in ipairs {
      { giving { t, t }, "2 x float32 [2]" }, { giving(5), "int" }, { giving "text", "str" }, { giving {}, "no tensors" },
      { giving(nil), "nothing (does it return a value?)" },
    } do
      fails(("with 'giver': expected a tensor, found %s"):format(case[2]), run, { { "a", "b", case[1] } }, "left", { a = t })
    end
    fails("key 'b' would become null: expected a tensor", run, { { "a", "b", giving(cbk.null) } }, "left", { a = t })
    equal(run({ { "a", "b", giving(cbk.null) } }, "left", { a = cbk.null }).b, cbk.null)
  end)

  it("mistakes of an action are in words", function()
    local t = counted({ 2 }, 0)
    local function acting(f) return { { "a", "b", actions.pair("own", f, f) } } end
    fails("'nothing' is nil, and arithmetic needs numbers or tensors", run, acting(function(value, at)
      return value * (at.right.nothing + 1)
    end), "left", { a = t })
    fails("at:source(key): expected the key of a tensor, found nil", run, acting(function(_, at) return at:source() end), "left", { a = t })
  end)

  it("actions that read fields of the Model Zoo say so where the right is another format", function()
    local set = { { "a", three, actions.qkv.stacked } }
    fails("the right config has no 'num_heads'; add a config rule that writes it", run, set, "left", { a = counted({ 24, 8 }, 0) },
      { right = cbk.dict { hidden_size = 8 } })
    fails("it reads fields of the right config, such as 'num_heads', and that of the format hf has none: add a config rule that writes it, "
      .. "or write an action of your own", run, set, "left", { a = counted({ 24, 8 }, 0) },
      { right = cbk.dict { hidden_size = 8 }, foreign_right = "hf" })
    fails("it reads fields such as 'num_heads', and there is no config: name one with --config", run, set, "left",
      { a = counted({ 24, 8 }, 0) }, { right = cbk.dict(), foreign_right = "b" })
  end)

  it("what is made beside a rule is a tensor, too", function()
    local t = counted({ 2 }, 0)
    for _, case in ipairs { { cbk.null, "null" }, { 3, "int" }, { "text", "str" } } do
      local text = ("key 'c' would become %s: expected a tensor"):format(case[2])
      fails(text, run, { { "a", "b" } }, "left", { a = t }, { fill = { right = { { "c", function() return case[1] end } } } })
      local emit = actions.pair("emit", function(value, at)
        at:emit("c", case[1])
        return value
      end, function(value) return value end)
      fails(text, run, { { "a", "b", emit } }, "left", { a = t })
    end
  end)

  it("what a table can say of it is refused with the table", function()
    fails("a list of keys needs an action", rules.keys, { { "qkv", three } })
    fails("a list of keys needs an action", rules.keys, { { rules.each("a.E", "E", "count"), "b" } })
    fails("'transpose' needs one key on each side", rules.keys, { { "qkv", three, actions.transpose } })
    fails("'split' needs one key on the left and 2 on the right", rules.keys, { { "qkv", three, actions.split(2) } })
    fails("'split' needs one key on the left and 3 on the right", rules.keys, { { three, "qkv", actions.split(3) } })
    fails("'split' needs one key on the left and 3 on the right", rules.keys, { { "qkv", "q", actions.split(3) } })
    fails("if it makes an action, call it", rules.keys, { { "qkv", three, actions.qkv.grouped } })
    fails("actions.pair(a name, forward, backward[, a table of options]): backward must be a function, not nothing", actions.pair, "half",
      function() end)
  end)

  it("null goes to each of them", function()
    local out = run({ { "qkv", three, actions.split(3) } }, "left", { qkv = cbk.null })
    equal({ cbk.count(out), out["proj_v.weight"] }, { 3, cbk.null })
  end)
end)

describe("Keys: values that are no tensors", function()
  local pair_of = actions.pair("pair", function(t) return { t, t } end, function(parts) return cbk.cat(parts, 0) end)

  it("a number, a text or nothing at all in the place of a weight is refused by name", function()
    for shown, value in pairs {
      ["key 'n.weight' of the checkpoint: expected a tensor, found float"] = 1.5,
      ["expected a tensor, found str"] = "x", ["expected a tensor, found dict"] = cbk.dict(),
      ["key 'n.weight' (float32 [0]) has no elements"] = counted({ 0 }, 0),
      ["key 'n.weight' (float32 [4, 0]) has no elements"] = counted({ 4, 0 }, 0),
    } do
      for _, set in ipairs { { { "n.weight", "norm" } }, { { "n.weight", { "a", "b" }, pair_of } } } do
        fails(shown, run, set, "left", { ["n.weight"] = value })
      end
      equal(cbk.count(run({ { "*" } }, "left", { ["n.weight"] = value })), 1) -- a copy of whatever there is
    end
    equal(run({ { "n.weight", "norm" } }, "left", { ["n.weight"] = cbk.tensor(3) }).norm:shape(), {})
  end)

  it("keys with and without the prefix are of one model", function()
    local set = { { "a", "norm.weight", also_right = "ln_f.weight" }, { "qk", { "q", "k" }, actions.split(2) } }
    for _, prefixed in ipairs { "norm.weight", "ln_f.weight", "q", "k" } do
      local source = {}
      for _, name in ipairs { "norm.weight", "ln_f.weight", "q", "k" } do
        source[(name == prefixed and "model." or "") .. name] = counted({ 2 }, 0)
      end
      local out
      local reported = conversion.warnings(function() out = run(set, "right", source, { prefix = "model." }) end)
      equal({ #reported, cbk.count(out), out.qk:shape() }, { 0, 2, { 4 } }, prefixed)
    end
  end)
end)

describe("Keys: one per value of a letter", function()
  local set = { { rules.each("h.N.experts.E.w", "E", "experts"), "layers.N.w", stack } }
  local function of(count) return { left = {}, right = cbk.dict { experts = count } } end
  local function experts(count)
    local out = {}
    for i = 0, count - 1 do out[("h.1.experts.%d.w"):format(i)] = counted({ 1, 2 }, 2 * i) end
    return out
  end

  it("all of them, there and back", function()
    local there = run(set, "left", experts(3), of(3))
    equal(there["layers.1.w"]:shape(), { 3, 2 })
    equal_tensors(cbk.dict(experts(3)), (run(set, "right", there, of(3))))
  end)

  it("those beyond the count are keys without a rule", function()
    local source = experts(3)
    source["h.1.experts.01.w"] = counted({ 1, 2 }, 0)
    local out, unmatched = run(set, "left", source, of(2))
    table.sort(unmatched)
    equal({ out["layers.1.w"]:shape(), unmatched }, { { 2, 2 }, { "h.1.experts.01.w", "h.1.experts.2.w" } })
    out, unmatched = run({ set[1], { "h.*", "rest.*" } }, "left", experts(3), of(2))
    equal({ #unmatched, out["rest.1.experts.2.w"] ~= nil }, { 0, true })
  end)

  it("several patterns, all keys of the first one before those of the second", function()
    local two = { { rules.each({ "h.N.experts.E.w", "h.N.experts.E.v" }, "E", "experts"), "layers.N.w", stack } }
    local source = experts(3)
    for i = 0, 2 do source[("h.1.experts.%d.v"):format(i)] = counted({ 1, 2 }, 10 + 2 * i) end
    local there = run(two, "left", source, of(3))
    equal(there["layers.1.w"]:tolist(), { { 1, 2 }, { 3, 4 }, { 5, 6 }, { 11, 12 }, { 13, 14 }, { 15, 16 } })
    equal_tensors(cbk.dict(source), (run(two, "right", there, of(3))))
    source["h.1.experts.1.v"] = nil
    fails("h.1.experts.1.v", run, two, "left", source, of(3))
  end)

  it("on the way back there are as many as the config counts", function()
    local there = run(set, "left", experts(3), of(3))
    fails("expected 2 tensors, found 3 x float32 [1, 2]", run, set, "right", there, of(2))
    fails("expected 4 tensors, found 3 x float32 [1, 2]", run, set, "right", there, of(4))
  end)

  it("a count that is not a number is reported with its field or rule", function()
    local function counts(count, options)
      return { { rules.each("h.E.w", "E", count), "w", stack } }, "left", { ["h.0.w"] = counted({ 1 }, 0) }, options
    end
    for shown, value in pairs { ["'ten'"] = "ten", ["-1"] = -1, ["2.5"] = 2.5, ["null"] = cbk.null, ["1000000000"] = 1e9 } do
      fails(("'experts' counts 'E', and is %s: only a whole number"):format(shown), run, counts("experts", of(value)))
    end
    fails("'experts' counts 'E', and is null", run, counts("experts", of(nil)))
    fails("a function counts 'E', and is null", run, counts(function(at) return at.left.num_experts end, of(1)))
    fails("rule '", run, counts(function() return "x" end, of(1)))
    fails("'h.E.w' has no letter 'X'", rules.each, "h.E.w", "X", "experts")
  end)

  it("planning is linear in them", function()
    local calls = 0
    local function count() calls = calls + 1 return 300 end
    local render = require("converters.engine.patterns").render
    local patterns, renders = require "converters.engine.patterns", 0
    patterns.render = function(...) renders = renders + 1 return render(...) end
    local fine, why = pcall(run, { { rules.each("h.N.experts.E.w", "E", count), "layers.N.w", stack } }, "left", experts(300), of(300))
    patterns.render = render
    assert(fine, why)
    assert(calls <= 2 * 300 and renders <= 3 * 300, ("%d counts, %d keys made"):format(calls, renders))
  end)
end)

describe("Keys: letters", function()
  it("are numbers inside a part, with as many digits as one side wants", function()
    local t = counted({ 2 }, 0)
    local function renamed(set, side, key) return cbk.keys(run(set, side, { [key] = t }))[1] end
    local set = { { "blocks.N.{weight,bias}", "m/block_{N:2}/{w,b}" }, { "x.N.E", "x{N}y{E:3}" }, { "d.N.'D'", "'a (b)'.N.''" } }
    for _, case in ipairs {
      { "blocks.3.weight", "m/block_03/w" }, { "blocks.12.bias", "m/block_12/b" }, { "blocks.123.bias", "m/block_123/b" },
      { "x.10.4", "x10y004" }, { "d.0.D", "a (b).0." },
    } do
      equal(renamed(set, "left", case[1]), case[2])
      equal(renamed(set, "right", case[2]), case[1])
    end
    equal(renamed({ { "b.N.l{N:2}.w", "x.N" } }, "left", "b.3.l03.w"), "x.3")
    equal(renamed({ { "b.N.l{N:2}.w", "x.N" } }, "right", "x.3"), "b.3.l03.w")
    equal(select(2, run({ { "b.N.l{N:2}.w", "x.N" } }, "left", { ["b.3.l04.w"] = t })), { "b.3.l04.w" })
    for _, key in ipairs { "m/block_3/w", "m/block_003/w", "x01y004", "x1y04", "d.0.3" } do
      local _, unmatched = run(set, key:find "^d" and "left" or "right", { [key] = t })
      equal(unmatched, { key })
    end
    fails("'[' in 'a[0.N' has no partner", rules.keys, { { "a[0.N", "'a[0'.N" } })
  end)

  it("a config by which they cannot be counted is refused without a checkpoint", function()
    local converter = {
      "hf", "cs-2.4", keys = rules.keys { { rules.each("e.E.w", "E", "num_experts"), "w", stack } },
      config = fields.config { { "experts", "num_experts" } },
    }
    local function convert(value)
      local step = { converter = converter, side = "left", src = "hf", tgt = "cs-2.4" }
      local job = { model = { model = "made", converter }, path = { step }, seed = 0 }
      return require("converters.conversion.convert").config(job, cbk.dict { experts = value })
    end
    equal(convert(3).model.num_experts, 3)
    fails("'num_experts' counts 'E', and is 'ten': only a whole number from 0", convert, "ten")
  end)
end)

describe("Keys: choices", function()
  ---What each key becomes, left to right.
  local function becomes(left, right, source)
    local tensors, out = {}, {}
    for i, key in ipairs(source) do tensors[key] = counted({ 1 }, i) end
    local written = run({ { left, right } }, "left", tensors)
    for i, key in ipairs(source) do
      for target, value in cbk.items(written) do
        if value:item() == i + 1 then out[key] = target end
      end
    end
    return out
  end

  it("go together by their words or their number, in any place", function()
    equal(becomes("[model.]norm.{weight,bias}", "decoder.norm.{weight,bias}", { "norm.weight", "model.norm.bias" }),
      { ["norm.weight"] = "decoder.norm.weight", ["model.norm.bias"] = "decoder.norm.bias" })
    equal(becomes("{q,k,v}.{weight,bias}", "{weight,bias}.{x,y,z}", { "k.weight", "v.bias" }),
      { ["k.weight"] = "weight.y", ["v.bias"] = "bias.z" })
    equal(becomes("{a,b}.{weight,bias}", "{weight,bias}.{x,y}", { "b.weight" }), { ["b.weight"] = "weight.y" })
    equal(becomes("norm.w", "[model.]norm.w", { "norm.w" }), { ["norm.w"] = "model.norm.w" })
    equal(becomes("[model.]x.{a,b}", "x.[transformer.]{c,d}", { "model.x.a", "x.b" }),
      { ["model.x.a"] = "x.transformer.c", ["x.b"] = "x.d" })
  end)

  it("are refused with the table if it is not clear what goes with what", function()
    for _, case in ipairs {
      { "a.{w,b}", "c.{x,y,z}" }, { "a.{w,b}", "c.w" }, { "c.w", "a.{w,b}" }, { "{a,b}.{c,d}", "{c,x}.{a,y}" },
      { "{a,b}.x", "{c,d}.{e,f}" }, { "[a.]x.[b.]y", "[c.]x.[d.]y" }, { "a", "b", also_left = "c.{x,y}" },
    } do
      fails("do not correspond", rules.keys, { case })
    end
    fails("do not correspond", rules.keys, { { "[m.]x", "[n.]y", rules.keys { { "[o.]z" , "[p.]z" } } } })
    fails("' at tests/lua/keys_test.lua:", function()
      local set = rules.keys { { "a.{w,b}", "c.w" } }
      return set
    end)
  end)

  it("of the mask of a weight get what the weight's action makes of the mask", function()
    local source = { ["w"] = counted({ 2, 3 }, 0), ["w_mask"] = counted({ 2, 3 }, 10) }
    local out = run({ { "w", "v", actions.transpose } }, "left", source, { masks = true })
    for name, first in pairs { v = 0, v_mask = 10 } do
      assert(out[name]:compare(counted({ 2, 3 }, first):transpose(0, 1)).same_bits, name)
    end
  end)

  it("what is no pattern is refused with the table", function()
    for pattern, part in pairs {
      ["a.{weight,bias"] = "'{' in 'a.{weight,bias' has no partner", ["a.b}"] = "'}' in", ["[model.x"] = "'[' in",
      ["model\\.norm"] = "'\\' cannot be in", ["(a|b).w"] = "'(' cannot be", ["a..b"] = "has an empty part", ["a."] = "has an empty part",
      ["a.proj_*"] = "matches whole parts only", ["a.{}.b"] = "'{' in", ["a.{b,{c,d}}"] = "'{' in",
    } do
      fails(part, rules.keys, { { pattern, "b" } })
      fails(part, rules.keys, { { "a", "b", also_left = pattern } })
      fails(part, rules.only.left, pattern, "it is known")
    end
    fails("entry 2 of also_right.1 must be a function, not 5", rules.keys, { { "a", "b", also_right = { { "x.N", 5 } } } })
    fails("a rule has three places at most: { left, right, action }; the fourth is a table", rules.keys,
      { { "a", "b", actions.transpose, actions.transpose } })
    fails("a rule has three places at most", fields.config, { { "a", "b", { forward = print }, {} } })
    fails("a table of keys has no option 'needed'", rules.keys, { { "a" }, needed = false })
    fails("entry 2 of this table", rules.keys, { false, { "a", "b", 5 } })
    fails("a table of rules has no option 'when'", rules.keys, { { "a", "b", rules.keys { { "c" } }, when = function() end } })
  end)
end)

describe("Keys: errors name the key and the rule", function()
  it("of conditions and of further keys", function()
    local t = { a = counted({ 2 }, 0) }
    local function broken() error "broken" end
    fails("cannot convert key 'a' (float32 [2]) with 'its condition':", run, { { "a", "b", when = broken } }, "left", t)
    fails("broken (rule 'a <-> b' at tests/lua/keys_test.lua:", run, { { "a", "b", when = broken } }, "left", t)
    fails("cannot convert key 'a' (float32 [2]) with 'what is beside it':", run,
      { { "a", "b", also_right = { { "c", broken } } } }, "left", t)
    fails("key 'c' would become int: expected a tensor", run,
      { { "a", "b", also_right = { { "c", function() return 5 end } } }, { "*" } }, "left", t)
  end)

  it("an unknown word is reported with its place and the known ones", function()
    fails("tests/lua/keys_test.lua:", function() return actions.rotary.query end)
    fails("there is no action 'rotary.query'; there are frequencies, keys, ", function()
      return actions.rotary.query
    end)
    fails("there is no function 'rules.key'; did you mean 'rules.keys'?", function() return rules.key {} end)
    fails("there is no function 'fields.conf", function() return require("converters.engine.fields").confg {} end)
  end)
end)

describe("Keys: joined tensors", function()
  it("may have a part in common, at any place of the lists", function()
    local second = actions.pair("second", function(parts) return parts[2] end, function(t) return { t, t } end)
    local first = actions.pair("first", function(parts) return parts[1] end, function(t) return { t, t } end)
    local source = cbk.dict { { "l.0.s", counted({ 1 }, 0) }, { "l.0.q", counted({ 2 }, 1) }, { "l.0.k", counted({ 2 }, 5) } }
    local wanted = { ["h.0.q"] = source["l.0.q"], ["h.0.k"] = source["l.0.k"] }
    equal_tensors(run({ { { "l.N.s", "l.N.q" }, "h.N.q", second }, { { "l.N.s", "l.N.k" }, "h.N.k", second } }, "left", source), wanted)
    equal_tensors(run({ { { "l.N.q", "l.N.s" }, "h.N.q", first }, { { "l.N.k", "l.N.s" }, "h.N.k", first } }, "left", source), wanted)
  end)
end)

describe("Keys: emitted tensors", function()
  it("may not replace what a rule writes, in any order", function()
    local emits = actions.pair("emits", function(value, at)
      at:emit("y", value * 2)
      return value
    end, function(value) return value end)
    local set, t = { { "a", "x", emits }, { "b", "y" } }, counted({ 2 }, 1)
    local function in_order(...)
      local source = cbk.dict()
      for _, key in ipairs { ... } do source[key] = t end
      return run(set, "left", source)
    end
    fails("target key has two sources: 'a' and 'b' both become 'y'", in_order, "a", "b")
    fails("target key has two sources: 'b' and 'a' both become 'y'", in_order, "b", "a")
    equal_tensors(in_order "a", { x = t, y = t * 2 })
  end)
end)

describe("Keys: numbers that count the other side's way", function()
  local half = { { "h.N.w", "moe.N.w", number = { forward = function(n) return n / 2 end, backward = function(n) return 2 * n end } } }

  it("are whole numbers, or an error with the rule", function()
    local t = counted({ 2 }, 0)
    equal_tensors(run(half, "left", { ["h.4.w"] = t }), { ["moe.2.w"] = t })
    equal_tensors(run(half, "right", { ["moe.2.w"] = t }), { ["h.4.w"] = t })
    fails("cannot convert key 'h.3.w' (float32 [2]) with 'its numbers': number 3 of a key becomes 1.5, which is not a whole number", run,
      half, "left", { ["h.3.w"] = t })
  end)

  it("come back as they were, or it is an error", function()
    local apart = { { "h.N.w", "m.N.w", number = { forward = function(n) return n + 1 end, backward = function(n) return n end } } }
    for _, case in ipairs { { "left", "h.3.w", "number 3 of a key becomes 4, which the rule's way back makes 4" },
      { "right", "m.3.w", "number 3 of a key becomes 3, which the rule's way back makes 4" } } do
      fails(case[3] .. ": 'forward' and 'backward' must undo each other", run, apart, case[1], { [case[2]] = counted({ 2 }, 0) })
    end
  end)
end)
