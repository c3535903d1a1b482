-- What all commands have in common: help, examples, JSON.

local cbk = require "cbk"
local commands = require "cbk.commands"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true
local run = harness.cbk

local has = harness.has

local names = {}
for name in pairs(commands) do names[#names + 1] = name end
table.sort(names)

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""
local topics = {}
for _, name in ipairs(cbk.fs.list(here .. "scripts/help")) do topics[#topics + 1] = name:match "^(.+)%.md$" end

---Runs a shell line in which `cbk` is this program: exit code, stdout, stderr.
local function shell(dir, line)
  local bin = harness.temp_dir()
  os.execute(("ln -s '%s' '%s/cbk'"):format(cbk.fs.program(), bin))
  local status = os.execute(("cd '%s' && PATH='%s':\"$PATH\" && { %s\n} >%s/out 2>%s/err </dev/null"):format(dir, bin, line, bin, bin))
  return status / 256, cbk.fs.read(bin .. "/out"), cbk.fs.read(bin .. "/err")
end

local function width_of(text) return #text - select(2, text:gsub("[\128-\191]", "")) end

local function parsed(text) return cbk.config.parse(text, "json") end

describe("cbk help", function()
  it("has one line for each command, in a group", function()
    local code, out = shell(harness.temp_dir(), "COLUMNS=80 cbk --help")
    equal(code, 0)
    for _, name in ipairs(names) do
      local is_hidden = name == "complete"
      local line = is_hidden and "" or out:match(("\n(  %s  +%%S[^\n]+)\n"):format(name:gsub("%p", "%%%0")))
      is_true(line, name .. " has a line")
      is_true(width_of(line) <= 80, line)
    end
    is_true(not out:find("your own (CBK_PATH)", 1, true), "all are in a group")
    for _, topic in ipairs(topics) do
      is_true(topic == "run" or out:find(("\n    %s  +%%l"):format((topic:gsub("%p", "%%%0")))), topic .. " has a line")
    end
    for _, group in ipairs { "explore", "convert", "upgrade", "script" } do has(out, "\n" .. group .. ":\n  ") end
    equal({ shell(harness.temp_dir(), "COLUMNS=80 cbk help") }, { code, out, "" })
  end)

  it("lists commands of the user's own", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/my_tool.lua", "-- Counts things.\nprint 'mine'")
    local _, out = shell(dir, "CBK_PATH=. cbk help")
    has(out, "\nyour own (CBK_PATH):\n  my-tool                     Counts things\n")
  end)

  it("NAME is NAME --help, with the command's own name, unless NAME has a page", function()
    local dir = harness.temp_dir()
    for _, name in ipairs(names) do
      local code, out, err = run(dir, name, "--help")
      equal({ code, err }, { 0, "" })
      equal({ out:match "^Usage: (cbk [%w-]+)" }, { "cbk " .. name })
      equal(select(2, run(dir, "help", name)) == out, not cbk.fs.exists(here .. "scripts/help/" .. name .. ".md"))
      is_true(not out:find "<[%w_]+>", name .. " names its arguments as usage does")
    end
  end)

  it("fits the terminal, and breaks between words only", function()
    local dir = harness.temp_dir()
    for _, name in ipairs(names) do
      local words = {}
      for word in select(2, shell(dir, ("COLUMNS=100 cbk %s --help"):format(name))):gmatch "%S+" do words[word] = true end
      for _, columns in ipairs { 40, 64, 80 } do
        local _, out = shell(dir, ("COLUMNS=%d cbk %s --help"):format(columns, name))
        for line in out:gmatch "[^\n]+" do
          is_true(width_of(line) <= columns or not line:find "^ *%S+ +%S", ("%s at %d columns: %s"):format(name, columns, line))
        end
        for word in out:gmatch "%S+" do is_true(word == "\\" or words[word] or words[word:gsub(",$", "")], word) end
      end
    end
  end)

  it("joins paragraphs and items, and continues commands with a backslash", function()
    local wrap = require "cbk.wrap"
    equal(wrap.prose("one\ntwo:\nthree\n\n- an item\n  of two lines\n- another one that is long\n\n  code  here\n    more", 16),
      "one two: three\n\n- an item of two\n  lines\n- another one\n  that is long\n\n  code  here\n    more")
    equal(wrap.prose("  cbk copy a.mdl b.mdl --to-dtype float16 --threads 2", 36),
      "  cbk copy a.mdl b.mdl \\\n    --to-dtype float16 --threads 2")
    equal(wrap.prose("  cbk run X      what it is for is this and that", 40),
      "  cbk run X      what it is for is this\n                 and that")
  end)

  it("is 80 columns wide in a file, and names files where they are", function()
    for _, topic in ipairs(topics) do
      local out = select(2, shell(harness.temp_dir(), "cbk help " .. topic))
      for line in out:gmatch "[^\n]+" do is_true(width_of(line) <= 80, topic .. ": " .. line) end
      for path in out:gmatch "%f[%w/](%l+/[%w_/-]+%.%l+)" do
        is_true(not path:find "^converters/" and not path:find "^scripts/" and not path:find "^tests/", topic .. " names " .. path)
      end
    end
    for _, topic in ipairs { "training", "training-api", "prompt", "run", "python" } do -- pages with code, which is not to be broken
      for line in cbk.fs.read(here .. "scripts/help/" .. topic .. ".md"):gmatch "\n(  +[^\n]*)" do
        is_true(width_of(line) <= 80 or line:find "%S  +%S" or line:find "^  %l[^=({]*$", topic .. ": " .. line)
      end
    end
    local page = select(2, shell(harness.temp_dir(), "COLUMNS=100 cbk help converters"))
    is_true(cbk.fs.exists(page:match "(%S*/converters/REFERENCE%.md)"), page)
  end)

  it("is in plain words", function()
    local dir = harness.temp_dir()
    local texts = {}
    for _, topic in ipairs(topics) do texts[topic .. ".md"] = select(2, run(dir, "help", topic)) end
    for _, name in ipairs(names) do texts[name] = select(2, run(dir, name, "--help")) end
    for _, page in ipairs { "README.md", "converters/README.md", "converters/ACTIONS.md", "converters/REFERENCE.md" } do
      texts[page] = cbk.fs.read(here .. page):gsub("`[^`\n]*`", "") -- without names
    end
    for name, text in pairs(texts) do
      text = " " .. text:gsub("%W+", " ")
      for _, words in ipairs { "tell", "tells", "told", "stand", "stands", "goes on", "is none", "are none", "not there", "of which" } do
        is_true(not text:find(" " .. words .. " ", 1, true), ("'%s' in %s"):format(words, name))
      end
    end
  end)

  it("shows pages, and suggests names", function()
    local dir = harness.temp_dir()
    for _, topic in ipairs(topics) do
      local code, out, err = run(dir, "help", topic)
      equal({ code, err }, { 0, "" })
      has(out:lower(), (topic:gsub("-", " ")))
    end
    local code, out, err = run(dir, "help", "jso")
    equal({ code, out }, { 2, "" })
    has(err, "there is no command, topic or function 'jso'; did you mean 'json'")
    equal((run(dir, "help", "../help/json")), 2)
    equal({ run(dir, "run", "--help") }, { run(dir, "help", "run") })
    has(select(2, run(dir, "serve", "--help")), "Usage: cbk serve [-h] --stdio\n") -- which is required
  end)
end)

describe("examples", function()
  it("are in the help of every command, and can be typed", function()
    for _, name in ipairs { "run", unpack(names) } do
      local dir, count = harness.temp_dir(), 0
      local help = select(2, run(dir, name, "--help")):gsub(" \\\n *", " ") -- continued lines
      for line in ((help .. "\n\n"):match "\nexamples?:\n(.-)\n\n" or ""):gmatch "  ([^\n]+)" do
        count = count + 1
        local waits = name == "watch" and not line:find("--once", 1, true) -- for the next checkpoint
        if waits then line = line .. " --once" end
        if name == "demo" then -- which takes half a minute, if it can write its folder
          cbk.fs.mkdir(dir .. "/demo")
          line = line:find("--dir demo", 1, true) and line or line .. " --dir demo"
        end
        local _, _, err = shell(dir, line)
        is_true(name ~= "demo" or err:find("remove it", 1, true), err)
        is_true(not err:find("; see 'cbk", 1, true) and not err:find("Syntax error", 1, true), line .. ": " .. err)
      end
      is_true(count >= 2, ("%s has %d examples"):format(name, count))
    end
  end)
end)

describe("--json", function()
  local function make_files()
    local dir = harness.temp_dir()
    local tied = cbk.tensor { 1.5, 2 }
    cbk.create(dir .. "/a.pt", { root = cbk.dict { { "w", tied }, { "v", tied }, { "n", cbk.tensor { 3 } } } }):commit()
    cbk.create(dir .. "/m.ckpt", { root = cbk.dict { w = cbk.tensor { 1 } }, format = "tensorflow" }):commit()
    return dir
  end

  it("is an option of every command but those for people only", function()
    local dir, people = harness.temp_dir(), { complete = true, demo = true, repl = true, work = true, finish = true, serve = true }
    for _, name in ipairs(names) do
      equal(select(2, run(dir, name, "--help")):find("%-%-json") ~= nil, not people[name], name)
    end
  end)

  it("makes errors one JSON object, whoever finds them", function()
    local dir = make_files()
    local cases = {
      { 2, "usage", "no command 'nosuch'", "nosuch", "--json" },
      { 2, "usage", "unknown option '--nope'", "ls", "a.pt", "--nope", "--json" },
      { 2, "usage", "missing argument FILE", "ls", "--json" },
      { 1, "io", "missing.pt", "ls", "--json", "missing.pt" },
      { 1, "io", "missing.pt", "copy", "--json", "missing.pt", "b.pt" },
      { 2, "io", "missing.pt", "diff", "a.pt", "missing.pt", "--json" },
      { 1, "key", "no key of 'a.pt' matches 'x\\x1b'", "ls", "a.pt", "x\27", "--json" },
      { 1, "exists", "'a.pt'", "copy", "a.pt", "a.pt", "--json" },
    }
    for _, name in ipairs(names) do
      if name ~= "demo" and name ~= "help" and name ~= "repl" then
        cases[#cases + 1] = { 2, "usage", "unknown option '--nope'", name, "--nope", "--json" }
      end
    end
    for _, case in ipairs(cases) do
      local code, out, err = run(dir, unpack(case, 4))
      local what = table.concat(case, " ")
      equal({ code, out }, { case[1], "" }, what)
      equal(select(2, err:gsub("\n", "")), 1, what)
      local problem = parsed(err).error
      equal(problem.code, case[2], what)
      has(problem.message, case[3])
    end
  end)

  it("makes warnings JSON objects", function()
    local dir = make_files()
    local code, out, err = run(dir, "copy", "a.pt", "b.safetensors", "--exclude", "n", "--exclude", "nope", "--json")
    equal({ code, parsed(out).written }, { 0, true })
    local messages = {}
    for line in err:gmatch "[^\n]+" do messages[#messages + 1] = parsed(line).warning.message end
    equal(messages, { "no key matches 'nope'", "1 tied tensor is written as a copy: safetensors has no ties" })
    cbk.fs.write(dir .. "/p.yaml", "model: {hidden_size: 4, hidden_size: 8, num_hidden_layers: 1}\n")
    local _, _, notes = run(dir, "convert-config-to-mup", "-i", "p.yaml", "--json")
    has(parsed(notes:match "^([^\n]+)\n").warning.message, "'hidden_size' is repeated")
    equal(select(3, run(dir, "copy", "a.pt", "c.safetensors", "--exclude", "nope", "--json", "-q")), "")
  end)

  it("prints what commands that write have written, or would", function()
    local dir = make_files()
    local function result(...)
      local code, out, err = run(dir, ...)
      equal(code, 0, err)
      return parsed(out)
    end
    local dry = result("copy", "a.pt", "b.pt", "--dry-run", "--json")
    equal({ dry.written, dry.checkpoint, dry.bytes_written, dry.lossy }, { false, "b.pt", dry.bytes_written, {} })
    is_true(dry.bytes_written > 12 and not cbk.fs.exists(dir .. "/b.pt"))
    equal(result("copy", "a.pt", "b.pt", "--json"), { written = true, checkpoint = "b.pt", bytes_read = dry.bytes_read,
      bytes_written = dry.bytes_written, peak_memory = dry.peak_memory, lossy = {}, lost = {} })
    equal(result("copy", "a.pt", "half.pt", "--to-dtype", "float16", "--json").lossy, { "w", "n" })
    equal(result("tensorflow-to-h5", "m.ckpt", "m.h5", "--json").checkpoint, "m.h5")
    equal(result("h5-to-tensorflow", "m.h5", "n.ckpt", "--json").checkpoint, "n.ckpt")
    cbk.fs.write(dir .. "/data_iter_checkpoint_state_file_global", "1")
    local moved = result("data-iter-state-conversion", "-c", "a.pt", "-w", ".", "-o", "o.mdl", "-s", "5", "--json")
    equal({ moved.checkpoint, moved.dataloader }, { "o.mdl", { samples_streamed = 0, seed = 5 } })
  end)
end)

describe("results", function()
  it("have lines that fit the terminal, broken between words", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    local long = ("long."):rep(8)
    for i = 0, 3 do root[("layers.%d.%sweight"):format(i, long)] = cbk.full({ 2 }, i == 2 and 0 / 0 or i) end
    for _, key in ipairs { "b", "c.d" } do root[key] = root["layers.0." .. long .. "weight"] end
    cbk.create(dir .. "/a.mdl", { root = root, format = "h5" }):commit()
    for _, key in ipairs { "b", "layers.3." .. long .. "weight" } do root[key] = cbk.full({ 2, 3 }, 7) end
    cbk.create(dir .. "/b.mdl", { root = root, format = "h5" }):commit()
    for command, exit in pairs {
      ["ls a.mdl"] = 0, ["ls --flat a.mdl"] = 0, ["check a.mdl"] = 1, ["diff a.mdl b.mdl"] = 1, ["show a.mdl b"] = 0,
    } do
      local whole = select(2, shell(dir, "cbk " .. command))
      local code, narrow = shell(dir, "COLUMNS=60 cbk " .. command)
      local is_table = command == "ls a.mdl" or command:find "^diff" -- where keys are shortened
      equal({ code, is_table and "" or (narrow:gsub("%s+", " ")) }, { exit, is_table and "" or (whole:gsub("%s+", " ")) }, command)
      if is_table then is_true(select(2, narrow:gsub("\n", "")) <= select(2, whole:gsub("\n", "")) + 3, narrow) end
      for line in narrow:gmatch "[^\n]+" do
        is_true(cbk.terminal.columns(line) <= 60 or not line:match("^%s*(.-)%s*$"):find "%s", command .. ": " .. line)
      end
    end
  end)
end)

describe("what is named in errors", function()
  local function failed(dir, status, message, ...)
    local code, _, err = run(dir, ...)
    equal({ code, err }, { status, "cbk: " .. message .. "\n" })
  end

  it("is the folder that holds the checkpoint", function()
    local dir = harness.temp_dir()
    cbk.fs.mkdir(dir .. "/back")
    failed(dir, 1, "cannot open 'back': the folder holds no checkpoint", "ls", "back")
    for i, advice in ipairs { "name the one in it: 'back/1'", "name one of those in it: 'back/1', 'back/2'" } do
      cbk.fs.mkdir(("%s/back/%d"):format(dir, i))
      cbk.create(("%s/back/%d/m.pt"):format(dir, i), { root = cbk.dict { a = cbk.full({ 2 }, 1) } }):commit()
      failed(dir, 1, "cannot open 'back': the folder holds no checkpoint; " .. advice, "ls", "back")
    end
    cbk.fs.mkdir(dir .. "/shards")
    cbk.fs.write(dir .. "/shards/model-00001-of-00002.safetensors", "")
    failed(dir, 1, "cannot open 'shards': the folder has shards, but not their index (*.index.json); copy or download it again, "
      .. "or name a shard", "ls", "shards")
  end)

  it("is the option as it was typed", function()
    local dir = harness.temp_dir()
    for _, option in ipairs { "--from", "--src-fmt", "--to", "--tgt-fmt" } do
      local message = ("diff: %s needs --model NAME (or --model auto); see 'cbk diff --help'"):format(option)
      failed(dir, 2, message, "diff", "a", "b", option, "hf")
    end
  end)

  it("is trouble of check, and not a finding", function()
    equal((run(harness.temp_dir(), "check", "m.pt", "--converter", "none.lua")), 2)
  end)

  it("ends a prompt without a terminal, also behind :time", function()
    local code, out, err = shell(harness.temp_dir(), "printf ':time nix()\\n1\\n' | cbk repl")
    equal({ code, out, err }, { 1, "", "cbk: line 1: there is no function 'nix'\n" })
  end)
end)
