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

--- All values of a checkpoint: name to digest, or to a number.
local function content(path)
  local values = {}
  for name, leaf in cbk.leaves(cbk.open(path).root) do
    values[name] = cbk.kind(leaf) == "tensor" and leaf:sha256() or tostring(leaf)
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

--- A model with two tied weights, and perhaps a buffer.
local function tied_model(has_buffer)
  local Tied = cstorch.nn.Module:subclass "Tied"
  function Tied:init()
    Tied.super.init(self)
    self.emb = cstorch.nn.Linear(3, 3, { bias = false })
    self.out = cstorch.nn.Linear(3, 2)
    self.head = cstorch.nn.Linear(3, 3, { bias = false })
    self.head.weight = self.emb.weight
    if has_buffer then self:register_buffer("seen", cstorch.ones { 3 }) end
  end
  return Tied()
end

--- What the example made of a state, and what a step in memory did; the example's once more as a tree. `frozen` has the names of
--- parameters without a gradient, `rename` other names of gradients, `groups(model)` the optimizer's groups.
local function both_ways(options)
  local folder, model = harness.temp_dir(), tied_model(not options.has_no_buffer)
  local optimizer = cstorch.optim.AdamW(options.groups and options.groups(model) or model:parameters(), { lr = 0.1 })
  local function gradients()
    for name, p in model:named_parameters() do
      p.grad = not (options.frozen or {})[name] and cstorch.randn(p:shape()) or nil
    end
  end
  local function save(name)
    local state = { model = model:state_dict(), optimizer = optimizer:state_dict(), changed = "mine" }
    state.global_step = name == "state" and 1 or 2
    cstorch.save(state, ("%s/%s.mdl"):format(folder, name))
  end
  gradients()
  optimizer:step()
  save "state"
  gradients()
  local found = {}
  for name, p in model:named_parameters() do found[(options.rename or {})[name] or name] = p.grad end
  cstorch.save(found, folder .. "/grads.mdl")
  optimizer:step()
  save "memory"
  run(folder, example "apply_gradients.lua", "state.mdl", "grads.mdl", "-o", "next.mdl")
  return content(folder .. "/next.mdl"), content(folder .. "/memory.mdl"), cstorch.load(folder .. "/next.mdl")
end

describe("cstorch: the example apply_gradients.lua", function()
  for what, options in pairs {
    ["with tied weights, and an entry of the user's own"] = {},
    ["with a gradient under the other name of tied weights"] = { rename = { ["emb.weight"] = "head.weight" } },
    ["without gradients of frozen parameters"] = { frozen = { ["out.weight"] = true }, has_no_buffer = true },
    ["of groups with names"] = {
      groups = function(model)
        return {
          { params = { model.out.bias }, weight_decay = 0.5, param_names = { "out.bias" } },
          { params = { model.emb.weight, model.out.weight }, param_names = { "emb.weight", "out.weight" } },
        }
      end,
      frozen = { ["out.weight"] = true },
    },
    ["of the groups that configure_param_groups makes"] = {
      groups = function(model) return cstorch.optim.configure_param_groups(model, { weight_decay = 0.5 }) end,
    },
  } do
    it("makes the step in memory, bit for bit: " .. what, function()
      local found, wanted, state = both_ways(options)
      equal(found, wanted)
      equal({ state.changed, state.global_step }, { "mine", 2 })
      is_true(state.model["emb.weight"]:same(state.model["head.weight"]), "still tied")
    end)
  end

  local model = cstorch.nn.Linear(4, 3)
  local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.1 })

  --- What is wrong with a state and gradients that `change(state, grads, group)` changed.
  local function problem_of(change)
    local folder = harness.temp_dir()
    local state = { model = model:state_dict(), optimizer = optimizer:state_dict() }
    local grads = { weight = cstorch.ones { 3, 4 }, bias = cstorch.ones { 3 } }
    change(state, grads, state.optimizer.param_groups[1])
    cstorch.save(state, folder .. "/state.mdl")
    cstorch.save(grads, folder .. "/grads.mdl")
    local code, _, err = harness.cbk(folder, "run", example "apply_gradients.lua", "state.mdl", "grads.mdl", "-o", "next.mdl")
    equal({ code, cbk.fs.exists(folder .. "/next.mdl") }, { 1, false })
    return err
  end

  for text, change in pairs {
    ["expected a map as 'optimizer' of the checkpoint, found nothing"] = function(state) state.optimizer = nil end,
    ["expected a map as 'model' of the checkpoint, found a number"] = function(state) state.model = 3 end,
    ["expected a list as 'optimizer.param_groups' of the checkpoint, found a number"] = function(state)
      state.optimizer.param_groups = 3
    end,
    ["expected a map as 'optimizer.param_groups.0' of the checkpoint"] = function(state) state.optimizer.param_groups = { 3 } end,
    ["from 0 to 1 as 'optimizer.param_groups.0.params.0', found x"] = function(_, _, group) group.params = { "x", "y" } end,
    ["from 0 to 1 as 'optimizer.param_groups.0.params.1', found 99"] = function(_, _, group) group.params = { 0, 99 } end,
    ["the parameter 1, 'bias', occurs twice"] = function(_, _, group) group.params = { 1, 1 } end,
    ["expected a number as 'global_step' of the checkpoint, found x"] = function(state) state.global_step = "x" end,
    ["the gradient 'weight' is float32 [2], the weight float32 [3, 4]"] = function(_, grads) grads.weight = cstorch.ones { 2 } end,
    ["the gradient 'bias' is int64; expected floating-point numbers"] = function(_, grads) grads.bias = grads.bias:to "int64" end,
    ["the gradient 'wait' belongs to no weight"] = function(_, grads) grads.wait = cstorch.ones { 1 } end,
    ["the optimizer has 1 parameters, but the model has 2 tensors and 2 gradients"] = function(_, _, group) group.params = { 0 } end,
    ["several groups of parameters need their names"] = function(state, _, group)
      state.optimizer.param_groups = { group, group }
    end,
    ["has 2 params and 1 param_names"] = function(_, _, group) group.param_names = { "weight" } end,
    ["is the parameter 'wait', which the model does not have"] = function(_, _, group) group.param_names = { "weight", "wait" } end,
    ["there is no gradient"] = function(_, grads) grads.weight, grads.bias, grads.x = nil, nil, 3 end,
  } do
    it("says: " .. text, function()
      local problem = problem_of(change)
      is_true(problem:find(text, 1, true) and problem:find("cannot apply 'grads.mdl' to 'state.mdl'", 1, true), problem)
    end)
  end
