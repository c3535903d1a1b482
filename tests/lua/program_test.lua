-- The program itself: exit codes, one line on stderr, arguments.

local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

local function quoted(text) return "'" .. text:gsub("'", [['\'']]) .. "'" end

--- Runs cbk with arguments; exit code, stdout, stderr.
local function run(arguments, environment, stdin)
  local folder = t.temp_dir()
  local words = {}
  for i, word in ipairs(arguments) do words[i] = quoted(word) end
  local command = ("%s %s %s >%s/out 2>%s/err <%s"):format(environment or "", quoted(arg[-1]), table.concat(words, " "), folder,
    folder, stdin or "/dev/null")
  local status = os.execute(command)
  return math.floor(status / 256), cbk.fs.read(folder .. "/out"), cbk.fs.read(folder .. "/err")
end

local function script(text)
  local path = t.temp_dir() .. "/script.lua"
  cbk.fs.write(path, text)
  return path
end

describe("program", function()
  it("evaluates expressions and statements", function()
    t.equal({ run { "-e", "1 + 1" } }, { 0, "2\n", "" })
    t.equal({ run { "-e", "local x = ... ; print(arg[1])", "word" } }, { 0, "word\n", "" })
    t.equal({ run { "-e", '"a", nil, cbk.dict { a = 1 }' } }, { 0, "a\nnil\nDict (1 entry)\n  a: 1\n", "" })
  end)

  it("runs scripts with their arguments, and takes their exit code", function()
    local path = script "print(arg[0]:match '[^/]+$', ...) return 3"
    t.equal({ run { "run", path, "--help", "b c" } }, { 3, "script.lua\t--help\tb c\n", "" })
    t.equal({ run({ "run", "-", "x" }, nil, path) }, { 3, "-\tx\n", "" })
    t.equal({ run { "run", script "#!/usr/bin/env cbk\nos.exit(4)" } }, { 4, "", "" })
    t.equal({ run { "run", script "undeclared = 1 print(undeclared)" } }, { 0, "1\n", "" })
  end)

  it("finds modules beside a script", function()
    local path = script "print(require 'helper')"
    cbk.fs.write(cbk.fs.join(cbk.fs.dirname(path), "helper.lua"), "return 42")
    t.equal({ run { "run", path } }, { 0, "42\n", "" })
  end)

  it("fails with one line, folded and cut", function()
    local code, out, err = run { "-e", [[error("first\n  second\tx " .. ("é"):rep(1000), 0)]] }
    t.equal({ code, out }, { 1, "" })
    t.is_true(err:find("^cbk: first; second\\x09x ") and #err <= 600, err)
    t.equal(select(2, err:gsub("\n", "")), 1)
    t.is_true(not err:find("[\128-\191]%.%.%.") or err:find("é%.%.%.\n$"), "no half character")
    err = select(3, run { "run", script "\nlocal cbk = require 'cbk'\ncbk.fail('shape', 'odd')" })
    t.is_true(err:find "^cbk: odd %(.*script.lua:3%)\n$", err)
  end)

  it("shows tracebacks when asked", function()
    local path = script "local function inner() error 'deep' end\ninner()\n"
    t.is_true(not select(3, run { "run", path }):find "traceback")
    t.is_true(select(3, run { "run", "--traceback", path }):find "stack traceback")
    t.is_true(select(3, run { "--traceback", "run", path }):find "stack traceback")
  end)

  it("tells wrong usage with 2", function()
    for _, case in ipairs { { {}, "no command" }, { { "nonsense" }, "no command 'nonsense'" }, { { "rum" }, "did you mean run" },
      { { "--nope" }, "unknown option" }, { { "run" }, "which script" }, { { "-e" }, "which expression" } } do
      local code, _, err = run(case[1])
      t.equal(code, 2, case[2])
      t.is_true(err:find(case[2], 1, true), err)
    end
    t.equal({ run { "--version" } }, { 0, "cbk " .. cbk.version .. "\n", "" })
    t.equal((run { "--help" }), 0)
  end)

  it("finds commands by either spelling, personal ones first", function()
    local folder = t.temp_dir()
    cbk.fs.write(folder .. "/my_tool.lua", "print('mine', ...)")
    t.equal({ run({ "my-tool", "x" }, "CBK_PATH=" .. folder) }, { 0, "mine\tx\n", "" })
    t.equal({ run({ "my_tool" }, "CBK_PATH=/nowhere:" .. folder) }, { 0, "mine\n", "" })
  end)

  it("locks globals in commands", function()
    local folder = t.temp_dir()
    cbk.fs.write(folder .. "/typo.lua", "local function f() counter = 1 end f()")
    local code, _, err = run({ "typo" }, "CBK_PATH=" .. folder)
    t.equal(code, 1)
    t.is_true(err:find("the global 'counter' is assigned", 1, true), err)
    cbk.fs.write(folder .. "/read.lua", "print(contuer)")
    t.is_true(select(3, run({ "read" }, "CBK_PATH=" .. folder)):find("no global 'contuer'", 1, true))
  end)

  it("refuses bytecode", function()
    local path = script(string.dump(loadstring "print 'compiled'"))
    t.equal((run { "run", path }), 1)
  end)

  it("names a script in the help of its parser", function()
    local path = script "require('cbk.cli').parser('tool', 'Does a thing.'):parse()"
    t.is_true(select(2, run { "run", path, "--help" }):find("^Usage: cbk run " .. path:gsub("%p", "%%%0")))
    t.is_true(select(3, run { "run", path, "more" }):find("'cbk run " .. path .. " --help' tells", 1, true))
  end)

  it("gives commands one style", function()
    local folder = t.temp_dir()
    cbk.fs.write(folder .. "/tool.lua", [[
      local cli = require "cbk.cli"
      local parser = cli.parser("tool", "Does a thing.")
      parser:argument "input"
      cli.output_options(parser)
      local args = parser:parse()
      print(args.input, args.memory, args.threads, args.dry_run, args.no_progress_bar)]])
    local path = "CBK_PATH=" .. folder
    t.equal({ run({ "tool", "x", "--memory", "1KiB", "--dry-run" }, path) }, { 0, "x\t1024\tnil\ttrue\tnil\n", "" })
    local code, out, err = run({ "tool" }, path)
    t.equal({ code, out }, { 2, "" })
    t.equal(err, "cbk: tool: missing argument 'input'; 'cbk tool --help' tells how to call it\n")
    t.equal((run({ "tool", "x", "--memory", "much" }, path)), 2)
    local help
    code, help = run({ "tool", "--help" }, path)
    t.equal(code, 0)
    t.is_true(help:find "^Usage: cbk tool" and help:find "Does a thing")
  end)
end)
