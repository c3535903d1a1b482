-- The check of the direction of `require` (tests/requires.lua), on made-up modules. The lint runs it on the sources.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal = harness.describe, harness.it, harness.equal

local root = cbk.fs.join(cbk.fs.dirname(arg[0]), "../..")
local requires = assert(loadfile(cbk.fs.join(root, "tests/requires.lua"))) "requires"

describe("the direction of requires", function()
  it("goes down", function()
    local why = requires.why_not
    equal(why("scripts/convert.lua", "scripts/lib/cbk/converters/init.lua"), nil)
    equal(why("scripts/lib/cbk/classes.lua", "converters/engine/class.lua"), nil)
    equal(why("converters/engine/keys.lua", "scripts/lib/cbk/fold.lua"), nil)
    equal(why("scripts/lib/cbk/fold.lua", "converters/engine/keys.lua"), "but converters/engine is above the library cbk.X")
    equal(why("converters/engine/keys.lua", "converters/modelzoo/file.lua"), "but converters/modelzoo is above converters/engine")
    equal(why("scripts/lib/cbk/recognise/init.lua", "scripts/lib/cbk/upgrade/init.lua"), "but cbk.upgrade is above cbk.recognise")
    equal(why("scripts/lib/other/x.lua", "scripts/lib/cbk/fold.lua"), "its own file is in no layer of tests/requires.lua")
  end)

  it("finds names, and those that are computed", function()
    local function found(line)
      local names, is_computed = requires.modules(line)
      return { table.concat(names, " "), is_computed }
    end
    equal(found 'local a, b = require "cbk", require("cbk.fold").groups', { "cbk cbk.fold", false })
    equal(found '-- require "cbk"', { "", false })
    equal(found 'if text == "require(x)" then return requires_grad end', { "", false })
    for _, line in ipairs { "require(name)", 'require("cbk." .. name)', "pcall(require, name)", "local load = require" } do
      equal(found(line), { "", true })
    end
  end)

  it("reports breaks and cycles", function()
    local texts = {
      ["scripts/lib/cbk/a.lua"] = 'require "cbk.b"',
      ["scripts/lib/cbk/b.lua"] = 'require "cbk.a" require "cbk.c" require "cbk.cli"',
      ["scripts/lib/cbk/cli/init.lua"] = "require(x)",
    }
    equal(requires.problems(texts), {
      "scripts/lib/cbk/b.lua requires cbk.c, which does not exist",
      "scripts/lib/cbk/b.lua requires cbk.cli, but cbk.cli and cbk.repl is above the library cbk.X",
      "scripts/lib/cbk/cli/init.lua requires a computed name, which no check can follow",
      "a cycle: scripts/lib/cbk/a.lua -> scripts/lib/cbk/b.lua -> scripts/lib/cbk/a.lua",
    })
  end)
end)
