-- Colours of results: in a terminal only, and without a change of the text.

local cbk = require "cbk"
local harness = require "harness"
local paint = require "cbk.cli.paint"
local describe, it, equal, has, lacks = harness.describe, harness.it, harness.equal, harness.has, harness.lacks

local function plain(text) return (text:gsub("\27%[[%d;]*m", "")) end

describe("Colours of results", function()
  it("are put where they help, and change no text", function()
    for name, lines in pairs {
      ls = { { "lm_head.weight  12 ×  float32  [64, 16]  4.0 KiB", "\27[36mfloat32\27[0m" },
        { "model  12 tensors  3 KiB", "\27[2m12 tensors\27[0m" }, { "my.float32.weight  2 ×  int", false } },
      check = { { "error    a.pt: w: 1 of 2 elements is NaN", "\27[31merror\27[0m" }, { "warning  a.pt", "\27[33mwarning\27[0m" },
        { "clean: 3 tensors", "\27[32mclean\27[0m" }, { "         error here", false } },
      diff = { { "different tensors (3):", "\27[1mdifferent tensors (3):\27[0m" },
        { "  w  1  NaN in B only: 16", "\27[31mNaN in B only: 16\27[0m" },
        { "the same: 3 values", "\27[32mthe same: 3 values\27[0m" }, { "  only (3):", false } },
    } do
      for _, line in ipairs(lines) do
        local painted = paint[name](line[1])
        equal(plain(painted), line[1])
        if line[2] then has(painted, line[2]) else equal(painted, line[1]) end
      end
    end
  end)

  it("are not in files and pipes", function()
    local dir = harness.temp_dir()
    cbk.create(dir .. "/a.pt", { root = cbk.dict { w = cbk.tensor { 0 / 0 } } }):commit()
    for _, command in ipairs { { "ls", "a.pt" }, { "check", "a.pt" }, { "diff", "a.pt", "a.pt" }, { "ls", "none.pt" } } do
      local _, out, err = harness.cbk(dir, unpack(command))
      lacks(out .. err, "\27")
    end
  end)
end)
