-- Help out of the annotations, completion, and listings: what the REPL is made of.

local cbk = require "cbk"
local harness = require "harness"
local complete = require "cbk.repl.complete"
local help = require "cbk.help"
local listing = require "cbk.listing"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local commands = { ls = { argument = "key" }, open = { argument = "file" }, help = { argument = "name" }, time = { argument = "lua" } }

local function candidates(line, env)
  local begin, found = complete.at(line, #line, env or { cbk = cbk }, commands)
  return found, line:sub(begin + 1)
end

local function has(list, name)
  for _, item in ipairs(list) do
    if item == name then return end
  end
  error(("%q is not among %q"):format(name, table.concat(list, " ")), 2)
end

describe("completion", function()
  local tree = cbk.dict { { "model", cbk.dict { { "layers.0.w", cbk.tensor { 1 } }, { "layers.1.w", cbk.tensor { 1 } } } }, { "head", 1 } }

  it("knows globals, fields and methods", function()
    has(candidates "cbk.op", "open(")
    has(candidates "x = pri", "print(")
    has(candidates("t:sta", { t = cbk.tensor { 1 } }), "stats(")
    has(candidates("t.dt", { t = cbk.tensor { 1 } }), "dtype")
    has(candidates("d.mo", { d = tree }), "model")
    has(candidates "cbk.fs.ba", "basename(")
    equal(candidates "nothing.x", {})
    equal(candidates "f().x", {})
  end)

  it("knows what calls return and what keys hold", function()
    local env = { cbk = cbk, t = cbk.tensor { 1 }, ckpt = cbk.dict { { "k", cbk.tensor { 1 } }, { "a.b", 1 }, { "c", cbk.dict() } } }
    for _, line in ipairs { "cbk.tensor{1}:st", "cbk.full({ 2, (3) }, 1):st", "ckpt['k']:st", 'x = ckpt["k"]:st',
      "print(t:reshape{1}:to 'int8':st", "t:to('int8'):reshape({ 1 }):st" } do
      has(candidates(line, env), "stats(")
    end
    has(candidates("cbk.open('x'):te", env), "tensors(")
    has(candidates("cbk.open 'x'.fo", env), "format")
    for _, line in ipairs { "ckpt['a.b']:st", "ckpt['no']:st", "f():st", "t:shape():st", "('x'):st", "t[1]:st", "ckpt['k'", "trap{}:st" } do
      equal(candidates(line, env), {}, line)
    end
  end)

  it("offers keys level by level", function()
    local env = { ckpt = tree }
    local found, typed = candidates('ckpt["', env)
    equal(typed, "")
    equal(found, { "model.", 'head"]' })
    equal(candidates('ckpt["model.', env), { "model.layers." })
    equal(candidates('ckpt["model.layers.', env), { "model.layers.0.", "model.layers.1." })
    equal(candidates('ckpt["model.layers.0', env), { 'model.layers.0.w"]' })
    equal(candidates("cbk.find(ckpt, 'hea", env), { "head'" })
    equal(candidates(":ls mod", env), { "model.layers." })
  end)

  it("offers files and commands", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/one.pt", "")
    cbk.fs.mkdir(dir .. "/two")
    equal(candidates("cbk.open('" .. dir .. "/o"), { dir .. "/one.pt" })
    equal(candidates(":open " .. dir .. "/t"), { dir .. "/two/" })
    equal(candidates ":o", { "open" })
    has(candidates "?cbk.op", "cbk.open")
  end)

  it("calls nothing that belongs to the user", function()
    local hit = false
    local trap = setmetatable({ inner = 1 }, { __index = function() hit = true end })
    equal(candidates("trap.in", { trap = trap }), { "inner" })
    equal(candidates("trap.x.y", { trap = trap }), {})
    equal(hit, false)
  end)
end)

describe("what is typed", function()
  local chunk = require "cbk.repl.chunk"

  it("keeps its locals, but for those of blocks", function()
    local cases = {
      { "local x = 1", "x = 1" }, { "local x", "x = nil" }, { "local a, b = 1, 2", "a, b = 1, 2" },
      { "local a, b; c = 1", "a, b = nil; c = 1" },
      { 'local cbk = require "cbk"; local q = 1', 'cbk = require "cbk"; q = 1' },
      { "local function f() local y = 1 end", "function f() local y = 1 end" },
      { "if a then local b = 1 end local c = 2", "if a then local b = 1 end c = 2" },
      { "for i = 1, 2 do local x = i end", nil },
      { "repeat local x = 1 until x local y = 2", "repeat local x = 1 until x y = 2" }, { "x = 'local y = 1' -- local z", nil },
      { "x = [==[ local y ]==] --[[ local ]] local z = 1", "x = [==[ local y ]==] --[[ local ]] z = 1" },
      { "local a local b", "a = nil b = nil" },
      { "x = '\\'' local y = \"\\\\\" local z", "x = '\\'' y = \"\\\\\" z = nil" }, { "t.locals = localise", nil },
      { "local", "" }, { "--", nil },
      { "local f = function() local g = 1 end local h = 2", "f = function() local g = 1 end h = 2" },
      { "local x --[[c]] = 1", "x --[[c]] = 1" },
    }
    for _, case in ipairs(cases) do equal(chunk.with_globals(case[1]), case[2] or case[1], case[1]) end
  end)

  it("prints the expression behind the last ';'", function()
    for text, wanted in pairs { ["t = x; t:stats()"] = "t = x; return  t:stats()", ["local a = 1; a"] = "a = 1; return  a",
      ['s = ";"; s'] = 's = ";"; return  s', ["a = 1; b = 2"] = false, ["x = 1;"] = false, ["f(1)"] = false,
      ["t = { 1; 2 }"] = false, ["do a = 1; a = 2 end"] = false } do
      equal(chunk.with_return(text) or false, wanted, text)
    end
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/typed", "x = cbk.tensor { 3, 4 }; x:stats().norm\nlocal y = 2; y + 1\ny = 7; y;\n:save out.lua\n")
    local program = cbk.fs.program()
    equal(os.execute(("cd '%s' && '%s' repl < typed > out 2> err && '%s' run out.lua > again"):format(dir, program, program)), 0)
    harness.has(cbk.fs.read(dir .. "/out"), "5\n3\n")
    equal(cbk.fs.read(dir .. "/again"), "5\n3\n")
  end)

  it("says what compares tensors behind '=='", function()
    local dir, program = harness.temp_dir(), cbk.fs.program()
    local root = cbk.dict { { "a.w", cbk.tensor { 1 } }, { "b", cbk.tensor { 1 } } }
    cbk.create(dir .. "/m.pt", { root = root }):commit()
    cbk.fs.write(dir .. "/typed", 'ckpt["a.w"] == ckpt.b\nx = cstorch.tensor(ckpt.b)\nx ~= cstorch.tensor(ckpt.b)\n'
      .. 'y = x\nx == y\n1 == 2\nckpt == x\nz = x:clone()\nx ~= z\n')
    equal(os.execute(("cd '%s' && '%s' repl m.pt < typed > out 2> err"):format(dir, program)), 0)
    equal(cbk.fs.read(dir .. "/out"), "false\ntrue\ntrue\nfalse\nfalse\ntrue\n")
    equal(cbk.fs.read(dir .. "/err"), "warning: in Lua '==' asks whether two tensors are one object; "
      .. "ckpt[\"a.w\"]:compare(ckpt.b) compares their elements\n"
      .. "warning: in Lua '==' asks whether two tensors are one object; x:eq(z) compares their elements\n")
  end)

  it("becomes statements", function()
    local function statement(text, is_expression, values, muted)
      return chunk.statement { text = text, is_expression = is_expression, values = values, muted = muted }
    end
    equal(statement("1 + 1", true, 1), "_show(1 + 1)")
    equal(statement("=x;", true, 1, true), "_keep(x)")
    equal(statement("x -- why", true, 1), "_show(x -- why\n)")
    equal(statement("x; -- why", true, 1), "_show((function() return x; -- why\nend)())")
    equal(statement("y = 1 return y", false, 1), "_show((function() y = 1 return y\nend)())")
    equal(statement("(f or g)()", true, 0), ";(f or g)()")
    equal(statement("local x = 1 return x", false, 1), "_show((function() x = 1 return x\nend)())")
    equal(statement("local x = 1", false, 0), "x = 1")
  end)
end)

describe("wrap", function()
  local wrap = require "cbk.wrap"

  it("breaks between words, and goes on where the text began", function()
    local cases = {
      { "one two three", 7, "one two\nthree" }, { "one two", 7, "one two" }, { "", 5, "" }, { "a\n\nb", 5, "a\n\nb" },
      { "  one two three", 9, "  one two\n  three" }, { "unbreakable word", 5, "unbreakable\nword" }, { "häß übl", 7, "häß übl" },
      { "  name  type  what it is for", 22, "  name  type  what it\n        is for" },
      { "  a long name of a column  text here", 24, "  a long name of a\n  column  text here" },
    }
    for _, case in ipairs(cases) do equal(wrap.text(case[1], case[2]), case[3], case[1]) end
    equal(wrap.text(("x "):rep(100), nil), ("x "):rep(100))
    equal(wrap.text("one two three\n one two three", 8, 2), "one two\n  three\n one two\n   three")
    equal(wrap.text("name  text of two", 12, 2), "name  text\n      of two")
    equal(wrap.text("a tensor 12 KiB, 3 B (5 %)", 14, 2), "a tensor\n  12 KiB, 3 B\n  (5 %)") -- numbers stay with their units
  end)

  it("keeps every word of the help within any width", function()
    for _, name in ipairs(help.names()) do
      local text = help.text(name)
      for _, width in ipairs { 40, 79 } do
        local wrapped = wrap.text(text, width)
        equal(wrapped:gsub("%s+", " "), text:gsub("%s+", " "), name)
        for line in wrapped:gmatch "[^\n]+" do
          is_true(cbk.terminal.columns(line) <= width or not line:match("^%s*(.-)$"):find("%S%s+%S+$"), name .. ": " .. line)
        end
      end
    end
  end)
end)

describe("help", function()
  it("reads the annotations", function()
    local text = help.text "cbk.open"
    is_true(text:find("cbk.open(path, options?) → Checkpoint", 1, true), text)
    is_true(help.text("Tensor"):find("Tensor:stats", 1, true))
    is_true(help.text("fs"):find("cbk.fs.mkdir", 1, true))
    equal(help.text "stats", help.text "Tensor:stats")
    local none, near = help.text "cbk.opne"
    equal(none, nil)
    has(near, "cbk.open")
  end)

  it("has what is public, and no entry without a text of its own", function()
    local names = {}
    for _, name in ipairs(help.names()) do names[name] = true end
    for _, name in ipairs { "Dict", "List", "Tensor", "cbk.cli.parser", "cbk.inspect.text", "cbk.fs", "cbk.config" } do
      is_true(names[name], name)
    end
    for _, name in ipairs { "PromptEntry", "SpecFix", "Trial", "cbk.listing.tree", "cbk.repl.chunk.with_globals", "cbk.repl.complete.at",
      "LeafRow", "LeafTotals", "LeafRows", "LeafRows:path", "LeafGroup", "LeafGroups", "LeafGroups:each", "cbk.leaf_rows",
      "cbk.fold_keys", "cbk.key_numbers", "cbk.advise_overwrite" } do
      is_true(not names[name], name .. " is internal")
      local typed = name:match "^cbk%.(.*)" or name
      for _, offered in ipairs(candidates(name)) do is_true(offered ~= typed .. "(", name .. " is offered") end
    end
    is_true(not help.text("cbk"):find "leaf_rows")
    for name in pairs(names) do
      local text = help.text(name)
      is_true(not text:find "\n%s*%.%s*\n" and not text:find "\n%s*%.$", name .. ": " .. text)
    end
    local offered = candidates "?S"
    for _, name in ipairs(offered) do is_true(names[name], name) end
  end)

  it("knows every function of the module", function()
    for name, value in pairs(cbk) do
      if type(value) == "function" then is_true(help.text("cbk." .. name), "help on cbk." .. name) end
    end
  end)
end)

describe("columns", function()
  it("of wide and of combining characters", function()
    for text, columns in pairs { [""] = 0, abc = 3, ["日本"] = 4, ["e\204\129"] = 1, ["한"] = 2, ["é→"] = 2, ["\255"] = 1 } do
      equal(cbk.terminal.columns(text), columns, text)
    end
  end)

  it("align tables, and limit lines", function()
    local root = cbk.dict { { "層", cbk.full({ 2 }, 1) }, { "abcd", cbk.full({ 2, 2 }, 1) }, { "e\204\129", 1 } }
    local starts = {}
    listing.flat(cbk.leaf_rows(root), function(line) starts[#starts + 1] = cbk.terminal.columns((line:match "^%S+%s+")) end)
    equal(starts, { 6, 6, 6 })
    local progress = require "cbk.progress"
    local line = progress.line({ done = 1, total = 2, seconds = 0, key = ("層"):rep(50) }, 60)
    is_true(cbk.terminal.columns(line) <= 60 and line:find "層$", line)
    for _, width in ipairs { 20, 30, 40, 60 } do
      line = progress.line({ done = 2 ^ 30, total = 2 ^ 33, seconds = 1, key = "layers.0.weight" }, width)
      is_true(cbk.terminal.columns(line) <= width and line:find "^ 12%%", line)
    end
    equal(require("cbk.wrap").text("層層 層層", 6), "層層\n層層")
  end)

  it("leave room in the terminal: long labels move only their own line", function()
    local root, long = cbk.dict(), ("long."):rep(8)
    for i = 0, 3 do root[("layers.%d.%sweight"):format(i, long)] = cbk.full({ 2 }, i) end
    for _, key in ipairs { "b", "c.d" } do root[key] = cbk.full({ 2 }, 1) end
    local starts = {}
    listing.flat(cbk.leaf_rows(root), function(line) starts[#starts + 1] = #line:match "^%S+%s+" end, 70)
    equal(starts, { 57, 57, 57, 57, 5, 5 })
  end)

  it("are visited once, and aligned with those before", function()
    local visits, lines = 0, {}
    local function each(_, visit)
      visits = visits + 1
      for i = 1, 20000 do visit(0, ("k%d"):format(i), { type = "int", count = 1, values = { i } }) end
    end
    local rows = { groups = function() return { each = each } end }
    listing.flat(rows, function(line) lines[#lines + 1] = line end)
    equal({ visits, #lines, lines[1], lines[20000] }, { 1, 20000, "k1     int  1", "k20000  int  20000" })
  end)
end)

describe("listing", function()
  local function tree(root, options)
    local out = {}
    listing.tree(cbk.leaf_rows(root), function(line) out[#out + 1] = line end, nil, options)
    return out
  end
  local function lines(root) return table.concat(tree(root), "\n") end

  it("shows the empty key", function()
    local root = cbk.dict { { "", cbk.full({ 1 }, 1) }, { "a", cbk.dict { { "", 1 }, { "b", 2 } } } }
    local flat = {}
    listing.flat(cbk.leaf_rows(root), function(line) flat[#flat + 1] = line end)
    is_true(flat[1]:find '^"" ')
    is_true(lines(root):find('\n  ""', 1, true), lines(root))
  end)

  it("shows few shapes one by one, and many as a range", function()
    local root = cbk.dict()
    for i = 0, 9 do
      root[("a.%d.w"):format(i)] = cbk.full({ i < 5 and 2 or 3 }, 0)
      root[("b.%d.w"):format(i)] = cbk.full({ i + 1, 2 }, 0)
    end
    local text = lines(root)
    is_true(text:find("{0..4}.w", 1, true) and text:find("{5..9}.w", 1, true), text)
    is_true(text:find("[1..10, 2]", 1, true), text)
  end)

  it("puts below each other what begins alike, however long and deep a key is", function()
    local deep, root = ("b."):rep(200000), cbk.dict()
    for _, key in ipairs { "a." .. deep .. "x", "a." .. deep .. "y", "c." .. deep .. "x", "d", "d..e", "" } do root[key] = 1 end
    local keys = {}
    for i, line in ipairs(tree(root, { unfolded = true })) do keys[i] = line:gsub("%s+int.*", "") end
    equal(keys, { "a." .. deep:sub(1, -2), "  x", "  y", "c." .. deep .. "x", "d", "  .e", '""' })
    local stairs, name = cbk.dict(), ""
    for i = 1, 200 do
      stairs[name .. "w"], name = i, name .. "n."
    end
    local steps = tree(stairs)
    equal(steps[#steps]:match "^ *(%S+)", ("n."):rep(200 - 41) .. "w")
  end)

  it("folds no keys of many numbers", function()
    local function names(count)
      local few, many = ("1."):rep(count - 1) .. "1", ("1."):rep(count - 1) .. "2"
      return lines(cbk.dict { { few, 1 }, { many, 1 } })
    end
    is_true(names(16):find("1.{1,2}", 1, true))
    is_true(not names(17):find("{", 1, true))
  end)

  it("shows ties, also of two tensors over the same bytes", function()
    local base = cbk.tensor { { 1, 2 }, { 3, 4 } }
    local rows = cbk.leaf_rows(cbk.dict { { "base", base }, { "same", base }, { "again", base:reshape { 2, 2 } } })
    equal(rows[2].tied_to, "base")
    equal(rows[3].tied_to, "base")
    equal(rows:totals().stored, 16)
  end)

  it("has room for numbers and extents of any size", function()
    local root = cbk.dict()
    root["a.0"], root["a.1"], root.b = cbk.full({ 2LL ^ 62, 0 }, 0), cbk.full({ 0, 2 }, 0), cbk.full({ 1, 2LL ^ 62, 0 }, 0)
    local text = lines(root)
    is_true(text:find("[4611686018427387904, 0]", 1, true) and text:find("[1, 4611686018427387904, 0]", 1, true), text)
    is_true(cbk.inspect.text(root):find("4611686018427387904", 1, true))
    local numbers = cbk.tensor({ 1e100, -1e308, 5e-324, 0 / 0, 1 / 0 }, { dtype = "float64" })
    is_true(cbk.inspect.text(numbers):find("1.0000e+100, -1.0000e+308,", 1, true), cbk.inspect.text(numbers))
    local wide = cbk.inspect.text(cbk.tensor({ 1e100, 0 }, { dtype = "float64" }))
    is_true(wide:find("[1.0000e+100,  0.0000e+00]", 1, true), wide)
  end)

  it("chooses rows without changing what others have of them", function()
    local root = cbk.dict()
    for i = 1, 300 do root[("layer.%d.w"):format(i)] = i end
    local rows = cbk.leaf_rows(root)
    local groups = rows:groups()
    local chosen = rows:choose { 3, 1 }
    equal({ #rows, #chosen, chosen:path(1), chosen:path(2), chosen:find "layer.1.w", chosen:find "layer.2.w" },
      { 300, 2, "layer.3.w", "layer.1.w", 2, nil })
    local counts = {}
    groups:each(function(_, _, group) counts[#counts + 1] = group.count end)
    equal(counts, { 300 })
    equal(#chosen:choose {}, 0)
  end)

  it("orders layers by their numbers, and nothing else", function()
    local function ordered(...)
      local root = cbk.dict()
      for _, key in ipairs { ... } do root[key] = 1 end
      local rows, out = cbk.leaf_rows(root):in_natural_order(), {}
      for i = 1, #rows do out[i] = rows:path(i) end
      return table.concat(out, " ")
    end
    equal(ordered("z", "l.0.b", "l.1.b", "l.1.a", "l.10.b", "l.10.a", "l.2.b", "l.2.a", "h"),
      "z l.0.b l.1.b l.1.a l.2.b l.2.a l.10.b l.10.a h")
    equal(ordered("l_10.w", "l_2.w", "other", "l_2"), "l_2 l_2.w l_10.w other")
    equal(ordered("x.2", "x.1.0", "x.1", "x.b", "x.a"), "x.1 x.1.0 x.2 x.b x.a")
    equal(ordered("model.w", "step", "model.a"), "model.w step model.a")
    equal(ordered(), "")
  end)

  it("stays within the tree, whatever a script does to it meanwhile", function()
    local root = cbk.dict()
    for i = 0, 3 do root[("l.%d.w"):format(i)] = cbk.full({ 3, 4, 5, 6, 7, 8 }, i) end
    local rows = cbk.leaf_rows(root)
    local groups, shapes = rows:groups(), {}
    root["l.1.w"], root["l.2.w"] = cbk.full({ 9 }, 1), cbk.full({}, 1)
    groups:each(function(_, _, group) shapes[#shapes + 1] = group.shape end)
    equal(shapes, { "[3, 4, 5, 6, 7, 8]" })
    for _, index in ipairs { 0 / 0, 0, 5, -1, 1 / 0, 1e300 } do equal(rows[index], nil) end
    for _, key in ipairs(cbk.keys(root)) do root[key] = nil end
    groups:each(function(_, _, group) equal(group.type, "none") end)
    rows:groups({ unfolded = true }):outline(function() end)
    local names = cbk.dict { { "a.b.c", 1 }, { "a.b.d", 2 }, { "a.e.f", 3 }, { "a.e.g", 4 } }
    cbk.leaf_rows(names):groups({ unfolded = true }):outline(function() for _, key in ipairs(cbk.keys(names)) do names[key] = nil end end)
    equal(#names, 0)
    local nested, seen = cbk.dict { { "y", "root" }, { "a", cbk.dict { { "x", 1 } } } }, {}
    for path in cbk.leaves(nested) do
      nested.a, seen[#seen + 1] = nil, path
    end
    equal(seen, { "y" })
    local loop = cbk.list()
    loop[1] = loop
    harness.raises("a list cannot be a key", function() cbk.set { loop } end)
    loop[1] = 0
  end)

  it("counts in words", function()
    local numbers = require "cbk.numbers"
    equal(numbers.grouped(1234567), "1,234,567")
    equal(numbers.grouped(-123), "-123")
    equal(numbers.counted(1, "tensor"), "1 tensor")
  end)
end)
