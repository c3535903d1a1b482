-- converters/REFERENCE.md: it is what tests/reference.lua writes, and has all that a converter's author can write.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal = harness.describe, harness.it, harness.equal

local root = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""
local reference = assert(loadfile(root .. "tests/reference.lua")) "reference"
local page = cbk.fs.read(root .. "converters/REFERENCE.md")

describe("Converters: the reference", function()
  it("is as the annotations have it", function()
    local text = reference.text()
    assert(text == page, "converters/REFERENCE.md is out of date; write it again: cbk run tests/reference.lua")
  end)

  it("has an entry for all that the notation accepts, and for nothing else", function() equal(reference.problems(), {}) end)

  it("reports what has no entry, and entries of what does not exist", function()
    local entries, rules = require "converters.notation.entries", require "converters.engine.rules"
    local number = entries.options.number
    entries.options.number, entries.options.strange = nil, number
    rawset(rules, "unheard_of", function() end)
    local fine, found = pcall(reference.problems)
    entries.options.number, entries.options.strange = number, nil
    rawset(rules, "unheard_of", nil)
    assert(fine, found)
    equal(found, {
      "'strange' has no ---@field of the class KeyOptions in converters/notation/entries.lua",
      "converters/engine/rules.lua: 'rules.unheard_of' has no comment above its definition (---, or ---@private if the engine's own)",
      "converters/notation/entries.lua describes KeyOptions.number, which the notation does not accept",
    })
  end)

  it("has what families ask of `at`", function()
    local count = 0
    for _, folder in ipairs { "converters/", "converters/shared/" } do
      for _, name in ipairs(cbk.fs.list(root .. folder)) do
        local text = name:find "%.lua$" and cbk.fs.read(root .. folder .. name) or ""
        for object, separator, word in text:gmatch "%f[%w_](%l+)([:.])([%l_]+)%f[^%w_]" do
          if object == "at" or object == "here" then
            assert(page:find("`at" .. separator .. word .. "%f[^%w_]"), ("%s has at%s%s"):format(name, separator, word))
            count = count + 1
          end
        end
      end
    end
    assert(count > 80, count)
  end)

  it("the options of a class and of its tensors are those that the engine reads", function()
    local source = ""
    for _, name in ipairs { "class", "model_class", "class_tensors" } do
      source = source .. cbk.fs.read(("%sconverters/engine/%s.lua"):format(root, name))
    end
    local function read_of(object, more)
      local out = { unpack(more or {}) }
      for word in source:gmatch("%f[%w_]" .. object .. "%.([%l_]+)") do out[#out + 1] = word end
      return out
    end
    local function has(title, word)
      local section = page:match("\n### " .. title .. "\n(.-)\n##") or page:match("\n### " .. title .. "\n(.*)$")
      assert(section:find("`" .. word .. "`", 1, true), ("'%s' is not in '%s'"):format(word, title))
    end
    for _, word in ipairs(read_of "written") do has("Fields of a class", word) end
    local inner = { prefix = true, count = true, nodes = true, class = true, config = true } -- what class.below and others make
    for _, word in ipairs(read_of "node") do
      if not inner[word] then has("Options of a tensor", word) end
    end
  end)
end)
