-- Errors as values (cbk.errors), and the check that no code looks into their texts (tests/error_texts.lua).

local cbk = require "cbk"
local errors = require "cbk.errors"
local harness = require "harness"
local naming = require "cbk.naming"
local describe, it, equal = harness.describe, harness.it, harness.equal

local root = cbk.fs.join(cbk.fs.dirname(arg[0]), "../..")

--- Calls `visit(path, name below the root)` with the sources in some folders.
local function each_source(folders, visit)
  local function walk(folder)
    for _, name in ipairs(cbk.fs.list(cbk.fs.join(root, folder))) do
      local path = folder .. "/" .. name
      if cbk.fs.is_dir(cbk.fs.join(root, path)) then
        walk(path)
      elseif name:find "%.lua$" or name:find "%.[ch]pp$" then
        visit(cbk.fs.join(root, path), path)
      end
    end
  end
  for _, folder in ipairs(folders) do walk(folder) end
end

local function raised(...)
  local fine, problem = pcall(...)
  assert(not fine, "nothing was raised")
  return problem
end

describe("Errors as values", function()
  it("make their text of their parts", function()
    for _, case in ipairs {
      { {}, "it is wrong" },
      { { advice = "try another" }, "it is wrong; try another" },
      { { expected = "a number", found = "'x'" }, "it is wrong: expected a number, found 'x'" },
      { { expected = "a number" }, "it is wrong: expected a number" },
      { { found = "'x'" }, "it is wrong" },
      { { supported = "'gelu'", found = "'relu'", advice = "change it" }, "it is wrong: only 'gelu' is supported; change it" },
      { { context = { "cannot open 'a'", "key 'b'" }, file = "a", key = "b" }, "cannot open 'a': key 'b': it is wrong" },
    } do
      local problem = raised(cbk.fail, "value", "it is wrong", case[1])
      equal(tostring(problem), case[2])
      equal(problem.message, case[2])
      equal(errors.text(problem), case[2])
      equal(problem.code, "value")
      for name, part in pairs(case[1]) do equal(problem[name], part) end
    end
    equal(tostring(raised(cbk.fail, "value", "is it wrong?", { advice = "Say so" })), "is it wrong? Say so")
  end)

  it("cross from C++ with code, contexts, file and advice", function()
    local dir = harness.temp_dir()
    local path = dir .. "/none.pt"
    local problem = raised(cbk.open, path)
    equal({ problem.code, problem.file, problem.context }, { "io", path, { ("cannot open '%s'"):format(path) } })
    cbk.fs.write(dir .. "/bad.json", "{")
    problem = raised(cbk.config.load, dir .. "/bad.json")
    equal(problem.code, "format")
    equal(#problem.context, 1)
    cbk.fs.write(dir .. "/bad.yaml", "a: !!python/object:os.system {}")
    problem = raised(cbk.config.load, dir .. "/bad.yaml")
    equal({ problem.code, problem.context[2] }, { "refused", "line 1, column 4" })
    for _, name in ipairs { "one.pt", "two.pt" } do
      local out = cbk.create(dir .. "/" .. name)
      out.w = cbk.tensor { 1, 2 }
      out:commit()
    end
    problem = raised(cbk.open, dir)
    equal({ problem.code, problem.advice }, { "ambiguous", "open one of one.pt, two.pt" })
    problem = raised(function()
      local out = cbk.create(dir .. "/one.pt")
      out.w = cbk.tensor { 1 }
      out:commit()
    end)
    equal(problem.code, "exists")
    assert(problem.advice and problem.message:sub(-#problem.advice) == problem.advice, problem.message)
  end)

  it("get contexts, the outermost first", function()
    local problem = raised(errors.within, "outer", errors.within, function() return "inner" end, cbk.fail, "key", "it is missing")
    equal(tostring(problem), "outer: inner: it is missing")
    equal(problem.context, { "outer", "inner" })
    equal(errors.text(errors.outside(problem)), "inner: it is missing")
    equal(errors.text(errors.outside(problem, "outer")), "inner: it is missing")
    equal(errors.text(errors.outside(problem, "inner")), "outer: inner: it is missing")
    equal({ errors.within("outer", function(...) return ... end, 1, nil, 3) }, { 1, nil, 3 })
  end)

  it("leave other values, and interrupts, as they are", function()
    equal(raised(errors.within, "outer", error, "a text", 0), "a text")
    local own = {}
    equal(raised(errors.within, "outer", error, own, 0) == own, true)
    equal(next(own), nil)
    equal(tostring(raised(errors.within, "outer", cbk.fail, "interrupted", "interrupted")), "interrupted")
    equal(errors.text { message = "of a table" }, "of a table")
    equal(errors.text "a text", "a text")
    assert(errors.text({}):find("an error without a text was raised (a table)", 1, true))
  end)

  it("are copied with other parts", function()
    local problem = raised(cbk.fail, "key", "it is missing", { advice = "look again", key = "a" })
    local other = errors.with(problem, { advice = "give up" })
    equal({ tostring(problem), tostring(other), other.key }, { "it is missing; look again", "it is missing; give up", "a" })
    equal(errors.with("a text", { advice = "x" }), "a text")
  end)

  it("are objects with the same fields for programs", function()
    local problem = raised(cbk.fail, "config", "it is \"wrong\"",
      { field = "a", expected = "1", found = "2", advice = "mend it", context = { "in it" } })
    problem.where = nil
    equal(cbk.error_json(problem), '{"error": {"code": "config", "message": "in it: it is \\"wrong\\": expected 1, found 2; mend it", '
      .. '"field": "a", "expected": "1", "found": "2", "advice": "mend it"}}')
  end)
end)

describe("The codes of errors", function()
  it("are all described by 'cbk help json'", function()
    local page, known = cbk.fs.read(root .. "/scripts/help/json.md"), {}
    for names in page:gmatch "\n  (%l[%l_, ]*)" do
      for name in names:gmatch "[%l_]+" do known[name] = true end
    end
    local used = {}
    local function note(path, pattern)
      for code in cbk.fs.read(path):gmatch(pattern) do used[code] = path end
    end
    each_source({ "scripts", "converters" }, function(path) note(path, 'cbk%.fail%("([%l_]+)"') end)
    for name in cbk.fs.read(root .. "/host/base/error.hpp"):match "enum class Errc {(.-)}":gmatch "\n  ([%l_]+)," do used[name] = "Errc" end
    for name, place in pairs(used) do assert(known[name], ("%s of %s is not in json.md"):format(name, place)) end
  end)
end)

local error_texts = assert(loadfile(cbk.fs.join(root, "tests/error_texts.lua"))) "error_texts"

describe("The check of error texts", function()
  local function lines(path, text) return #error_texts.problems(path, text) end

  it("finds code that looks into texts", function()
    for _, line in ipairs {
      'if problem.message:find("a", 1, true) then', 'local x = (why.message):match "a"', 'errors.text(problem):gsub("^a", "")',
      'string.find(problem.message, "a")', 'tostring(problem):match "a"',
    } do
      equal({ line, lines("scripts/x.lua", line) }, { line, 1 })
    end
    for _, line in ipairs { 'if (std::string_view(error.what()).starts_with("a"))', 'error.parts().problem.find("a")',
      "std::string_view reason = error.what();" } do
      equal({ line, lines("host/x.cpp", line) }, { line, 1 })
    end
  end)

  it("lets code show them, and decide by parts", function()
    equal(lines("scripts/x.lua", 'print(errors.text(problem)); if problem.code == "io" then cbk.warn(problem.message) end'), 0)
    equal(lines("host/x.cpp", "fail(error.code(), error.what());"), 0)
  end)

  it("passes the sources", function()
    local count = 0
    each_source({ "scripts", "converters", "host", "bindings" }, function(full, path)
      equal(error_texts.problems(path, cbk.fs.read(full)), {})
      count = count + 1
    end)
    assert(count > 600)
  end)
end)

describe("A question about a mistyped name", function()
  it("quotes the names", function()
    equal(naming.question { "a", "b\27" }, "did you mean 'a' or 'b\\x1b'?")
    equal({ naming.suggestion "a", naming.suggestion {}, naming.suggestion(nil) }, { "; did you mean 'a'?", "", "" })
    equal(naming.question {}, nil)
  end)

  it("is written in one place", function()
    local places = {}
    each_source({ "scripts", "converters" }, function(full, path)
      if path:find "%.lua$" and cbk.fs.read(full):lower():find "did you mean '?%%s" then places[#places + 1] = path end
    end)
    equal(places, { "scripts/lib/cbk/naming.lua" })
  end)
end)
