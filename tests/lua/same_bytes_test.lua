-- The same input gives the same output and the same messages. The order of a Lua table's keys differs from process to process.

local cbk = require "cbk"
local harness = require "harness"

local here = cbk.fs.absolute(debug.getinfo(1, "S").source:match "^@(.*/)" or ".")
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local CONFIGS = [[
package.path = "%s/?.lua;" .. package.path
local cbk = require "cbk"
local conversion, tiny = require "conversion", require "tiny"
local function convert(...)
  local results = { pcall(conversion.run, ...) }
  if not results[1] then return print(tostring(results[2])) end
  print(cbk.json(results[2]), table.concat(cbk.keys(results[3]), " "))
  return results[2], results[3]
end
local ways, names = tiny.newest_ways(), {}
for name in pairs(ways) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  local config, root = tiny.model(ways[name])
  local zoo, tensors = convert(name, "hf", ways[name].format, config, root)
  if zoo then convert(name, ways[name].format, "hf", zoo, tensors) end
  -- Every field has a wrong value: which one is reported?
  local wrong = cbk.dict()
  for key in cbk.items(config) do wrong[key] = key == "model_type" and config[key] or "wrong" end
  convert(name, "hf", ways[name].format, wrong, root)
end
]]

local function lines_of(text)
  local out = {}
  for line in text:gmatch "[^\n]+" do out[#out + 1] = line end
  return out
end

describe("The same input", function()
  it("gives the same configs, keys and messages in every process, for every family", function()
    local dir, first = harness.temp_dir(), nil
    cbk.fs.write(dir .. "/configs.lua", CONFIGS:format(here))
    for _ = 1, 4 do
      local code, out, err = harness.cbk(dir, "run", "configs.lua")
      equal(code, 0, err)
      local said = lines_of(out .. err)
      is_true(#said > 200, #said)
      first = first or said
      for i, line in ipairs(said) do is_true(line == first[i], line .. "\n" .. tostring(first[i])) end
      equal(#said, #first)
    end
  end)
end)
