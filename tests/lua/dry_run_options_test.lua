-- Every command that writes a file has --dry-run, which writes nothing and says what would be written.

local cbk = require "cbk"
local harness = require "harness"
local overview = require "cbk.cli.overview"

local describe, it, equal, has = harness.describe, harness.it, harness.equal, harness.has

local function help_of(name) return select(2, harness.cbk(harness.temp_dir(), name, "--help")) end

describe("Commands that write", function()
  it("have --dry-run", function()
    local count = 0
    for name in pairs(require "cbk.commands") do
      local text = not overview.HIDDEN[name] and help_of(name) or ""
      if text:find("--overwrite", 1, true) then
        assert(text:find("--dry-run", 1, true), name .. " has no --dry-run")
        count = count + 1
      end
    end
    assert(count >= 15, count)
  end)

  it("leave nothing with it", function()
    local dir = harness.temp_dir()
    local config = cbk.dict { { "model_type", "gpt2" }, { "n_embd", 8 }, { "n_layer", 1 }, { "n_head", 2 }, { "n_positions", 4 },
      { "vocab_size", 5 }, { "architectures", cbk.list { "GPT2LMHeadModel" } } }
    cbk.config.save(config, dir .. "/config.json")
    equal((harness.cbk(dir, "new", "config.json", "-o", "b.safetensors")), 0)
    equal((harness.cbk(dir, "copy", "b.safetensors", "a.mdl")), 0)
    cbk.fs.write(dir .. "/p.yaml", "model: {num_hidden_layers: 2, hidden_size: 512}\noptimizer: {}\n")
    local before = cbk.fs.list(dir)
    for _, words in ipairs {
      { "convert-config", "config.json", "--to", "cs-2.4" }, { "convert-config-to-mup", "-i", "p.yaml" },
      { "infer", "a.mdl", "b.safetensors", "-o", "c.lua" }, { "report", "a.mdl", "-o", "r.html" },
      { "plot", "a.mdl", "transformer.wte.weight", "-o", "p.svg" },
    } do
      local digest = cbk.fs.read(dir .. "/a.mdl")
      words[#words + 1] = "--dry-run"
      local code, out, err = harness.cbk(dir, unpack(words))
      equal(code, 0, err)
      has(out, "would be saved")
      equal(cbk.fs.list(dir), before)
      equal(cbk.fs.read(dir .. "/a.mdl") == digest, true)
    end
  end)
end)
