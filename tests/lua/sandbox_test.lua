-- A sandboxed converter: what it needs works, and nothing that it can reach opens files, starts programs or loads code.

local cbk = require "cbk"
local harness = require "harness"
local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local TINY = [[
local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local function attempt(place, value, at) %s end
local look = actions.pair("look", function(t, at) attempt("action", t, at) return t:transpose(0, 1) end,
  function(t, at) attempt("back", t, at) return t:transpose(0, 1) end)
attempt "file"
return { {
  model = "tiny", note = "a tiny model",
  { "hf", "cs-2.1 .. cs-2.9",
    keys = rules.keys { { "embed.weight", "e.weight", look },
      { "norm.weight", "n.weight", when = function(at) attempt("when", nil, at) return true end } },
    config = fields.config {
      { "width", "hidden_size",
        { forward = function(v, at) attempt("field", v, at) return v end, backward = function(v) return v end } },
      { "depth", "num_hidden_layers" }, { "heads", "num_heads" },
    },
  },
} }
]]

--- A model of one part, which says another folder and other files once it was checked.
local PAIR = [[
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local part = {
  left = "text", right = "text_model", keys = rules.keys { { "a.weight", "b.weight" } },
  config = fields.config { { "width", "hidden_size" } },
  files = { ["extra.json"] = function() return { a = 1 } end },
}
local function change()
  part.files["../../../gone.json"] = function() return { b = 1 } end
  part.left = "../../gone"
end
part.finish = { left = change }
return { {
  model = "pair", name = "pair",
  { "hf", "cs-2.1 .. cs-2.9", components = { part }, config = fields.config {}, finish = { left = change } },
} }
]]

local function tiny(attempt) return (TINY:gsub("%%s", function() return attempt end)) end

local function folder()
  local dir = harness.temp_dir()
  cbk.create(dir .. "/model.safetensors", { root = cbk.dict { ["embed.weight"] = cbk.randn { 4, 2 }, ["norm.weight"] = cbk.randn { 2 } } })
    :commit { progress = false }
  cbk.fs.write(dir .. "/config.json", '{"width": 2, "depth": 1, "heads": 1}')
  return dir
end

local CONVERT = { "--converter", "tiny.lua", "--model", "tiny", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4", "--config", "config.json",
  "model.safetensors" }

