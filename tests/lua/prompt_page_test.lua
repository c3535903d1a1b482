-- What `cbk help prompt` shows can be typed.

local cbk = require "cbk"
local commands = require "cbk.repl.commands"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""
local page = cbk.fs.read(here .. "scripts/help/prompt.md")

describe("cbk help prompt", function()
  it("has examples that run", function()
    local dir, lines = harness.temp_dir(), {}
    local root = cbk.dict { { "model.lm_head.weight", cbk.randn({ 4, 8 }, { mean = 0, std = 1, seed = 1 }) } }
    root["model.ln_f.weight"], root["model.embedding_ln_f.weight"] = cbk.full({ 3, 4 }, 0), cbk.full({ 3, 4 }, 1)
    for i = 0, 1 do root[("model.transformer_decoder.layers.%d.norm1.weight"):format(i)] = cbk.full({ 3, 4 }, i) end
    cbk.create(dir .. "/model.pt", { root = root }):commit()
    for line in page:gmatch "\n  cbk> ([^\n]*)" do lines[#lines + 1] = line end
    is_true(#lines > 8)
    cbk.fs.write(dir .. "/typed", table.concat(lines, "\n") .. "\n")
    local status = os.execute(("cd '%s' && '%s' repl model.pt < typed > out 2> err"):format(dir, cbk.fs.program()))
    equal({ status, cbk.fs.read(dir .. "/err") }, { 0, "" })
    local out = cbk.fs.read(dir .. "/out")
    for _, part in ipairs { "Tensor float32 [4, 8]", "model.transformer_decoder.layers.1.norm1.weight\t0", "rms of blocks",
      "12 of 12 elements differ", "done", "x      Tensor", "min, max, mean" } do
      is_true(out:find(part, 1, true), part .. " in " .. out)
    end
  end)

  it("names every command", function()
    for name in pairs(commands.all) do
      local is_named = page:find(":" .. name:gsub("!", ""), 1, true) or name == "quit" or name == "traceback"
      is_true(is_named, name)
    end
    for _, name in ipairs(commands.order) do is_true(commands.all[name], name) end
  end)
end)
