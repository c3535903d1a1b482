-- `cbk rules`: mistakes that it finds in tables, coverage of keys, and that the bundled families are clean.

local cbk = require "cbk"
local harness = require "harness"
local conversion = require "conversion"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local class = require "converters.engine.class"
local check = require "converters.authoring.check"
local check_config = require "converters.authoring.check_config"
local coverage = require "converters.authoring.coverage"
local tensor_names = require "cbk.recognise.names"
local family_files = require "converters.engine.family_files"
local position = require "converters.notation.position"
local relate = require "converters.authoring.relate"
local tables = require "converters.authoring.tables"
local tiny = require "tiny"

local describe, it, equal = harness.describe, harness.it, harness.equal
local fails = conversion.fails

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

---"kind: text" of all that is found.
local function found_in(entries)
  local out = {}
  for i, finding in ipairs((check.keys(rules.keys(entries)))) do out[i] = finding.kind .. ": " .. finding.text end
  table.sort(out)
  return out
end

local function finds(part, entries)
  harness.checked()
  local found = found_in(entries)
  if not table.concat(found, "\n"):find(part, 1, true) then
    error(("'%s' is not among what is found: %s"):format(part, table.concat(found, "; ")), 2)
  end
end

describe("Rules: how patterns relate", function()
  it("one covers another", function()
    local cases = {
      { "a.b", "a.b", true }, { "a.N", "a.3", true }, { "a.3", "a.N", false }, { "a.N", "a.E", true }, { "a.N", "a.b", false },
      { "*", "a.b.c", true }, { "*", "a.*", true }, { "a.*", "*", false }, { "*.b", "a.*.b", true }, { "a.*.b", "*.b", false },
      { "*.*", "*", false }, { "*", "*.*", true }, { "a.*", "a", false }, { "*.c", "a.N.c", true },
      { "a_{N}", "a_3", true }, { "a_{N:2}", "a_3", false }, { "a_{N}", "a_{N}", true }, { "a.N", "a.'D'", false },
    }
    for _, case in ipairs(cases) do equal(relate.covers(case[1], case[2]), case[3], case[1] .. " covers " .. case[2]) end
  end)

  it("two have a key in common", function()
    local cases = {
      { "a.N", "a.3", true }, { "a.N", "a.b", false }, { "a.*", "*.b", true }, { "a.*", "b.*", false }, { "*.x", "*.y", false },
      { "a.*.c", "a.b.*", true }, { "a", "a.*", false }, { "*", "a.b", true }, { "a.*.d", "a.d", false },
    }
    for _, case in ipairs(cases) do
      equal(relate.overlap(case[1], case[2]), case[3], case[1] .. " and " .. case[2])
      equal(relate.overlap(case[2], case[1]), case[3], case[2] .. " and " .. case[1])
    end
  end)
end)

