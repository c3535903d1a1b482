-- cbk.rewrite, Tensor:compare and the rename rules of `cbk copy`.

local cbk = require "cbk"
local harness = require "harness"
local rename = require "cbk.cli.rename"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises

local function keys_of(tree)
  local out = {}
  for path in cbk.leaves(tree) do out[#out + 1] = path end
  return out
end

local function moved(tree, pattern, replacement)
  return cbk.rewrite(tree, { path = function(path) return (path:gsub(pattern, replacement)) end })
end

describe("cbk.rewrite", function()
  local shared = cbk.tensor { 1, 2 }
  local function tree()
    return cbk.dict {
      { "model", cbk.dict({ { "a.w", shared }, { "b", cbk.dict { { 0, cbk.dict { { "w", shared } } } } } }, "ordereddict") },
      { "list", cbk.list { cbk.dict { { "x", 1 } }, cbk.float(2), cbk.list() } },
    }
  end

  it("keeps kinds, order, the kinds of keys and what is shared", function()
    local new = cbk.rewrite(tree(), { leaf = function(_, value) return cbk.kind(value) == "tensor" and value:to "float64" or value end })
    equal(keys_of(new), { "model.a.w", "model.b.0.w", "list.0.x", "list.1", "list.2" })
    equal(cbk.kind(new.model), "ordereddict")
    is_true(new.model.b[0] ~= nil, "an int key")
    is_true(new.model["a.w"] == new.model.b[0].w, "one tensor")
    equal(new.model["a.w"].dtype, "float64")
    equal(cbk.kind(new.list, 2), "float")
  end)

  it("keeps containers at both ends of a path that changes", function()
    local new = moved(tree(), "^model%.b", "net.core")
    equal(keys_of(new), { "model.a.w", "net.core.0.w", "list.0.x", "list.1", "list.2" })
    equal(cbk.kind(new["net.core"]), "dict")
    new = moved(tree(), "^model%.", "")
    is_true(new["a.w"] ~= nil and new.b[0].w ~= nil)
    new = moved(tree(), "x$", "y")
    equal(new.list[1].y, 1)
  end)

  it("leaves out what gets no path, and containers that become empty", function()
    local new = cbk.rewrite(tree(), { path = function(path) return path:find "^list" and path ~= "list.1" and path or nil end })
    equal(keys_of(new), { "list.0.x", "list.1" })
    equal(new.model, nil)
  end)

  it("refuses two leaves with one path, and names in lists", function()
    raises("two values would be named 'z'", function() moved(tree(), "^model.*", "z") end, "key")
    raises("into a list", function() moved(tree(), "^list%.1", "list.name") end, "key")
    local other = cbk.dict { { "a", 1 }, { "b", cbk.dict { { "x", 2 } } } }
    raises("a value and a container", function() moved(other, "^b", "a") end, "key")
    raises("should return a string", function() cbk.rewrite(tree(), { path = function() return 1 end }) end)
  end)

  it("passes errors of its functions on", function()
    raises("mine", function() cbk.rewrite(tree(), { leaf = function() error "mine" end }) end)
  end)
end)

describe("Tensor:compare", function()
  local nan, inf = 0 / 0, math.huge

  it("counts what differs, and finds the largest differences", function()
    local d = cbk.tensor { 1, 2, 4, 8 }:compare(cbk.tensor { 1, 2.5, 4, 6 })
    equal(d.different, 2)
    equal(d.first, 1)
    equal(d.max_abs, 2)
    equal(d.max_rel, 0.25)
    equal(d.same_bits, false)
  end)

  it("takes NaN and infinities as equal to themselves only", function()
    equal(cbk.tensor { nan, inf, -inf, 0 }:compare(cbk.tensor { nan, inf, -inf, -0.0 }).different, 0)
    equal(cbk.tensor { nan, inf, 1, inf }:compare(cbk.tensor { 1, -inf, inf, nan }, { rtol = 1, atol = 1e9 }).different, 4)
  end)

  it("obeys tolerances", function()
    local a, b = cbk.tensor({ 100, 0 }, { dtype = "float64" }), cbk.tensor({ 101, 0.5 }, { dtype = "float64" })
    equal(a:compare(b, { rtol = 0.01 }).different, 1)
    equal(a:compare(b, { atol = 0.5 }).different, 1)
    equal(a:compare(b, { rtol = 0.01, atol = 0.5 }).different, 0)
    equal(a:compare(b, { rtol = 0.01, atol = 0.5 }).max_abs, 1)
  end)

  it("compares whole numbers exactly, and across dtypes", function()
    local a = cbk.tensor({ 9007199254740993LL }, { dtype = "int64" })
    local b = cbk.tensor({ 9007199254740992LL }, { dtype = "int64" })
    equal(a:compare(b).different, 1)
    equal(a:compare(b).max_abs, 1)
    equal(cbk.tensor({ 1, 2 }, { dtype = "uint8" }):compare(cbk.tensor({ 1, 2 }, { dtype = "float16" })).different, 0)
    equal(cbk.tensor({ true, false }, { dtype = "bool" }):compare(cbk.tensor({ 1, 1 }, { dtype = "int32" })).different, 1)
  end)

  it("reads long tensors in blocks", function()
    local a = cbk.randn({ 3, 1000, 1001 }, { seed = 1 })
    equal(a:compare(cbk.randn({ 3, 1000, 1001 }, { seed = 1 })).different, 0)
    equal(a:compare(a:affine(-1, 0)).different, a:numel())
    equal(a:compare(a:to "bfloat16", { rtol = 2 ^ -8 }).different, 0)
  end)

  it("refuses what cannot be compared", function()
    raises("shapes [2] and [3]", function() cbk.tensor { 1, 2 }:compare(cbk.tensor { 1, 2, 3 }) end, "shape")
    raises("unknown option", function() cbk.tensor { 1 }:compare(cbk.tensor { 1 }, { rtoll = 1 }) end)
  end)
end)

describe("rename rules", function()
  local cases = {
    { "gamma=weight", "norm.gamma.gamma", "norm.weight.weight" },
    { "model.=", "model.a", "a" },
    { "a.b=c%d", "xa.b", "xc%d" },
    { "a.b=c", "xaxb", "xaxb" },
    { "model.*=*", "model.a.b", "a.b" },
    { "*.gamma=*.weight", "a.gamma", "a.weight" },
    { "*.gamma=*.weight", "a.gamma.x", "a.gamma.x" },
    { "h.*.attn.*=layers.*.self.*", "h.3.attn.w", "layers.3.self.w" },
    { "l?=layer?", "l7", "layer7" },
    { "*.?.*=*|?|*", "a.b.c.d.e", "a.b.c|d|e" },
    { "**=<*>", "ab", "<ab>" },
    { "a*a=*", "a", "a" },
    { "^h%.(%d+)=layers.%1", "h.12.w", "layers.12.w" },
    { "weight$=w", "weight.weight", "weight.w" },
    { "a=b=c", "a", "b=c" },
  }

  it("change keys as in the help", function()
    for _, case in ipairs(cases) do equal(rename.parse(case[1]).apply(case[2]), case[3], case[1]) end
  end)

  it("take no time for keys that were made for it", function()
    local key, before = "model." .. ("."):rep(60000), os.clock()
    equal(rename.parse("*.*.*.*.*z=y").apply(key), key)
    is_true(os.clock() - before < 2)
  end)

  it("say what is wrong with them", function()
    for _, text in ipairs { "nothing", "=x", "a*=**" } do
      local rule, problem = rename.parse(text)
      equal(rule, nil)
      is_true(type(problem) == "string" and #problem > 0, text)
    end
    local bad = {
      "^a%=x", "^a=%9", "^h%.(%d+=x", "^h)=x", "^[ab=x", "^[^]=x", "%b(=x", "%fa=x", "(a)%2$=x", "(a%1)=x", "^a=x%", "^(a)=%2", "^%0=x",
      "^" .. ("()"):rep(33) .. "=x",
    }
    for _, text in ipairs(bad) do
      local rule, problem = rename.parse(text) -- before any key comes to that part of it
      equal(rule, nil, text)
      is_true(problem:find("is no Lua pattern: ", 1, true), problem)
    end
    for _, text in ipairs { "^[]]=x", "^[^]a]=x", "^[%]]=x", "%b()=x", "%f[%w]=x", "^((a)b)%2=%1%0%%", "^%(=x", "()$=%1" } do
      is_true(rename.parse(text), text)
    end
    raises("is no Lua pattern", function() rename.parse("^" .. ("a?"):rep(300000) .. "=x").apply(("a"):rep(300000)) end, "usage")
  end)

  it("keeps an empty root, and refuses a tree that a rule changes", function()
    local asked = 0
    local rules = { path = function(path) asked = asked + 1 return "x" .. path end, leaf = function() return 7 end }
    for _, root in ipairs { cbk.dict(), cbk.list() } do
      local made = cbk.rewrite(root, rules)
      equal({ cbk.kind(made), #made }, { cbk.kind(root), 0 })
    end
    equal(asked, 0)
    for _, name in ipairs { "path", "leaf" } do
      for _, key in ipairs { "a", "c" } do
        local tree = cbk.dict { a = 1, b = 2, c = 3 }
        raises("a rule changes the tree", function()
          cbk.rewrite(tree, { [name] = function(path)
            if path == "a" then tree.b, tree[key .. "0"] = nil, 1 end
            return path
          end })
        end)
      end
    end
  end)
end)
