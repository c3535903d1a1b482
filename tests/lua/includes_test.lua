-- The check of the direction of includes (tests/includes.lua), on made-up includes and on the sources.

local cbk = require "cbk"
local harness = require "harness"
local describe, it, equal = harness.describe, harness.it, harness.equal

local root = cbk.fs.join(cbk.fs.dirname(arg[0]), "../..")
local includes = assert(loadfile(cbk.fs.join(root, "tests/includes.lua"))) "includes"

describe("the direction of includes", function()
  local function why(path, target) return includes.why_not(path, target) end

  it("lets a file include its own folder and those below", function()
    equal(why("host/tensor/kernels/cast.cpp", "host/base/bytes.hpp"), nil)
    equal(why("host/formats/h5/reader.cpp", "host/formats/safetensors/reader.hpp"), nil)
    equal(why("host/formats/torch/reader.hpp", "host/formats/checkpoint.hpp"), nil)
    equal(why("host/checkpoint/open.cpp", "host/checkpoint/formats.hpp"), nil)
    equal(why("bindings/bind_tensor.cpp", "host/streaming/write_all.hpp"), nil)
    equal(why("host/app/main.cpp", "bindings/runtime.hpp"), nil)
  end)

  it("refuses what goes up", function()
    equal(why("host/base/file.cpp", "host/value/value.hpp"), "but host/value is above host/base")
    equal(why("host/formats/writer.hpp", "host/formats/torch/writer.hpp"), "but host/formats/torch is above host/formats")
    equal(why("host/formats/h5/reader.hpp", "host/checkpoint/open.hpp"), "but host/checkpoint is above host/formats/h5")
    equal(why("host/streaming/execute.cpp", "bindings/runtime.hpp"), "but bindings is above host/streaming")
    equal(why("bindings/progress.cpp", "host/app/report.hpp"), "but host/app is above bindings")
  end)

  it("refuses a neighbour of the same rank, and a folder without a row", function()
    equal(why("host/config/yaml_read.cpp", "host/streaming/write_all.hpp"), "but host/streaming and host/config do not include each other")
    equal(why("host/formats/onnx/reader.cpp", "host/value/value.hpp"), "its own folder is in no row of tests/includes.lua")
    equal(why("host/checkpoint/open.cpp", "host/formats/onnx/reader.hpp"), "that folder is in no row of tests/includes.lua")
  end)

  it("names file, line, include and reason", function()
    local text = '// A value.\n#include "host/base/error.hpp"\n#include <vector>\n#  include "host/streaming/write_all.hpp" // no\n'
    equal(includes.problems("host/value/value.hpp", text), {
      "host/value/value.hpp:4: includes host/streaming/write_all.hpp, but host/streaming is above host/value",
    })
  end)

  it("is kept by all sources", function()
    local count = 0
    local function visit(folder)
      for _, name in ipairs(cbk.fs.list(cbk.fs.join(root, folder))) do
        local path = folder .. "/" .. name
        if cbk.fs.is_dir(cbk.fs.join(root, path)) then
          visit(path)
        elseif name:find "%.[ch]pp$" then
          local file = assert(io.open(cbk.fs.join(root, path)))
          equal(includes.problems(path, file:read "*a"), {})
          file:close()
          count = count + 1
        end
      end
    end
    visit "host"
    visit "bindings"
    assert(count > 200)
  end)
end)
