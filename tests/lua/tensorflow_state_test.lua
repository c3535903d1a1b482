-- The state file `checkpoint` beside TensorFlow checkpoints.

local cbk = require "cbk"
local harness = require "harness"

local describe, it, equal = harness.describe, harness.it, harness.equal

describe("TensorFlow checkpoints", function()
  local function run(folder, ...)
    local code, _, problem = harness.cbk(folder, ...)
    equal(code, 0, problem)
    return problem
  end

  it("pass over fields of the state file that are not known", function()
    local folder = harness.temp_dir()
    cbk.create(folder .. "/a-1", { format = "tensorflow", root = cbk.dict { x = cbk.tensor { 1, 2 } } }):commit()
    cbk.fs.write(folder .. "/checkpoint", 'model_checkpoint_path: "a-1"\nnew_field: 3\nother { a: "b" }\n', { overwrite = true })
    equal(cbk.open(folder).files[1]:match "[^/]*$", "a-1.index")
  end)

  it("keep the times of the state file", function()
    local folder = harness.temp_dir()
    local file = cbk.create(folder .. "/x.h5", { format = "h5", h5_version = "flat", root = cbk.dict { x = cbk.tensor { 1, 2 } } })
    file:commit()
    local old = 'model_checkpoint_path: "a-1"\nall_model_checkpoint_paths: "a-1"\nall_model_checkpoint_timestamps: 12.5\n'
    cbk.fs.write(folder .. "/checkpoint", old .. "last_preserved_timestamp: 7.25\n")
    for _ = 1, 2 do
      run(folder, "h5-to-tensorflow", "x.h5", "a-2", "--overwrite")
      local text = cbk.fs.read(folder .. "/checkpoint")
      harness.is_true(text:find "last_preserved_timestamp: 7.25", text)
      local times = {}
      for time in text:gmatch "all_model_checkpoint_timestamps: (%S+)" do times[#times + 1] = tonumber(time) end
      equal(#times, 2)
      equal(times[1], 12.5)
      harness.near(times[2], os.time(), 60)
    end
    cbk.fs.write(folder .. "/checkpoint", 'model_checkpoint_path: "a-1"\nall_model_checkpoint_paths: "a-1"\n', { overwrite = true })
    run(folder, "h5-to-tensorflow", "x.h5", "a-2", "--overwrite")
    equal(cbk.fs.read(folder .. "/checkpoint"):find "timestamp", nil)
  end)

  it("are reported when they are written, and when a folder has none", function()
    local folder = harness.temp_dir()
    cbk.create(folder .. "/x.h5", { format = "h5", h5_version = "flat", root = cbk.dict { x = cbk.tensor { 1, 2 } } }):commit()
    local _, out = harness.cbk(folder, "h5-to-tensorflow", "x.h5", "a-2")
    equal(out, "TensorFlow checkpoint saved to a-2\n")
    _, out = harness.cbk(folder, "tensorflow-to-h5", ".", "y.h5")
    equal(out, "H5 file saved to y.h5\n")
    cbk.fs.mkdir(folder .. "/empty")
    local code, _, problem = harness.cbk(folder, "tensorflow-to-h5", "empty", "z.h5")
    equal(code, 1)
    harness.is_true(problem:find("there is no TensorFlow checkpoint in the folder 'empty'", 1, true), problem)
  end)

  it("have whole numbers as int64 or uint64; larger ones are named", function()
    local folder = harness.temp_dir()
    local numbers = cbk.config.parse([[{ "ok": 9223372036854775807, "half": 9223372036854775808, "most": 18446744073709551615,
      "huge": 18446744073709551616, "low": -9223372036854775809 }]], "json")
    cbk.create(folder .. "/x.mdl", { root = numbers }):commit()
    local reported = run(folder, "h5-to-tensorflow", "x.mdl", "m")
    for _, name in ipairs { "huge", "low" } do assert(reported:find("'" .. name .. "' is left out: no dtype holds", 1, true), reported) end
    local root = cbk.open(folder .. "/m").root
    equal(cbk.count(root), 3)
    equal({ root.ok.dtype, root.half.dtype, root.most.dtype }, { "int64", "uint64", "uint64" })
    assert(root.ok:item() == 2 ^ 63 - 1 or root.ok:item() == 9223372036854775807LL)
    assert(root.half:item() == 9223372036854775808ULL and root.most:item() == 18446744073709551615ULL)
  end)

  it("are not replaced file by file by what is made of them", function()
    local folder = harness.temp_dir()
    cbk.create(folder .. "/m", { format = "tensorflow", root = cbk.dict { x = cbk.tensor { 1, 2 } } }):commit()
    local code, _, problem = harness.cbk(folder, "tensorflow-to-h5", "m", "m.index", "--overwrite")
    equal(code, 2)
    assert(problem:find("'m.index' is a file of the checkpoint that is converted", 1, true), problem)
    equal(cbk.open(folder .. "/m").root.x:tolist(), { 1, 2 })
  end)
end)
