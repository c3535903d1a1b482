-- Keys and texts of a checkpoint are not to be trusted: whatever command shows them, no control character reaches a
-- terminal, and no line break forges a line.

local cbk = require "cbk"
local harness = require "harness"
local complete = require "cbk.repl.complete"
local progress = require "cbk.progress"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local EVIL = {
  "\27[2Jcleared\7", "line\nFORGED", "\r\27]0;title\7", "c1 \194\155" .. "31m", "\226\128\174turned", "\127", "tab\tFORGED",
  "sep\226\128\168FORGED",
  "half \237\160\128 pair", "quote' and \" and \\", "\\27[2J",
}

--- Characters that cannot be seen: U+200B, U+FEFF, U+00AD, U+3164, U+FE0F, U+1D173, U+E0041.
local HIDDEN = {
  "\226\128\139", "\239\187\191", "\194\173", "\227\133\164", "\239\184\143", "\240\157\133\179", "\243\160\129\129",
}
for _, character in ipairs(HIDDEN) do EVIL[#EVIL + 1] = "hid" .. character .. "den" end

--- What no output may have: control characters but line feeds, C1 controls, marks of direction; lines that a key began.
local function is_clean(text)
  for _, bad in ipairs { "[%z\1-\9\11-\31\127]", "\194[\128-\159]", "\226\128[\168-\174]", "\237[\160-\191]", "^FORGED", "\nFORGED" } do
    if text:find(bad) then return false end
  end
  for _, character in ipairs(HIDDEN) do
    if text:find(character, 1, true) then return false end
  end
  return true
end

local function tree(change)
  local model = cbk.dict()
  for i, key in ipairs(EVIL) do model[key] = cbk.tensor { i + change, 2 } end
  local texts = cbk.dict()
  for i, key in ipairs(EVIL) do texts[key .. i] = key end
  return cbk.dict { { "model", model }, { "texts", texts }, { EVIL[1] .. change, cbk.tensor { 1 } } }
end

describe("untrusted text", function()
  it("is shown by every command without control characters", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = tree(0) }):commit()
    cbk.create(dir .. "/b.pt", { root = tree(1) }):commit()
    cbk.fs.write(dir .. "/config.yaml", "model: {hidden_size: 4}\n")
    cbk.fs.write(dir .. "/config.json", '{"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_inner": null, "vocab_size": 4}')
    local fields = cbk.dict { model_type = EVIL[1], [EVIL[2]] = EVIL[4], architectures = cbk.list { EVIL[1] }, n_embd = EVIL[3],
      [EVIL[4]] = 3, torch_dtype = EVIL[5], transformers_version = EVIL[1] }
    cbk.config.save(fields, dir .. "/evil.json")
    cbk.fs.mkdir(dir .. "/evil")
    cbk.fs.write(dir .. "/evil/config.json", cbk.fs.read(dir .. "/evil.json"))
    local run = cbk.dict { model = fields, [EVIL[1]] = EVIL[2] }
    cbk.config.save(run, dir .. "/evil.yaml")
    local weights = tree(0).model
    weights[EVIL[9]] = nil -- no Unicode, which safetensors needs
    cbk.create(dir .. "/evil/model.safetensors", { root = weights }):commit()
    cbk.fs.write(dir .. "/evil.lua", ("error(%q)"):format(EVIL[1]))
    local commands = {
      { 0, "ls", "a.pt" }, { 0, "ls", "--flat", "a.pt" }, { 0, "ls", "--all", "a.pt" }, { 0, "ls", "--json", "a.pt" },
      { 0, "show", "a.pt", "*" }, { 0, "show", "a.pt", "texts" }, { 0, "show", "a.pt", "model" }, { 0, "show", "--json", "a.pt", "*" },
      { 1, "show", "a.pt", "texts.\27]cleared\7" }, { 0, "dump", "a.pt" },
      { 1, "diff", "--all", "a.pt", "b.pt" }, { 1, "diff", "--json", "a.pt", "b.pt" },
      { 0, "copy", "a.pt", "c.pt", "--dry-run", "--to-dtype", "float16" }, { 1, "copy", "a.pt", "c.safetensors" },
      { 0, "copy", "a.pt", "d.pt", "--rename", "\27=x" }, { 0, "copy", "a.pt", "e.pt", "--exclude", "no\27\n such" },
      { nil, "rules", "llama", "a.pt" }, { 1, "run", "\27.lua" }, { 2, "ls", "a.pt", "--\27x" },
      { 1, "-e", "error(cbk.open('a.pt').root.texts['line\\nFORGED2'])" }, { 0, "-e", "cbk.open('a.pt').root" },
      { 0, "-e", "cbk.open('a.pt').root.model" }, { 0, "-e", "cbk.open('a.pt').root.texts" },
      { 0, "stats", "a.pt", "b.pt" }, { 0, "stats", "--csv", "a.pt" }, { 0, "stats", "--json", "a.pt" }, { 0, "check", "--all", "a.pt" },
      { 0, "check", "--json", "a.pt" }, { 0, "check", "--sarif", "a.pt" }, { 0, "plot", "a.pt", "model.*cleared*" },
      { 0, "plot", "a.pt", "model.*cleared*", "-o", "x.svg" }, { 0, "report", "a.pt", "b.pt", "-o", "x.html" },
      { nil, "export", "a.pt", "*", "-o", "w.npz" }, { 0, "export", "a.pt", "model.*cleared*", "-o", "x.npz" },
      { 0, "export", "a.pt", "model.*cleared*", "-o", "x.csv" },
      { 1, "import", "a.pt", "-o", "x.safetensors" }, { 0, "import", "x.npz", "-o", "y.pt" },
      { 1, "infer", "x.npz", "b.pt", "-o", "x\27[2J.lua" },
    }
    for _, option in ipairs { "--debug", "--dry-run", "--explain=*", "--drop-unmatched-keys", "--json" } do
      commands[#commands + 1] = { nil, "convert", "--model", "gpt2", "--src-fmt", "hf", "--tgt-fmt", "cs-2.1", "--config", "config.json",
        "a.pt", "--output-dir", "out", "--drop-unmatched-keys", option }
    end
    for _, words in ipairs {
      { "identify", "a.pt" }, { "identify", "evil" }, { "identify", "--json", "evil" },
      { "params", "evil/config.json" },
      { "params", "evil.yaml", "--model", "gpt2" }, { "new", "evil.yaml", "-o", "n.pt" }, { "list", EVIL[1] },
      { "list-converters", EVIL[2] }, { "help", EVIL[1] },
      { "convert-config", "--model", "gpt2", "--src-fmt", "hf", "--tgt-fmt", "cs-2.1", "evil/config.json" },
      { "convert-config", "--model", "llama", "--src-fmt", "cs-2.1", "--tgt-fmt", "cs-2.2", "evil.yaml" },
      { "convert-config-to-mup", "-i", "evil.yaml" }, { "fix-checkpoint-spec", "--yes", "a.pt" },
      { "fold-lora-checkpoint", "a.pt", "evil.yaml" }, { "h5-to-tensorflow", "a.pt", "tf" },
      { "tensorflow-to-h5", "a.pt" }, { "data-iter-state-conversion", "-o", "out", "a.pt" },
      { "upgrade", "--model", "gpt2", "--config", "evil.yaml", "a.pt", "--to", "cs-2.5" },
      { "upgrade", "--config", "evil.yaml", "a.pt", "--to", "cs-2.5", "--yes" }, { "rules", EVIL[1] },
      { "rules", "gpt2", "--config", "evil.yaml", "a.pt" },
      { "infer", "a.pt", "b.pt", "-o", "y.lua", "--src-config", "evil/config.json", "--tgt-config", "evil.yaml" },
      { "repl", "a.pt" }, { "run", "evil.lua" },
    } do commands[#commands + 1] = { nil, unpack(words) } end
    for _, words in ipairs(commands) do
      local code, stdout, stderr = harness.cbk(dir, unpack(words, 2, 20))
      local what = table.concat(words, " ", 2, math.min(#words, 20))
      if words[1] then equal(code, words[1], what .. ": " .. stderr) end
      is_true(is_clean(stdout .. "\n" .. stderr), ("%s: %q"):format(what, stdout .. stderr))
    end
    for _, file in ipairs { "x.svg", "x.html", "x\27[2J.lua" } do is_true(is_clean(cbk.fs.read(dir .. "/" .. file)), file) end
  end)

  it("is said by JSON as it is", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { { EVIL[9], EVIL[9] }, { "c1", EVIL[4] }, { "best", math.huge },
      { "worst", 0 / 0 } } }):commit()
    local _, stdout = harness.cbk(dir, "ls", "--json", "a.pt")
    local entries = cbk.config.parse(stdout, "json").entries
    equal({ entries[2].value, entries[3].text, entries[4].text, entries[3].kind }, { EVIL[4], "inf", "nan", "float" })
    is_true(stdout:find([["key": "half \ud800 pair"]], 1, true), stdout)
    local _, shown = harness.cbk(dir, "show", "--json", "a.pt", "best", "worst")
    local values = cbk.config.parse(shown, "json")
    equal({ values[1].text, values[2].text }, { "inf", "nan" })
    local code, dump, stderr = harness.cbk(dir, "dump", "a.pt")
    equal({ code, stderr }, { 0, "" })
    is_true(dump:find([==[[{"k":"str","v":"half \ud800 pair"},{"kind":"str","value":"half \ud800 pair"}]]==], 1, true), dump)
  end)

  it("is no formula in a spreadsheet", function()
    local dir, root = harness.temp_dir(), cbk.dict()
    for _, key in ipairs { "=1+1", "+1", "-1", "@SUM(1)", "=cmd|'/c x',y\"z" } do root[key] = cbk.tensor { 1 } end
    cbk.create(dir .. "/a.pt", { root = root }):commit()
    local _, stdout = harness.cbk(dir, "stats", "--csv", "a.pt")
    local count = 0
    for cell in stdout:gmatch "a%.pt,(.-),float" do
      count = count + 1
      is_true(cell:find "^\"?'[=+@-]", cell)
    end
    equal(count, 5)
    is_true(stdout:find([["'=cmd|'/c x',y""z",]], 1, true), stdout)
  end)

  it("is a string's as it is where results are piped", function()
    local _, stdout = harness.cbk(harness.temp_dir(), "-e", "'\\27[31mred'")
    equal(stdout, "\27[31mred\n")
  end)

  it("does not reach the progress line", function()
    is_true(is_clean(progress.line({ done = 1, total = 2, seconds = 0, key = EVIL[1] .. EVIL[2] }, 80)))
  end)

  it("completes to Lua strings that mean the key", function()
    local env = { ckpt = cbk.dict { { "model", cbk.dict() } } }
    for _, key in ipairs(EVIL) do env.ckpt.model[key] = 1 end
    for quote in ([["']]):gmatch "." do
      local line = "ckpt[" .. quote .. "model."
      local begin, found = complete.at(line, #line, env, {})
      equal(#found, #EVIL)
      for i, candidate in ipairs(found) do
        is_true(is_clean(candidate), candidate)
        local key = assert(loadstring("return " .. (line:sub(6, begin) .. candidate):sub(1, -2)))()
        equal(key, "model." .. EVIL[i])
        local part = line:sub(1, begin) .. candidate:sub(1, -4) -- also from within an escape
        local again, more = complete.at(part, #part, env, {})
        is_true(#more == 1 and part:sub(1, again) .. more[1] == line:sub(1, begin) .. candidate, part)
      end
    end
    local _, plain = complete.at(":ls model.", 10, env, { ls = { argument = "key" } })
    equal(plain, { "model." .. EVIL[10], "model." .. EVIL[11] })
  end)
end)
