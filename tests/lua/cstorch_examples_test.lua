-- The examples of scripts/examples, run as a user runs them: trained, killed, continued, evaluated.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""
local examples = cbk.fs.absolute(here .. "scripts/examples")

local function run(folder, ...)
  local code, out, err = harness.cbk(folder, "run", ...)
  equal(code, 0, "exit code, with " .. err)
  return out
end

local function example(name) return cbk.fs.join(examples, name) end

--- The example with some of its text replaced: each old part must be there once.
local function variant(folder, name, changes)
  local text = cbk.fs.read(example(name))
  for old, new in pairs(changes) do
    local first, last = text:find(old, 1, true)
    is_true(first and not text:find(old, last + 1, true), "one place of " .. old)
    text = text:sub(1, first - 1) .. new .. text:sub(last + 1)
  end
  local path = cbk.fs.join(folder, "variant_" .. name)
  cbk.fs.write(path, text)
  return path
end

--- The checkpoints of a folder: the last one, and how many there are; each can be read whole.
local function checkpoints(folder)
  local last, count = 0, 0
  for _, name in ipairs(cbk.fs.list(folder)) do
    local step = tonumber(name:match "^checkpoint_(%d+)%.mdl$")
    if step then
      local state = cstorch.load(cbk.fs.join(folder, name), { map_location = "cpu" })
      equal(state.global_step, step, name)
      last, count = math.max(last, step), count + 1
    end
  end
  return ("checkpoint_%d.mdl"):format(last), count
end

--- All values of a checkpoint: name to digest, or to a number. A schedule counts the calls since it was made, as in the reference.
local function content(path)
  local values = {}
  for name, leaf in cbk.leaves(cbk.open(path).root) do
    if not name:find "%._step_count$" then values[name] = cbk.kind(leaf) == "tensor" and leaf:sha256() or tostring(leaf) end
  end
  return values
end

describe("cstorch: the example train.lua", function()
  it("trains, writes a checkpoint every 100 steps, and continues from one", function()
    local folder = harness.temp_dir()
    local out = run(folder, example "train.lua")
    local losses = 0
    for line in out:gmatch "[^\n]+" do
      is_true(line:find "^Loss: \t%d+%.%d+$", line)
      losses = losses + 1
    end
    equal({ losses, select(2, checkpoints(folder)) }, { 1000, 10 })
    run(folder, example "train.lua", "checkpoint_1000.mdl")
    equal({ checkpoints(folder) }, { "checkpoint_2000.mdl", 20 })
  end)

  it("leaves whole checkpoints when it is killed, and continues from the last one", function()
    local folder = harness.temp_dir()

         local line = "cd '%s' && ('%s' run '%s' >/dev/null & pid=$!; " ..
      "while [ ! -e checkpoint_200.mdl ]; do sleep 0.002; done; kill -9 $pid) 2>/dev/null"
    os.execute(line:format(folder, cbk.fs.program(), example "train.lua"))
    local last, count = checkpoints(folder)
    is_true(count >= 2)
    run(folder, example "train.lua", last)
    is_true(select(2, checkpoints(folder)) > count)
  end)

  it("ends with the same checkpoint after a kill -9 and a restart, where batches are the same", function()
    local same_batches = {
      ["local model = nn."] = 'cstorch.manual_seed(1)\nlocal model = nn.',
      ["local batches = {}"] = "cstorch.manual_seed(2)\n  local batches = {}",
      ["num_steps = 1000"] = "max_steps = 1000, initial_step = global_step",
      ["  post_training_step(loss)"] =
        '  post_training_step(loss)\n  if os.getenv "STOP" == tostring(i) then os.execute "kill -9 $PPID" end',
    }
    local whole, stopped = harness.temp_dir(), harness.temp_dir()
    run(whole, variant(whole, "train.lua", same_batches))
    local script = variant(stopped, "train.lua", same_batches)
    os.execute(("cd '%s' && STOP=457 '%s' run '%s' >out 2>&1"):format(stopped, cbk.fs.program(), script))
    equal({ checkpoints(stopped) }, { "checkpoint_400.mdl", 4 })
    run(stopped, script, "checkpoint_400.mdl")
    equal({ checkpoints(stopped) }, { "checkpoint_1000.mdl", 10 })
    equal(content(cbk.fs.join(stopped, "checkpoint_1000.mdl")), content(cbk.fs.join(whole, "checkpoint_1000.mdl")))
    is_true(content(cbk.fs.join(whole, "checkpoint_1000.mdl"))["optimizer.state.0.momentum_buffer"])
  end)
end)

describe("cstorch: the example evaluate.lua", function()
  it("prints loss and accuracy of a checkpoint", function()
    local folder = harness.temp_dir()
    run(folder, example "train.lua")
    local loss, accuracy = run(folder, example "evaluate.lua",
      "checkpoint_1000.mdl"):match "^Eval Loss: (%d+%.%d+)\nEval Accuracy: (%d+%.%d+)\n$"
    is_true(loss and tonumber(loss) > 1 and tonumber(loss) < 2, "loss")
    is_true(accuracy and tonumber(accuracy) <= 1, "accuracy")
  end)

  it("needs a checkpoint", function()
    local code, _, err = harness.cbk(harness.temp_dir(), "run", example "evaluate.lua")
    equal(code, 1)
    is_true(err:find("load: expected the path of a checkpoint, found nil", 1, true) and err:find "evaluate%.lua:", err)
  end)
end)
