-- converters/MODELS.md: it is what tests/models.lua writes.

local cbk = require "cbk"
local converters = require "cbk.converters"
local harness = require "harness"
local describe, it = harness.describe, harness.it

local root = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""

describe("Converters: the table of models", function()
  local page = cbk.fs.read(root .. "converters/MODELS.md")

  it("is as the converters have it", function()
    local text = assert(loadfile(root .. "tests/models.lua")) "models".text()
    assert(text == page, "converters/MODELS.md is out of date; write it again: cbk run tests/models.lua")
  end)

  it("has a row for every model, with classes and formats", function()
    converters.load()
    for _, name in ipairs(converters.catalogue.names()) do
      local model = converters.catalogue.find(name).model
      local row = page:match("\n(| `" .. model:gsub("%p", "%%%0") .. "` |[^\n]*)")
      assert(row and row:find("cs-", 1, true), model)
    end
  end)
end)
