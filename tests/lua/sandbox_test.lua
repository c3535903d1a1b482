-- A sandboxed converter: what it needs works, and nothing that it can reach opens files, starts programs or loads code.

local cbk = require "cbk"
local harness = require "harness"
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
  "return require 'cbk.cli'", "return require 'converters.engine.catalogue'", "return require 'converters.notation.files'",
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
    equal(stderr, "cbk: the sandboxed converter takes more than 64 MiB of memory; if you trust the file, pass --no-sandbox\n")
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
      ["return require 'cbk'.fulll"] = "own.lua:1: there is no 'cbk.fulll'; did you mean cbk.full?",
    } do
      is_true(said(text):find(message, 1, true), said(text))
    end
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
      local _, problem = pcall(rules.expand, { left = { "{a,b,c}.x" }, right = { "{a,b}.{d,e}" }, also = { left = {}, right = {} },
        tied = {}, origin = { source = %q, line = 999, place = 1, names = { "token", "token" } } })
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

  it("changes nobody else's words", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny [[
      actions.transpose, actions.qkv.stacked, rules.text, fields.config, rules.keys = nil, nil, nil, nil, rules.keys
      table.concat, string.format = nil, nil]])
    local code, stdout = harness.cbk(dir, "rules", "tiny.lua")
    equal(code, 1)
    is_true(stdout:find "fields%.config" or stdout:find "assigned", stdout)
    equal((harness.cbk(dir, "list", "--converter", "tiny.lua", "--sandbox", "llama")), 1)
  end)

  it("sees no table or function with rights in anything that it is given", function()
    local dir = folder()
    cbk.fs.write(dir .. "/tiny.lua", tiny "capture(value, at, rules, fields, actions, cbk)")
    cbk.fs.write(dir .. "/walk.lua", [=[
      local cbk = require "cbk"
      local cli = require "cbk.cli"
      local scripts = debug.getinfo(cli.parser, "S").source:match "^@(.*)lib/cbk/"
      require "cbk.converters"
      local sandbox = require "converters.notation.sandbox"
      local load_file, given = sandbox.load, {}
      function sandbox.load(path)
        local chunk = assert(load_file(path))
        given[#given + 1] = debug.getfenv(chunk)
        rawset(given[1], "capture", function(...)
          for i = 1, select("#", ...) do given[#given + 1] = (select(i, ...)) end
        end)
        return chunk
      end
      arg = { [0] = "convert", "--sandbox", "--dry-run", ]=] .. ("%q, "):rep(#CONVERT):format(unpack(CONVERT)) .. [=[ }
      assert(loadfile(scripts .. "convert.lua"))()
      local bad, names = {}, {}
      for name, library in pairs { os = os, io = io, debug = debug, package = package, jit = jit, ffi = require "ffi", fs = cbk.fs,
        config = cbk.config, h5 = cbk.h5, pickle = cbk.pickle, coroutine = coroutine } do
        bad[library] = name
        for field, value in pairs(library) do
          if type(value) == "function" or type(value) == "table" then bad[value] = name .. "." .. field end
        end
      end
      for _, name in ipairs { "load", "loadstring", "loadfile", "dofile", "require", "module", "getfenv", "setfenv", "getmetatable",
        "setmetatable", "rawset", "print", "newproxy", "collectgarbage" } do bad[_G[name]] = name end
      for _, name in ipairs { "open", "create" } do bad[cbk[name]] = "cbk." .. name end
      bad[_G], bad[cbk], bad[package.loaded] = "_G", "cbk", "package.loaded"
      local seen, found, count = {}, {}, 0
      local function walk(value, path)
        if bad[value] then found[#found + 1] = path .. " is " .. bad[value] end
        if type(value) ~= "table" or seen[value] then return end
        seen[value], count = true, count + 1
        for key, inner in next, value do
          if key ~= "capture" then walk(key, path) walk(inner, path .. "." .. tostring(key)) end
        end
        local meta = debug.getmetatable(value)
        if meta and type(rawget(meta, "__index")) == "table" then walk(rawget(meta, "__index"), path .. ".__index") end
      end
      for i, value in ipairs(given) do walk(value, "given " .. i) end
      print(("%d given, %d tables seen; %s"):format(#given > 10 and 10 or #given, count > 50 and 50 or count, table.concat(found, "; ")))
    ]=])
    local code, stdout, stderr = harness.cbk(dir, "run", "walk.lua")
    equal(code, 0, stderr)
    is_true(stdout:find("10 given, 50 tables seen; \n", 1, true), stdout)
  end)
end)