local function convert(dir, ...)
  local words = { ... }
  for _, word in ipairs(CONVERT) do words[#words + 1] = word end
  return harness.cbk(dir, "convert", unpack(words))
end

--- Each shall fail, or give nothing. `value` is a tensor or a field, `at` where it stands; neither is there while the file is read.
local ATTEMPTS = {
  "return os.execute 'touch pwned'", "return os.getenv 'HOME'", "return io.open('pwned', 'w')", "return io.popen 'touch pwned'",
  "return require 'os'", "return require 'io'", "return require 'ffi'", "return require 'jit'", "return require 'debug'",
  "return require 'package'", "return require 'string.buffer'", "return require 'cbk.native'", "return require 'cbk.fs'",
  "return require 'cbk.cli'", "return require 'converters.engine.catalogue'", "return require 'converters.engine.family_files'",
  "return require 'converters.notation.sandbox'", "return require 'converters.llama'", "return require '../../etc/passwd'",
  "return package.loadlib('libc.so.6', 'system')", "return package.loaded.os", "return package.preload", "return _G", "return _G.os",
  "return _ENV", "return debug.getinfo(1)", "return debug.getregistry()", "return getfenv(0)", "return getfenv(require)",
  "return setfenv(1, {})", "return load 'return 1'", "return loadstring 'return os'", "return loadfile 'config.json'",
  "return dofile 'tiny.lua'", "return ffi.C", "return jit.off", "return jit.util", "return string.dump(attempt)",
  "return ('').dump(attempt)", "return getmetatable ''", "return getmetatable(cbk)", "return getmetatable(actions)",
  "return getmetatable(value)", "return setmetatable({}, {})", "return rawset(_G, 'x', 1)", "return newproxy(true)",
  "return coroutine.wrap(function() end)", "return collectgarbage 'count'", "return print 'x'", "return module 'x'", "return gcinfo()",
  "return cbk.open 'model.safetensors'", "return cbk.create('pwned', {})", "return cbk.fs.write('pwned', 'x')", "return cbk.fs",
  "return cbk.config", "return cbk.h5", "return cbk.pickle", "return cbk.cli", "return cbk.repl", "return cbk.terminal",
  "return cbk.inspect", "return cbk.converters", "return cbk.rewrite", "return rules.cbk", "return value:ptr()", "return value.ptr",
  "return value.__index", "return value.methods", "return cbk.full({}, 0):ptr()", "return cbk.full({}, 0).ptr",
  "return (1LL).x", "return at.cbk", "return at._G", "return at.__index._G", "return at.__index.os", "x = 1 return x",
  "local ok, problem = pcall(cbk.fail, 'x', 'y') return ok or problem.__index or problem.traceback",
  "local ok, problem = pcall(cbk.full, {}, {}) return ok or problem.__index",
  "return select(2, pcall(require, 'cbk.fs')).loaded", "return actions.transpose.os", "return cbk.items(cbk.dict()).os",
  "return cbk.glob('x').os", "return cbk.null.os",
  "local origin = { source = '/etc/passwd', line = 1, names = { 'root' } } "
    .. "return rules.named { left = { 'a' }, origin = origin } ~= \"rule 'only.left a' at /etc/passwd:1\"",
}

describe("a sandboxed converter", function()
  it("cannot take all memory, also where it catches errors", function()
    local dir = folder()
    cbk.fs.write(dir .. "/greedy.lua", "local t = {}\nwhile true do pcall(function() t[#t + 1] = ('x'):rep(1000) .. #t end) end")
    local code, stdout, stderr = harness.cbk(dir, "rules", "greedy.lua")
    equal({ code, stdout }, { 1, "" })
    equal(stderr, "cbk: cannot finish with the sandboxed converter 'greedy.lua': it takes more than 64 MiB of memory; if you trust the "
      .. "file, pass --no-sandbox to `cbk rules`, or leave out --sandbox elsewhere\n")
    code, stdout, stderr = harness.cbk(dir, "rules", "greedy.lua", "--json")
    equal({ code, stdout, (stderr:find('{"error": {"code": "converter"', 1, true)) }, { 1, "", 1 })
  end)

  it("names what it lacks, and misspelt names, with the line", function()
    local dir = folder()
    local function said(text)
      cbk.fs.write(dir .. "/own.lua", text, { overwrite = true })
      return (select(2, harness.cbk(dir, "rules", "own.lua")))
    end
    for text, message in pairs {
      ["\nreturn os.time()"] = "own.lua:2: a sandboxed converter has no 'os'; if you trust the file, pass --no-sandbox",
      ["return require 'cbk'.open"] = "own.lua:1: a sandboxed converter has no 'cbk.open'; if you trust",
      ["return sise"] = "own.lua:1: there is no global 'sise'\n",
      ["return require 'cbk'.fulll"] = "own.lua:1: there is no 'cbk.fulll'; did you mean 'cbk.full'?",
    } do
      is_true(said(text):find(message, 1, true), said(text))
    end
  end)

  it("has the place of its functions in explanations", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", (tiny "":gsub("return true end", "return at.side == 'right' end")))
    local _, stdout = convert(dir, "--sandbox", "--explain", "norm.weight")
    is_true(stdout:find("its condition (tiny.lua:13) does not hold", 1, true), stdout)
  end)

  it("needs a converter to be sandboxed", function()
    local code, _, stderr = harness.cbk(folder(), "list", "--sandbox")
    equal({ code, stderr }, { 2, "cbk: --sandbox needs --converter FILE: cbk's own converters are not sandboxed\n" })
  end)

  it("does what any converter does", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny "")
    local outputs = {}
    for i, option in ipairs { "--sandbox", "--no-progress-bar" } do
      local code, stdout, stderr = convert(dir, option, "--output-dir", cbk.fs.join(dir, tostring(i)))
      equal({ code, (stderr:find("warning: no class describes 'tiny'", 1, true)) }, { 0, 1 })
      local written = cbk.open(cbk.fs.join(dir, tostring(i), "model_to_cs-2.4.mdl"))
      outputs[i] = { (stdout:gsub("/%d/", "/")), written.root.model["e.weight"]:hex() }
    end
    equal(outputs[1], outputs[2])
    for _, words in ipairs {
      { "rules", "tiny.lua", "model.safetensors" }, { "rules", "--no-sandbox", "tiny.lua" },
      { "list", "--converter", "tiny.lua", "--sandbox", "tiny" },
      { "convert-config", "--converter", "tiny.lua", "--sandbox", "--model", "tiny", "--src-fmt", "hf", "--tgt-fmt", "cs-2.4",
        "config.json" },
    } do
      local code, stdout, stderr = harness.cbk(dir, unpack(words))
      equal(code, 0, words[1] .. stdout .. stderr)
    end
  end)

  it("reaches no right by any name or object, when it is read and when it is called", function()
    is_true(#ATTEMPTS >= 30)
    local dir, lines = folder(), { "local tries = {" }
    for _, text in ipairs(ATTEMPTS) do lines[#lines + 1] = ("{ %q, function() %s end },"):format(text, text) end
    lines[#lines + 1] = [[ }
      for _, one in ipairs(tries) do
        local ok, got = pcall(one[2])
        if ok and got ~= nil and got ~= false then error("escaped at " .. place .. ": " .. one[1] .. " gives " .. tostring(got), 0) end
      end
      if place == "action" then error("all were tried with a " .. tostring(cbk.kind(value)), 0) end]]
    cbk.fs.write(dir .. "/tiny.lua", tiny(table.concat(lines, "\n")))
    local code, stdout, stderr = harness.cbk(dir, "rules", "tiny.lua", "--config", "config.json", "model.safetensors")
    equal({ code, stderr }, { 1, "" }, stdout)
    is_true(stdout:find("all were tried with a tensor", 1, true) and stdout:find("\n1 finding", 1, true), stdout)
    code, stdout, stderr = convert(dir, "--sandbox", "--dry-run")
    is_true(code == 1 and stderr:find("all were tried with a tensor", 1, true), stdout .. stderr)
    equal(cbk.fs.list(dir), { "config.json", "model.safetensors", "tiny.lua" })
  end)

  it("has its rights back with --no-sandbox, and in convert unless --sandbox is given", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny "io.open('touched', 'w'):close()")
    local code, stdout = harness.cbk(dir, "rules", "tiny.lua")
    is_true(code == 1 and stdout:find("a sandboxed converter has no 'io'", 1, true), stdout)
    is_true(not cbk.fs.exists(dir .. "/touched"))
    local status, _, stderr = convert(dir, "--sandbox", "--dry-run")
    is_true(status == 1 and stderr:find("--no-sandbox", 1, true), stderr)
    is_true(not cbk.fs.exists(dir .. "/touched"))
    equal((harness.cbk(dir, "rules", "--no-sandbox", "tiny.lua")), 0)
    is_true(cbk.fs.exists(dir .. "/touched"))
  end)

  it("is shown its own text with control characters escaped", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/x.lua", 'error("\\27[31mRED\\226\\128\\174")')
    local code, stdout = harness.cbk(dir, "rules", "x.lua")
    is_true(code == 1 and stdout:find("\\x1b[31mRED\\xe2\\x80\\xae", 1, true) and not stdout:find "\27", stdout)
  end)

  it("cannot ask where another file has a text", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/secret.json", '{"token": 1}')
    local place = package.searchpath("converters.llama", package.path):gsub("llama%.lua$", ("../"):rep(20)) .. dir:sub(2) .. "/secret.json"
    cbk.fs.write(dir .. "/x.lua", ([[
      local rules = require "converters.engine.rules"
      local forged = { left = { "{a,b,c}.x" }, right = { "{a,b}.{d,e}" }, also = { left = {}, right = {} },
        origin = { source = %q, line = 999, place = 1, names = { "token", "token" } } }
      local _, problem = pcall(rules.keys, { { "{p,q}", "{p,q}", { is_rules = true, forged } } })
      error(problem.message)]]):format(place))
    local _, stdout = harness.cbk(dir, "rules", "x.lua")
    is_true(stdout:find("secret.json:999", 1, true), stdout)
  end)

  it("cannot fail and end with success", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny "if place == 'action' then error { message = 'gone', exit_code = 0 } end")
    local code, _, stderr = convert(dir, "--sandbox", "--output-dir", "out")
    is_true(code == 1 and stderr:find "gone", stderr)
  end)

  it("is text, not bytecode", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", string.dump(assert(loadstring "return {}")))
    for _, option in ipairs { "--sandbox", "--no-sandbox" } do
      local code, stdout, stderr = harness.cbk(dir, "rules", "tiny.lua", option == "--sandbox" and "--json" or option)
      is_true(code == 1 and (stdout .. stderr):find("wrong mode", 1, true), stdout .. stderr)
    end
  end)

  it("is interrupted by Ctrl-C, whatever it catches", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny "while true do pcall(function() while true do place = place end end) end")
    local command = ("cd '%s' && timeout --preserve-status -k 20 -s INT 0.5 '%s' rules tiny.lua >/dev/null 2>&1; printf $?")
    local pipe = io.popen(command:format(dir, cbk.fs.program()))
    local status = pipe:read "*a"
    pipe:close()
    equal(status, "130")
  end)

  it("changes nothing that it sees", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny [[
      local heads = require "converters.vocabulary.heads"
      local decoder = require "converters.shared.decoder"
      local llama = require "converters.classes.hf.llama"
      local seen, changed, count = {}, {}, 0
      local function assign(t, key, path)
        local ok, why = pcall(function() t[key] = "changed" end)
        if ok then changed[#changed + 1] = path .. "." .. tostring(key) end
        if not ok and not tostring(why):find("cannot assign", 1, true) then changed[#changed + 1] = path .. ": " .. tostring(why) end
      end
      local function crawl(t, path)
        if type(t) ~= "table" or seen[t] then return end
        seen[t], count = true, count + 1
        for key, inner in pairs(t) do
          if type(key) == "string" or type(key) == "number" then assign(t, key, path) end
          crawl(key, path .. ".key") crawl(inner, path .. "." .. tostring(key))
        end
        assign(t, "added", path)
      end
      for name, one in pairs { rules = rules, fields = fields, actions = actions, heads = heads, decoder = decoder, llama = llama,
        class = require "converters.engine.class", wrap = require "converters.engine.wrap", kinds = require "converters.engine.kinds",
        values = require "converters.vocabulary.values", rotary = require "converters.vocabulary.rotary",
        zoo = require "converters.classes.zoo.decoder", shared = require "converters.shared.llama", cbk = cbk, string = string,
        table = table, math = math, bit = bit, at = at or {} } do
        if not (name == "at" and at == nil) then crawl(one, name) end
      end
      for name, one in pairs { heads = heads, decoder = decoder, actions = actions.head } do
        pcall(fields.fill, one, { added = 1 })
        if pcall(table.insert, one, 1) or pcall(table.sort, one) or select(2, pcall(function() return one.added end)) == 1 then
          changed[#changed + 1] = "a function changes " .. name
        end
      end
      if pcall(function() local text = "" text.upper = "changed" end) then changed[#changed + 1] = "texts" end
      if #changed > 0 then error(table.concat(changed, "; "), 0) end
      if count < (place == "file" and 300 or 1) then error(count .. " tables only", 0) end
      if place == "action" then error("all was tried", 0) end]])
    local code, stdout, stderr = convert(dir, "--sandbox", "--dry-run")
    is_true(code == 1 and stderr:find("all was tried", 1, true), stdout .. stderr)
  end)

  it("gets Dicts and Lists of the library as copies", function()
    local dir = folder()
    local modules = {}
    for _, side in ipairs { "hf", "zoo" } do
      for _, name in ipairs(cbk.fs.list(here .. "converters/classes/" .. side)) do
        modules[#modules + 1] = ('"converters.classes.%s.%s"'):format(side, name:match "^[^.]+")
      end
    end
    cbk.fs.write(dir .. "/own.lua", ("local modules = { %s }\n"):format(table.concat(modules, ", ")) .. [[
      local cbk, rules, fields = require "cbk", require "converters.engine.rules", require "converters.engine.fields"
      local class = require "converters.engine.class"
      local functions = { function(t) return rules.variant(t, {}) end, function(t) return rules.variant({}, t) end,
        function(t) return fields.with(t, {}) end, function(t) return fields.with({}, t) end, function(t) return fields.fill({}, t) end,
        function(t) return class.extend(t, {}) end, function(t) return class.extend({}, t) end }
      local changed, count, seen = {}, 0, {}
      local function change(value, level)
        if type(value) == "table" and level < 4 then
          for _, inner in pairs(value) do change(inner, level + 1) end
        elseif type(value) == "userdata" and (cbk.kind(value) == "dict" or cbk.kind(value) == "list") then
          value[cbk.kind(value) == "list" and 1 or "changed"] = "changed"
        end
      end
      local function crawl(read, path)
        local value = read()
        if type(value) == "userdata" then
          local kind = cbk.kind(value)
          if kind ~= "dict" and kind ~= "list" then return end
          count = count + 1
          if value[kind == "list" and 1 or "changed"] == "changed" then changed[#changed + 1] = path end
          if kind == "list" then value[1] = "changed" else value.changed = "changed" end
          local again = read()
          if again[kind == "list" and 1 or "changed"] == "changed" then changed[#changed + 1] = path end
        elseif type(value) == "table" and not seen[value] then
          seen[value] = true
          for _, f in ipairs(functions) do
            local fine, result = pcall(f, value)
            if fine then change(result, 1) end
          end
          for key in pairs(value) do crawl(function() return read()[key] end, path .. "." .. tostring(key)) end
        end
      end
      for _, name in ipairs(modules) do crawl(function() return require(name) end, name) end
      error(("%d seen, %d changed: %s"):format(count, #changed, table.concat(changed, " ")), 0)]])
    local _, stdout, stderr = harness.cbk(dir, "rules", "own.lua")
    local seen, count = (stdout .. stderr):match "(%d+) seen, (%d+) changed"
    is_true(seen and tonumber(seen) > 10 and count == "0", stdout .. stderr)
  end)

  it("leaves the library as it was, whatever it hands over and changes later", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny [[
      local own = require "converters.shared.llama".converter { model_type = "x" }
      own.config, own.keys = nil, nil -- a copy
      local class = require "converters.engine.class"
      local llama = require "converters.classes.hf.llama"
      for _, one in pairs(llama.LlamaForCausalLM.fields) do class.free(one) class.unused(one, function() return true end) end
      pcall(fields.fill, actions.transpose, { added = 1 })
      for _, one in ipairs { actions, rules, fields, at, llama, llama.LlamaForCausalLM, class } do
        for _, f in ipairs { fields.fill, class.free, class.optional, class.module, fields.with } do pcall(f, one, { added = 1 }) end
      end
      local forged = { key = "x", run = { out = actions, differ = function() end, tell = function() end } }
      if at and at.emit then pcall(at.emit, forged, "split", 1) end]])
    cbk.fs.write(dir .. "/whole.lua", [=[
      local cbk = require "cbk"
      local converters = require "cbk.converters"
      local family_files = require "converters.engine.family_files"
      local keys = require "converters.engine.keys"
      for _, name in ipairs { "class", "rules", "fields", "keys", "kinds", "sections", "wrap" } do require("converters.engine." .. name) end
      local vocabulary = require "converters.vocabulary.actions"
      require "converters.shared.llama"
      require "converters.classes.hf.llama"
      local function all()
        local out, seen = {}, {}
        local function walk(value, path)
          out[path] = value
          if type(value) ~= "table" or seen[value] then return end
          seen[value] = true
          for name, inner in next, value do walk(inner, path .. "/" .. tostring(name)) end
        end
        for name, module in pairs(package.loaded) do
          if name:find "^converters%." and not name:find "notation" and not name:find "catalogue" then walk(module, name) end
        end
        return out
      end
      local before = all()
      local models = family_files.read("tiny.lua", true)
      local source = cbk.dict { ["embed.weight"] = cbk.randn { 4, 2 }, ["norm.weight"] = cbk.randn { 2 } }
      local made = keys.convert(models[1][1].keys, "left", source, { left = cbk.dict(), right = cbk.dict() })
      assert(made["e.weight"]:shape()[1] == 2 and vocabulary.split)
      local after, count = all(), 0
      for path, value in pairs(before) do
        count = count + 1
        if not rawequal(after[path], value) then print("changed: " .. path) end
      end
      for path in pairs(after) do
        if before[path] == nil then print("added: " .. path) end
      end
      print(count > 900 and "compared" or "too few: " .. count)
    ]=])
    local code, stdout, stderr = harness.cbk(dir, "run", "whole.lua")
    equal({ code, stdout }, { 0, "compared\n" }, stderr)
  end)

  it("fills no library, and hands none over", function()
    local dir = folder()
    for _, name in ipairs { "math", "string", "bit", "table", "cbk", "cbk.fs" } do
      for _, attempt in ipairs { "table.insert(%s, { 'a', 'b' })", "table.insert(%s, 1, 'a')", "table.remove(%s)", "table.sort(%s)",
        "return rules.keys(%s)", "return fields.config(%s)", "return rules.variant(%s, {})", "return cbk.items(%s)",
        "return rules.keys { { 'a', 'b', %s } }" } do
        cbk.fs.write(dir .. "/tiny.lua", tiny(("if place == 'file' then %s end"):format(attempt:format(name))), { overwrite = true })
        local code, stdout, stderr = harness.cbk(dir, "rules", "tiny.lua")
        local is_refused = stdout:find("cannot assign to", 1, true) or stdout:find("hands over a library", 1, true)
        is_true(code == 1 and (is_refused or name == "cbk.fs" and stdout:find("has no 'cbk.fs'", 1, true)), attempt:format(name) .. stdout
          .. stderr)
      end
    end
  end)

  it("gets back what it raised itself, and nothing of the library's", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny [[
      if place ~= "file" then return end
      local function same(one, other) if one ~= other then cbk.fail("config", "it is another one") end end
      local llama = require "converters.shared.llama"
      local shape = cbk.full({ 1 }, 0):shape()
      shape.f = rules.keys
      local own = { when = function() return true end, inner = { rules.keys } }
      for _, one in ipairs { llama.attention, rules.keys, own, shape, llama, attempt, function() end } do
        local _, raised = pcall(error, one)
        same(raised, one)
      end
      local _, raised = pcall(error, shape)
      same(raised.f, rules.keys)
      local fine, problem = pcall(cbk.fail, "config", "said")
      if fine or problem.code ~= "config" then cbk.fail("config", "no code") end
    ]])
    local code, stdout, stderr = harness.cbk(dir, "rules", "tiny.lua", "--json")
    equal(code, 0, stdout .. stderr)
  end)

  it("gives no object of the library to functions that would copy, list or change it", function()
    local dir = folder()
    for _, attempt in ipairs {
      "values.in_no_section({ 'steps' }).write(zoo.GPT2LMHeadModel)", "rules.variant(at, {})", "fields.with(at, {})",
      "require 'converters.engine.class'.extend(at, {})", "rules.between('x', 'y', at)", "rules.variant({ inner = at }, {})",
      "require 'converters.engine.wrap'.take_out({ place = 'a', copy = 'b' }, at, function() end)",
      "require 'converters.engine.class'.deciding(zoo.GPT2LMHeadModel, 1)", "fields.fill(zoo.GPT2LMHeadModel, { name = 1 })",
      "values.in_no_section({ 'queries' }).write(rules.variant(actions, {}).rotary)", "at.run.out = 1", "at.run.put(1)",
      "at.full_key.x = 1",
    } do
      cbk.fs.write(dir .. "/tiny.lua", tiny(([[
        if place ~= "when" then return end
        local values, zoo = require "converters.vocabulary.values", require "converters.classes.zoo.decoder"
        %s]]):format(attempt)), { overwrite = true })
      local code, stdout, stderr = convert(dir, "--sandbox", "-o", "out")
      is_true(code == 1 and not cbk.fs.exists(dir .. "/out/model_to_cs-2.4.mdl"), attempt .. stdout .. stderr)
      local is_refused = stderr:find("is not for this function", 1, true) or stderr:find("expected a config", 1, true)
      is_true(is_refused or attempt:find "^at%." and stderr:find("is nil, which has no fields", 1, true), attempt .. stderr)
    end
  end)

  it("converts its own models alone", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny "")
    cbk.fs.write(dir .. "/llama.json", '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}')
    for _, words in ipairs {
      { "convert", "model.safetensors", "--model", "llama", "--src-fmt", "hf", "--to", "cs-2.5", "--config", "llama.json" },
      { "convert-config", "llama.json", "--model", "llama", "--src-fmt", "hf", "--tgt-fmt", "cs-2.5" },
      { "new", "llama.json", "--model", "llama", "-o", "new.pt" },
    } do
      for _, word in ipairs { "--converter", "tiny.lua", "--sandbox" } do words[#words + 1] = word end
      local code, _, stderr = harness.cbk(dir, unpack(words))
      equal(code, 2)
      is_true(stderr:find("llama is cbk's own model, not one of 'tiny.lua'", 1, true), stderr)
    end
  end)

  it("cannot fill a log with warnings", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", "local cbk = require 'cbk' while true do cbk.warn(('x'):rep(1e5)) end")
    local code, _, stderr = harness.cbk(dir, "list", "--converter", "tiny.lua", "--sandbox")
    equal({ code, #stderr < 2 ^ 21 }, { 1, true })
    cbk.fs.write(dir .. "/tiny.lua", tiny "if place == 'when' then while true do value = (value or '') .. 'x' at:warn(value) end end",
      { overwrite = true })
    code, _, stderr = convert(dir, "--sandbox", "-o", "out")
    equal({ code, #stderr < 2 ^ 21 }, { 1, true })
    assert(stderr:find("the converter warns of more than fits on a screen", 1, true), stderr:sub(-300))
  end)

  it("cannot change the new config after it was checked", function()
    local dir = folder()
    local text = tiny [[if place == "action" or place == "when" then at.right.hidden_size, at.right.more = 999, 1 kept.late = 2 end]]
    for _, change in ipairs {
      { "local function attempt", "local kept\nlocal function attempt" },
      { "config = fields.config {", "finish = { right = function(to) kept = to end }, config = fields.config {" },
    } do text = text:gsub(change[1], function() return change[2] end, 1) end
    cbk.fs.write(dir .. "/tiny.lua", text)
    local code, _, stderr = convert(dir, "--sandbox", "-o", "out")
    equal(code, 0, stderr)
    local config = cbk.config.load(dir .. "/out/config_to_cs-2.4.yaml")
    equal(cbk.totable(config.model), { hidden_size = 2, num_hidden_layers = 1, num_heads = 1, name = "tiny" })
  end)

  it("gets copies of the Dicts that a file hands over and changes later", function()
    local dir = folder()
    local text = tiny ""
    for _, change in ipairs {
      { "local function attempt", "local kept\nlocal function attempt" },
      { "{ forward = function%(v, at%).-return v end,", "{ forward = function() kept = cbk.dict { a = 1 } return kept end," },
      { "config = fields.config {", 'finish = { right = function() kept.a, kept.b = 2, "later" end }, config = fields.config {' },
    } do
      local changed, count = text:gsub(change[1], function() return change[2] end)
      equal(count, 1, change[1])
      text = changed
    end
    cbk.fs.write(dir .. "/tiny.lua", text)
    local code, _, stderr = convert(dir, "--sandbox", "-o", "out")
    equal(code, 0, stderr)
    local config = cbk.config.load(dir .. "/out/config_to_cs-2.4.yaml")
    equal(cbk.totable(config.model.hidden_size), { a = 1 })
  end)

  it("has the values of the config in the functions of classes, as without a sandbox", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/own.lua", [[
      local class, rules, fields = require "converters.engine.class", require "converters.engine.rules", require "converters.engine.fields"
      local size, depth = class.makers "size depth"
      local Own = class.new "Own" {
        fields = { width = size(), depth = depth(), act = class.kinds.text "gelu", bias = class.kinds.boolean(false) },
        derived = function(c) return { wide = "2 * width", is_gated = c.act == "swiglu" } end,
        tensors = function(c)
          local names = {}
          for name in pairs(c) do names[name] = true end
          return {
            class.each("layers", "depth", { class.linear("up", "width", c.wide, c.bias) }),
            c.is_gated and { "gate", { c.width, "wide" } } or nil, names.act and { "seen", { 1 } } or nil,
          }
        end,
      }
      return { { model = "own", classes = { left = Own, right = Own },
        { "a", "b", keys = rules.keys { { "*", "*" } }, config = fields.config { { "width" }, { "depth" }, { "act" }, { "bias" } } } } }
    ]])
    cbk.config.save(cbk.dict { width = 2, depth = 2, act = "swiglu", bias = true }, dir .. "/config.json")
    local root = cbk.dict { gate = cbk.full({ 2, 4 }, 1), seen = cbk.full({ 1 }, 1) }
    for i = 0, 1 do
      root[("layers.%d.up.weight"):format(i)], root[("layers.%d.up.bias"):format(i)] = cbk.full({ 4, 2 }, i), cbk.full({ 4 }, i)
    end
    for _, lacking in ipairs { "nothing", "gate", "seen", "layers.1.up.bias" } do
      root[lacking] = nil
      cbk.create(dir .. "/m.safetensors", { root = root, overwrite = true }):commit { progress = false }
      for _, option in ipairs { "--sandbox", "--json" } do -- which changes nothing here
        local code, _, err = harness.cbk(dir, "convert", "m.safetensors", "--converter", "own.lua", "--to", "b", "--config", "config.json",
          "--dry-run", option)
        equal(code, lacking == "nothing" and 0 or 1, err)
        is_true(lacking == "nothing" or err:find("missing: [^;]*" .. lacking:gsub("%p", "%%%0"):gsub("1", ".*")) ~= nil, err)
      end
    end
  end)

  it("starts with the library as it was, whatever the file before it did", function()
    local dir = folder()
    local field = [[
      local class, llama = require "converters.engine.class", require "converters.classes.hf.llama"
      local one = class.deciding(llama.LlamaForCausalLM.fields.hidden_size, 1)
    ]]
    cbk.fs.write(dir .. "/first.lua", field .. " class.free(one) " .. tiny "")
    cbk.fs.write(dir .. "/second.lua", field .. " if one.free then cbk.fail('config', 'it is changed') end " .. tiny "")
    cbk.fs.write(dir .. "/both.lua", [[
      for _, name in ipairs { "first.lua", "second.lua" } do require "converters.engine.family_files".read(name, true) end
    ]])
    local code, _, stderr = harness.cbk(dir, "run", "both.lua")
    equal({ code, stderr }, { 0, "" })
  end)

  it("requires cbk's own modules, and no file of such a name beside a script", function()
    local dir = folder()
    cbk.fs.mkdir(dir .. "/converters/shared")
    for _, name in ipairs { "evil", "clip" } do
      cbk.fs.write(dir .. ("/converters/shared/%s.lua"):format(name), "io.open('pwned', 'w'):close() return {}")
    end
    cbk.fs.write(dir .. "/script.lua", 'require "converters.engine.family_files".read("own.lua", true)')
    for name, problem in pairs { evil = "module 'converters.shared.evil' is not available", clip = "" } do
      cbk.fs.write(dir .. "/own.lua", ("require 'converters.shared.%s'\n"):format(name) .. tiny "", { overwrite = true })
      local code, _, stderr = harness.cbk(dir, "run", "script.lua")
      equal({ code, cbk.fs.exists(dir .. "/pwned") }, { problem == "" and 0 or 1, false }, stderr)
      is_true(stderr:find(problem, 1, true), stderr)
    end
  end)

  it("gives no native function an object of the library, which it could hand back, nor what a module hides", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny [[
      local llama = require "converters.classes.hf.llama"
      for _, one in ipairs { at or llama.LlamaForCausalLM, llama.LlamaForCausalLM } do
        for _, given in ipairs { one, { one }, { a = { one } } } do
          for _, name in ipairs { "items", "keys", "copy", "deep_copy", "list", "dict", "tuple", "totable", "leaves", "raw_items" } do
            local fine, result = pcall(cbk[name], given)
            if fine then error(name .. " takes an object", 0) end
            if not tostring(result):find "object of the library" then error(name .. ": " .. tostring(result), 0) end
          end
        end
      end
      local class = require "converters.engine.class"
      for _, given in ipairs { { x = class.new }, { class.new }, class.kinds } do
        for _, f in cbk.items(given) do
          local fine, raw = pcall(function() return f "X" { fields = {}, tensors = function() return {} end }.__index end)
          if fine and raw ~= nil then error("the classes' metatable", 0) end
        end
      end
      for _, module in ipairs { rules, fields, actions, require "converters.engine.kinds", require "converters.engine.class" } do
        local fine, names = pcall(cbk.keys, module)
        for _, name in ipairs(fine and names or {}) do
          if ("expand named facts Class"):find(name, 1, true) then error(name .. " is hidden", 0) end
        end
      end
      if at then cbk.warn "tried" end]])
    local code, stdout, stderr = harness.cbk(dir, "rules", "tiny.lua")
    equal(code, 0, stdout .. stderr)
    code, stdout, stderr = convert(dir, "--sandbox")
    equal(code, 0, stdout .. stderr)
    is_true(stderr:find "tried", stderr)
  end)

  it("copies tables that native functions made, and guards the functions in them", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", [[
      local cbk = require "cbk"
      local rules = require "converters.engine.rules"
      local fields = require "converters.engine.fields"
      local function carried(plain)
        local shape = cbk.full({ 1 }, 0):shape()
        shape[1] = nil
        for name, value in pairs(plain) do shape[name] = value end
        return shape
      end
      local function when(at)
        at.run.__index.put = function() end
        return true
      end
      local rule = carried { left = { "a" }, right = { "b" }, also = { left = {}, right = {} }, when = when,
        origin = { source = "tiny.lua", line = 1, place = 1, names = { "a", "b" } } }
      local keys = rules.variant({ is_rules = true, { "placeholder" } }, { rule })
      local function change(value, at)
        at.__index.set = function() end
        return value
      end
      local field = carried { left = "width", right = "hidden_size", kind = "pair",
        action = carried { forward = change, backward = change },
        origin = { source = "tiny.lua", line = 1, place = 1, names = { "width", "hidden_size" } } }
      local config = rules.variant({ is_fields = true }, { field })
      return { { model = "tiny", { "hf", "cs-2.1 .. cs-2.9", keys = keys, config = config } } }]])
    cbk.fs.write(dir .. "/whole.lua", [[
      local cbk = require "cbk"
      local family_files = require "converters.engine.family_files"
      local keys = require "converters.engine.keys"
      local sections = require "converters.engine.sections"
      local converter = family_files.read("tiny.lua", true)[1][1]
      local configs = { left = cbk.dict(), right = cbk.dict() }
      print(pcall(keys.convert, converter.keys, "left", cbk.dict { a = cbk.full({ 2 }, 1) }, configs))
      print(pcall(sections.convert, converter, "left", cbk.dict { width = 2 }))
    ]])
    local code, stdout, stderr = harness.cbk(dir, "run", "whole.lua")
    equal(code, 0, stderr)
    for line, part in pairs { "'run' is nil, which has no fields", "attempt to index field '__index'" } do
      is_true(stdout:find("false\t", 1, true) and stdout:find(part, 1, true), line .. stdout)
    end
  end)

  it("gives no table or function with rights", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny [[
      local seen, count = {}, 0
      local function crawl(value, path)
        if value == nil or seen[value] then return end
        seen[value], count = true, count + 1
        if check(value) then error(path .. " has rights", 0) end
        if type(value) == "table" then
          for key, inner in pairs(value) do crawl(key, path) crawl(inner, path .. "." .. tostring(key)) end
        end
      end
      for _, one in ipairs { string, table, math, bit, cbk, rules, fields, actions, at or {}, value or {},
        { assert, error, ipairs, next, pairs, pcall, select, tonumber, tostring, type, unpack, require },
        require "converters.engine.class", require "converters.engine.wrap", require "converters.engine.kinds",
        require "converters.vocabulary.rotary", require "converters.shared.llama", require "converters.classes.zoo.decoder" } do
        crawl(one, tostring(_))
      end
      for _, name in ipairs { "sha256", "shape", "_G", "__index", "run", "trace" } do crawl(at and at[name], "at." .. name) end
      if place == "file" and count < 300 then error("only " .. count .. " values", 0) end]])
    cbk.fs.write(dir .. "/walk.lua", [=[
      local cbk = require "cbk"
      local cli = require "cbk.cli"
      local scripts = debug.getinfo(cli.parser, "S").source:match "^@(.*)lib/cbk/"
      require "cbk.converters"
      local bad, asked = {}, 0
      for _, library in pairs { os = os, io = io, debug = debug, package = package, jit = jit, ffi = require "ffi", fs = cbk.fs,
        config = cbk.config, h5 = cbk.h5, pickle = cbk.pickle, coroutine = coroutine } do
        bad[library] = true
        for _, value in pairs(library) do
          if type(value) == "function" or type(value) == "table" then bad[value] = true end
        end
      end
      for _, name in ipairs { "load", "loadstring", "loadfile", "dofile", "require", "module", "getfenv", "setfenv", "getmetatable",
        "setmetatable", "rawset", "print", "newproxy", "collectgarbage" } do bad[_G[name]] = true end
      for _, name in ipairs { "open", "create" } do bad[cbk[name]] = true end
      bad[_G], bad[cbk], bad[package.loaded] = true, true, true
      local load_file = loadfile
      function loadfile(path, mode, env) -- of the sandbox
        if env then
          rawset(env, "check", function(value)
            asked = asked + 1
            return bad[value] or type(value) == "userdata" and bad[debug.getmetatable(value)]
          end)
        end
        return load_file(path, mode, env)
      end
      arg = { [0] = "convert", "--sandbox", "--dry-run", ]=] .. ("%q, "):rep(#CONVERT):format(unpack(CONVERT)) .. [=[ }
      assert(load_file(scripts .. "convert.lua"))()
      print(asked > 300 and "asked" or asked)
    ]=])
    local code, stdout, stderr = harness.cbk(dir, "run", "walk.lua")
    is_true(code == 0 and stdout:find("\nasked\n", 1, true), stdout .. stderr)
  end)

  it("makes no file outside of the output folder, and neither does a trusted one", function()
    for _, is_sandboxed in ipairs { true, false } do
      local dir = harness.temp_dir()
      cbk.fs.mkdir(dir .. "/in/deep")
      cbk.fs.write(dir .. "/in/deep/pair.lua", PAIR)
      cbk.fs.write(dir .. "/in/deep/c.yaml", "model:\n  name: pair\n  text_model:\n    hidden_size: 4\n")
      cbk.create(dir .. "/in/deep/c.mdl", { root = cbk.dict { model = cbk.dict { ["b.weight"] = cbk.randn { 2 } } }, format = "h5" })
        :commit { progress = false }
      local words = { "--converter", "pair.lua", is_sandboxed and "--sandbox" or nil }
      for _, word in ipairs { "--model", "pair", "--src-fmt", "cs-2.4", "--tgt-fmt", "hf", "-o", "out" } do words[#words + 1] = word end
      for _, command in ipairs { { "convert-config", "c.yaml" }, { "convert", "c.mdl", "--config", "c.yaml", "--overwrite" } } do
        local line = { unpack(command) }
        for _, word in ipairs(words) do line[#line + 1] = word end
        local code, stdout, stderr = harness.cbk(dir .. "/in/deep", unpack(line))
        equal({ cbk.fs.list(dir), cbk.fs.list(dir .. "/in") }, { { "in" }, { "deep" } }, stderr)
        if is_sandboxed then
          equal(code, 0, stdout .. stderr)
          is_true(cbk.fs.exists(dir .. "/in/deep/out/text/extra.json"))
        else
          local wanted = command[1] == "convert" and "must not change its tables" or "expected the name of a file or folder in it"
          is_true(code == 1 and stderr:find(wanted, 1, true), stdout .. stderr)
        end
      end
    end
  end)

  it("writes through no link out of the output folder", function()
    local dir = harness.temp_dir()
    cbk.fs.mkdir(dir .. "/out")
    cbk.fs.mkdir(dir .. "/elsewhere")
    os.execute(("ln -s ../elsewhere '%s/out/text'; ln -s text2 '%s/out/near'"):format(dir, dir))
    harness.raises("'" .. dir .. "/out/text': it is a symbolic link out of its folder, to '../elsewhere'", function()
      cbk.fs.inside(dir .. "/out", "text")
    end, "io")
    equal(cbk.fs.inside(dir .. "/out", "near"), dir .. "/out/near")
    for _, name in ipairs { "..", "../x", "a/b" } do
      local out = cbk.create(dir .. "/x.pt", { root = cbk.dict { a = cbk.tensor { 1 } }, companions = { [name] = "" } })
      harness.raises("expected the name of a file or folder in it", function() out:plan() end, "value")
    end
    for _, name in ipairs { "", ".", "..", "a/b", "/a", "a\0b", "../a" } do
      harness.raises("expected the name of a file or folder in it", function() cbk.fs.inside(dir, name) end, "value")
    end
  end)

  it("raises errors with a text", function()
    local dir = folder()
    for text, wanted in pairs {
      ["error { message = {} }"] = "without a text", ["error {}"] = "without a text", ["error { message = 'why' }"] = "why",
      ["error(nil)"] = "", ["error 'plain'"] = "plain", ["cbk.fail('shape', 'said')"] = "said",
    } do
      for _, place in ipairs { "file", "action", "when", "field" } do
        cbk.fs.write(dir .. "/tiny.lua", tiny(("if place == %q then %s end"):format(place, text)), { overwrite = true })
        for _, option in ipairs { "--sandbox", "--no-progress-bar" } do
          local code, stdout, stderr = convert(dir, option, "--dry-run")
          is_true(code == 1 and #stderr:match "cbk: [^\n]*" >= 8, stdout .. stderr)
          is_true(stderr:find(wanted, 1, true) and not stderr:find "attempt to" and not stderr:find "table: 0x", stderr)
        end
      end
    end
  end)
end)
