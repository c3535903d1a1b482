-- Files that a trainer writes beside a model: they have no weights, and are checked with the folder.

local cbk = require "cbk"
local harness = require "harness"
local tiny = require "tiny"
local describe, it, equal, is_true = harness.describe, harness.it, harness.equal, harness.is_true

local run, has, lacks = harness.cbk, harness.has, harness.lacks

local function create(path, root) cbk.create(path, { root = root }):commit { progress = false } end

---As the Trainer of Hugging Face writes it.
local function optimizer(change)
  local one = cbk.dict { { "step", cbk.tensor(3) }, { "exp_avg", cbk.tensor { 1, 2 } }, { "exp_avg_sq", cbk.tensor { 1, 2 } } }
  if change then change(one) end
  return cbk.dict { { "state", cbk.dict { { 0, one } } },
    { "param_groups", cbk.list { cbk.dict { { "lr", 0.1 }, { "params", cbk.list { 0 } } } } } }
end

local function random()
  local bytes = {}
  for i = 1, 5000 do bytes[i] = i * i % 251 end
  return cbk.tensor(bytes, { dtype = "uint8" })
end

local FILES = {
  { "optimizer.pt", optimizer, "the states of an optimizer" },
  { "optimizer_alone.pt", function() return cbk.dict { { "optimizer", optimizer() }, { "epoch", 3 } } end, "the states of an optimizer" },
  { "scheduler.pt", function() return cbk.dict { { "last_epoch", 2 }, { "base_lrs", cbk.list { 0.1 } } } end,
    "the state of a learning rate schedule" },
  { "scaler.pt", function() return cbk.dict { { "scale", 2 }, { "growth_factor", 2 }, { "growth_interval", 2000 } } end,
    "the state of a gradient scaler" },
  { "rng_state.pth", function() return cbk.dict { { "python", cbk.list { 3 } }, { "cpu", random() }, { "cuda", random() } } end,
    "the states of random number generators" },
  { "random_states_0.pkl", function() return cbk.dict { { "random_state", cbk.list { 3 } }, { "torch_manual_seed", random() } } end,
    "the states of random number generators" },
}

---A folder with a model, its config, and the files of a trainer.
local function trainer_folder(change)
  local dir = harness.temp_dir()
  local config, root = tiny.model(tiny.newest_ways().llama)
  cbk.config.save(config, dir .. "/config.json")
  create(dir .. "/model.safetensors", root)
  for _, one in ipairs(FILES) do
    local path = dir .. "/" .. one[1]
    if path:find "%.pkl$" then -- no format has this suffix
      create(dir .. "/a.pt", one[2]())
      assert(os.rename(dir .. "/a.pt", path))
    else
      create(path, one[2](change))
    end
  end
  return dir
end

