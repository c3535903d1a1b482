-- Config values in a table of a user's own: each arrives, is reported as lost, or is refused by its name.

local cbk = require "cbk"
local check_config = require "converters.authoring.check_config"
local class = require "converters.engine.class"
local conversion = require "conversion"
local fields = require "converters.engine.fields"
local harness = require "harness"
local sections = require "converters.engine.sections"
local values = require "converters.vocabulary.values"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

---Converts a config from one side by config rules.
---@return Dict to, string[] dropped
local function convert(side, written, config, more)
  local step = fields.with({ config = fields.config(written) }, more or {})
  local to, _, dropped = sections.convert(step, side, cbk.dict(config))
  return to, dropped
end

describe("Values of one's own: in_map", function()
  local rule = { { "heads", "map", values.in_map { { "n", field = "heads" }, { "kind", value = 1 } } } }

  it("comes back", function()
    equal(cbk.json(convert("left", rule, { heads = 4 }).map), '{"n": 4, "kind": 1}')
    equal(convert("right", rule, { map = cbk.dict { n = 4, kind = 1 } }).heads, 4)
  end)

  it("reports entries without a place, and refuses others and missing ones", function()
    local to, dropped = convert("right", rule, { map = cbk.dict { n = 4, kind = 1, extra = 3, none = cbk.null } })
    equal({ to.heads, dropped }, { 4, { "map.extra" } })
    for part, map in pairs {
      ["cannot convert the config with map.kind=2"] = cbk.dict { n = 4, kind = 2 },
      ["the config has no 'map.kind'"] = cbk.dict { n = 4 }, ["the config has no 'map.n'"] = cbk.dict { kind = 1 },
      ["cannot convert the config with map=[1, 2]: only a map with 'n', 'kind' is supported"] = cbk.list { 1, 2 },
      ["cannot convert the config with map=null"] = cbk.null,
    } do
      raises(part, function() convert("right", rule, { map = map }) end)
    end
  end)
end)

describe("Values of one's own: times_field", function()
  local rule = { { "size", "inner", values.times_field("heads", "num_heads") }, { "heads", "num_heads" } }

  it("names what it cannot compute with", function()
    equal(convert("left", rule, { size = 4, heads = 2 }).inner, 8)
    for part, config in pairs {
      ["the config has no 'heads', which 'size' is converted with"] = { size = 4 },
      ["cannot convert the config with heads=null"] = { size = 4, heads = cbk.null },
      ["cannot convert the config with size=null"] = { size = cbk.null, heads = 2 },
      ["cannot convert the config with size='4'"] = { size = "4", heads = 2 },
    } do
      raises(part, function() convert("left", rule, config) end)
    end
    raises("cannot convert the config with num_heads=0", function() convert("right", rule, { inner = 8, num_heads = 0 }) end)
  end)
end)

describe("Values of one's own: unlike defaults", function()
  local number, rate = class.makers "number rate"
  local function none() return {} end
  local function both(left, right)
    return { own_file = "own.lua", classes = { left = class.new "Left" { fields = left, tensors = none },
      right = class.new "Right" { fields = right, tensors = none } } }
  end
  local more = both({ width = number(4), eps = number(1e-5), drop = rate(0.1) }, { width = number(4), layer_eps = number(1e-6, "eps"),
    drop = rate(0.2) })
  local text = "no rule names the field 'eps', whose default is 1e-05 in Left and 1e-06 in Right"

  it("of a field without a rule are a warning, and a finding", function()
    for side, config in pairs { left = { eps = 1e-5 }, right = {} } do
      equal(conversion.warnings(function() convert(side, { { "width" } }, config, more) end), { text
        .. ": the output computes with its own; add a rule for it" })
    end
    local own = fields.with({ config = fields.config { { "width" } } }, more)
    equal(check_config.unlike(own), { { kind = "unlike defaults", text = text .. "; add a rule for it" } })
    equal(conversion.warnings(function() convert("left", { { "*" } }, { width = 3 }, more) end), {
      (text:gsub("no rule names", 'only the rule { "*" } has')) .. ": the output computes with its own; add a rule for it" })
    equal(conversion.warnings(function() convert("left", { { "eps", "layer_eps" }, { "*" } }, {}, more) end), {})
  end)

  it("are none where a rule or a function writes the field", function()
    local finish = fields.with(more, { finish = { right = function(to) to.layer_eps = 1e-5 end } })
    for _, case in ipairs { { { { "width" }, { "eps", "layer_eps" } }, more }, { { { "width" } }, finish },
      { { { "width" }, fields.fixed.right { layer_eps = 1e-5 } }, more } } do
      equal(conversion.warnings(function() convert("left", case[1], {}, case[2]) end), {})
      equal(check_config.unlike(fields.with({ config = fields.config(case[1]) }, case[2])), {})
    end
  end)
end)

describe("Values of one's own: two rules of one field", function()
  local rule = { { "n", "m" }, { "n", "k", { forward = function(n) return 2 * n end, backward = function(k) return k / 2 end } } }

  it("write both fields, and must agree on the way back", function()
    local there = convert("left", rule, { n = 3 })
    equal({ there.m, there.k }, { 3, 6 })
    equal(convert("right", rule, { m = 3, k = 6 }).n, 3)
    raises("both give 'n', with the values ", function() convert("right", rule, { m = 3, k = 8 }) end)
    local back = convert("right", { { "a", "d" }, { "w", "d" } }, { d = 3 })
    equal({ back.a, back.w }, { 3, 3 })
  end)

  it("must be of two fields of the other side", function()
    raises("two config rules are of 'n' and 'm': only one can give the value", function()
      fields.config { { "n", "m" }, { "n", "m", values.activation } }
    end)
  end)

  it("lose a value only if neither has a place for it", function()
    local none = { forward = function() end, backward = function() end }
    equal(select(2, convert("left", { { "n", "m", none }, { "n", "k" } }, { n = 3 })), {})
    equal(select(2, convert("left", { { "n", "m", none }, { "n", "k", none } }, { n = 3 })), { "n" })
  end)
end)

describe("Values of one's own: functions", function()
  local twice = { forward = function(n, at) return n * at.from.by end, backward = function(n) return n end }

  it("that compute with null are refused with the field", function()
    raises("cannot convert the config with n=null: only a value that is not null is supported", function()
      convert("left", { { "n", "m", twice }, { "by" } }, { n = cbk.null, by = 2 })
    end)
    raises("a function of the converter fails (a Value cannot be multiplied), and null is the value of by, other; give", function()
      convert("left", { { "n", "m", twice }, { "by" }, { "other" } }, { n = 2, by = cbk.null, other = cbk.null })
    end)
    local finish = { finish = { right = function(to) to.k = to.n * 2 end } }
    raises("null is the value of n; give these fields values", function() convert("left", { { "n" } }, { n = cbk.null }, finish) end)
    raises("field 'by' (a nil value)", function() convert("left", { { "n", "m", twice } }, { n = 2 }) end)
  end)

  it("give numbers, unless the config has none either", function()
    local half = { forward = function(n) return n / 0 end, backward = function(n) return n end }
    raises("nan, which must be a finite number", function() convert("left", { { "n", "m", half } }, { n = 0 }) end)
    raises("cannot convert the config with n=2: m would be inf, which must be a finite number", function()
      convert("left", { { "n", "m", half } }, { n = 2 })
    end)
    equal(convert("left", { { "n" } }, { n = 1 / 0 }).n, 1 / 0)
  end)
end)
