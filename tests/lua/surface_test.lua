-- The annotations (scripts/lib/cbk/meta.lua) and what is really there name the same functions.

local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

local mistakes = require "cbk.mistakes"

local meta = cbk.fs.read(assert(package.searchpath("cbk.meta", package.path)))

--- "cbk.config.load", "Tensor:shape", … as the annotations declare them.
local function declared()
  local names = {}
  for name in meta:gmatch "\nfunction ([%w_.:]+)%(" do names[name] = true end
  return names
end

local function methods_of(object)
  return debug.getmetatable(object).methods
end

describe("names of files", function()
  it("say a format by the suffixes that help lists", function()
    local known = { h5 = ".mdl .h5 .hdf5 .hdf", torch = ".pt .pth .bin .ckpt", safetensors = ".safetensors", tensorflow = ".index" }
    for format, suffixes in pairs(known) do
      assert(cbk.suffixes():find(("%s (%s)"):format(suffixes, format), 1, true), format)
      for suffix in suffixes:gmatch "%S+" do t.equal(cbk.format_of_name("a.b/model" .. suffix), format) end
    end
    for _, name in ipairs { "model.gguf", "a.mdl/model", "mdl" } do t.equal(cbk.format_of_name(name), nil) end
  end)
end)

describe("the format of a checkpoint", function()
  local listed = {}
  for name in meta:match "\n%-%-%-@field format string([^\n]+)":gmatch '"([^"]+)"' do listed[name] = true end

  --- Whether one of the names is of a format: "torch-zip" of "torch".
  local function has_one(format, ending)
    for name in pairs(listed) do
      if ("-" .. name .. "-"):find("-" .. format .. ending .. "-", 1, true) then return true end
    end
    return false
  end

  it("has a name in the annotations for each one that is read", function()
    for _, format in ipairs(cbk.formats()) do
      if format.read then assert(has_one(format.name, ""), format.name) end
      if format.shards then assert(has_one(format.name, "-sharded"), format.name .. " in shards") end
    end
  end)

  it("has one for each folder of ranks", function()
    local count = 0
    local source = cbk.fs.read(cbk.fs.join(cbk.fs.dirname(arg[0]), "../../host/checkpoint/rank_folders.cpp"))
    for name in source:gmatch 'reader%.checkpoint%("([%l-]+)"' do
      assert(listed[name], name)
      count = count + 1
    end
    assert(count >= 5)
  end)
end)

