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

  it("an output that is neither committed, planned nor closed at the end is an error that names it", function()
    local function ends(code, what)
      local folder = t.temp_dir()
      local text = ("local target = %q\n"):format(folder .. "/new.pt") .. code
      local status, _, err = run { "run", script("local cbk = require 'cbk'\n" .. text) }
      t.equal(#cbk.fs.list(folder), code:find ":commit" and 1 or 0, what)
      cbk.fs.remove(folder .. "/new.pt")
      t.equal({ run({ "-e", text }) }, { status, "", err }, what)
      return status, (err:gsub(folder:gsub("%p", "%%%0") .. "/", ""))
    end
    local missing = "cbk: cannot write 'new.pt': out:commit() is missing; call it, or out:close() if nothing is to be written\n"
    t.equal({ ends "local out = cbk.create(target) out.x = cbk.tensor { 1 }" }, { 1, missing })
    t.equal({ ends "do local out = cbk.create(target) out.x = 1 end collectgarbage() collectgarbage()" }, { 1, missing }, "collected")
    t.equal({ ends "cbk.create(target) os.exit(0)" }, { 1, missing }, "os.exit(0)")
    t.equal({ ends "cbk.create(target) os.exit(3)" }, { 3, "" }, "os.exit(3)")
    t.equal({ ends "cbk.create(target):close()" }, { 0, "" }, "closed")
    t.equal({ ends "cbk.create(target):plan()" }, { 0, "" }, "planned")
    t.equal({ ends "local out = cbk.create(target) out.x = cbk.tensor { 1 } out:commit()" }, { 0, "" }, "committed")
    t.equal({ ends "local out = cbk.create(target .. '.foo') pcall(out.commit, out)" }, { 0, "" }, "a commit that failed, and was caught")
    t.equal({ ends "local out = cbk.create(target) error('other', 0)" }, { 1, "cbk: other\n" }, "another error")
    local status, _, err = run { "-e", "cbk.create(cbk.fs.temp_dir() .. '/a.pt') cbk.create(cbk.fs.temp_dir() .. '/b.pt')" }
    t.equal({ status, select(2, err:gsub("out:commit", "")), select(2, err:gsub("\n", "")) }, { 1, 2, 2 }, "each on a line")
  end)

  it("so is the edit of an H5 file that changed something", function()
    local path = t.temp_dir() .. "/x.h5"
    local out = cbk.create(path)
    out.x = cbk.tensor { 1 }
    out:commit()
    local before = cbk.fs.read(path)
    local function edited(code)
      local status, _, err = run { "-e", ("local edit = cbk.h5.edit(%q) "):format(path) .. code }
      return status, err
    end
    local status, err = edited "edit:set_attribute('note', 'new')"
    t.equal(status, 1)
    t.is_true(err:find("x.h5': edit:commit() or edit:save_as() is missing; call one, or edit:close()", 1, true), err)
    t.equal({ edited "print(edit:names()[1])" }, { 0, "" })
    t.equal({ edited "edit:set_attribute('note', 'new') edit:close()" }, { 0, "" })
    t.is_true(cbk.fs.read(path) == before)
    t.equal({ edited "edit:set_attribute('note', 'new') edit:commit()" }, { 0, "" })
    t.is_true(cbk.fs.read(path) ~= before)
  end)

  it("an existing output is refused with the advice of the place", function()
    local path = t.temp_dir() .. "/a.pt"
    cbk.create(path, { root = cbk.dict { a = 1 } }):commit()
    local function refused(...)
      local status, _, err = run { ... }
      t.equal(status, 1)
      return err:match "exists already(.-)\n$"
    end
    local in_lua = "; remove it, choose another name or pass overwrite = true"
    t.equal(refused("-e", ("cbk.create(%q)"):format(path)), in_lua)
    t.equal(refused("-e", ("cbk.fs.write(%q, '')"):format(path)), in_lua)
    t.is_true(refused("run", script(("require 'cbk'.create(%q)"):format(path))):find(in_lua, 1, true) == 1)
    t.equal(refused("copy", path, path), "; remove it, choose another name or add --overwrite")
    t.equal(refused("demo", "--dir", path), "; remove it or choose another name")
    local parsed = script(([[
      local cbk = require "cbk"
      cbk.cli.options(cbk.cli.parser("x", "x"), "overwrite"):parse()
      cbk.create(%q)]]):format(path))
    t.is_true(refused("run", parsed):find("; remove it, choose another name or add --overwrite", 1, true) == 1)
  end)

  it("shows tracebacks when asked", function()
    local path = script "local function inner() error 'deep' end\ninner()\n"
    t.is_true(not select(3, run { "run", path }):find "traceback")
    t.is_true(select(3, run { "run", "--traceback", path }):find "stack traceback")
    t.is_true(select(3, run { "--traceback", "run", path }):find "stack traceback")
  end)

  it("reports wrong usage with 2", function()
    for _, case in ipairs { { {}, "no command" }, { { "nonsense" }, "no command 'nonsense'" }, { { "rum" }, "did you mean 'run'" },
      { { "--nope" }, "unknown option" }, { { "run" }, "run: missing argument SCRIPT" }, { { "-e" }, "-e: missing argument EXPRESSION" },
      { { "lss" }, "cbk: there is no command 'lss'; did you mean 'ls'?\n" },
      { { "" }, "there is no command ''; 'cbk --help' lists them\n" },
      { { "/dev/null" }, "there is no command '/dev/null'; did you mean 'cbk ls /dev/null'?\n" },
      { { "ls", "--flatt", "x" }, "ls: unknown option '--flatt'; did you mean '--flat'? See 'cbk ls --help'\n" },
      { { "help", "zzzzz" }, "help: there is no command, topic or function 'zzzzz'; 'cbk help' lists them\n" } } do
      local code, _, err = run(case[1])
      t.equal(code, 2, case[2])
      t.is_true(err:find(case[2], 1, true), err)
    end
    local code, versions, err = run { "--version" }
    t.equal({ code, versions:match "^[^\n]*", err }, { 0, "cbk " .. cbk.version, "" })
    for _, library in ipairs { "LuaJIT", "HDF5", "yaml-cpp", "oneDNN", "zlib" } do
      t.is_true(versions:find("\n  " .. library:gsub("%-", "%%-") .. " +%d+%.%d"), library)
    end
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
    t.is_true(select(3, run { "run", path, "more" }):find("see 'cbk run " .. path .. " --help'", 1, true))
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
    t.equal(err, "cbk: tool: missing argument INPUT; see 'cbk tool --help'\n")
    t.equal((run({ "tool", "x", "--memory", "much" }, path)), 2)
    local help
    code, help = run({ "tool", "--help" }, path)
    t.equal(code, 0)
    t.is_true(help:find "^Usage: cbk tool" and help:find "Does a thing")
  end)
end)