describe("Rules: findings", function()
  it("a rule that no key reaches", function()
    finds("unreachable: no key reaches it: 'a.N <-> b.N'", { { "a.N", "b.N" }, { "a.0", "b.0" } })
    finds("unreachable", { { "*" }, rules.only.left("a", "x") })
    equal(found_in { { "a.0", "b.first", read_only = "the first is apart" }, { "a.N", "b.N" } }, {})
    equal(found_in { { "a", "b", when = function() return true end }, { "a", "b" } }, {})
  end)

  it("a rule for one direction needs a reason", function()
    finds("one way: left to right, 'c' is never written: 'a <-> b'", { { "a", "b" }, { "a", "c" } })
    finds("to write both keys, add also_right = 'c' to that rule", { { "a", "b" }, { "a", "c" } })
    finds("'a <-> b' (tests/lua/rules_test.lua:69) takes 'a'; if only some files have this key",
      { { "a", "b" }, { "a", "c", when = function() return true end } })
    equal(found_in { { "a", "b" }, { "a", "c", read_only = "its old name" } }, {})
    local _, single = check.keys(rules.keys { { "a", "b" }, { "a", "c", read_only = "its old name" } })
    equal({ single[1].side, single[1].pattern, single[1].text }, { "right", "c", "its old name" })
  end)

  it("a tied head as two rules: what is advised writes both weights", function()
    local dir = harness.temp_dir()
    local function converter(entries)
      local text = ([[
        local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
        return { { model = "tied", note = "Tied", { "hf", "cs-2.4", keys = rules.keys { %s },
          config = fields.config { { "width", "hidden_size" }, { "heads", "num_heads" },
            fields.fixed.left { model_type = "tied" } } } } }]]):format(entries)
      cbk.fs.write(dir .. "/tied.lua", text, { overwrite = true })
      return harness.cbk(dir, "rules", "tied.lua")
    end
    local code, out = converter [[{ "embed.weight", "emb.weight" }, { "embed.weight", "lm_head.weight" }]]
    equal(code, 1)
    local advice = out:match "add (also_right = '[^']+') to that rule"
    local files_have = [[{ "embed.weight", "emb.weight" }, { "embed.weight", "lm_head.weight", read_only = "its name" }]]
    equal((converter(files_have)), 0) -- true of files with one of the two
    cbk.fs.write(dir .. "/both.txt", "emb.weight\nlm_head.weight\n")
    local status, text = harness.cbk(dir, "rules", "tied.lua", "--keys", "both.txt")
    equal(status, 1)
    assert(text:find("'lm_head.weight' is read-only and never written, but these keys have it together with 'emb.weight'; "
      .. "to write both, add also_right = 'lm_head.weight' to that rule", 1, true), text)
    equal((converter(([[{ "embed.weight", "emb.weight", %s }]]):format(advice))), 0)
    cbk.config.save(cbk.dict { model_type = "tied", width = 2, heads = 1 }, dir .. "/config.json")
    cbk.create(dir .. "/m.safetensors", { root = cbk.dict { ["embed.weight"] = cbk.full({ 3, 2 }, 1) } }):commit()
    local _, _, stderr = harness.cbk(dir, "rules", "tied.lua", "--keys", "m.safetensors")
    assert(stderr:find("'m.safetensors' is not a text with one key per line; give a checkpoint without --keys", 1, true), stderr)
    equal((harness.cbk(dir, "convert", "--converter", "tied.lua", "--model", "tied", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config",
      "config.json", "m.safetensors", "--output-dir", "out")), 0)
    equal(cbk.keys(cbk.open(dir .. "/out/m_to_cs-2.4.mdl").root.model), { "emb.weight", "lm_head.weight" })
  end)

  it("two rules for one target", function()
    finds("one way: right to left, 'b' is never written: 'a <-> x.1'", { { "a", "x.1" }, { "b", "x.1" } })
    finds("both become 'y'", { { "a", "x", also_right = "y" }, { "b", "y" } })
    finds("both become 'x.N'", { { "a.0", "x.0" }, { "b.N", "x.N" } })
    equal(found_in { { "a", "x" }, { "*" } }, {})
    finds("collision: left to right, it writes 'x.N' twice", { { "a.N", "x.N", also_right = "x.N" } })
    finds("collision: left to right, it writes 'q' twice", { { "a", { "q", "q", "v" }, actions.split(3) } })
  end)

  it("a letter in the prefix of several rules is reported there", function()
    local set = rules.keys { { "l.N", "d.M", rules.keys { { "a", "b" }, { "in.E", "in", rules.keys { { "c.{w,b}" } } } } } }
    local texts = {}
    for _, finding in ipairs((check.keys(set))) do texts[rules.text(finding.rule) .. " | " .. finding.text] = true end
    equal(texts, {
      ["l.N <-> d.M | left to right 'M' has no value in 'd.M'"] = true,
      ["l.N <-> d.M | left to right all values of 'N' in 'l.N' become one key"] = true,
      ["l.N <-> d.M | right to left 'N' has no value in 'l.N'"] = true,
      ["l.N <-> d.M | right to left all values of 'M' in 'd.M' become one key"] = true,
      ["in.E <-> in | left to right all values of 'E' in 'in.E' become one key"] = true,
      ["in.E <-> in | right to left 'E' has no value in 'in.E'"] = true,
    })
  end)

  it("read_only where nothing asks for it, in no table", function()
    local function needless(...)
      local looked, out = {}, {}
      for i, set in ipairs { ... } do looked[i] = { set, select(3, check.keys(set)) } end
      for i, finding in ipairs(check.read_only(looked)) do out[i] = rules.text(finding.rule) end
      return out
    end
    equal(needless(rules.keys { { "a", "b" }, { "c", "d", read_only = "stale" } }), { "c <-> d" })
    equal(needless(rules.keys { { "a", "b" }, { "a", "d", read_only = "its old name" } }), {})
    equal(needless(rules.keys { { "a.0", "b.first", read_only = "apart" }, { "a.N", "b.N" } }), {})
    local shared = rules.keys { { "a", "d", read_only = "its old name" } }
    equal(needless(shared, rules.keys { { "a", "b" }, shared }), {})
    equal(needless(shared), { "a <-> d" })
  end)

  it("letters without a counterpart", function()
    finds("captures: left to right 'E' has no value in 'b.E'", { { "a.N", "b.E" } })
    finds("captures: in 'block_N' N is plain text: write block_{N} or block_{N:2}", { { "core.block_N.w", "model.layers.N.w" } })
    finds("captures: in 'h-N-mlp' N is plain text: write h-{N}-mlp or h-{N:2}-mlp", { { "model.layers.N.w", "h-N-mlp.w" } })
    finds("captures: right to left all values of 'E' in 'b.N.E' become one key", { { "a.N", "b.N.E" } })
    equal(found_in { { rules.each("e.N.E.w", "E", "experts"), "b.N", actions.pair("stack", cbk.cat, cbk.stack) } }, {})
    equal(found_in { { "[model.]N.v", "N.y" } }, {})
  end)

  it("what is written wrongly is refused at once, with its place", function()
    local two = { rules.each("g.E", "E", "experts"), rules.each("u.E", "E", "experts") }
    fails("side 1 is a list of patterns, and one of them is a table", function()
      rules.keys { { two, "w", actions.pair("stack", cbk.cat, cbk.stack) } }
    end)
    fails("rules_test.lua:", function() local _ = rules.keys { { "a", "b", { name = "half", forward = function() end } } } end)
    for _, kind in ipairs { "only", "drop", "refuse" } do
      fails(("which side has the key? Write rules.%s.left(...)"):format(kind), function() rules[kind]("a", "why") end)
    end
    fails("has no option 'also_lft'", rules.keys, { { "a", "b", also_lft = "c" } })
    fails("entry 2 of this table of keys: a rule is { left, right, action }; with one name for both sides, write { \"b\" }", rules.keys,
      { { "a" }, "b" })
    fails("the other side is missing; for keys of the left only, use rules.only.left", rules.keys, { { "a", false } })
    fails("for keys of the right only", rules.keys, { { false, "a" } })
    fails("a rule has no option 'needed'", rules.keys, { { "a", "b", needed = true } })
    fails("read_only must be a string, not ''", rules.keys, { { "a", "b", read_only = "" } })
    fails("rules_test.lua:", function() local _ = rules.keys { { "a", "b", rules.keys { { "c" } }, read_only = 1 } } end)
    fails("there is no action 'transpse'; did you mean 'transpose'?", function() return actions.transpse end)
    fails("there is no action 'rotary.query'", function() return actions.rotary.query end)
    fails("there is no action 'conv1d'; did you mean 'actions.qkv.conv1d'?", function() return actions.conv1d end)
    fails("'set_rotary_dim'; did you mean 'rotary.set_dim'?", function() return require("converters.vocabulary.values").set_rotary_dim end)
  end)

  it("an entry is reported with its own line", function()
    local line = debug.getinfo(1, "l").currentline
    fails(("rules_test.lua:%d: entry 2 of this table of keys: read_only"):format(line + 4), function()
      local _ = rules.keys {
        { "a", "b" },
        { "lines.c", "lines.d", read_only = 3 },
      }
    end)
    fails(("rules_test.lua:%d: entry 2 of this table of config fields: a rule has no option 'when'"):format(line + 10), function()
      local _ = fields.config {
        { "a" },
        { "line_width", when = "widht" },
      }
    end)
    fails(("rules_test.lua:%d: the choices in 'b.{line,x}'"):format(line + 16), function()
      local _ = rules.keys {
        { "lines.e" },
        { "b.{line,x}", "lines.h" },
      }
    end)
  end)

  it("arguments of constructors", function()
    local f, values = function() end, require "converters.vocabulary.values"
    local counts, evidence = require "converters.vocabulary.counts", require "converters.vocabulary.evidence"
    local layouts, rotary = require "converters.vocabulary.layouts", require "converters.vocabulary.rotary"
    local buffers = require "converters.vocabulary.buffers"
    for part, call in pairs {
      ["actions.split(the count of parts): the count of parts must be a whole number of at least 1, not nothing"] = { actions.split },
      ["must be a whole number of at least 1, not 0"] = { actions.split, 0 },
      ["argument 2 is not expected"] = { actions.split, 2, 3 },
      ["a function that counts the groups must be a function, not nothing"] = { actions.qkv.grouped },
      ["a function that counts the groups must be a function, not 8"] = { actions.qkv.grouped, 8 },
      ["a table of options has no 'rotry'; did you mean 'rotary'?"] = { actions.qkv.grouped, f, { rotry = false } },
      ["a table of options has no 'part'; did you mean 'parts'?"] = { actions.pair, "x", f, f, { part = 3 } },
      ["argument 4 must be a table of options, not 3"] = { actions.pair, "x", f, f, 3 },
      ["actions.qkv.keys(a pattern with one %s)"] = { actions.qkv.keys, "proj.weight" },
      ["actions.buffer.causal_mask(a field)"] = { actions.buffer.causal_mask, 5 },
      ["the base must be a number"] = { actions.rotary.frequencies },
      ["evidence.only_with(a string, a function, a number"] = { evidence.only_with, "n", 3 },
      ["counts.shifted(a whole number): argument 1 must be a whole number, not 0.5"] = { counts.shifted, 0.5 },
      ["argument 3 must be a whole number of at least 0, not -1"] = { counts.counted, "left", "(a)(b)", -1 },
      ["a table of options has no 'group'; did you mean 'groups'?"] = { layouts.fused, { per = { 1, 1 }, group = 2 } },
      ["a table of options has 'groups' and 'size': only one is used"] = { layouts.fused, { per = { 1, 1 }, groups = 2, size = 1 } },
      ["rotary must be a list of a head's size and its rotated rows"] = { layouts.fused, { per = { 1, 1 }, rotary = { 4 } } },
      ["must be an even number, at most the head's size 2, not 4"] = { layouts.fused, { per = { 1, 1 }, rotary = { 2, 4 } } },
      ["argument 2 must be a whole number of at least 1 or a function, not 0"] = { layouts.rotary_rows, 4, 0 },
      ["the number of rotated rows must be an even number, at most the head's size 4, not 8"] = { layouts.rotary_rows, 4, 8 },
      ["at most the head's size 5, not 5"] = { layouts.rotary_rows, 5 },
      ["per.2 must be a number above 0, not -1"] = { layouts.fused, { per = { 3, -1, 1 } } },
      ["'per' is a function: give the number of 'parts', too"] = { layouts.fused, { per = f } },
      ["'per' has 2 shares for 3 parts"] = { layouts.fused, { per = { 1, 1 }, parts = 3 } },
      ["argument 1 must be a finite number other than 0, not 0"] = { layouts.times, 0 },
      ["argument 1 must be a finite number other than 0, not nan"] = { layouts.times, 0 / 0 },
      ["argument 1 must be a finite number, not inf"] = { layouts.plus, 1 / 0 },
      ["argument 1 must be a whole number of at least 0, not -1"] = { layouts.joined, -1, f },
      ["layouts.stacked(a whole number of at least 0"] = { layouts.stacked, -1 },
      ["a dtype must be a dtype, such as \"float32\", not 'f32x'"] = { layouts.cast, "f32x", "float16" },
      ["an action must be an action (a pair of functions, forward and backward), not a table"] = { layouts.reversed, {} },
      ["'split' has several parts; only one can be transposed"] = { layouts.transposed, actions.split(2) },
      ["an extent must be a whole number of at least 0, not -3"] = { buffers.numbered, { -3 }, "int64" },
      ["argument 1 must end with two equal extents"] = { buffers.triangle, { 2, 3 }, 1, 0, "uint8" },
      ["buffers.identity(a shape with square matrices, a dtype): a dtype must be"] = { buffers.identity, { 2, 2 } },
      ["argument 2 must be an even number of at least 2, not 5"] = { buffers.rotary_frequencies, 10000, 5 },
      ["argument 1 must be a whole number of at least 1, not nothing"] = { buffers.slopes_of },
      ["class.each(a prefix, an extent, a number or a text over config fields, "] = { class.each, "h", nil, {} },
      ["class.norm("] = { class.norm, "norm" }, ["class.linear("] = { class.linear, "up", {}, 4 },
      ["argument 1 must be a field, made by one of class.kinds, not 5"] = { class.free, 5 },
      ["a function of the value must be a function, not true"] = { class.unused, class.kinds.size(), true },
      ["class.deciding(a field, made by one of class.kinds)"] = { class.deciding, "gelu" },
      ["fields.without: no rule names 'widht'; did you mean 'width'?"] = { fields.without, fields.config { { "width" } }, { "widht" } },
      ["has an entry 'width = …'; write { \"width\", … }"] = { fields.config, { width = "hidden" } },
      ["values by the names of rope_parameters has no 'partial_rotary'"] = { rotary.in_one_form, { partial_rotary = 1 } },
      ["fields by these names has no 'rope_thta'; did you mean 'rope_theta'?"] = { rotary.in_one_form, {}, { rope_thta = "theta" } },
      ["must be one of 'linear', 'llama3', "] = { rotary.scaling, { "linaer" } },
      ["values.in_map("] = { values.in_map, { { "num_kv_groups", "n_kv_heads" } } },
      ["'kind' needs either a field or a value"] = { values.in_map, { { "kind" } } },
      ["argument 1 has 'kind' twice"] = { values.in_map, { { "kind", value = 1 }, { "kind", field = "k" } } },
      ["values.choice("] = { values.choice, {} },
      ["'x' is for both"] = { values.choice, { a = "x", b = "x" } },
      ["what comes of it must be a string, not nothing"] = { values.lost, 1 },
      ["fields.must.right("] = { fields.must.right, "norm_type" },
      ["has 1; it must be fields and their values: { norm_type = "] = { fields.must.left, { "norm_type" } },
      ["a list of fields has 'c'; it must be a list of strings"] = { fields.used.left, { "a", c = "size" } },
      ["a name must be a string, not 5"] = { fields.drop.left, { 5 } },
      ["config rules must be made by fields.config, not a table"] = { fields.without, {}, { "a" } },
      ["rules.only.left(a pattern, the reason[, the pattern of what it is a copy of]): the reason must be"] = { rules.only.left, "a" },
      ["rules.drop.right(a pattern, the reason[, a condition])"] = { rules.drop.right, "a", "", f },
      ["rules.between(formats, formats, a converter[, fields that differ])"] = { rules.between, "hf", "cs-2.4" },
      ["rules.each(a pattern or several, one of its letters, a field or a function)"] = { rules.each, "a.E", "E" },
    } do
      fails(part, unpack(call))
      fails("rules_test.lua:", function()
        local _ = call[1](call[2], call[3], call[4], call[5])
      end)
    end
  end)

  it("tables of a file", function()
    local K, F = rules.keys { { "a" } }, fields.config { { "a" } }
    local function of(left, right, more) return rules.variant({ left, right, keys = K, config = F }, more) end
    local function none(more) return rules.variant({ "hf", "cs-2.4" }, more) end
    local function f() end
    local part = { left = "a", right = "b", keys = K, config = F }
    local held = { says = { left = "a", right = "b" }, models = { "llama" }, place = "p", copy = "c" }
    for text, converter in pairs {
      ["'cs-2.x' is not a format"] = of("hf", "cs-2.x"), ["is next to"] = of("cs-2.1", "cs-2.3 .. cs-2.5"),
      ["must begin with its two formats"] = { keys = K, config = F },
      ["'cs-2.1, hf': a side is either hf or releases"] = of("hf", "cs-2.1, hf"),
      ["'hf, cs-2.1': a side is either hf or releases"] = of("hf, cs-2.1", "cs-2.2"),
      ["both sides are hf"] = of("hf", "hf"), ["'cs-2.1' is on both sides"] = of("cs-2.1", "cs-2.1, cs-2.2"),
      ["has no 'prepar'; did you mean 'prepare'?"] = of("hf", "cs-2.4", { prepar = true }),
      ["has a table without a name; write keys = …"] = { "hf", "cs-2.4", K, F },
      ["mup must be one of 'gpt', 'bert', 't5', false, not 'gtp'"] = of("hf", "cs-2.4", { mup = "gtp" }),
      ["tool must be one of '1.9.1', '2.0.3', not '3'"] = of("hf", "cs-2.4", { tool = "3" }),
      ["named_from must be one of the releases 1.6, 1.7"] = of("hf", "cs-2.4", { named_from = "9.9" }),
      ["note must be a string, not 3"] = of("hf", "cs-2.4", { note = 3 }),
      ["keys must be made by rules.keys"] = none { keys = {}, config = F },
      ["config must be made by fields.config"] = none { keys = K, config = {} },
      ["a converter needs 'config'"] = none { keys = K },
      ["exactly one of 'keys', 'variants', 'components' and 'wrap', found none"] = none { config = F },
      ["found 'keys' and 'variants'"] = of("hf", "cs-2.4", { variants = {} }),
      ["a converter with 'choose' needs 'variants'"] = none { choose = f },
      ["a converter with variants needs 'choose'"] = none { variants = { a = { keys = K, config = F } } },
      ["variants is empty"] = none { variants = {}, choose = f },
      ["variants.a: a variant needs 'config'"] = none { variants = { a = { keys = K } }, choose = f },
      ["a converter with variants has no 'defaults'"] = none { variants = { a = { keys = K, config = F } }, choose = f, defaults = {} },
      ["components is empty"] = none { components = {}, config = F },
      ["components.1: a component needs 'left'"] = none { components = { {} }, config = F },
      ["two components have the same left, '"] = none { components = { part, rules.variant(part, { right = "r2" }) }, config = F },
      ["two components have the same right, '"] = none { components = { part, rules.variant(part, { left = "l2" }) }, config = F },
      ["a component has no 'wrap'"] = none { components = { rules.variant(part, { wrap = {} }) }, config = F },
      ["files.x.json must be a function"] = none { components = { rules.variant(part, { files = { ["x.json"] = 1 } }) }, config = F },
      ["files has 'model.bin'"] = none { components = { rules.variant(part, { files = { ["model.bin"] = f } }) }, config = F },
      ["files has 'config.json'"] = none { components = { rules.variant(part, { files = { ["config.json"] = f } }) }, config = F },
      ["left must be the name of a file or folder"] = none { components = { rules.variant(part, { left = ".ssh" }) }, config = F },
      ["wrap: wrap needs 'says'"] = none { wrap = {} },
      ["wrap.says: the field of each side needs 'right'"] = none { wrap = rules.variant(held, { says = { left = "a" } }) },
      ["wrap.models is empty"] = none { wrap = rules.variant(held, { models = {} }) },
      ["defaults has 'rigth'; it must be of a side, left or right"] = of("hf", "cs-2.4", { defaults = { rigth = {} } }),
      ["finish must be of a side, left or right: { right = … }, each a function, not"] = of("hf", "cs-2.4", { finish = f }),
      ["prepare.left must be a function, not a table"] = of("hf", "cs-2.4", { prepare = { left = {} } }),
      ["fill.right must be a list of { key, function }, not 'x'"] = of("hf", "cs-2.4", { fill = { right = "x" } }),
      ["entry 2 of fill.right.1 must be a function, not 3"] = of("hf", "cs-2.4", { fill = { right = { { "k", 3 } } } }),
      ["nested.left.1 must be a string"] = of("hf", "cs-2.4", { nested = { left = { 3 } } }),
    } do
      fails(text, family_files.check, { { model = "m", converter } }, "m.lua")
      fails("m.lua: ", family_files.check, { { model = "m", converter } }, "m.lua")
    end
    family_files.check({ { model = "m", none { wrap = held }, of("cs-2.1", "cs-2.2"), of("cs-2.2", "cs-2.3", { fill = false }) } }, "m.lua")
    local step = { "cs-2.1", "cs-2.2", config = F }
    family_files.check({ { model = "m", step, { "cs-2.2", "cs-2.3" } } }, "m.lua")
    equal({ rules.text(step.keys[1]), step.config == F }, { "*", true }) -- between releases, keys are copied
    fails("variants.one.defaults has 'rigth'", family_files.check, { { model = "m",
      none { variants = { one = { keys = K, config = F, defaults = { rigth = {} } } }, choose = f } } }, "m.lua")
    for _, text in ipairs {
      "cs-2.9 .. cs-2.1", "cs-2.1 - cs-2.9", "cs-2.1 .. cs-2.9-dpo", "", "hf,", "huggingface", "cs-3.7", "cs-2.4 dpo",
    } do
      fails("m.lua: '", family_files.check, { { model = "m", of("hf", text) } }, "m.lua")
    end
    for _, text in ipairs {
      "cs-1.8, cs-2.1-dpo .. cs-2.9-dpo, cs-2.2..cs-2.4", "cs-2.10", "cs-2.1 .. cs-current", "cs-2.8-dpo, cs-current-dpo",
    } do
      family_files.check({ { model = "m", of("hf", text) } }, "m.lua")
    end
    for text, pair in pairs {
      ["two tables are for hf <-> cs-2.4: this one and the one at m.lua"] = { of("hf", "cs-2.1 .. cs-2.9"), of("hf", "cs-2.4") },
      ["two tables are for cs-2.2 <-> cs-2.1"] = { of("cs-2.1", "cs-2.2"), of("cs-2.2", "cs-2.1") },
    } do
      fails(text, family_files.check, { { model = "m", unpack(pair) } }, "m.lua")
    end
    local variants = of("a", "b")
    variants.variants, variants.choose, variants.keys, variants.config = { one = { keys = K, config = F } }, f, nil, nil
    fails("between layouts of one's own needs 'keys', not 'variants'", family_files.check, { { model = "m", variants } }, "m.lua")
  end)

  it("a model of two files", function()
    local catalogue = require "converters.engine.catalogue"
    fails("there are two models 'llama': in '", catalogue.add, { { model = "llama" } }, "other.lua")
  end)

  it("models of a file", function()
    for text, models in pairs {
      ["a model needs 'model'"] = { {} }, ["model must be a string, not 3"] = { { model = 3 } },
      ["it must return a list of models"] = { model = "m" }, ["the file must return a list of models"] = {},
      ["entry 1 of the returned list must be a model"] = { "m" },
      ["a model has no 'histry'; did you mean 'history'?"] = { { model = "m", histry = {} } },
      ["name must be a string, not 3"] = { { model = "m", name = 3 } }, ["note must be a string, not 3"] = { { model = "m", note = 3 } },
      ["aliases has 1; it must be strings by name"] = { { model = "m", aliases = { "y" } } },
      ["aliases.y must be a string, not 3"] = { { model = "m", aliases = { y = 3 } } },
      ["entry 1 of model 'm' must be a converter"] = { { model = "m", "hf" } },
      ["two models are named 'm'"] = { { model = "m" }, { model = "m" } },
      ["two models are named 'a'"] = { { model = "m", aliases = { a = "m" } }, { model = "a" } },
      ["history.a.warn must be true or false or one of 'steps'"] =
        { { model = "m", history = { a = { "2.3", 1, warn = "x" } } } },
    } do
      fails("m.lua: ", family_files.check, models, "m.lua")
      fails(text, family_files.check, models, "m.lua")
    end
    for _, entry in ipairs { { "2.33", 1 }, 5, { inner = { 2, 1 } }, { "2.3" } } do
      fails("must be { release, usual }", family_files.check, { { model = "m", history = { a = entry } } }, "m.lua")
    end
  end)

  it("what a config field must be", function()
    local half = { forward = function() end }
    for part, entry in pairs {
      ["a rule has no option 'is'"] = { "a", "b", is = "size" },
      ["a rule is { left, right, pair }; with one name for both sides, write { \"a\" }"] = "a",
      ["without the other side a rule needs a pair of functions; or use fields.used.left, fields.fixed.left"] = { "a", false },
      ["or use fields.used.right"] = { false, "a" }, ["it names no field"] = {},
      ["the name on the right is missing: { \"a\", \"a\", … }"] = { "a", half },
      ["its pair of functions has no 'backward'"] = { "a", "b", half },
      ["a pair of functions has no 'forwards'; did you mean 'forward'?"] = { "a", "b", { forwards = half.forward } },
      ["the third place must be a pair of functions, not a function"] = { "a", "b", half.forward },
      ["its pair of functions has no 'forward'"] = { "a", false, { backward = half.forward } },
    } do
      fails("entry 1 of this table of config fields: ", fields.config, { entry })
      fails(part, fields.config, { entry })
    end
    fields.config { { "a", false, half }, { false, "b", { backward = half.forward } } }
  end)

  it("a file that cannot be read says where it breaks, in a line", function()
    local dir = harness.temp_dir()
    for part, text in pairs {
      ["own.lua:2: module 'converters.engine.rulez' is not available:"] = '\nlocal rules = require "converters.engine.rulez"',
      ["own.lua:2: there is no function 'rules.key'; did you mean 'rules.keys'?"] =
        'local rules = require "converters.engine.rules"\nrules.key {}',
      ["own.lua:2: there is no class 'GPT2LMHead'; did you mean 'GPT2LMHeadModel'?"] =
        'local zoo = require "converters.classes.zoo.decoder"\nlocal unknown = zoo.GPT2LMHead',
      ["the file must return a list of models"] = "return 5",
      ["the file hands over a library"] = "return { { model = 'm', note = 'n', classes = require 'cbk' } }",
      ["file hands over a library"] = "return string",
    } do
      cbk.fs.write(dir .. "/own.lua", text, { overwrite = true })
      local code, stdout = harness.cbk(dir, "rules", "own.lua")
      equal({ code, select(2, stdout:gsub("\n", "")) }, { 1, 2 }, stdout)
      assert(stdout:find(part, 1, true), stdout)
    end
  end)

  it("config rules", function()
    local found = check_config.fields(fields.config { { "a", "b" }, { "a", "b" }, { "c", "b" } })
    equal(#found, 2)
    assert(found[1].text:find("both become 'b'", 1, true) and found[2].text:find("'a' <-> 'b'", 1, true))
    found = check_config.fields(fields.config { fields.fixed.right { norm = "rms" }, fields.fixed.right { norm = "layer", bias = 1 } })
    equal(#found, 1)
    assert(found[1].text:find("two rules write 'norm', as 'rms' and as 'layer'", 1, true), found[1].text)
  end)

  it("defaults of fields that no rule names", function()
    local config = fields.config { { "n", "m" }, fields.used.left { "seen" } }
    local found = check_config.defaults { config = config, defaults = { left = { zzz = 3, seen = 1 }, right = { m = 4, nosuch = 3 } } }
    equal(#found, 2)
    assert(found[1].text:find("defaults.left has 'zzz', which", 1, true) and found[2].text:find("defaults.right has 'nosuch'", 1, true))
    equal(check_config.defaults { config = fields.config { { "*" } }, defaults = { right = { any = 1 } } }, {})
  end)

  it("conditions on fields that a class does not have", function()
    local function one(name) return class.new(name) { fields = { width = class.kinds.size(4) }, tensors = function() return {} end } end
    local own = { classes = { left = one "Left", right = one "Right" }, config = fields.config { { "width" } } }
    own.keys = rules.keys {
      { "a", "b", when = function(at) return at.right.widht == 4 end },
      { "c", "d", when = function(at) return at.side == "left" and at.left.width == 4 and at.left.model_type == "x" end },
    }
    local found = check_config.conditions(own)
    equal({ #found, found[1].text }, { 1, "its condition reads 'widht', which is no field of Right; did you mean 'width'?" })
    equal(check_config.conditions(rules.variant(own, { config = fields.config { { "*" } } })), {})
  end)

  it("fields that a class does not have, but nearly", function()
    local function no_tensors() return {} end
    local classes = {
      left = class.new "Left" { fields = { width = class.kinds.size() }, tensors = no_tensors },
      right = class.new "Right" { fields = { norm_type = class.kinds.text() }, tensors = no_tensors },
    }
    local config = fields.config { { "width", "norm_tipe" }, fields.fixed.right { norm_typ = "rmsnorm", unlike_any = 1 } }
    local found = check_config.table({ config = config }, classes)
    equal({ #found, found[1].text, found[2].text }, {
      2, "the config rule 'width' <-> 'norm_tipe' writes a field that Right does not have; did you mean 'norm_type'?",
      "the config rule fixed 'norm_typ' writes a field that Right does not have; did you mean 'norm_type'?",
    })
    found = check_config.table({ config = config }, classes, true)
    equal({ #found, found[3].text }, { 3, "the config rule fixed 'unlike_any' writes a field that Right does not have" })
  end)

  it("an extent that is no field of its class", function()
    local own = class.new "Own" { fields = { width = class.kinds.size(4) }, tensors = function() return { { "w", { "widht" } } } end }
    local found = check_config.classes { classes = { left = own } }
    equal({ #found, found[1] and found[1].text },
      { 1, "class Own: 'w' has the extent 'widht', but 'widht' is not one of its fields; did you mean 'width'?" })
    equal(check_config.classes {}, {})
  end)

  it("keys that two parts of a composite write", function()
    local function part(left, below)
      return { left = left, keys = rules.keys { { left .. ".w.N", below .. ".w.N" }, { left .. ".b", below .. ".b" } } }
    end
    equal(check.parts { part("p", "x"), part("q", "y") }, {})
    local found = check.parts { part("p", "x"), part("q", "y"), part("r", "x") }
    equal(#found, 1)
    assert(found[1].text:find("'x.w.N' belongs to two parts: 'p' writes it too", 1, true), found[1].text)
  end)

  it("releases of fields that no rule names", function()
    local config = fields.config { { "n", "m" } }
    local function found(left, more)
      local converter = rules.variant({ "hf", "cs-2.4", keys = rules.keys { { "a" } }, config = config }, more)
      local all = check_config.history { model = "x", history = left, converter }
      return #all == 1 and all[1].text or #all
    end
    equal(found { n = { "2.4", 1 }, nn = { "2.4", 1 } }, "history of x has 'nn', which no config rule names")
    equal(found { n = { "2.4", 1 } }, 0)
    equal(found({ part = { nn = { "2.4", 1 } } }, { components = { { left = "part" } } }), 0)
  end)

  it("a rule knows its line", function()
    local set = rules.keys {
      { "first", "erster" },
      { "second", "zweiter" },
    }
    local line = debug.getinfo(1, "l").currentline
    assert(position.of(set[2]):find("rules_test.lua:" .. line - 2 .. "$"), position.of(set[2]))
  end)

  it("the bundled families are clean", function()
    for _, name in ipairs(cbk.fs.list(here .. "converters")) do
      if name:find "%.lua$" then
        local looked = {}
        for _, one in ipairs(tables.of(family_files.read(here .. "converters/" .. name))) do
          local found = {}
          if not looked[one.keys] then found = check.keys(one.keys) end
          looked[one.keys] = true
          for _, finding in ipairs(one.config and check_config.table(one.own, one.model.classes) or {}) do found[#found + 1] = finding end
          equal(found[1] and found[1].text, nil, one.title)
        end
      end
    end
  end)
end)

describe("Rules: coverage", function()
  local llama = tables.of(family_files.read(here .. "converters/llama.lua"), "llama")
  local some = {
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight", "stranger.0",
  }

  it("a condition that needs tensors counts as met, but not where it refuses", function()
    local path = harness.temp_dir() .. "/mine.lua"
    cbk.fs.write(path, [[
local rules = require "converters.engine.rules"
local function strange(at) return at.source:find(at.key):numel() > 4 end
return { { model = "mine", note = "a model", { "a", "b", keys = rules.keys {
  rules.refuse.left("w", "it is strange", strange), { "w", "v", when = strange }, rules.refuse.left("x", "never"),
} } } }
]])
    local best = coverage.best(tables.of(family_files.read(path)), { "w", "x" })
    equal({ best.matched, best.refused }, { 2, { "x" } })
  end)

  it("the table that fits best reads the keys", function()
    local best = coverage.best(llama, some)
    equal({ best.side, best.matched, best.unmatched }, { "left", 4, { "stranger.0" } })
    assert(best.tables[1].title:find "hf <%-> cs%-2.1")
    local idle = {}
    for _, rule in ipairs(best.idle) do idle[rules.text(rule)] = true end
    assert(idle["model.layers.N.mlp.up_proj.{weight,bias} <-> transformer_decoder.layers.N.ffn.ffn.0.linear_layer.{weight,bias}"])
    assert(not idle["lm_head.{weight,bias}"])
  end)

  it("a file's other models do not matter", function()
    local both = tables.of(family_files.read(here .. "converters/llama.lua"))
    equal(coverage.best(both, { "model.embed_tokens.weight", "lm_head.weight" }).tables[1].model.model, "llama")
    equal(coverage.best(both, { "embed_tokens.weight", "norm.weight" }).tables[1].model.model, "llama-headless")
  end)

  it("a config decides between tables and answers conditions", function()
    local falcon = tables.of(family_files.read(here .. "converters/falcon.lua"), "falcon")
    local config = cbk.dict {
      model_type = "falcon", hidden_size = 16, num_attention_heads = 4, num_hidden_layers = 1, vocab_size = 3, multi_query = true,
    }
    local best = coverage.best(falcon, { "transformer.h.0.input_layernorm.weight", "transformer.ln_f.weight" }, config)
    equal(best.matched, 2)
    assert(best.tables[1].title:find "180B", best.tables[1].title)
    local none, why = coverage.best(falcon, { "a" }, cbk.dict { model_type = "bert" })
    equal({ none.matched, why:find("model_type", 1, true) ~= nil }, { 0, true }, why)
  end)

  it("parts of a composite, together and one alone", function()
    local llava = tables.of(family_files.read(here .. "converters/llava.lua"))
    local image, text = "vision_model.pre_layrnorm.weight", "model.norm.weight"
    for _, keys in ipairs { { "image_model/" .. image, "text_model/" .. text }, { image }, { text } } do
      local best = coverage.best(llava, keys)
      equal({ best.side, best.matched, best.unmatched }, { "left", #keys, {} })
    end
    equal(coverage.best(llava, { image, text }).matched, 1) -- no file holds both
  end)

  it("what a model holds is read by that one's table", function()
    local dpo = tables.of(family_files.read(here .. "converters/dpo.lua"))
    local best = coverage.best(dpo, { "policy_model.model.lm_head.weight", "ref_model.model.lm_head.weight", "ref_model.x" })
    equal({ best.side, best.matched, best.unmatched }, { "right", 2, { "ref_model.x" } })
    equal(coverage.best(dpo, { "gpt_neox.final_layer_norm.weight" }).tables[1].held, "gpt-neox")
    equal(coverage.best(tables.of(family_files.read(here .. "converters/dpo.lua"), "falcon"), { "a" }).matched, 0)
  end)

  it("keys of checkpoints", function()
    local tensor = cbk.tensor { 1 }
    equal(tensor_names.keys_of(cbk.dict { model = cbk.dict { ["a.w"] = tensor }, optimizer = cbk.dict() }), { "a.w" })
    equal(tensor_names.keys_of(cbk.dict { eye = cbk.dict { w = tensor }, tongue = cbk.dict { w = tensor } }), { "eye/w", "tongue/w" })
  end)
end)

describe("Rules: the command", function()
  local newest = tiny.newest_ways()

  local function clean(dir, ...)
    local code, stdout, stderr = harness.cbk(dir, "rules", ...)
    equal(code, 0, stdout .. stderr)
    return stdout
  end

  it("a correct file is clean, whatever else it holds", function()
    local dir = harness.temp_dir()
    for _, name in ipairs { "llama", "llama-headless", "falcon", "falcon-headless", "dpo" } do
      local _, root = tiny.model(newest[name])
      cbk.create(dir .. "/" .. name .. ".bin", { root = root }):commit { progress = false }
    end
    for _, name in ipairs { "llama", "falcon" } do
      local file = cbk.fs.absolute(here .. "converters/" .. name .. ".lua")
      assert(clean(dir, file, name .. ".bin"):find("\n" .. name .. ", hf to cs-2.1", 1, true))
      assert(clean(dir, file, name .. "-headless.bin"):find("\n" .. name .. "-headless, hf to cs-2.1", 1, true))
    end
    assert(clean(dir, "dpo", "dpo.bin"):find("\ndpo of gpt2, hf to cs-2.1-dpo .. cs-2.9-dpo", 1, true))
    local code, stdout = harness.cbk(dir, "rules", "dpo", "llama-headless.bin")
    equal(code, 1, stdout)
  end)

  local own_file = [[
local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
return { { model = "own", note = "a model",
  { "hf", "cs-2.4",
    keys = rules.keys { { "embed.weight", "e.weight" }, { "h.N.w", "l.N.w" }, { "head.weight" } },
    config = fields.config { { "n", "num_hidden_layers" } },
    %s
  },
  %s
} }
]]

  it("what a file cannot say is refused with its line, by every command", function()
    local dir = harness.temp_dir()
    for part, case in pairs {
      ["own.lua:6: tool must be one of"] = { "tool = '3'", "" },
      ["own.lua:8: two tables are for hf <-> cs-2.4: this one and the one at own.lua:3"] =
        { "", '{ "hf", "cs-2.1 .. cs-2.5", keys = rules.keys { { "a" } }, config = fields.config { { "a" } } }' },
      ["own.lua:8: a converter needs 'config'"] = { "", '{ "hf", "cs-2.5", keys = rules.keys { { "a" } } }' },
      ["own.lua:2: aliases has 1"] = { "", 'aliases = { "y" }' },
    } do
      cbk.fs.write(dir .. "/own.lua", own_file:format(case[1], case[2]), { overwrite = true })
      for _, command in ipairs { { "rules", "own.lua" }, { "list", "--converter", "own.lua" } } do
        local code, stdout, stderr = harness.cbk(dir, unpack(command))
        equal(code ~= 0 and (stdout .. stderr):find(part, 1, true) ~= nil, true, part .. ": " .. stdout .. stderr)
      end
    end
  end)

  it("a table about 2.10 is listed by the format that it is for users", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", (own_file:format("", ""):gsub("cs%-2%.4", "cs-2.8, cs-2.10")))
    local _, stdout = harness.cbk(dir, "list", "--converter", "own.lua", "own", "--src-fmt", "hf", "--all", "--hide-notes")
    equal(stdout, "model  src-fmt  tgt-fmt\nown    hf       cs-2.8, cs-2.9\n")
  end)

  it("rules without a key; keys out of a pipe", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", own_file:format("", ""))
    cbk.fs.write(dir .. "/config.json", '{"n": 1}')
    local tensor = cbk.tensor { 1 }
    cbk.create(dir .. "/own.bin", { root = cbk.dict { ["embed.weight"] = tensor, ["h.0.w"] = tensor } }):commit { progress = false }
    local code, stdout = harness.cbk(dir, "rules", "own.lua", "own.bin", "--config", "config.json")
    equal(code, 0, stdout)
    assert(stdout:find("1 rule without a key:\n  head.weight (own.lua", 1, true), stdout)
    clean(dir, "own.lua", "own.bin")
    if cbk.fs.exists "/dev/stdin" then
      local piped = io.popen(("cd '%s' && echo h.0.w | '%s' rules own.lua --keys /dev/stdin"):format(dir, cbk.fs.program()))
      local reported = piped:read "*a"
      piped:close()
      assert(reported:find("own, hf to cs-2.4: 1 of 1 keys fit", 1, true), reported)
    end
  end)

  it("parts of a tensor that rules.each counts: one that is not there, one too many", function()
    local each = '{ rules.each("x.N.E.w", "E", "experts"), "y.N", experts }'
    local file = own_file:format("", ""):gsub('{ "head.weight" }', each):gsub('{ { "n"', '{ { "experts" }, { "n"')
    local function reported(count, names)
      local dir = harness.temp_dir()
      cbk.fs.write(dir .. "/own.lua", 'local experts = require "converters.vocabulary.actions".pair("experts", function(list) '
        .. 'return require "cbk".cat(list, 0) end, function(t) return t:split(1, 0) end)\n' .. file)
      cbk.fs.write(dir .. "/config.json", ('{"n": 2, "experts": %d}'):format(count))
      local root = cbk.dict { ["embed.weight"] = cbk.tensor { 1 } }
      for name in names:gmatch "%S+" do root[name] = cbk.tensor { 1 } end
      cbk.create(dir .. "/own.bin", { root = root }):commit { progress = false }
      local _, found = harness.cbk(dir, "rules", "own.lua", "own.bin", "--config", "config.json")
      local code, planned, refused = harness.cbk(dir, "convert", "--converter", "own.lua", "--model", "own", "--src-fmt", "hf", "--tgt-fmt",
        "cs-2.4", "--config", "config.json", "own.bin", "--dry-run")
      refused = refused:gsub("warning: no class describes[^\n]*\n", "")
      equal({ found:find("\nclean\n", 1, true) ~= nil, code == 0 }, { refused == "", refused == "" }, found .. refused)
      equal(planned:find("up to the error: keys read:", 1, true) ~= nil, code ~= 0, planned)
      return found, refused
    end
    reported(2, "x.0.0.w x.0.1.w x.1.0.w x.1.1.w")
    local found, refused = reported(2, "x.0.0.w x.0.1.w x.1.1.w")
    assert(found:find("refuses this: 1 key is expected in the checkpoint but missing: x.1.0.w", 1, true), found)
    assert(refused:find("expected in the checkpoint but missing: x.1.0.w", 1, true), refused)
    found, refused = reported(1, "x.0.0.w x.0.1.w x.1.0.w")
    for _, text in ipairs { found, refused } do
      assert(text:find("; 1 of them has a number beyond experts=1 of the config", 1, true), text)
    end
    assert(not refused:find("all keys fit", 1, true), refused)
    assert(not select(2, reported(1, "x.0.0.w x.1.0.w stranger")):find("beyond", 1, true))
  end)

  it("a composite's folder, and the file of one part", function()
    local dir = harness.temp_dir()
    local config, root = tiny.model(tiny.composite "llava")
    for part, tensors in cbk.items(root) do
      cbk.fs.mkdir(dir .. "/model/" .. part)
      cbk.create(dir .. "/model/" .. part .. "/pytorch_model.bin", { root = tensors }):commit { progress = false }
      cbk.config.save(config[part], dir .. "/model/" .. part .. "/config.json")
    end
    assert(clean(dir, "llava", "model"):find "llava, hf to cs%-2.2 .. cs%-2.9: (%d+) of %1 keys fit")
    clean(dir, "llava", "model", "--config", "model")
    clean(dir, "llava", "model/text_model/pytorch_model.bin")
  end)
end)

describe("Rules: the notation", function()
  ---The sources of a folder below converters/, as one text each.
  local function sources(...)
    local out = {}
    for _, folder in ipairs { ... } do
      for _, name in ipairs(cbk.fs.list(here .. folder)) do
        if name:find "%.lua$" then out[#out + 1] = cbk.fs.read(cbk.fs.join(here .. folder, name)) end
      end
    end
    return out
  end
  local families = sources("converters", "converters/shared", "scripts/lib/cbk/infer") -- which writes converters
  local programs = sources("converters/engine", "converters/conversion", "scripts", "scripts/lib/cbk",
    "scripts/lib/cbk/converters", "scripts/lib/cbk/recognise", "scripts/lib/cbk/upgrade")

  local function any(texts, pattern)
    for _, text in ipairs(texts) do
      if text:find(pattern) then return true end
    end
    return false
  end

  it("fields of models, converters, components and wrappers are read and used", function()
    for what, record in pairs(family_files.records) do
      for word in pairs(record.fields) do
        if type(word) == "string" then
          assert(any(programs, "[.%[]\"?" .. word .. "%f[%W]"), ("nothing reads '%s' of %s"):format(word, what))
          assert(any(families, "%f[%w_]" .. word .. " = "), ("no family has '%s' of %s"):format(word, what))
        end
      end
    end
  end)
end)

describe("Rules: layouts of a user's own", function()
  local text = [[
    local cbk = require "cbk"
    local rules, fields = require "converters.engine.rules", require "converters.engine.fields"
    local actions = require "converters.vocabulary.actions"
    local stack = actions.pair("stack", function(parts) return cbk.cat(parts, 0) end,
      function(t, at) return t:split(t:shape()[1] / at.right.experts, 0) end)
    return { { model = "mine", { FORMATS,
      keys = rules.keys { { "emb.w", "embed.weight" }, { "blk.N.up", "layers.N.up.weight", actions.transpose },
        { rules.each("blk.N.e.E", "E", "experts"), "layers.N.e", stack } },
      config = fields.config { { "dim", "width" }, { "n_exp", "experts" } } } } }]]

  ---The checkpoint of the left, as a training script saves it.
  local function left()
    local root = cbk.dict { { "emb.w", cbk.randn({ 6, 4 }, { seed = 1 }) } }
    for layer = 0, 1 do
      root[("blk.%d.up"):format(layer)] = cbk.randn({ 4, 8 }, { seed = layer + 2 })
      for e = 0, 1 do root[("blk.%d.e.%d"):format(layer, e)] = cbk.randn({ 2, 4 }, { seed = 10 * layer + e + 5 }) end
    end
    return root
  end

  ---A folder with the converter, both checkpoints and their configs; `run(command, checkpoint, config)` runs `rules` or `convert`.
  local function folder(first, second)
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", (text:gsub("FORMATS", ("%q, %q"):format(first, second))))
    cbk.create(dir .. "/left.pt", { root = cbk.dict { state_dict = left(), step = 3 } }):commit { progress = false }
    for name, config in pairs {
      ["left.json"] = { dim = 4, n_exp = 2 }, ["left.yaml"] = { dim = 4, n_exp = 2 }, ["more.json"] = { dim = 4, n_exp = 3 },
      ["less.json"] = { dim = 4 }, ["other.json"] = { a = 1 },
    } do
      cbk.config.save(cbk.dict(config), dir .. "/" .. name)
    end
    cbk.fs.write(dir .. "/list.json", "[1]")
    local code, _, err = harness.cbk(dir, "convert", "left.pt", "--converter", "own.lua", "--to", second, "--config", "left.json", "-o",
      "right")
    equal(code, 0, err)
    local right, config
    for _, name in ipairs(cbk.fs.list(dir .. "/right")) do
      if name:find "%.json$" or name:find "%.yaml$" then config = "right/" .. name else right = "right/" .. name end
    end
    return dir, right, config or right .. "/config.json"
  end

  for _, formats in ipairs { { "a", "b" }, { "a", "hf" }, { "hf", "b" }, { "a", "cs-2.4" }, { "cs-2.4", "b" } } do
    local first, second = unpack(formats)
    it(("are checked as convert checks them: %s, %s"):format(first, second), function()
      local dir, right, config = folder(first, second)
      ---A checkpoint, its config, and why both commands refuse it.
      local cases = {
        { "left.pt", "left.json" }, { "left.pt", "left.yaml" }, { right, config },
        { "left.pt", "more.json", "2 keys are expected in the checkpoint but missing: blk.0.e.2" },
        { "left.pt", "less.json", "'experts' counts 'E', and is null" },
        { "left.pt", config, ("on the side of %s: "):format(first), ("it is a config of %s"):format(second) },
        { "left.pt", "other.json", ("the config has no field that the table knows on the side of %s: a"):format(first) },
        { "left.pt", "list.json", "the config should be a map of fields, found a list" },
        { right, "left.json", ("it is a config of %s"):format(first) },
      }
      for _, case in ipairs(cases) do
        local file, own_config, why, more = unpack(case)
        local is_left = file == "left.pt"
        local code, out = harness.cbk(dir, "rules", "own.lua", file, "--config", own_config)
        local converted, _, err = harness.cbk(dir, "convert", file, "--converter", "own.lua", "--to", is_left and second or first,
          "--config", own_config, "-o", "out", "--dry-run")
        equal({ code, converted }, why and { 1, 1 } or { 0, 0 }, file .. " " .. own_config .. "\n" .. out .. err)
        for _, part in ipairs { why, more } do
          assert(out:find(part, 1, true) and err:find(part, 1, true), part .. "\n" .. out .. err)
        end
        local reading = ("mine, %s to %s: "):format(is_left and first or second, is_left and second or first)
        assert(out:find(reading .. (is_left and "7 of 7" or "5 of 5") .. " keys fit", 1, true), out)
        assert(not out:find("attempt to", 1, true), out)
      end
    end)
  end

  it("say that a checkpoint has the layout already, and which formats there are", function()
    local dir, right, config = folder("a", "b")
    local function refused(part, ...)
      local code, _, err = harness.cbk(dir, "convert", "left.pt", "--converter", "own.lua", ...)
      equal(code, 1)
      assert(err:find(part, 1, true), err)
    end
    refused("all keys are those of a: the checkpoint has this layout already, and --to b makes the other one of it", "--to", "a",
      "--config", config)
    refused("mine converts between a and b; use --to a or b", "--to", "c", "--config", "left.json")
    local code, _, err = harness.cbk(dir, "convert", right, "--converter", "own.lua", "--to", "a", "--config", config)
    equal(code, 0, err)
  end)

  it("without a config are converted without one", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local rules = require "converters.engine.rules"
      return { { model = "mine", { "a", "b", keys = rules.keys { { { "x", "y" }, "z", { name = "join",
        forward = function(parts) return parts[1] end, backward = function(t) return { t, t } end } } } } } }]])
    cbk.create(dir .. "/m.pt", { root = cbk.dict { x = cbk.full({ 2 }, 1) } }):commit { progress = false }
    local code, out = harness.cbk(dir, "rules", "own.lua", "m.pt")
    local converted, _, err = harness.cbk(dir, "convert", "m.pt", "--converter", "own.lua", "--to", "b")
    equal({ code, converted }, { 1, 1 })
    for _, said in ipairs { out, err } do assert(said:find("1 key is expected in the checkpoint but missing: y", 1, true), said) end
  end)
end)
