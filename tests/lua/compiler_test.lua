-- LuaJIT's compiler: it takes users' functions, but none that loops over pairs or next, and nothing of the library.

local t = require "harness"
local describe, it = t.describe, t.it

---What a script prints.
local function printed(text, ...)
  local dir = t.temp_dir()
  require("cbk").fs.write(dir .. "/script.lua", text)
  local code, out, err = t.cbk(dir, "run", "script.lua", ...)
  t.equal({ code, err }, { 0, "" })
  return out
end

-- An inner loop that is compiled from outside, and given up: the outer one then ended after one entry, some 40,000 rounds later.
local NESTED = [[
local inner, outer = { 10, 20, 30, 40, 50, 60 }, {}
for name in ("v w x y z"):gmatch "%%S" do outer[name] = inner end
local function spin(...) for _ = 1, 120 do end end
local function count(times)
  for round = 1, times do
    spin()
    local count = 0
    for name, list in %s do
      for _ in pairs(list) do end
      assert(type(name) == "string", name)
      count = count + 1
    end
    if count ~= 5 then return round end
  end
  return "right"
end
print(count(120000))
]]

-- How many traces there are after a loop of a function that is given.
local TRACES = [[
local util = require "jit.util"
local function work(n)
  local sum, list = 0, { 1, 2, 3 }
  for i = 1, n do
    %s
  end
  return sum
end
work(1000)
print(util.traceinfo(1) ~= nil)
]]

describe("LuaJIT's compiler", function()
  for _, loop in ipairs { "pairs(outer)", "next, outer" } do
    it("leaves a loop over " .. loop .. " alone, which it would end early", function() t.equal(printed(NESTED:format(loop)), "right\n") end)
  end

  for body, is_compiled in pairs {
    ["sum = sum + i % 7"] = true, ["for k, v in ipairs(list) do sum = sum + v end"] = true,
    ["for k, v in pairs(list) do sum = sum + v end"] = false, ["for k, v in next, list do sum = sum + v end"] = false,
  } do
    it((is_compiled and "takes" or "leaves") .. " a function with: " .. body, function()
      t.equal(printed(TRACES:format(body)), tostring(is_compiled) .. "\n")
    end)
  end

  it("chooses among functions of any source", function()
    for _, source in ipairs { "loadstring(%q)()", "dofile(%q)", "require 'script_of_module'" } do
      for body, is_compiled in pairs { ["sum = sum + i"] = true, ["for k, v in pairs(list) do sum = sum + v end"] = false } do
        local dir, program = t.temp_dir(), TRACES:format(body)
        require("cbk").fs.write(dir .. "/script_of_module.lua", program)
        require("cbk").fs.write(dir .. "/script.lua", source:format(source:find "loadstring" and program or dir .. "/script_of_module.lua"))
        local code, out, err = t.cbk(dir, "run", "script.lua")
        t.equal({ code, out, err }, { 0, tostring(is_compiled) .. "\n", "" })
      end
    end
  end)

  it("takes nothing of the library that reads and converts checkpoints", function()
    local out = printed [[
      local util, naming = require "jit.util", require "cbk.naming"
      local list = { "layers.0.weight", "layers.1.weight", "layers.2.weight" }
      local function fold() return naming.folded(list) end
      jit.off(fold)
      for i = 1, 2000 do fold() end
      local count = 0
      for i = 1, 1000 do
        local info = util.traceinfo(i)
        if info then count = count + 1 end
      end
      print(count <= 1) -- that of this loop
    ]]
    t.equal(out, "true\n")
  end)
end)
