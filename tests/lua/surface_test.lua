-- The annotations (scripts/lib/cbk/meta.lua) and what is really there name the same functions.

local cbk = require "cbk"
local t = require "harness"
local describe, it = t.describe, t.it

local meta = cbk.fs.read(assert(package.searchpath("cbk.meta", package.path)))

--- "cbk.config.load", "Tensor:shape", … as the annotations declare them.
local function declared()
  local names = {}
  for name in meta:gmatch "\nfunction ([%w_.:]+)%(" do names[name] = true end
  return names
end

local function methods_of(object)
  return debug.getmetatable(object).methods
end

describe("surface", function()
  local function objects()
    local folder = t.temp_dir()
    local out = cbk.create(folder .. "/x.pt", { root = cbk.dict { a = 1 } })
    out:commit()
    cbk.create(folder .. "/x.h5", { root = cbk.dict { a = 1 } }):commit()
    return {
      Tensor = cbk.tensor { 1 }, Checkpoint = cbk.open(folder .. "/x.pt"), Output = out, H5Edit = cbk.h5.edit(folder .. "/x.h5"),
    }
  end

  it("has everything that is declared", function()
    local roots = { cbk = cbk }
    for name, object in pairs(objects()) do roots[name] = methods_of(object) end
    for name in pairs(declared()) do
      local value = roots
      for part in name:gmatch "[%w_]+" do value = value and value[part] end
      t.equal(type(value), "function", name)
    end
  end)

  it("declares everything that there is", function()
    local names, missing = declared(), {}
    local function check(prefix, functions)
      for name, value in pairs(functions) do
        if type(value) == "function" and not names[prefix .. name] then missing[#missing + 1] = prefix .. name end
      end
    end
    local native = require "cbk.native"
    check("cbk.", native)
    for _, name in ipairs { "config", "fs", "terminal", "h5", "pickle", "safetensors" } do check("cbk." .. name .. ".", native[name]) end
    for name, object in pairs(objects()) do check(name .. ":", methods_of(object)) end
    t.equal(missing, {}, "what meta.lua does not tell")
  end)
end)
