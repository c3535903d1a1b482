-- Config values in a table of a user's own: each arrives, is reported as lost, or is refused by its name.

local cbk = require "cbk"
local class = require "converters.engine.class"
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
