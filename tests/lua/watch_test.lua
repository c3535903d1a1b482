-- `cbk watch`: the checkpoints of a folder in the order of their steps, what is measured of them, and files that are still being written.

local cbk = require "cbk"
local folder = require "cbk.watch.folder"
local harness = require "harness"
local describe, it, equal, near, is_true = harness.describe, harness.it, harness.equal, harness.near, harness.is_true
local has, lacks = harness.has, harness.lacks

local function create(path, root, options)
  options = options or {}
  options.root = root
  cbk.create(path, options):commit()
end

local LAYERS = 6

---A model, and the optimizer that trains it.
---@param step integer
---@param change? fun(model: Dict)
local function state(step, change)
  local model = cbk.dict()
  for layer = 0, LAYERS - 1 do
    model[("layers.%d.w"):format(layer)] = cbk.randn({ 8, 8 }, { seed = layer }) + 0.001 * step
  end
  if change then change(model) end
  local states = cbk.dict { [0] = cbk.dict { { "exp_avg", cbk.full({ 8, 8 }, 0 / 0) }, { "step", cbk.tensor(step) } } }
  local group = cbk.dict { { "lr", 0.1 / step }, { "params", cbk.list { 0 } } }
  return cbk.dict {
    { "model", model }, { "optimizer", cbk.dict { { "state", states }, { "param_groups", cbk.list { group } } } },
    { "grad_scaler", cbk.dict { { "scale", cbk.tensor(65536) } } }, { "global_step", step },
  }
end

local function watch(dir, ...) return harness.cbk(dir, "watch", "run", "--once", "--interval", "0.05", ...) end

