local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

describe("Dict", function()
  it("keeps the order of its entries", function()
    local dict = cbk.dict { { "b", 1 }, { "a", 2 }, { "c", 3 } }
    t.equal(cbk.keys(dict), { "b", "a", "c" })
    dict.a, dict.d = 20, 4
    t.equal(cbk.keys(dict), { "b", "a", "c", "d" })
    dict.b = nil
    t.equal(cbk.json(dict), '{"a": 20, "c": 3, "d": 4}')
    t.equal(cbk.count(dict), 3)
  end)

  it("sorts the names of a plain table", function()
    t.equal(cbk.json(cbk.dict { z = 1, a = { 1, 2 }, m = { x = true } }), '{"a": [1, 2], "m": {"x": true}, "z": 1}')
  end)

  it("is data under every name", function()
    local dict = cbk.dict { { "keys", 1 }, { "a.b", 2 }, { "close", 3 } }
    t.equal({ dict.keys, dict["a.b"], dict.close, dict.missing }, { 1, 2, 3 })
  end)

  it("distinguishes int keys from text keys", function()
    local dict = cbk.dict()
    dict[0], dict["0"], dict[true] = "int", "text", "one"
    t.equal({ dict[0], dict["0"], dict[1] }, { "int", "text", "one" }) -- as in Python, True is 1
    t.raises("cannot be a key", function() dict[cbk.list { 1 }] = 1 end, "usage")
    t.raises("nil cannot be a key", function() dict[nil] = 1 end)
  end)

  it("takes tuples of scalars as keys", function()
    local dict = cbk.dict()
    dict[cbk.tuple { 1, cbk.tuple { "a", true } }] = "tuple"
    t.equal(dict[cbk.tuple { 1, cbk.tuple { "a", true } }], "tuple")
    t.raises("nor be inside one", function() dict[cbk.tuple { cbk.list() }] = 1 end, "usage")
    local deep, wide = cbk.tuple { 1 }, cbk.tuple { 1 }
    for _ = 1, 300 do deep = cbk.tuple { deep } end
    for _ = 1, 40 do wide = cbk.tuple { wide, wide } end
    t.raises("256 parts", function() dict[deep] = 1 end, "usage")
    t.raises("256 parts", function() dict[wide] = 1 end, "usage")
  end)

  it("may be changed while it is walked", function()
    local dict = cbk.dict { a = 1, b = 2, c = 3 }
    for key in cbk.items(dict) do dict[key] = nil end
    t.equal(cbk.count(dict), 0)
  end)

  it("has the length of a Lua table", function()
    local dict = cbk.dict { a = 1, b = 2 }
    t.equal(#dict, 0)
    dict[1], dict[2], dict[4] = "one", "two", "four"
    t.equal({ #dict, cbk.count(dict), cbk.count(cbk.list { 1, 2 }) }, { 2, 5, 2 })
    t.raises("List expected", function() cbk.count(1) end)
  end)

  it("gives the same Lua value for the same node", function()
    local dict = cbk.dict { a = { 1 } }
    local by_value = { [dict.a] = "seen" }
    t.is_true(dict.a == dict.a)
    t.equal(by_value[dict.a], "seen")
    t.is_true(dict.a ~= cbk.list { 1 })
    t.is_true(cbk.equal(dict.a, cbk.list { 1 }))
  end)
end)

describe("List", function()
  it("grows and shrinks at its end", function()
    local list = cbk.list { 1, 2 }
    list[#list + 1] = 3
    list[1] = "one"
    list[#list] = nil
    t.equal(list, { "one", 2 })
    t.equal(list[3], nil)
    t.raises("position 5 is out of range for a List of 2 items; the next new position is 3", function() list[5] = 1 end)
    t.raises("cbk.remove", function() list[1] = nil end)
    cbk.insert(list, 1, "zero")
    t.equal(cbk.remove(list, 2), "one")
    t.equal(list, { "zero", 2 })
    t.raises("indexed by positions", function() return list.name end)
  end)

  it("does not change when it is a tuple", function()
    local tuple = cbk.tuple { 1, 2 }
    t.equal(cbk.kind(tuple), "tuple")
    t.raises("cannot be changed", function() tuple[1] = 3 end)
  end)
end)

describe("sets", function()
  it("hold every value once", function()
    t.equal(cbk.totable(cbk.set { 1, 2, 2, "a", "a", 1 }), { 1, 2, "a" })
    t.equal(cbk.kind(cbk.set {}), "set")
  end)
end)

describe("values", function()
  it("keep their kinds", function()
    local dict = cbk.dict()
    dict.int, dict.float, dict.forced, dict.text, dict.none = 3, 0.5, cbk.float(3), "x", cbk.null
    dict.bytes, dict.big = cbk.bytes "\0\255", cbk.int "123456789012345678901234567890"
    local kinds = {}
    for key in cbk.items(dict) do kinds[key] = cbk.kind(dict, key) end
    t.equal(kinds, { int = "int", float = "float", forced = "float", text = "str", none = "none", bytes = "bytes", big = "int" })
    t.equal(dict.forced, 3)
    t.equal(dict.bytes.value, "\0\255")
    t.equal(tostring(dict.big), "123456789012345678901234567890")
    dict.copied = cbk.raw(dict, "forced")
    t.equal(cbk.kind(dict, "copied"), "float")
  end)

  it("know null from nothing", function()
    local dict = cbk.dict { a = cbk.null }
    t.is_true(dict.a == cbk.null)
    t.is_true(dict.b == nil)
    t.equal(cbk.kind(dict, "b"), nil)
    t.equal(tostring(cbk.null), "null")
  end)

  it("carry 64-bit integers exactly", function()
    local dict = cbk.dict()
    dict.a = 9007199254740993LL
    dict.b = 2 ^ 53
    dict.c = 18446744073709551615ULL
    t.is_true(dict.a == 9007199254740993LL)
    t.equal(type(dict.b), "number")
    t.is_true(dict.c == 18446744073709551615ULL)
    t.equal(cbk.json(dict), '{"a": 9007199254740993, "b": 9007199254740992, "c": 18446744073709551615}')
    t.raises("no exact Lua number", function() cbk.exact(dict.a) end, "value")
    t.equal(cbk.exact(5LL), 5)
  end)

  it("refuse what no tree can hold, with the place", function()
    t.raises("a function cannot be stored", function() cbk.list { print } end)
    t.raises("'a.b[2].c'", function() cbk.dict { a = { b = { 1, { c = print } } } } end, "value")
    t.raises("an empty table may be a list or a dict", function() cbk.dict { a = {} } end)
    t.raises("mixes positions and names", function() cbk.dict { a = { 1, x = 2 } } end)
    local loop = {}
    loop.self = loop
    t.raises("holds itself", function() cbk.dict(loop) end)
  end)

  it("survive many collections", function()
    local dict = cbk.dict()
    for i = 1, 2000 do dict["k" .. i] = { i, { tostring(i) } } end
    for _ = 1, 3 do collectgarbage() end
    for i = 1, 2000, 97 do t.equal(dict["k" .. i][2][1], tostring(i)) end
  end)
end)

describe("trees", function()
  local function tree()
    return cbk.dict { { "model", cbk.dict { { "a.b", cbk.full({ 2 }, 1) }, { "l", { { x = 1 }, 2 } } } }, { "step", 7 },
      { "none", cbk.dict() } }
  end

  it("find values by dotted paths", function()
    local root = tree()
    t.equal(cbk.find(root, "model.l.0.x"), 1)
    t.equal(cbk.find(root, "model.a.b").dtype, "float32")
    t.equal(cbk.find(root, "model.c"), nil)
  end)

  it("list their leaves in order", function()
    local paths = {}
    for path in cbk.leaves(tree()) do paths[#paths + 1] = path end
    t.equal(paths, { "model.a.b", "model.l.0.x", "model.l.1", "step", "none" })
    paths = {}
    for path in cbk.leaves(tree(), "{step,model.l.*}") do paths[#paths + 1] = path end
    t.equal(paths, { "model.l.0.x", "model.l.1", "step" })
    for path, tensor in cbk.tensors(tree()) do t.equal({ path, tensor:numel() }, { "model.a.b", 2 }) end
  end)

  it("are refused when they hold themselves", function()
    local root = cbk.dict()
    root.self = root
    t.raises("holds itself", function() cbk.leaves(root) end, "value")
    t.raises("more than 500 levels", function() cbk.totable(root) end, "value")
    local copy = cbk.deep_copy(root)
    t.is_true(copy.self == copy and copy ~= root)
    t.raises("cannot be compared", function() return cbk.equal(copy, root) end, "value")
    copy.self, root.self = nil, nil -- counted references do not free a circle
  end)

  it("are copied deep or shallow", function()
    local root = tree()
    local shallow, deep = cbk.copy(root), cbk.deep_copy(root)
    root.model.l[2] = "changed"
    t.equal(shallow.model.l[2], "changed")
    t.equal(deep.model.l[2], 2)
    t.is_true(deep.model["a.b"] == root.model["a.b"], "the tensor is shared")
    local twice = cbk.list { 1 }
    local both = cbk.deep_copy(cbk.dict { a = twice, b = twice })
    t.is_true(both.a == both.b and both.a ~= twice, "one node stays one")
  end)

  it("are copied with their exact kinds, also alone", function()
    for _, copy in ipairs { cbk.copy, cbk.deep_copy } do
      local copies = cbk.list { copy(cbk.float(1)), copy(2), copy "x", copy(cbk.null), copy { cbk.float(3) } }
      t.equal(cbk.json(copies), '[1.0, 2, "x", null, [3.0]]')
      t.raises("a function cannot be stored", function() copy(print) end)
    end
  end)

  it("become plain tables", function()
    t.equal(cbk.totable(cbk.dict { a = { 1, { b = "x" } } }), { a = { 1, { b = "x" } } })
  end)
end)

describe("errors", function()
  it("are tables with a code, a message and a place", function()
    local ok, problem = pcall(function() cbk.fail("shape", "does not fit") end)
    t.equal({ ok, problem.code, problem.message, tostring(problem) }, { false, "shape", "does not fit", "does not fit" })
    t.is_true(problem.where:find "value_test%.lua:%d+$")
  end)

  it("name the nearest option", function()
    t.raises("did you mean 'dtype'", function() cbk.tensor({ 1 }, { dtyp = "int64" }) end, "usage")
    t.raises("should be a string", function() cbk.tensor({ 1 }, { dtype = 3 }) end)
  end)

  it("say which argument is wrong", function()
    t.raises("Tensor expected, got Dict", function() cbk.full({ 1 }, 1):add(cbk.dict()) end)
    t.raises("bad argument #1", function() cbk.glob(3) end)
    t.raises("'Tensor:reshape' is a method; call it with a colon, as in object:reshape() (Tensor expected, got table)", function()
      local x = cbk.full({ 1 }, 1).reshape({ 1 })
      return x
    end)
  end)
end)

describe("text", function()
  it("globs match whole names", function()
    local cases = {
      { "*", "a.b.c", true }, { "a.*.c", "a.b.b.c", true }, { "a.?", "a.bc", false }, { "h.[0-3].w", "h.3.w", true },
      { "h.[!0-3].w", "h.3.w", false }, { "{a,b{1,2}}.x", "b2.x", true }, { "{a,b{1,2}}.x", "b.x", false }, { "\\*", "*", true },
      { "\\*", "a", false }, { "[]]", "]", true }, { "", "", true }, { "a", "", false }, { "*a*a*a*a*b", ("a"):rep(500), false },
    }
    for _, case in ipairs(cases) do t.equal(cbk.glob(case[1], case[2]), case[3], case[1] .. " on " .. case[2]) end
    t.is_true(cbk.glob "x*" "xyz")
    t.raises("without ']'", function() cbk.glob "a[b" end, "usage")
    t.raises("alternatives", function() cbk.glob(("{a,b}"):rep(12)) end, "usage")
  end)

  it("sizes are parsed and printed", function()
    t.equal({ cbk.parse_size "10GB", cbk.parse_size "512MiB", cbk.parse_size(17) }, { 10 ^ 10, 2 ^ 29, 17 })
    t.raises("is not a size", function() cbk.parse_size "1.5GB" end, "usage")
    t.equal(cbk.format_size(2 ^ 32), "4.0 GiB")
  end)

  it("natural order puts 2 before 10", function()
    local natural = require "cbk.natural"
    t.equal(natural.sort { "l.10.w", "l.2.w", "l.2.b", "a", "l.02.w" }, { "a", "l.2.b", "l.2.w", "l.02.w", "l.10.w" })
  end)

  it("like keys fold into one", function()
    local fold = require "cbk.fold"
    local entries = {}
    local function add(path, signature) entries[#entries + 1] = { path = path, signature = signature } end
    for layer = 0, 3 do
      add(("h.%d.w"):format(layer), layer == 2 and "other" or "same")
      for expert = 0, 1 do add(("h.%d.e.%d"):format(layer, expert), "same") end
    end
    add("head", "same")
    local names = {}
    for _, group in ipairs(fold.groups(entries)) do names[#names + 1] = group.name end
    t.equal(names, { "h.{0,1,3}.w", "h.{0..3}.e.{0,1}", "h.2.w", "head" })
  end)

  it("in TensorFlow's names whatever digits end a part", function()
    local fold = require "cbk.fold"
    local entries, names = {}, {}
    for layer = 0, 11 do
      for weight = 0, 3 do
        entries[#entries + 1] = { path = ("model/layer_with_weights-%d/_w%d/.ATTRIBUTES/VARIABLE_VALUE"):format(layer, weight) }
      end
    end
    for _, path in ipairs { "a7b/c", "a8b/c", "norm1.w", "norm2.w", "v1.w1/x", "v1.w2/x", "007/y", "008/y", "1234567890/z", "1/1" } do
      entries[#entries + 1] = { path = path }
    end
    for i, group in ipairs(fold.groups(entries)) do names[i] = group.name end
    t.equal(names, { "model/layer_with_weights-{0..11}/_w{0..3}/.ATTRIBUTES/VARIABLE_VALUE", "a7b/c", "a8b/c", "norm1.w", "norm2.w",
      "v1.w{1,2}/x", "{007,008}/y", "1234567890/z", "1/1" })
  end)
end)