describe("files of a trainer beside a model", function()
  it("are described as what they are, and do not claim the model's config", function()
    local dir = trainer_folder()
    for _, one in ipairs(FILES) do
      local name, _, holds = unpack(one)
      local status, out, err = run(dir, "identify", name)
      equal({ status, err }, { 1, "" }, name)
      has(out, "model    none\n")
      has(out, ("why      it holds %s, and no weights of a model\n"):format(holds))
      lacks(out, "config")
      lacks(out, "hf")
      status, out = run(dir, "check", name)
      equal(status, 0, name .. out)
      lacks(out, "config.json")
      err = select(3, run(dir, "convert", name, "--to", "cs-2.5"))
      has(err, ("cannot convert '%s': it holds %s, and no weights of a model; name the file with the weights"):format(name, holds))
    end
    local err = select(3, run(dir, "copy", "--weights", "optimizer.pt", "w.safetensors"))
    equal(err, "cbk: 'optimizer.pt' has no weights of a model: it holds the states of an optimizer\n")
    local status, out = run(dir, "check", "optimizer.pt", "--config", "config.json")
    equal(status, 1)
    has(out, "config.json: 'optimizer.pt' has nothing that it describes: it holds the states of an optimizer")
    has(select(3, run(dir, "diff", "optimizer.pt", "model.safetensors", "--model", "llama")):gsub("%s+", " "),
      "it holds the states of an optimizer, and no weights of a model; compare it without --model")
    equal((run(dir, "diff", "optimizer.pt", "optimizer.pt")), 0)
  end)

  it("are no model in a folder of their own", function()
    local dir = harness.temp_dir()
    create(dir .. "/optimizer.pt", optimizer())
    create(dir .. "/scheduler.pt", FILES[3][2]())
    for _, words in ipairs { { "ls", "." }, { "identify", "." }, { "diff", ".", "optimizer.pt" } } do
      local status, _, err = run(dir, unpack(words))
      equal(status, 2, err)
      has(err, "cannot open '.': the folder has no weights of a model, but optimizer.pt (the states of an optimizer), scheduler.pt (the "
        .. "state of a learning rate schedule); name one of these files")
    end
    equal((run(dir, "check", ".")), 0)
    create(dir .. "/other.pt", cbk.dict { { "w", cbk.tensor { 1 } } })
    has(select(3, run(dir, "ls", ".")), "the folder holds several checkpoints; open one of optimizer.pt, other.pt, scheduler.pt")
  end)

  it("are named where they are not compared, and where they are not in a report", function()
    local dir = trainer_folder()
    local status, out = run(dir, "diff", ".", ".")
    equal(status, 0)
    has(out, "\nnot compared: optimizer.pt, optimizer_alone.pt, random_states_0.pkl, rng_state.pth, scaler.pt, … and 1 more\n")
    lacks(select(2, run(dir, "diff", "model.safetensors", "model.safetensors")), "not compared")
    has(select(2, run(dir, "diff", "--json", ".", ".")), '"not_compared": [\n    "optimizer.pt"')
    run(dir, "report", ".", "-o", "r.html")
    has(cbk.fs.read(dir .. "/r.html"), ">optimizer.pt</span></td><td>note</td><td>it is not in this page</td>")
  end)

  it("are checked with their folder", function()
    local dir = trainer_folder()
    local status, out = run(dir, "check", ".")
    equal(status, 0, out)
    has(out, "clean: ")
    has(out, ("in %d checkpoints"):format(#FILES + 1))
    status, out = run(trainer_folder(function(one) one.exp_avg = cbk.tensor { 0 / 0, 1 } end), "check", ".")
    equal(status, 1)
    has(out, "optimizer.pt: state.0.exp_avg: 1 of 2 elements is NaN")
    local cut = cbk.fs.read(dir .. "/optimizer.pt"):sub(1, 600)
    os.remove(dir .. "/optimizer.pt")
    cbk.fs.write(dir .. "/optimizer.pt", cut)
    status, out = run(dir, "check", ".")
    equal(status, 1)
    has(out, "optimizer.pt: the zip archive has no end record")
  end)

  it("are named if they are not checked", function()
    local dir = trainer_folder()
    create(dir .. "/other.safetensors", cbk.dict { { "w", cbk.tensor { 1 } } })
    cbk.fs.write(dir .. "/notes.bin", "a text")
    create(dir .. "/checkpoint-100/model.safetensors", cbk.dict { { "w", cbk.tensor { 1 } } })
    cbk.fs.mkdir(dir .. "/logs")
    local status, out = run(dir, "check", ".")
    equal(status, 0)
    has(out, "note     ./checkpoint-100: the folder has a checkpoint of its own; try: check it by its own name [not-checked]")
    lacks(out, "logs")
    has(out, "note     ./notes.bin: it is text, perhaps a config, not a checkpoint; try: check it by its own name [not-checked]")
    has(out, "note     ./other.safetensors: it is a checkpoint beside the one of the folder; try: check it by its own name [not-checked]")
  end)

  it("are read in one file with the model, too", function()
    local dir = harness.temp_dir()
    local _, root = tiny.model(tiny.newest_ways().llama)
    local states = optimizer(function(one) one.exp_avg = cbk.tensor { 0 / 0, 1 } end)
    create(dir .. "/m.pt", cbk.dict { { "model", root }, { "optimizer", states } })
    local _, out = run(dir, "check", "m.pt")
    has(out, "optimizer.state.0.exp_avg: 1 of 2 elements is NaN")
    has(out, "the names are those without 'model.'; beside them: optimizer; try: ")
    has(select(2, run(dir, "identify", "m.pt")), "beside them, and not read: optimizer\n")
  end)

  it("are no models that have such names", function()
    local dir = harness.temp_dir()
    local model = cbk.dict { { "w.weight", cbk.tensor { 1, 2 } } }
    create(dir .. "/a.pt", cbk.dict { { "state", model }, { "last_epoch", 1 }, { "base_lrs", 1 } })
    create(dir .. "/b.pt", cbk.dict { { "model", model }, { "optimizer", optimizer() } })
    create(dir .. "/c.pt", cbk.dict { { "w.weight", cbk.tensor { 1, 2 } }, { "python", 1 }, { "cpu", 1 } })
    for _, name in ipairs { "a.pt", "b.pt", "c.pt" } do
      local out = select(2, run(dir, "identify", name))
      is_true(out:find("unknown", 1, true), out)
    end
  end)
end)