---The objects that --json prints, one a line.
local function objects(out)
  local list = {}
  for line in out:gmatch "[^\n]+" do list[#list + 1] = cbk.totable(cbk.config.parse(line, "json")) end
  return list
end

local function watch_json(dir, ...)
  local status, out, err = watch(dir, "--json", ...)
  return objects(out), status, err
end

local function names(list)
  local out = {}
  for i, one in ipairs(list) do out[i] = cbk.fs.basename(one.checkpoint) end
  return out
end

describe("cbk watch: the step in a name", function()
  it("is behind the last word for it, or the only number", function()
    for name, step in pairs {
      ["checkpoint_1000.mdl"] = 1000, ["checkpoint-1000"] = 1000, ["epoch=1-step=2000.ckpt"] = 2000, ["step_1000.pt"] = 1000,
      global_step1000 = 1000, globalstep7 = 7, ["iter_0001000"] = 1000, ["ep3-ba1000.pt"] = 1000, ["run_50.h5"] = 50, ["epoch_3.pt"] = 3,
      ["llama-7b-checkpoint-500.safetensors"] = 500, ["model.ckpt-1000.index"] = 1000, ["epoch=3-loss=0.25.ckpt"] = 3,
      ["epoch=1-step=20-v1.ckpt"] = 20, ["steps_12"] = 12,
    } do
      equal(folder.step_of(name), step, name)
    end
    for _, name in ipairs { "last.ckpt", "model.safetensors", "a1-b2.pt", "logs", "misstep" } do equal(folder.step_of(name), nil, name) end
  end)
end)

describe("cbk watch: the checkpoints of a folder", function()
  it("are shown in the order of their steps, in all layouts", function()
    local dir, weights = harness.temp_dir(), cbk.dict { ["a.w"] = cbk.full({ 4 }, 1) }
    create(dir .. "/run/checkpoint_900.mdl", state(900))
    create(dir .. "/run/checkpoint-1000/model.safetensors", weights)
    create(dir .. "/run/checkpoint-1100", weights, { format = "safetensors", shard_size = 4 })
    local group = cbk.dict { { "lr", 0.5 }, { "params", cbk.list { 0 } } }
    create(dir .. "/run/epoch=1-step=2000.ckpt", cbk.dict { { "state_dict", weights }, { "global_step", 2000 },
      { "optimizer_states", cbk.list { cbk.dict { { "state", cbk.dict() }, { "param_groups", cbk.list { group } } } } } })
    create(dir .. "/run/step_30.pt", weights)
    create(dir .. "/run/model.ckpt-40", weights, { format = "tensorflow" })
    local list, status, err = watch_json(dir)
    equal(names(list), { "step_30.pt", "model.ckpt-40.index", "checkpoint_900.mdl", "checkpoint-1000", "checkpoint-1100",
      "epoch=1-step=2000.ckpt" })
    equal({ status, err }, { 0, "" })
    for _, one in ipairs(list) do equal(one.error, nil, one.checkpoint) end
    equal(list[6].learning_rates, { 0.5 })
  end)

  it("are not what trainers keep beside them, unfinished files, shards and folders of other things", function()
    local dir, weights = harness.temp_dir(), cbk.dict { ["a.w"] = cbk.full({ 4 }, 1) }
    create(dir .. "/run/step_1.pt", weights)
    for _, name in ipairs { "optimizer_2.pt", "rng_state_3.pth", "model-00001-of-00002.safetensors", "last.ckpt" } do
      create(dir .. "/run/" .. name, weights)
    end
    cbk.fs.write(dir .. "/run/step_4.pt.tmp", "x")
    cbk.fs.write(dir .. "/run/tmp-checkpoint-5/model.safetensors", "x")
    cbk.fs.write(dir .. "/run/eval_6/scores.json", "{}")
    cbk.fs.write(dir .. "/run/notes_7.txt", "x")
    equal(names((watch_json(dir))), { "step_1.pt" })
  end)

  it("are the last N that exist", function()
    local dir = harness.temp_dir()
    for step = 9, 11 do create(("%s/run/step_%d.pt"):format(dir, step), state(step)) end
    equal(names((watch_json(dir, "--last", "2"))), { "step_10.pt", "step_11.pt" })
    equal({ watch_json(dir, "--last", "0") }, { {}, 0, "" })
  end)

  it("are not read through links out of the folder, and once through links in it", function()
    local dir = harness.temp_dir()
    create(dir .. "/elsewhere/step_2.pt", state(2))
    create(dir .. "/run/step_1.pt", state(1))
    os.execute(("cd '%s/run' && ln -s ../elsewhere/step_2.pt . && ln -s ../elsewhere step_3 && ln -s step_1.pt step_4.pt"):format(dir))
    local list, status = watch_json(dir)
    equal(names(list), { "step_1.pt", "step_2.pt", "step_3" })
    equal({ status, list[1].error, list[2].error.code, list[3].error.code }, { 1, nil, "external", "external" })
    list, status = watch_json(dir, "--allow-external", "elsewhere")
    equal({ status, list[2].error }, { 0, nil })
  end)
end)

describe("cbk watch: what a line has", function()
  it("is norm, distance, NaN of the model alone, learning rate and loss scale", function()
    local dir = harness.temp_dir()
    create(dir .. "/run/checkpoint_1.mdl", state(1))
    create(dir .. "/run/checkpoint_2.mdl", state(2))
    local list = watch_json(dir)
    local squares, distance = 0, math.sqrt(LAYERS * 64) * 0.001
    for _, tensor in cbk.tensors(state(2).model) do squares = squares + tensor:stats().norm ^ 2 end
    near(list[2].norm, math.sqrt(squares), 1e-5)
    near(list[2].moved, distance / list[1].norm, 1e-6)
    equal({ list[1].moved, list[1].nan, list[2].tensors, list[2].bytes }, { nil, 0, LAYERS, LAYERS * 256 })
    equal({ list[2].learning_rates, list[2].loss_scale, list[2].step }, { { 0.05 }, 65536, 2 })
    equal(watch_json(dir, "--all")[1].nan, 64)
  end)

  it("with --all, those of an optimizer in a file of its own, too", function()
    local dir, root = harness.temp_dir(), state(10)
    create(dir .. "/run/checkpoint-10/model.safetensors", root.model)
    create(dir .. "/run/checkpoint-10/optimizer.pt", root.optimizer)
    equal(watch_json(dir)[1].nan, 0)
    equal(watch_json(dir, "--all")[1].nan, 64)
  end)

  it("fits 80 columns", function()
    local dir = harness.temp_dir()
    create(dir .. "/run/checkpoint_1000000.mdl", state(1000000))
    create(dir .. "/run/checkpoint_2000000.mdl", state(2000000, function(model)
      model["layers.1.w"] = cbk.full({ 8, 8 }, 0 / 0)
      model["layers.2.w"] = nil
      for i = 1, 3 do model[("a.very.long.name.of.a.tensor."):rep(3) .. i] = cbk.full({ 2 }, i) end
      model["layers.3.w"] = model["layers.3.w"]:to "float64"
      model["layers.4.w"] = cbk.full({ 4 }, 1)
    end))
    local _, out = harness.cbk_with("COLUMNS=80", dir, "watch", "run", "--once", "--interval", "0.05")
    for line in out:gmatch "[^\n]+" do is_true(cbk.terminal.columns(line) <= 80, line) end
    has(out, "    step         time  tensors       norm     moved  NaN/inf        lr   scale\n")
    has(out, "    new NaN/inf: model.layers.1.w (64)\n")
    has(out, "    gone: model.layers.2.w\n")
    has(out, "    shape of model.layers.4.w: [8, 8] -> [4]\n")
    has(out, "    dtype of model.layers.3.w: float32 -> float64\n")
    has(out, "name.of.a.tensor.{1..3}\n")
  end)

  it("has a learning rate that is a tensor", function()
    local dir = harness.temp_dir()
    local root = state(1)
    root.optimizer.param_groups[1].lr = cbk.tensor(0.25)
    create(dir .. "/run/step_1.pt", root)
    equal(watch_json(dir)[1].learning_rates, { 0.25 })
  end)

  it("has tensors that are new, gone, changed, newly broken, or moved far", function()
    local dir = harness.temp_dir()
    create(dir .. "/run/step_1.pt", state(1, function(model) model["layers.5.w"] = cbk.tensor { 1 / 0, 2 } end))
    create(dir .. "/run/step_2.pt", state(2, function(model)
      model["layers.0.w"] = model["layers.0.w"] + 1
      model["layers.1.w"] = cbk.full({ 8, 8 }, 0 / 0)
      model["layers.2.w"], model.more = nil, cbk.full({ 2 }, 1)
      model["layers.5.w"] = cbk.tensor { 1 / 0, 2 }
    end))
    create(dir .. "/run/step_3.pt", state(2, function(model) model["layers.1.w"] = cbk.full({ 8, 8 }, 0 / 0) end))
    local list = watch_json(dir)
    local two, three = list[2], list[3]
    equal({ list[1].inf, two.inf, two.nan }, { 1, 1, 64 })
    equal({ two.new, two.gone }, { { "model.more" }, { "model.layers.2.w" } })
    equal(two.broken, { { key = "model.layers.1.w", count = 64 } })
    equal({ #two.far, two.far[1].key }, { 1, "model.layers.0.w" })
    equal(three.broken, {})
    equal(three.changed, { { key = "model.layers.5.w", before = "[2]", after = "[8, 8]" } })
    has(select(2, watch(dir)), "moved far: model.layers.0.w ")
  end)

  it("measures how far weights moved by what they were before", function()
    local dir = harness.temp_dir()
    for step, value in ipairs { 1, 3, 1.5 } do
      create(("%s/run/step_%d.pt"):format(dir, step), cbk.dict { { "model", cbk.dict { { "a.w", cbk.full({ 8 }, value) } } } })
    end
    local list = watch_json(dir)
    near(list[2].moved, 2, 1e-6)
    near(list[3].moved, 0.5, 1e-6)
  end)

  it("says that no tensor of the model has changed, and how far weights moved to 0 or NaN", function()
    local dir = harness.temp_dir()
    local function zero(model) for key, w in cbk.items(cbk.copy(model)) do model[key] = w * 0 end end
    create(dir .. "/run/step_1.pt", state(1))
    create(dir .. "/run/step_2.pt", state(1))
    create(dir .. "/run/step_3.pt", state(1, zero))
    local _, out = watch(dir)
    has(out, "    no tensor of the model has changed\n")
    local list = watch_json(dir)
    equal({ list[2].moved, list[3].norm, list[3].moved }, { 0, 0, 1 })
    create(dir .. "/run/step_4.pt", state(1))
    equal(watch_json(dir)[4].moved, nil) -- from 0
    create(dir .. "/run/step_5.pt", state(1, function(model) model["layers.0.w"] = cbk.full({ 8, 8 }, 0 / 0) end))
    equal(watch_json(dir)[5].moved, 0) -- of the finite elements
  end)

  it("has the learning rate of a folder of Hugging Face's Trainer", function()
    local dir = harness.temp_dir()
    local top = dir .. "/run/checkpoint-5"
    create(top .. "/model.safetensors", cbk.dict { w = cbk.full({ 4 }, 1) })
    create(top .. "/optimizer.pt", cbk.dict { { "state", cbk.dict() },
      { "param_groups", cbk.list { cbk.dict { { "lr", 0.25 }, { "params", cbk.list { 0 } } } } } })
    create(top .. "/scaler.pt", cbk.dict { scale = 1024 })
    local list = watch_json(dir)
    equal({ #list, list[1].learning_rates, list[1].loss_scale }, { 1, { 0.25 }, 1024 })
  end)
end)

describe("cbk watch: files that cannot be read", function()
  it("are lines with the error, and the others are still watched", function()
    local dir = harness.temp_dir()
    create(dir .. "/run/step_1.pt", state(1))
    create(dir .. "/run/step_2.safetensors", cbk.dict { w = cbk.full({ 100 }, 1) })
    os.execute(("truncate -s 300 '%s/run/step_2.safetensors'"):format(dir))
    cbk.fs.write(dir .. "/run/step_3.pt", "no checkpoint")
    create(dir .. "/run/step_4.pt", state(2))
    local list, status, err = watch_json(dir)
    equal({ status, err, #list }, { 1, "", 4 })
    equal({ list[1].error, list[2].error.code, list[3].error.code, list[4].error }, { nil, "format", "format", nil })
    is_true(list[4].moved > 0)
    local _, out = watch(dir)
    has(out, "cannot open 'run/step_3.pt'")
    lacks(out, "step_4")
  end)

  it("are a folder that is missing or a file, with --once", function()
    local dir = harness.temp_dir()
    local status, _, err = watch(dir)
    equal(status, 1)
    has(err, "cannot watch 'run': there is no such folder")
    cbk.fs.write(dir .. "/run", "x")
    equal((watch(dir)), 2)
    cbk.fs.remove(dir .. "/run")
    cbk.fs.mkdir(dir .. "/run")
    status, _, err = watch(dir)
    equal(status, 1)
    has(err, "'run' has no checkpoint with a step in its name")
  end)
end)

---Runs `cbk watch run` in the background of a shell script, and ends it with Ctrl-C: what it printed, and its status.
local function watch_while(dir, script)
  local lines = {
    "cd '" .. dir .. "'",
    ("'%s' watch run --json --interval 0.05 >out 2>err & pid=$!"):format(cbk.fs.program()),
    "await() { for i in $(seq 600); do [ $(grep -c . out) -ge $1 ] && return; sleep 0.05; done; }",
    script, "kill -INT $pid; wait $pid; echo $? >status",
  }
  cbk.fs.write(dir .. "/script", table.concat(lines, "\n"))
  os.execute(("setsid bash -m '%s/script' </dev/null >/dev/null 2>&1"):format(dir)) -- with -m, Ctrl-C is not ignored in the background
  return objects(cbk.fs.read(dir .. "/out")), tonumber(cbk.fs.read(dir .. "/status")), cbk.fs.read(dir .. "/err")
end

describe("cbk watch: a run that goes on", function()
  it("shows checkpoints as they appear, and ends with Ctrl-C", function()
    local dir = harness.temp_dir()
    create(dir .. "/made/step_1.pt", state(1))
    create(dir .. "/made/step_2.pt", state(2))
    local list, status, err = watch_while(dir, "sleep 0.2; mkdir run; mv made/step_1.pt run; await 1; mv made/step_2.pt run; await 2")
    equal({ names(list), status, err }, { { "step_1.pt", "step_2.pt" }, 0, "" })
    is_true(list[2].moved > 0)
  end)

  it("waits for a file that is cut short, until it is complete", function()
    local dir = harness.temp_dir()
    create(dir .. "/made.safetensors", cbk.dict { w = cbk.full({ 1000 }, 3) })
    local list, status = watch_while(dir, "mkdir run; for n in 1 2 3 4 5 6 7 8; do head -c ${n}00 made.safetensors >run/step_1.safetensors;"
      .. " sleep 0.03; done; cat made.safetensors >run/step_1.safetensors; await 1")
    equal({ names(list), status }, { { "step_1.safetensors" }, 0 })
    near(list[1].norm, 3 * math.sqrt(1000), 1e-3)
  end)

  it("shows a file that was damaged again when it is whole, and one that is written again", function()
    local dir = harness.temp_dir()
    create(dir .. "/made.safetensors", cbk.dict { w = cbk.full({ 1000 }, 3) })
    create(dir .. "/other.safetensors", cbk.dict { w = cbk.full({ 1000 }, 4) })
    local list, status = watch_while(dir, "mkdir run; head -c 500 made.safetensors >run/step_1.safetensors; await 1;"
      .. " cat made.safetensors >run/step_1.safetensors; await 2; cat other.safetensors >run/step_1.safetensors; await 3")
    equal({ #list, list[1].error.code, list[2].error, list[3].error, status }, { 3, "format", nil, nil, 0 })
    near(list[3].norm, 4 * math.sqrt(1000), 1e-3)
    equal(list[3].moved, nil) -- what the file had before was overwritten
  end)

  it("compares with a checkpoint that was removed", function()
    local dir = harness.temp_dir()
    create(dir .. "/made/step_1.pt", state(1))
    create(dir .. "/made/step_2.pt", state(2))
    local list = watch_while(dir, "mkdir run; mv made/step_1.pt run; await 1; rm run/step_1.pt; mv made/step_2.pt run; await 2")
    is_true(list[2].moved > 0)
  end)
end)
