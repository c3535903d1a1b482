-- Classes, keyword tables, ordered maps, errors and warnings of cstorch.

local cbk = require "cbk"
local class = require "cstorch.class"
local cstorch = require "cstorch"
local harness = require "harness"
local keywords = require "cstorch.keywords"
local ordered_map = require "cstorch.ordered_map"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises

--- Warnings of `body`, and their details.
local function warnings_of(body)
  local texts, details = {}, {}
  local before = cstorch.on_warning(function(text, info)
    texts[#texts + 1], details[#details + 1] = text, info or false
  end)
  local fine, problem = pcall(body)
  cstorch.on_warning(before)
  if not fine then error(problem, 0) end
  return texts, details
end

describe("cstorch: class", function()
  local Base = class.Object:subclass("Base", { width = keywords.REQUIRED, rate = 0.5, note = keywords.OPTIONAL, sizes = { 1, 2 } })
  function Base:init(first, kw) self.first, self.kw = first, kw end
  function Base:describe() return "base " .. self.first end

  it("completes the keyword table of its init", function()
    local object = Base("x", { width = 3 })
    equal(object.kw, { width = 3, rate = 0.5, sizes = { 1, 2 } })
    equal(object.first, "x")
    equal(Base("x", { width = 3, rate = false }).kw.rate, false)
  end)

  it("gives each object its own defaults", function()
    Base("x", { width = 3 }).kw.sizes[1] = 9
    equal(Base("x", { width = 3 }).kw.sizes[1], 1)
  end)

  it("prints an object with the keywords that it keeps, a class and a module by name", function()
    local Kept = Base:subclass "Kept"
    function Kept:init(kw) self.width, self.note, self.sizes = kw.width, kw.note, kw.sizes end
    equal(tostring(Kept { width = 3, note = "x" }), 'Kept { note = "x", sizes = { 1, 2 }, width = 3 }')
    equal({ tostring(Base("x", { width = 3 })), tostring(Kept), tostring(cstorch.optim) }, { "Base", "class Kept", "module cstorch.optim" })
  end)

  it("prints an optimizer with its groups, also on CSX", function()
    cstorch.testing.reset()
    local layer = cstorch.nn.Linear(2, 1)
    local function optimizer()
      return cstorch.optim.SGD({ { params = layer.weight }, { params = { layer.bias }, lr = 2 } }, { lr = 0.5 })
    end
    local text = [[SGD
  group 1 (parameters: 1): dampening = 0, lr = 0.5, maximize = false, momentum = 0, nesterov = false, weight_decay = 0
  group 2 (parameters: 1): dampening = 0, lr = 2, maximize = false, momentum = 0, nesterov = false, weight_decay = 0]]
    equal(tostring(optimizer()), text)
    local compiled = cstorch.compile(layer, { backend = "CSX" })
    is_true(tostring(optimizer()):find("lr = ", 1, true))
    equal(tostring(compiled), tostring(layer))
    cstorch.testing.reset()
  end)

  it("leaves tables of the caller the same tables", function()
    local list = { 5 }
    is_true(Base("x", { width = 1, sizes = list }).kw.sizes == list)
  end)

  it("takes null as absent, and dicts of cbk", function()
    equal(Base("x", { width = 3, rate = cbk.null }).kw.rate, 0.5)
    local kw = Base("x", cbk.config.parse("width: 4\nsizes: [7, 8]\nnote: null\n", "yaml")).kw
    equal(kw, { width = 4, rate = 0.5, sizes = { 7, 8 } })
  end)

  for name, case in pairs {
    ["an unknown keyword"] = { "unknown keyword 'widht'; did you mean 'width'?", { width = 1, widht = 2 } },
    ["a missing keyword"] = { "keyword 'width' is missing", {} },
    ["a missing table"] = { "keyword 'width' is missing", nil },
    ["a number in the place of the table"] = { "expected a keyword table such as { name = value }, found 3", 3 },
  } do
    it("refuses " .. name, function() raises(case[1], function() Base("x", case[2]) end, "type") end)
  end

  it("refuses too many arguments", function() raises("expected 1 arguments", function() Base("x", { width = 1 }, 2) end, "type") end)

  it("inherits methods, keywords and metamethods", function()
    function Base:__call(y) return self.first .. y end
    local Derived = Base:subclass("Derived", { rate = 2, note = keywords.REMOVED, depth = 1 })
    local object = Derived("d", { width = 1 })
    equal(object:describe(), "base d")
    equal(object "e", "de")
    equal(object.kw, { width = 1, rate = 2, sizes = { 1, 2 }, depth = 1 })
    raises("unknown keyword 'note'", function() Derived("d", { width = 1, note = 2 }) end, "type")
    raises('Derived: unknown keyword \'bits\'; declare it: :subclass("Derived", { bits = 8 })',
      function() Derived("d", { width = 1, bits = 8 }) end, "type")
    is_true(object:isinstance(Base) and object:isinstance(Derived) and object.class == Derived and Derived.super == Base)
    is_true(not Base("x", { width = 1 }):isinstance(Derived))
    equal({ Derived.name, tostring(Derived) }, { "Derived", "class Derived" })
  end)

  it("takes the arguments of an init without keywords as they are", function()
    local Point = class.Object:subclass "Point"
    function Point:init(...) self.values = { ... } end
    equal(Point(1, 2, 3).values, { 1, 2, 3 })
  end)

  it("must call the init of a base of the library, with the object", function()
    local function sub(base, init)
      local Sub = base:subclass("Sub", {})
      Sub.init, Sub.preinitialize, Sub.step, Sub._get_closed_form = init, function() end, function() end, function() end
      return Sub
    end
    local params = { cstorch.nn.Parameter(cstorch.ones { 1 }) }
    local optimizer = cstorch.optim.SGD(params, { lr = 1 })
    local function nothing(self, _, kw) self.kw = kw end
    for base, subject in pairs { [cstorch.optim.Optimizer] = params, [cstorch.optim.lr_scheduler.LRScheduler] = optimizer } do
      raises("Sub: its init must call Sub.super.init(self, ...)", function() sub(base, nothing)(subject) end, "runtime")
    end
    local Lost = cstorch.nn.Module:subclass "Lost"
    function Lost.init() Lost.super.init() end
    raises("pass the object first, as in Class.super.init(self, ...)", function() Lost() end, "type")
    local Vector = cstorch.optim.lr_scheduler.LRScheduler:subclass("Vector", {})
    function Vector:_get_closed_form() return self.last_epoch:reshape { 1 }:expand { 2 } end
    raises("must return a 0-dim tensor, not one of shape [2]", function() Vector(optimizer) end, "value")
  end)

  it("lets a class intercept indexing", function()
    local Box = class.Object:subclass "Box"
    function Box:init() rawset(self, "inside", {}) end
    function Box.__index(object, key)
      local value = rawget(object, "inside") and rawget(object, "inside")[key]
      if value ~= nil then return value end
      return getmetatable(object).class[key]
    end
    function Box.__newindex(object, key, value) object.inside[key] = value end
    local Derived = Box:subclass "DerivedBox"
    function Derived.twice(object) return object.x * 2 end
    local object = Derived()
    object.x = 4
    equal({ object.x, object:twice(), rawget(object, "x") }, { 4, 8, nil })
  end)

  it("refuses to make objects that lack abstract methods", function()
    local Shape = class.Object:subclass "Shape"
    Shape.abstract = { "area", { "edge", "side" } }
    local Square = Shape:subclass "Square"
    raises("Square: the class lacks the abstract method area, edge or side", Square, "type")
    function Square.area() return 1 end
    function Square.side() return 1 end
    equal(Square():area(), 1)
  end)

  it("knows its descendants by lower-cased name", function()
    local One = Base:subclass "FirstOfTwo"
    local Two = One:subclass "SecondOfTwo"
    local known = class.descendants(Base)
    is_true(known.firstoftwo == One and known.secondoftwo == Two)
  end)
end)

describe("cstorch: ordered map", function()
  it("keeps the order of its keys", function()
    local map = ordered_map.new()
    map.b, map.a = 1, 2
    map[0] = 3
    map.b = nil
    map.b = 4
    map.missing = nil
    equal(ordered_map.keys(map), { "a", 0, "b" })
    equal({ map.a, map[0], map.b, map.c }, { 2, 3, 4, nil })
  end)

  it("copies maps and plain tables, whose names it sorts", function()
    equal(ordered_map.keys(ordered_map.new { c = 1, a = 2, b = 3 }), { "a", "b", "c" })
    local map = ordered_map.new { x = 1 }
    local copy = ordered_map.new(map)
    copy.x = 2
    equal(map.x, 1)
  end)

  it("is one of the maps of cbk.items", function()
    local keys = {}
    for key in cbk.items(ordered_map.new { b = 1, a = 2 }) do keys[#keys + 1] = key end
    for key in cbk.items(cbk.dict { c = 1 }) do keys[#keys + 1] = key end
    equal(keys, { "a", "b", "c" })
  end)

  it("may change during a loop", function()
    local map, seen = ordered_map.new { a = 1, b = 2, c = 3 }, {}
    for key in cstorch.items(map) do
      seen[#seen + 1] = key
      map.b = nil
      map.z = 1
    end
    equal(seen, { "a", "c" })
  end)
end)

describe("cstorch: error", function()
  it("is a table with kind, message and place", function()
    local fine, problem = pcall(cstorch.check, false, "value", "x must be %s, not %d", "small", 7)
    equal({ fine, problem.kind, problem.message }, { false, "value", "x must be small, not 7" })
    is_true(problem.where:find "cstorch_class_test.lua:%d+$")
    equal(tostring(problem), ("x must be small, not 7 (%s)"):format(problem.where))
    equal(cstorch.check(5, "value", "never"), 5)
  end)

  it("names what looks like an unknown name", function()
    raises("cstorch.optim has no 'AdmW'; did you mean 'AdamW'?", function() return cstorch.optim.AdmW end, "value")
  end)
end)

describe("cstorch: warning", function()
  it("comes once for each text, with its details", function()
    cstorch.testing.reset()
    local errors = require "cstorch.errors"
    local texts, details = warnings_of(function()
      errors.warn("same", { unused = { "x" } })
      errors.warn("same", { unused = { "x" } })
      errors.warn "other"
    end)
    equal(texts, { "same", "other" })
    equal(details, { { unused = { "x" } }, false })
  end)

  it("goes back to the sink before", function()
    cstorch.testing.reset()
    local first = function() end
    equal(cstorch.on_warning(first), nil)
    is_true(cstorch.on_warning(nil) == first)
    raises("expected a function", function() cstorch.on_warning "x" end, "type")
  end)
end)