end)

describe("cstorch: the example average.lua", function()
  --- A folder with an average and a checkpoint; weights are of the dtypes that models have.
  local function make()
    local folder, seed = harness.temp_dir(), 0
    local function checkpoint(name, step, extra)
      local function random(shape, dtype)
        seed = seed + 1
        return cbk.randn(shape, { seed = seed, dtype = dtype })
      end
      local w = random({ 500, 30 }, "float32")
      local root = cbk.dict { { "model", cbk.dict { { "w", w }, { "half", random({ 7 }, "bfloat16") },
        { "ids", cbk.tensor({ step }, { dtype = "int64" }) }, { "none", random({ 0, 3 }, "float32") }, { "tied", w } } }, { "step", step } }
      for key, value in pairs(extra or {}) do root[key] = value end
      cbk.create(cbk.fs.join(folder, name), { root = root }):commit()
    end
    checkpoint("average.pt", 1)
    checkpoint("new.pt", 2, { optimizer = cbk.dict { { "m", cbk.tensor { 1 } } } })
    return folder
  end

  it("averages what the average has, as in memory", function()
    local folder = make()
    run(folder, example "average.lua", "average.pt", "new.pt", "-o", "next.pt", "0.75")
    local function open(name) return cbk.open(cbk.fs.join(folder, name)) end
    local average, new, after = open "average.pt", open "new.pt", open "next.pt"
    equal(cbk.keys(after.root), { "model", "step" })
    equal({ after["step"], after["model.ids"]:tolist() }, { 2, { 2 } })
    for _, key in ipairs { "model.w", "model.half", "model.none" } do
      local wanted = cstorch.tensor(average[key]:to "float32") * 0.75 + cstorch.tensor(new[key]:to "float32") * 0.25
      equal(after[key].dtype, average[key].dtype)
      equal(after[key]:tolist(), wanted:to(average[key].dtype):tolist(), key) -- rounded once
    end
    is_true(after["model.w"]:same(after["model.tied"]), "still tied")
  end)

  it("refuses quantised weights", function()
    local folder = make()
    cbk.create(folder .. "/codes.pt", { root = cbk.dict { { "w.weight", cbk.full({ 4, 4 }, 1, { dtype = "float8_e4m3fn" }) },
      { "w.weight_scale", cbk.full({ 4, 1 }, 1) } } }):commit()
    local code, _, err = harness.cbk(folder, "run", example "average.lua", "codes.pt", "codes.pt", "-o", "next.pt")
    equal({ code, cbk.fs.exists(folder .. "/next.pt") }, { 1, false })
    is_true(err:find("FP8", 1, true), err)
  end)

  for text, words in pairs {
    ["'model.w' is float32 [500, 30], and missing there"] = { "average.pt", "other.pt", "-o", "next.pt" },
    ["with a number from 0 to 1"] = { "average.pt", "new.pt", "-o", "next.pt", "2" },
    ["usage: cbk run average.lua"] = { "average.pt" },
  } do
    it("says: " .. text, function()
      local folder = make()
      cbk.create(folder .. "/other.pt", { root = cbk.dict { { "model", cbk.dict { { "w", 3 } } } } }):commit()
      local code, _, err = harness.cbk(folder, "run", example "average.lua", unpack(words))
      equal({ code, cbk.fs.exists(folder .. "/next.pt") }, { 1, false })
      is_true(err:find(text, 1, true), err)
    end)
  end
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

describe("cstorch: the examples of one's own", function()
  local LONGEST = 60 -- lines
  for name, last in pairs {
    own_optimizer = "step 200: loss 0.00", own_schedule = "step 40: learning rate 0.00354\n", own_data = "batch 4: 0 1\n",
    own_model = "\nshe sea sea sea",
  } do
    it(("run, and are short: %s.lua"):format(name), function()
      local out = run(harness.temp_dir(), example(name .. ".lua"))
      harness.has(out, last)
      local _, lines = cbk.fs.read(example(name .. ".lua")):gsub("\n", "")
      is_true(lines < LONGEST, lines .. " lines")
    end)
  end

  it("continue with the batch behind the last one", function()
    equal(run(harness.temp_dir(), example "own_data.lua"),
      "batch 1: 0 1\nbatch 2: 4 9\nbatch 3: 16 25\nbatch 1: 36 49\nbatch 2: 64 81\nbatch 3: 100 121\nbatch 4: 0 1\n")
  end)
end)