describe("surface", function()
  local function objects()
    local folder = t.temp_dir()
    local out = cbk.create(folder .. "/x.pt", { root = cbk.dict { a = 1 } })
    out:commit()
    cbk.create(folder .. "/x.h5", { root = cbk.dict { a = 1 } }):commit()
    return {
      Tensor = cbk.tensor { 1 }, Checkpoint = cbk.open(folder .. "/x.pt"), Output = out, H5Edit = cbk.h5.edit(folder .. "/x.h5"),
      LowRank = cbk.low_rank(cbk.full({ 2, 2 }, 1), cbk.full({ 2, 2 }, 0), 1),
      LeafRows = cbk.leaf_rows(out:root()), LeafGroups = cbk.leaf_rows(out:root()):groups(),
    }
  end

  it("has everything that is declared", function()
    local roots = { cbk = cbk }
    for name, object in pairs(objects()) do roots[name] = methods_of(object) end
    for name in pairs(declared()) do
      local value = roots
      for part in name:gmatch "[%w_]+" do value = value and value[part] end
      t.equal(type(value), "function", name)
    end
  end)

  it("says in words what is wrong with arguments", function()
    local roots, bad = objects(), {}
    for name, object in pairs(roots) do roots[name] = { object = object, functions = methods_of(object) } end
    roots.cbk = { functions = cbk }
    local arguments = {
      nothing = { n = 0 }, a_table = { n = 1, {} }, a_value = { n = 1, cbk.float(1) }, dicts = { n = 2, cbk.dict(), cbk.dict() },
    }
    for name in pairs(declared()) do
      local owner, path = name:match "^(%w+)[:.](.*)$"
      local called = roots[owner].functions
      for part in path:gmatch "[%w_]+" do called = called[part] end
      for what, list in pairs(name ~= "cbk.fs.temp_dir" and arguments or {}) do
        for _, object in ipairs { roots[owner].object or false, false } do
          local function call()
            if object then called(object, unpack(list, 1, list.n)) else called(unpack(list, 1, list.n)) end
          end
          local ok, problem = pcall(call)
          local is_ours = ok or type(problem) == "table" and problem.code ~= "internal"
          local text = tostring(problem)
          if not is_ours or text:find "attempt to" or text:find "'%?'" or text:find "a nil value" or text:find "argument #[-0]" then
            bad[#bad + 1] = ("%s with %s: %s"):format(name, what, text)
          end
        end
      end
    end
    t.equal(bad, {})
  end)

  it("says how to write PyTorch's indexes", function()
    for code, text in pairs {
      ["w[1, 2]"] = "'w[1, 2]' is not Lua: write w[2][3], which counts from 1", ["w[0:3]"] = "write w:slice(0, 0, 3)",
      ["x = w[:, 1]"] = "write w:select(1, 1)", ["w[0, 2:]"] = "write w:select(0, 0):slice(0, 2)",
    } do
      local _, problem = load(code, "=code")
      t.has(mistakes(problem, code), text)
    end
    local w = cbk.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    t.equal({ w[2][3], w:slice(0, 0, 1):tolist(), w:select(1, 1):tolist(), w:select(0, 0):slice(0, 2):tolist() },
      { 6, { { 1, 2, 3 } }, { 2, 5 }, { 3 } })
  end)

  it("says in words what is wrong with expressions", function()
    local names = objects()
    local env = { cbk = cbk, ckpt = names.Checkpoint, t = names.Tensor, d = cbk.dict { a = 1 }, l = cbk.list { 1 },
      keys = cbk.dict { { "a.b", 1 } }, v = require "cstorch".tensor { 1 } }
    setmetatable(env, { __index = _G })
    local function said(code)
      local compiled = load("return " .. code, "=code", "t", env) or assert(load(code, "=code", "t", env))
      local ok, problem = pcall(compiled)
      t.equal(ok, false, code)
      return type(problem) == "string" and mistakes(problem, code, env) or tostring(problem)
    end
    for _, case in ipairs {
      { "local k = next(ckpt)",
        "code:1: 'next' takes plain Lua tables only; write 'for key, value in cbk.items(x) do' (x.root of a checkpoint)" },
      { "next(ckpt)", "argument #1 should be a plain Lua table; cbk.totable(x) makes one of a Dict or a List" },
      { "math.max(t)", "argument #1 should be a number, but is a value of cbk" },
      { "#ckpt", "a Checkpoint has no length" },
      { "ckpt + 1", "a Checkpoint cannot be added" },
      { "'a' .. t", "a Tensor cannot be joined with '..'; use tostring(x)" },
      { "d < d", "a Dict cannot be compared with '<' or '>'" },
      { "ckpt()", "a Checkpoint is not a function" },
      { "for k in ckpt do print(k) end",
        "a Checkpoint is not a function; loop over it with 'for key, value in cbk.items(x) do' (x.root of a checkpoint)" },
      { "d:keys()", "code:1: there is no method 'keys'; what is in a Dict or a List is data: use the function cbk.keys(x)" },
      { "d:nope()", "code:1: there is no method 'nope'" },
      { "ckpt.tensors()", "'Checkpoint:tensors' is a method; call it with a colon, as in object:tensors() (Checkpoint expected" },
      { "ckpt.nope()", "has no 'nope'" },
      { "t.shape[1]", "code:1: 'shape' is a function; call it to get what it gives, as in x:shape()" },
      { "t:dtype()", "code:1: 'dtype' is a string, not a method; read it with a dot and without ()" },
      { "t:mean(1, 2, 3)", "a Tensor has no 'mean'; t:stats().mean has it" },
      { "t + {}", "a Tensor operator expects a number or another Tensor, not a table" },
      { "cbk.open()", "bad argument #1 to 'cbk.open' (path expected, got no value)" },
      { "cbk.open{}", "bad argument #1 to 'cbk.open' (path expected, got table)" },
      { "cbk.tensor()", "bad argument #1 to 'cbk.tensor' (number or list of numbers expected, got no value)" },
      { "cbk.json()", "bad argument #1 to 'cbk.json' (a value expected, got nothing)" },
      { "cbk.glob '*' ()", "bad argument #1 to 'a glob' (string expected, got no value)" },
      { "open 'x'", "code:1: there is no function 'open'; did you mean 'cbk.open'?" },
      { "d.x.y", "code:1: d has no 'x'" }, { "keys.a.b", "code:1: keys has no 'a', but 'a.b': write keys[\"a.b\"]" },
      { "keys.a.q", "code:1: keys has no 'a', but 'a.b': write keys[\"a.b\"]" }, { "keys.ab.q", "code:1: keys has no 'ab'" },
      { "cbk.copy(d).x.y", "code:1: 'x' is nil, which has no fields; a key with dots is one name, as in x[\"a.b\"]" },
      { "v < 2", "'<' does not compare tensors: v:lt(2)" }, { "2 <= v", "'<=' does not compare tensors: v:ge(2)" },
      { "t > 2", "'>' does not compare tensors: require('cstorch').tensor(t):gt(2), or of one element t:item()" },
      { "t < t", "a Tensor cannot be compared with '<' or '>'; a:compare(b) says how far they differ" },
      { "t.size", "a Tensor has no 'size'; t:shape() lists the sizes" }, { "t.zeros", "a Tensor has no 'zeros'; t:stats().zeros has it" },
      { "t.abs", "a Tensor has no 'abs'; a tensor of cstorch has it: require('cstorch').tensor(t)" },
      { "v.max", "a tensor has no 'max'; x:amax() has it" },
      { "d.x + 1", "code:1: 'x' is nil, and arithmetic needs numbers or tensors" },
      { "d.x .. ''", "code:1: 'x' is nil; '..' joins strings and numbers, and tostring(x) gives a string" },
      { "#d.x", "code:1: 'x' is nil, which has no length" },
      { "ckpt < 1", "code:1: cannot compare a value of cbk with a number; of tensors, x:lt(y) compares those of cstorch" },
      { "l.x = 1", "a List is indexed by positions from 1, not by a string" },
      { "l[7] = 1", "position 7 is out of range for a List of 1 items; the next new position is 2" },
      { "table.insert(l, 1) print()", "code:1: 'insert' takes plain Lua tables only; use cbk.insert(list, position, value) or" },
      { "require 'converters.vocabulary.actoins'", "package.path; did you mean 'converters.vocabulary.actions'?" },
      { "require 'cbk.infr'", "package.path; did you mean 'cbk.infer'?" },
      { "require 'cbk.nope'", "there is no module 'cbk.nope' in the folders of package.path" },
    } do
      local text = said(case[1])
      t.is_true(text:find(case[2], 1, true), ("%s gives %q, not %q, which"):format(case[1], text, case[2]))
    end
  end)

  it("declares everything that there is", function()
    local names, missing = declared(), {}
    local function check(prefix, functions)
      for name, value in pairs(functions) do
        if type(value) == "function" and not names[prefix .. name] then missing[#missing + 1] = prefix .. name end
      end
    end
    local native = require "cbk.native"
    check("cbk.", native)
    for _, name in ipairs { "config", "fs", "terminal", "h5", "pickle", "safetensors" } do check("cbk." .. name .. ".", native[name]) end
    for name, object in pairs(objects()) do check(name .. ":", methods_of(object)) end
    t.equal(missing, {}, "what meta.lua does not tell")
  end)
end)
