-- `cbk train`: what a run trains, leaves behind and continues, from files of both layouts, and what it says of wrong ones.

local cbk = require "cbk"
local harness = require "harness"
local training_data = require "training_data"

local describe, it, equal, has, lacks = harness.describe, harness.it, harness.equal, harness.has, harness.lacks
local changed, TRAINER = training_data.changed, training_data.TRAINER

---A folder with data and a params.yaml.
---@param text? string
---@return string
local function folder(text)
  local dir = harness.temp_dir()
  training_data.write(dir .. "/data", 22, training_data.LENGTH, training_data.WORDS)
  cbk.fs.write(dir .. "/params.yaml", text or TRAINER)
  return dir
end

---@return string stdout, string stderr
local function train(dir, ...)
  local status, out, err = harness.cbk(dir, "train", "params.yaml", ...)
  assert(status == 0, err)
  return out, err
end

local function checkpoints(dir)
  local out = {}
  for _, name in ipairs(cbk.fs.list(dir .. "/run")) do
    if name:find "%.mdl$" then out[#out + 1] = name end
  end
  return out
end

local function bytes(dir, step) return cbk.fs.read(("%s/run/checkpoint_%d.mdl"):format(dir, step)) end

---The tensors of a checkpoint's section as lists.
local function values(path, section)
  local out = {}
  for key, leaf in cbk.leaves(cbk.open(path).root[section or "model"]) do
    if cbk.kind(leaf) == "tensor" or cbk.kind(leaf) == "ndarray" then out[key] = leaf:tolist() end
  end
  return out
end

local function losses(out)
  local list = {}
  for step, loss in out:gmatch "| Train Device=%u+, Step=(%d+), Loss=([%d.]+)" do list[tonumber(step)] = tonumber(loss) end
  return list
end

local EVERY_STEP = changed(TRAINER, "log_steps: 3", "log_steps: 1")

describe("cbk train", function()
  it("trains, evaluates and saves at the steps of the file", function()
    local dir = folder()
    local out, err = train(dir)
    equal(checkpoints(dir), { "checkpoint_12.mdl", "checkpoint_4.mdl", "checkpoint_8.mdl" })
    local steps = {}
    for step in pairs(losses(out)) do steps[#steps + 1] = step end
    table.sort(steps)
    equal(steps, { 3, 5, 6, 9, 10, 12 }) -- each third, and those before an evaluation
    has(out, "gpt2 (GPT2LMHeadModel): 5,248 parameters\nfrom random weights\nsteps 1 to 12, a batch of 4 samples each\n")
    has(out, "| Eval Device=CSX, GlobalStep=5, Batch=2, Loss=")
    has(out, "| Eval Device=CSX, GlobalStep=12, Batch=2, Loss=")
    has(out, "Saved checkpoint run/checkpoint_8.mdl\n")
    has(out, "Metric: eval/lm_perplexity = ")
    has(out, "Training completed successfully!\nProcessed 48 training sample(s) in ")
    equal(err, "")
    local root = cbk.open(dir .. "/run/checkpoint_12.mdl").root
    equal({ root.global_step, root.dataloader.samples_streamed, root.__metadata__[1].params.trainer.init.seed }, { 12, 48, 3 })
    equal(root.__metadata__[1].version, "2.9.0")
  end)

  it("records numbers, once for each step, and pictures", function()
    local dir = folder(EVERY_STEP)
    train(dir, "--seed", "9")
    local function steps()
      local out = {}
      for line in cbk.fs.read(dir .. "/run/metrics.jsonl"):gmatch "[^\n]+" do
        local row = cbk.parse_json(line)
        if row.loss then out[#out + 1] = row.step end
      end
      return out
    end
    local all = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }
    equal(steps(), all)
    local before = cbk.fs.read(dir .. "/run/metrics.jsonl")
    local first = cbk.parse_json(before:match "[^\n]+")
    harness.near(first.loss, losses((train(folder(EVERY_STEP), "--seed", "9")))[1], 1e-5)
    equal({ first.lr, first.loss_scale, first.grad_norm > 0 }, { 0, 32768, true })
    cbk.fs.remove(dir .. "/run/checkpoint_12.mdl")
    cbk.fs.write(dir .. "/run/metrics.jsonl", before .. '{"step": 13, "lo', { overwrite = true }) -- the run was killed
    train(dir, "--seed", "9")
    equal(steps(), all)
    has(cbk.fs.read(dir .. "/run/metrics.svg"), ">eval_loss</text>")
    equal(cbk.fs.read(dir .. "/run/params.yaml"), EVERY_STEP)
    equal(cbk.config.load(dir .. "/run/run.json").command, "cbk train params.yaml --seed 9")
  end)

  it("records the speed that it prints, after a resume, too", function()
    local dir = folder(EVERY_STEP)
    for _, last in ipairs { 8, 12 } do
      local out = train(dir, "--max-steps", ("%d"):format(last))
      local printed = {}
      for step, rate in out:gmatch "Step=(%d+), [^\n]*GlobalRate=([%d.]+) " do printed[tonumber(step)] = tonumber(rate) end
      for line in cbk.fs.read(dir .. "/run/metrics.jsonl"):gmatch "[^\n]+" do
        local row = cbk.parse_json(line)
        if row.loss and printed[row.step] then harness.near(row.samples_per_second, printed[row.step], 0.0051) end
      end
      assert(printed[last])
    end
  end)

  it("counts num_steps and num_epochs from where the run began", function()
    for _, length in ipairs { "num_steps: 10", "num_epochs: 2" } do -- an epoch has five batches
      local dir = folder(changed(TRAINER, "max_steps: 12", length))
      has(train(dir), "steps 1 to 10,")
      cbk.fs.remove(dir .. "/run/checkpoint_10.mdl")
      has(train(dir), "from run/checkpoint_8.mdl, step 8\nsteps 9 to 10,")
      has(train(dir), "Nothing is left to train")
      has(train(dir, "--model-dir", "other", "--checkpoint", "run/checkpoint_8.mdl"), "step 8\nsteps 9 to 18,")
      cbk.fs.remove(dir .. "/other/checkpoint_18.mdl")
      has(train(dir, "--model-dir", "other"), "steps 17 to 18,")
    end
  end)

  it("says what a run costs, and writes nothing", function()
    local dir = folder()
    local out = train(dir, "--dry-run")
    has(out, "tokens: 32 a step, 384 in all\ncomputation: about 0.000958 GFLOP a step")
    has(out, "memory: ")
    has(out, " (weights 20.5 KiB, optimizer 41.3 KiB, within a step ")
    assert(out:find "time: about %d:%d%d %(%d[%d.e-]* s a step%), without evaluations and checkpoints\n")
    out = train(dir, "--compile-only")
    assert(out:find "graph: [%d,]+ operations, joined to [%d,]+ kernels\n" and not out:find "time:")
    has(train(dir, "--validate-only"), "The file, the model and the data fit.\n")
    equal(cbk.fs.exists(dir .. "/run"), false)
    local flop = cbk.parse_json((train(dir, "--dry-run", "--json"))).flop
    -- 4,448 - 128 - 448 in matrices of layers and 640 of the head, for 32 tokens; scores and sums: 2 layers, 8 tokens, width 16
    local matrices = 2 * (4 * 256 + 2 * 512) + 640
    equal(flop, 3 * 32 * (2 * matrices + 2 * 2 * 8 * 16))
    local marked = folder(changed(TRAINER, "backend_type: CSX", "backend_type: CSX\n      validate_only: true"))
    has(train(marked), "The file, the model and the data fit.\n")
  end)

  it("saves the first values where the file asks for them", function()
    local dir = folder(changed(TRAINER, "      steps: 4", "      steps: 4\n      save_initial_checkpoint: true"))
    train(dir)
    equal(checkpoints(dir), { "checkpoint_0.mdl", "checkpoint_12.mdl", "checkpoint_4.mdl", "checkpoint_8.mdl" })
    equal(values(dir .. "/run/checkpoint_0.mdl")["ln_f.weight"][1], 1)
    local root = cbk.open(dir .. "/run/checkpoint_0.mdl").root
    equal({ root.global_step, root.dataloader.samples_streamed }, { 0, 0 })
  end)

  it("lowers the loss", function()
    local out = train(folder(changed(changed(TRAINER, "max_steps: 12", "max_steps: 300"), "checkpoint:\n      steps: 4",
      "checkpoint:\n      steps: 0")))
    local list = losses(out)
    assert(list[3] > 3.4 and list[300] < 1.5, ("%g to %g"):format(list[3], list[300]))
  end)

  it("continues bit for bit after its last checkpoint, wherever it stopped", function()
    local dir = folder()
    train(dir)
    local last, before = bytes(dir, 12), bytes(dir, 8)
    for _, first in ipairs { 4, 8 } do
      cbk.fs.remove(dir .. "/run/checkpoint_12.mdl")
      if first == 4 then cbk.fs.remove(dir .. "/run/checkpoint_8.mdl") end
      local out = train(dir)
      has(out, ("from run/checkpoint_%d.mdl, step %d\nsteps %d to 12"):format(first, first, first + 1))
      equal(bytes(dir, 12) == last, true)
      equal(bytes(dir, 8) == before, true)
    end
  end)

  it("does not continue with other samples, and says what else is other than when it began", function()
    local dir = folder()
    training_data.write(dir .. "/more", 3, 8, 40)
    cbk.fs.write(dir .. "/data/more.h5", cbk.fs.read(dir .. "/more/data.h5"))
    train(dir, "--max-steps", "4", "--seed", "9")
    local _, err = train(dir, "--max-steps", "8")
    has(err, "warning: the run in 'run' began with the seed 9, and continues with 3: its random numbers, such as those of dropout, are ")
    lacks(err, "another model")
    cbk.fs.write(dir .. "/other.yaml", changed(TRAINER, "num_heads: 4", "num_heads: 2"))
    local status
    for _, words in ipairs { { "train", "other.yaml", "--seed", "3" }, { "eval", "other.yaml", "--checkpoint", "run/checkpoint_8.mdl" } } do
      status, _, err = harness.cbk(dir, unpack(words))
      equal(status, 0)
      has(err, "checkpoint_8.mdl' were trained in another model: trainer.init.model.num_heads is 4 there and 2 in 'other.yaml'\n")
    end
    cbk.fs.remove(dir .. "/data/more.h5")
    status, _, err = harness.cbk(dir, "train", "params.yaml", "--max-steps", "16")
    equal(status, 1)
    has((err:gsub("%s+", " ")), "train_dataloader: its data has 22 samples, and had 25 when the run in 'run' began: other samples would "
      .. "come next; restore the files, or name another --model-dir")
    has(train(dir, "--max-steps", "4", "--model-dir", "new"), "steps 1 to 4,")
    cbk.fs.write(dir .. "/data/more.h5", cbk.fs.read(dir .. "/more/data.h5"))
    has(train(dir, "--max-steps", "16"), "steps 13 to 16,")
  end)

  it("says what to do with a damaged checkpoint, and continues after the one before", function()
    local dir = folder()
    train(dir)
    local last = bytes(dir, 12)
    cbk.fs.write(dir .. "/run/checkpoint_12.mdl", last:sub(1, 2000), { overwrite = true })
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    equal(status, 1)
    has(err, "cannot open 'run/checkpoint_12.mdl': damaged HDF5 file")
    has(err, "Move it to another folder: the run then continues after the checkpoint before it")
    cbk.fs.remove(dir .. "/run/checkpoint_12.mdl")
    has(train(dir), "from run/checkpoint_8.mdl, step 8\n")
    equal(bytes(dir, 12) == last, true)
  end)

  it("has its folder for itself", function()
    local dir = folder()
    cbk.fs.mkdir(dir .. "/run")
    equal(cbk.fs.hold(dir .. "/run"), true)
    local status, out, err = harness.cbk(dir, "train", "params.yaml")
    equal({ status, out, cbk.fs.list(dir .. "/run") }, { 1, "", {} })
    has((err:gsub("%s+", " ")), "cannot train in 'run': another run, which has not ended, has this folder; wait until it has ended, or "
      .. "name another folder with --model-dir")
    has(train(dir, "--validate-only"), "The file, the model and the data fit.")
    train(dir, "--model-dir", "other", "--max-steps", "1")
    train(dir, "--model-dir", "other", "--max-steps", "2")
  end)

  it("does not train what is complete", function()
    local dir = folder()
    train(dir)
    has(train(dir), "Nothing is left to train: run/checkpoint_12.mdl has step 12, and the run ends at step 12. A larger loop.max_steps, or "
      .. "--max-steps, continues it.")
    equal(cbk.parse_json((train(dir, "--json"))), cbk.dict { { "step", 12 }, { "checkpoint", "run/checkpoint_12.mdl" } })
    has(train(dir, "--max-steps", "5"), "has step 12, and the run ends at step 5.")
    assert(os.execute(("cd '%s' && COLUMNS=60 '%s' train params.yaml > out"):format(dir, cbk.fs.program())) == 0)
    local said = cbk.fs.read(dir .. "/out")
    has(said, "Nothing is left to train: run/checkpoint_12.mdl has step 12,\n  and the run ends at step 12. A larger ")
    has(train(dir, "--model-dir", "new", "--checkpoint", "run/checkpoint_12.mdl"),
      "LoadCheckpointStates with `load_checkpoint_states: model`")
    equal(#checkpoints(dir), 3)
    has(train(dir, "--max-steps", "13"), "steps 13 to 13")
    equal(#checkpoints(dir), 4)
  end)

  it("keeps as many checkpoints as the file says", function()
    local dir = folder(changed(TRAINER, "    logging:", "    callbacks:\n    - KeepNCheckpoints:\n        n: 2\n    logging:"))
    train(dir)
    equal(checkpoints(dir), { "checkpoint_12.mdl", "checkpoint_8.mdl" })
  end)

  it("keeps checkpoints that it did not save", function()
    local dir = folder(changed(TRAINER, "    logging:", "    callbacks:\n    - KeepNCheckpoints:\n        n: 1\n    logging:"))
    train(dir, "--max-steps", "4")
    local pretrained = cbk.fs.read(dir .. "/run/checkpoint_4.mdl")
    cbk.fs.mkdir(dir .. "/other")
    for _, name in ipairs { "checkpoint_1.mdl", "checkpoint_4.mdl" } do cbk.fs.write(dir .. "/other/" .. name, pretrained) end
    train(dir, "--model-dir", "other", "--max-steps", "8")
    train(dir, "--model-dir", "other")
    local found = {}
    for _, name in ipairs(cbk.fs.list(dir .. "/other")) do found[#found + 1] = name:match "^checkpoint.*" end
    equal(found, { "checkpoint_1.mdl", "checkpoint_12.mdl", "checkpoint_4.mdl" })
  end)

  it("computes the same on CSX and CPU, but for the loss scale", function()
    local csx, cpu = folder(EVERY_STEP), folder(changed(EVERY_STEP, "backend_type: CSX", "backend_type: CPU"))
    local a, b = losses(train(csx)), losses(train(cpu))
    for step = 1, 12 do harness.near(a[step], b[step], 2e-5) end
  end)

  it("adds gradients up over parts of a batch", function()
    local plain = changed(changed(EVERY_STEP, "dropout_rate: 0.1", "dropout_rate: 0.0"), "attention_dropout_rate: 0.1",
      "attention_dropout_rate: 0.0")
    plain = changed(plain, "name: gpt2", "name: gpt2\n      loss_scaling: batch_size\n      loss_weight: 0.125")
    local unscaled = changed(plain, "fp16_type: cbfloat16", "fp16_type: bfloat16")
    for _, text in ipairs { plain, unscaled } do
      local parts = changed(changed(text, "max_steps: 12", "max_steps: 12\n      grad_accum_steps: 2"), "batch_size: 4", "batch_size: 2")
      local one, other = folder(text), folder(parts)
      local a, b = losses(train(one)), losses(train(other))
      for step = 1, 12 do harness.near(a[step], b[step], 2e-5) end
      has(train(other, "--max-steps", "13"), "a batch of 4 samples each in 2 parts")
    end
  end)

  it("begins with a converted checkpoint", function()
    local dir = folder()
    cbk.fs.write(dir .. "/config.json", [[{"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 32,
      "n_positions": 8, "activation_function": "gelu", "tie_word_embeddings": true}]])
    local function run(...)
      local status, _, err = harness.cbk(dir, ...)
      assert(status == 0, err)
    end
    run("new", "config.json", "-o", "pytorch_model.bin")
    run("convert", "pytorch_model.bin", "--src-fmt", "hf", "--tgt-fmt", "cs-current", "--output-dir", "cs", "--config", "config.json")
    local out = train(dir, "--checkpoint", "cs/pytorch_model_to_cs-2.9.mdl", "--max-steps", "4")
    has(out, "from cs/pytorch_model_to_cs-2.9.mdl, step 0\n  it has no optimizer, which begins anew\n")
    local before, after = values(dir .. "/cs/pytorch_model_to_cs-2.9.mdl"), values(dir .. "/run/checkpoint_4.mdl")
    local key = "transformer_decoder.layers.0.norm1.bias"
    assert(before[key] and after[key][1] ~= before[key][1])
  end)
end)

local LEGACY = [[
model:
  name: gpt2
  vocab_size: 40
  hidden_size: 16
  num_hidden_layers: 2
  num_heads: 4
  filter_size: 32
  max_position_embeddings: 8
  position_embedding_type: learned
  nonlinearity: gelu
  dropout_rate: 0.1
  attention_dropout_rate: 0.1
  share_embedding_weights: true
  mixed_precision: true
  fp16_type: cbfloat16
optimizer:
  optimizer_type: AdamW
  betas: [0.9, 0.95]
  weight_decay: 0.1
  correct_bias: true
  loss_scaling_factor: dynamic
  max_gradient_norm: 1.0
  learning_rate:
  - scheduler: Linear
    initial_learning_rate: 0.0
    end_learning_rate: 0.02
    total_iters: 4
  - scheduler: CosineDecay
    initial_learning_rate: 0.02
    end_learning_rate: 0.002
    total_iters: 20
train_input:
  data_processor: GptHDF5MapDataProcessor
  data_dir: data
  batch_size: 4
  shuffle: true
  shuffle_seed: 7
runconfig:
  model_dir: run
  seed: 3
  max_steps: 12
  checkpoint_steps: 4
  log_steps: 3
]]

describe("cbk train: the file", function()
  it("may have the legacy layout, with the same result", function()
    local new, old = folder(), folder(LEGACY)
    train(new)
    local _, err = train(old)
    has(err, "warning: without an effect here: model.mixed_precision=true (computes in half precision; here everything is float32)\n")
    equal(values(new .. "/run/checkpoint_12.mdl"), values(old .. "/run/checkpoint_12.mdl"))
    equal(values(new .. "/run/checkpoint_12.mdl", "optimizer"), values(old .. "/run/checkpoint_12.mdl", "optimizer"))
  end)

  it("may have other sections of legacy files, which are dropped", function()
    local _, err = train(folder("description: a run\ntag: old\npredict_input: {}\n" .. LEGACY), "--validate-only")
    has((err:gsub("%s+", " ")), "fields without a place in the trainer layout are dropped: description, tag")
  end)

  it("may lack the name of the model, as old files do, if --model names it", function()
    local dir, named = folder((changed(LEGACY, "  name: gpt2\n", ""))), folder(LEGACY)
    for _, command in ipairs { "train", "schedule" } do
      local status, _, err = harness.cbk(dir, command, "params.yaml")
      equal(status, 1)
      has((err:gsub("%s+", " ")), "line 1: model: it has no 'name', as files of releases up to 2.2; --model NAME names it, such as gpt2")
    end
    train(dir, "--model", "gpt2", "--max-steps", "4")
    train(named, "--max-steps", "4")
    equal(values(dir .. "/run/checkpoint_4.mdl"), values(named .. "/run/checkpoint_4.mdl"))
    local function loss(of, ...)
      local status, out, err = harness.cbk(of, "eval", "params.yaml", "--data-dir", "data", "--json", ...)
      assert(status == 0, err)
      return cbk.parse_json(out).loss
    end
    equal(loss(dir, "--model", "gpt2"), loss(named))
    has(select(2, harness.cbk(dir, "schedule", "params.yaml", "--model", "gpt2")), "params.yaml: 12 steps\n")
    local messages = { gptt = "there is no model 'gptt'; did you mean", bert = "this config is for gpt2 (name='gpt2'), not for bert" }
    for name, message in pairs(messages) do
      local status, _, err = harness.cbk(named, "train", "params.yaml", "--model", name)
      equal(status, 1)
      has((err:gsub("%s+", " ")), message)
    end
  end)

  it("is refused at a field that is wrong, before anything starts", function()
    local function refused(old, new, message, text)
      local dir = folder(changed(text or TRAINER, old, new))
      local status, out, err = harness.cbk(dir, "train", "params.yaml")
      equal({ status, out }, { 1, "" })
      has(err:gsub("%s+", " "), message:gsub("%s+", " "))
      equal(cbk.fs.exists(dir .. "/run"), false)
    end
    refused("max_steps: 12", "max_step: 12", "'params.yaml', line 41: trainer.init.loop.max_step: unknown field; did you mean 'max_steps'?")
    refused("max_steps: 12", "max_steps: 1.5",
      "line 41: trainer.init.loop.max_steps: expected a whole number from 1, below 2^31, found 1.5")
    refused("log_steps: 3", "log_steps: .nan", "line 47: trainer.init.logging.log_steps: expected a whole number from 1, found nan")
    refused("seed: 3", "seed: 9007199254740992", "line 4: trainer.init.seed: expected a whole number from 0, found 9007199254740992")
    refused("backend_type: CSX", "backend_type: CSX\n      cluster_config: {num_csx: 8}",
      "line 53: trainer.fit.train_dataloader.batch_size: "
      .. "4 samples cannot be shared by 8 systems (num_csx, or ranks), which need one sample each")
    refused("backend_type: CSX", "backend_type: CSX\n      cluster_config: {num_csx: 5000}",
      "line 7: trainer.init.backend.cluster_config: configure: num_csx must be a whole number from 1 to 2048, not 5000")
    refused("      batch_size: 4\n      shuffle", "      batch_size: 400\n      shuffle",
      "line 49: trainer.fit.train_dataloader: data_dir 'data' has 22 samples, fewer than one batch of 400")
    refused("max_steps: 12", "max_steps: null", "trainer.init.loop: the number of steps is open; give num_steps, max_steps or num_epochs")
    refused("num_heads: 4", "num_head: 4",
      "line 12: trainer.init.model.num_head: unknown field of GPT2LMHeadModel; did you mean 'num_heads'?")
    for _, name in ipairs { "../outside_{step}.mdl", "c_{step}_{step}.mdl", "foo.mdl" } do
      local text = ("      steps: 4\n      checkpoint_name: '%s'"):format(name)
      refused("      steps: 4", text, ('line 46: trainer.init.checkpoint.checkpoint_name: expected a file name without folders '
        .. 'that has {step} once, such as checkpoint_{step}.mdl, found "%s"'):format(name))
    end
    refused("nonlinearity: gelu", "nonlinearity: mish", "line 16: trainer.init.model.nonlinearity: the activation 'mish' is not known here")
    refused("hidden_size: 16", "hidden_size: '16'",
      "line 10: trainer.init.model.hidden_size: expected a whole number of at least 1, found '16'")
    refused("      dropout_rate: 0.1", "      dropout_rate: 1.5",
      "line 17: trainer.init.model.dropout_rate: expected a number from 0 to 1, found 1.5")
    refused("name: gpt2", "name: gtp2", "line 8: trainer.init.model.name: 'gtp2' is not a known model; did you mean 'gpt2'?")
    refused("      name: gpt2\n", "", "line 7: trainer.init.model: it has no 'name', as files of "
      .. "releases up to 2.2; --model NAME names it, such as gpt2")
    refused("position_embedding_type: learned", "position_embedding_type: rotery",
      "line 15: trainer.init.model.position_embedding_type: position_embedding_type=rotery is not emulated; did you mean 'rotary'?")
    refused("nonlinearity: gelu", "nonlinearity: gleu",
      "line 16: trainer.init.model.nonlinearity: the activation 'gleu' is not known here; did you mean 'gelu'?")
    refused("end_learning_rate: 0.002\n", "end_learning_rat: 0.002\n", "line 34: trainer.init.schedulers.0.SequentialLR.schedulers.1."
      .. "CosineDecayLR.end_learning_rat: CosineDecayLR: unknown argument 'end_learning_rat'; did you mean 'end_learning_rate'?")
    refused("    logging:", "    callbacks:\n    - KeepNCheckpoint: {n: 2}\n    logging:",
      "line 47: trainer.init.callbacks.0.KeepNCheckpoint: unknown name; did you mean 'KeepNCheckpoints'?")
    refused("    logging:", "    callbacks:\n    - Lora: {lora_param: {r: 2}}\n    logging:",
      "line 47: trainer.init.callbacks.0.Lora.lora_param: unknown field; did you mean 'lora_params'?")
    refused("weight_decay: 0.1", "weight_dekay: 0.1",
      "line 23: trainer.init.optimizer.AdamW.weight_dekay: unknown field of AdamW; did you mean 'weight_decay'?")
    refused("weight_decay: 0.1", "weight_decay: -1",
      "line 23: trainer.init.optimizer.AdamW.weight_decay: expected a number from 0, found -1")
    refused("weight_decay: 0.1", "eps: .inf", "line 23: trainer.init.optimizer.AdamW.eps: expected a finite number, found inf")
    refused("end_learning_rate: 0.002\n", "end_learning_rate: -0.1\n", "line 34: trainer.init.schedulers.0.SequentialLR.schedulers.1."
      .. "CosineDecayLR.end_learning_rate: expected a number from 0, found -0.1")
    refused("        schedulers:\n        - L", "        milestones: [4, 2]\n        schedulers:\n        - L",
      "schedulers.0.SequentialLR.milestones: expected steps in ascending order, found 2 behind 4")
    refused("max_gradient_norm: 1.0", "min_loss_scale: 8\n      max_loss_scale: 4",
      "trainer.init.precision.min_loss_scale: 8 is above max_loss_scale, 4")
    refused("max_gradient_norm: 1.0", "max_loss_scale: 1.0e+39",
      "trainer.init.precision.max_loss_scale: expected a number above 0, at most 3.40282e+38, found 1e+39")
    refused("AdamW:", "AdamX:", "trainer.init.optimizer.AdamX: configure_optimizer: unknown optimizer_type 'AdamX'")
    refused("total_iters: 4", "total_itres: 4", "SequentialLR: schedule 1 needs 'total_iters', as another one follows it")
    refused("LinearLR:", "LinaerLR:", "trainer.init.schedulers: configure_scheduler: unknown class 'LinaerLR'; did you mean 'LinearLR'?")
    refused("fp16_type: cbfloat16", "fp16_type: float8",
      'precision.fp16_type: expected "float16", "bfloat16" or "cbfloat16", found "float8"')
    refused("loss_scaling_factor: dynamic", "loss_scaling_factor: 2",
      "precision.fp16_type: a cluster takes cbfloat16 with a dynamic loss scale alone; write `loss_scaling_factor: dynamic`")
    refused("max_gradient_norm: 1.0", "max_gradient_norm: 1.0\n      max_gradient_value: 1.0",
      "max_gradient_value: it excludes max_gradient_norm; remove one of them")
    refused("backend_type: CSX", "backend_type: TPU", 'expected "CSX", "CPU" or "GPU", found "TPU"')
    refused("data_processor: GptHDF5MapDataProcessor", "data_processor: BertCSVDataProcessor",
      "line 50: trainer.fit.train_dataloader.data_processor: 'BertCSVDataProcessor' is not emulated")
    refused("      batch_size: 4\n      shuffle", "      shuffle", "line 49: trainer.fit.train_dataloader: it has no 'batch_size'")
    refused("      batch_size: 4\n      shuffle", "      batch_size: 400\n      shuffle", "one batch of 400; lower batch_size or add data")
    refused("      batch_size: 4\n      shuffle", "      batch_size: 4\n      drop_last: false\n      shuffle", "line 53: "
      .. "trainer.fit.train_dataloader.drop_last: false needs the backend CPU or GPU, as CSX needs batches of one size; remove it")
    refused("data_dir: data", "data_dir: dta",
      "line 49: trainer.fit.train_dataloader: data_dir: there is no folder 'dta'")
    refused("name: gpt2", "name: vit", "trainer.init.model.name: vit (")
    refused("checkpoint_steps: 4", "checkpoint_stpes: 4",
      "'params.yaml', line 42: runconfig.checkpoint_stpes: unknown field; did you mean 'checkpoint_steps'?", LEGACY)
    refused("scheduler: Linear", "scheduler: Liner",
      "'params.yaml', line 24: optimizer.learning_rate.0: unknown scheduler 'Liner'; did you mean 'Linear'?", LEGACY)
    refused("scheduler: Linear", "schedule: Linear", "line 24: optimizer.learning_rate.0 has no 'scheduler'; known: ConstantLR", LEGACY)
    refused("total_iters: 4", "steps: 4", "line 23: optimizer.learning_rate: SequentialLR: schedule 1 needs 'total_iters'", LEGACY)
    refused("total_iters: 20", "steps: 20",
      "line 31: optimizer.learning_rate.1.steps: CosineDecayLR: 'steps' is an old name; use 'total_iters'", LEGACY)
    refused("initial_learning_rate: 0.0", "initial_learning_rate: a",
      "line 25: optimizer.learning_rate.0.initial_learning_rate: LinearLR: expected a number as initial_learning_rate, found 'a'", LEGACY)
    refused("optimizer_type: AdamW", "optimizer_typ: AdamW", "line 16: the optimizer section has no 'optimizer_type'", LEGACY)
    refused("schedulers:\n        - LinearLR", "milestones: ['a']\n        schedulers:\n        - LinearLR",
      "trainer.init.schedulers.0.SequentialLR.milestones: SequentialLR: expected a list of numbers as milestones, found 'a' at position 1")
    refused("    schedulers:\n    - SequentialLR:", "    schedulers:\n    - SequentialLR: {schedulers: []}\n    - SequentialLR:",
      "trainer.init.schedulers: SequentialLR: expected a list of schedules, found an empty one")
    refused("max_gradient_norm: 1.0", "max_gradient_norm: -1.0", "optimizer.max_gradient_norm: expected a number above 0, found -1", LEGACY)
    refused("runconfig:", "runcofig:", "runcofig: unknown field; did you mean 'runconfig'?", LEGACY)
    refused("runconfig:", "foo: 1\nrunconfig:", "foo: unknown field; known: eval_input, ", LEGACY)
  end)

  it("is refused at parts of the model that do not fit, also where it is only validated", function()
    local MODEL = "share_embedding_weights: true"
    for _, case in ipairs {
      { "moe_params: {num_experts: 4, top_k: 5}", "moe_params.top_k: expected a whole number from 1 to 4 (num_experts), found 5" },
      { "moe: {num_experts: 4, top_k: 0}", "moe.top_k: expected a whole number from 1 to 4 (num_experts), found 0" },
      { "moe_params: {num_expert: 4}", "moe_params.num_expert: unknown field; did you mean 'num_experts'?" },
      { "moe_params: {num_experts: 4, routing_algorithm: hash}",
        "moe_params.routing_algorithm: routing_algorithm='hash' is not emulated" },
      { "moe_params: {num_experts: 4, load_balancing_loss_coef: -1}",
        "moe_params.load_balancing_loss_coef: expected a number from 0, found -1" },
      { "extra_attention_params: {num_kv_groups: 3}\n      attention_module: multiquery_attention",
        "extra_attention_params.num_kv_groups: expected a divisor of num_heads (4), found 3" },
      { "extra_attention_params: {num_kv_groups: 2}",
        "extra_attention_params.num_kv_groups: 2 needs attention_module: multiquery_attention" },
      { "extra_attention_params: {num_kv_grups: 2}",
        "extra_attention_params.num_kv_grups: unknown field; did you mean 'num_kv_groups'?" },
      { "attention_module: multiquery", "attention_module: expected aiayn_attention or multiquery_attention, found 'multiquery'" },
      { "attention_sliding_window_length: 0", "attention_sliding_window_length: expected a whole number of at least 1, found 0" },
      { "attention_sliding_window_length: -4", "attention_sliding_window_length: expected a whole number of at least 1, found -4" },
      { "sliding_window_every_other_decoder_layer: true",
        "sliding_window_every_other_decoder_layer: true needs attention_sliding_window_length" },
      { "attention_type: scaled_dot",
        "attention_type: expected scaled_dot_product or dot_product, found 'scaled_dot'; did you mean 'scaled_dot_product'?" },
      { "rotary_dim: 3", "rotary_dim: expected an even number up to the 4 elements of a head, found 3", "rotary" },
      { "rotary_dim: 6", "rotary_dim: expected an even number up to the 4 elements of a head, found 6", "rotary" },
      { "pos_scaling_type: yarm\n      rotary_dim: 4",
        "pos_scaling_type: expected linear, llama3, longrope or yarn, found 'yarm'; did you mean 'yarn'?", "rotary" },
      { "pos_scaling_extra_args: {beta_fast: 32}\n      pos_scaling_type: yarn\n      rotary_dim: 4",
        "pos_scaling_extra_args: yarn needs 'original_max_position_embeddings', a number", "rotary" },
      { "mup_base_hidden_size: 8", "mup_base_hidden_size: muP needs mup_base_filter_size, too" },
      { "mup_base_filter_size: -8", "mup_base_filter_size: expected a number above 0, found -8" },
      { "lr_adjustment_groups: {embedding: {scale: 2}}",
        "lr_adjustment_groups: it is a field of the Model Zoo's classes that is not emulated; adjust_learning_rate of the optimizer" },
      { "memory_tokens_config: {memory_tokens_enabled: true}",
        "memory_tokens_config: it is a field of the Model Zoo's classes that is not emulated" },
      { "initializer_range: -1", "initializer_range: expected a number above 0, found -1" },
      { "initializer: {men: 0, name: normal}", "initializer.men: unknown field of normal; did you mean 'mean'?" },
      { "alibi_trainable_slopes: true", "alibi_trainable_slopes: true is not emulated: the slopes have no gradient here", "alibi" },
    } do
      local text = changed(TRAINER, MODEL, MODEL .. "\n      " .. case[1])
      local dir = folder(case[3] and changed(text, "position_embedding_type: learned", "position_embedding_type: " .. case[3]) or text)
      local status, _, err = harness.cbk(dir, "train", "params.yaml", "--validate-only")
      equal(status, 1, case[1])
      has(err:gsub("%s+", " "), "'params.yaml', line 20: trainer.init.model." .. case[2])
    end
    local mixture = changed(TRAINER, MODEL, MODEL .. "\n      moe_params: {num_experts: 4, sinkhorn_n_iters: 1}")
    mixture = changed(mixture, MODEL, MODEL .. "\n      lr_adjustment_groups: null\n      memory_tokens_config: {}")
    train(folder(mixture), "--max-steps", "1") -- one expert for each token
  end)

  it("warns of data of a larger vocabulary", function()
    local dir = folder()
    cbk.fs.write(dir .. "/data/data_params.json", '{"post-process": {"vocab_size": 41}}')
    local _, err = train(dir, "--validate-only")
    has(err:gsub("%s+", " "), "warning: 'data/data_params.json': the data's tokenizer has 41 ids, and the model 40 (vocab_size): a record")
    for text, wanted in pairs { ["{"] = "line 1, column 1: syntax error", ["[1]"] = "expected an object, found [1]",
      ['{"post-process": {"vocab_size": "x"}}'] = 'post-process.vocab_size: expected a number, found "x"' } do
      cbk.fs.write(dir .. "/data/data_params.json", text, { overwrite = true })
      local status, _, why = harness.cbk(dir, "train", "params.yaml", "--validate-only")
      equal(status, 1)
      has((why:gsub("%s+", " ")), "'data/data_params.json': " .. wanted)
    end
    cbk.fs.write(dir .. "/data/data_params.json", '{"post-process": {"vocab_size": 40}}', { overwrite = true })
    equal(select(2, train(dir, "--validate-only")), "")
  end)

  it("refuses data without tokens, and a folder without a name", function()
    local dir = folder()
    cbk.fs.remove(dir .. "/data/data.h5")
    cbk.create(dir .. "/data/data.h5", { h5_version = "flat", root = { data = cbk.full({ 4, 3, 0 }, 0, { dtype = "int32" }) } }):commit()
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    equal(status, 1)
    has(err:gsub("%s+", " "), "'data/data.h5': 'input_ids' has 0 tokens in each sample; expected at least one")
    status, _, err = harness.cbk(dir, "train", "params.yaml", "--model-dir", "")
    equal(status, 2)
    has(err, "--model-dir is empty; name a folder")
  end)

  it("is refused if a checkpoint does not fit it", function()
    local dir = folder()
    train(dir, "--max-steps", "4")
    for old, new in pairs { ["num_hidden_layers: 2"] = "num_hidden_layers: 3", ["hidden_size: 16"] = "hidden_size: 32" } do
      cbk.fs.write(dir .. "/params.yaml", changed(TRAINER, old, new), { overwrite = true })
      local status, _, err = harness.cbk(dir, "train", "params.yaml")
      equal(status, 1)
      err = err:gsub("%s+", " ")
      has(err, "cannot load 'run/checkpoint_4.mdl' into the model of 'params.yaml': ")
      has(err, "a run of another model or optimizer needs another model_dir")
    end
  end)

  it("says which record of the data has an id beyond the vocabulary", function()
    local dir = folder(changed(TRAINER, "vocab_size: 40", "vocab_size: 30"))
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    equal(status, 1)
    has(err:gsub("%s+", " "), "'data/data.h5': record ")
    has(err:gsub("%s+", " "), "but the vocabulary has 30 (vocab_size)")
  end)

  it("says that samples are longer than the model", function()
    local text = changed(TRAINER, "max_position_embeddings: 8", "max_position_embeddings: 6")
    local status, _, err = harness.cbk(folder(text), "train", "params.yaml")
    equal(status, 1)
    has(err:gsub("%s+", " "), "line 49: trainer.fit.train_dataloader: its samples have 8 tokens, and the model 6 positions")
    text = text:gsub("      data_dir: data\n", "%0      max_sequence_length: 6\n")
    train(folder(text), "--max-steps", "2")
  end)

  it("names what has no effect once, with what it would do", function()
    local text = changed(TRAINER, "backend_type: CSX",
      "backend_type: CSX\n      compile_dir: /x\n      cluster_config:\n        mount_dirs: [/y]")
    local _, err = train(folder(changed(text, "    logging:", "    callbacks:\n    - LogSparsity: {}\n    - Mine: {a: 1}\n    logging:")))
    err = err:gsub("%s+", " ")
    has(err, 'trainer.init.backend.compile_dir="/x" (keeps compiled programs)')
    has(err, "trainer.init.backend.cluster_config.mount_dirs=[…] (belongs to a cluster, and nothing here runs on one)")
    has(err, "trainer.init.callbacks.0.LogSparsity={…} (logs sparsity)")
    has(err, "trainer.init.callbacks.1.Mine={…} (is not known here)")
    text = changed(changed(TRAINER, "      fp16_type: cbfloat16\n", ""), "share_embedding", "loss_weight: 0.5\n      share_embedding")
    _, err = train(folder(text .. "runconfig: {max_steps: 3}\n"), "--validate-only")
    err = err:gsub("%s+", " ")
    has(err, "runconfig={…} (is beside 'trainer', and only that section is read)")
    has(err, 'trainer.init.precision.loss_scaling_factor="dynamic" (scales the loss of float16 and cbfloat16; fp16_type is bfloat16)')
    has(err, "trainer.init.model.loss_weight=0.5 (scales the loss with loss_scaling: batch_size)")
    text = changed(TRAINER, "    logging:",
      "    loggers:\n    - TensorBoardLogger: {summary_dir: x}\n    - ProgressLogger: {}\n    logging:")
    _, err = train(folder(text))
    equal((err:gsub("%s+", " ")), 'warning: without an effect here: trainer.init.loggers.0.TensorBoardLogger.summary_dir="x" '
      .. "(writes event files to another folder than model_dir) ")
  end)

  it("stops at a loss that is no number, unless CheckLoss is off", function()
    local wild = changed(changed(TRAINER, "end_learning_rate: 0.02\n", "end_learning_rate: 1.0e+30\n"), "fp16_type: cbfloat16",
      "fp16_type: bfloat16")
    wild = changed(wild, "initial_learning_rate: 0.0\n", "initial_learning_rate: 1.0e+30\n")
    local dir = folder(wild)
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    equal(status, 1)
    has(err, "try a lower learning rate, gradient clipping (max_gradient_norm) or another loss scale")
    train(folder(changed(wild, "    logging:", "    callbacks:\n    - CheckLoss: null\n    logging:")))
  end)

  it("counts the steps of such losses over the whole run", function()
    local first, last = TRAINER:find "    %- SequentialLR:.-    precision:"
    local wild = TRAINER:sub(1, first - 1) .. "    - PiecewiseConstantLR:\n        learning_rates: [0.001, 1.0e+30]\n"
      .. "        milestones: [7]\n    precision:" .. TRAINER:sub(last + 1)
    wild = changed(wild, "fp16_type: cbfloat16", "fp16_type: bfloat16")
    local function stopped(dir, ...)
      local status, _, err = harness.cbk(dir, ...)
      equal(status, 1)
      return err:gsub("%s+", " ")
    end
    local dir = folder(wild)
    has(stopped(dir, "train", "params.yaml"), "the loss of step 9 is nan; try a lower learning rate")
    equal(checkpoints(dir), { "checkpoint_4.mdl", "checkpoint_8.mdl" })
    has(stopped(dir, "train", "params.yaml"), "the loss of step 9 is nan")
    has(stopped(dir, "eval", "params.yaml"),
      "the loss of the evaluation's batch 1 is nan; the weights may be the reason: `cbk check CHECKPOINT`")
    local _, err = train(folder(changed(wild, "    logging:", "    callbacks:\n    - CheckLoss: null\n    logging:")))
    has(err, "the loss is nan or infinite since step 9,")
    equal(select(2, err:gsub("since step %d", "")), 1)
  end)

  it("stops where gradients overflow at the least loss scale", function()
    local limits = "initial_loss_scale: %s\n      min_loss_scale: %s\n      max_loss_scale: 1.0e+38"
    local wild = changed(TRAINER, "dropout_rate: 0.1", "dropout_rate: 0.1\n      initializer_range: 5.0")
    local dir = folder(changed(wild, "max_gradient_norm: 1.0", limits:format("1.0e+38", "1.0e+38")))
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    equal({ status, checkpoints(dir) }, { 1, {} })
    has((err:gsub("%s+", " ")), "step 1: the gradients overflow at the least loss scale, 1e+38, so its step is skipped and nothing is "
      .. "trained; try a lower learning rate or a smaller precision.min_loss_scale, and check the data")
    train(folder(changed(wild, "max_gradient_norm: 1.0", limits:format("1.0e+38", "1.0e+30"))))
  end)

  it("names a mask that leaves no token as the reason of such a loss", function()
    local dir = folder(changed(TRAINER, "fp16_type: cbfloat16", "fp16_type: bfloat16"))
    local rows = {}
    for i = 1, 8 do rows[i] = { { 1, 2, 3 }, { 0, 0, 0 }, { 2, 3, 4 } } end
    cbk.fs.remove(dir .. "/data/data.h5")
    cbk.create(dir .. "/data/data.h5", { h5_version = "flat", root = { data = cbk.tensor(rows, { dtype = "int32" }) } }):commit()
    local status, _, err = harness.cbk(dir, "train", "params.yaml")
    equal(status, 1)
    has(err:gsub("%s+", " "), "the loss of step 1 is nan; 'attention_mask' is 0 in the whole batch, so that no token counts")
  end)

  it("may leave out states of the checkpoint", function()
    local dir = folder(changed(TRAINER, "    logging:",
      "    callbacks:\n    - LoadCheckpointStates:\n        load_checkpoint_states: model\n    logging:"))
    train(dir, "--max-steps", "4")
    local out = train(dir, "--max-steps", "3", "--model-dir", "other", "--checkpoint", "run/checkpoint_4.mdl")
    has(out, "from run/checkpoint_4.mdl, step 0\n")
    has(out, "steps 1 to 3,")
    has(train(dir, "--max-steps", "4", "--model-dir", "other", "--checkpoint", "run/checkpoint_4.mdl"),
      "from other/checkpoint_3.mdl, step 3\n")
    local text = cbk.fs.read(dir .. "/params.yaml")
    local function write(states)
      cbk.fs.write(dir .. "/params.yaml", changed(text, "load_checkpoint_states: model", "load_checkpoint_states: " .. states),
        { overwrite = true })
    end
    write "[model, optimizer]"
    has(train(dir, "--max-steps", "1", "--model-dir", "listed", "--checkpoint", "run/checkpoint_4.mdl"), "begins anew\nsteps 1 to 1,")
    write "[model, global_step]"
    has(train(dir, "--max-steps", "5", "--model-dir", "stepped", "--checkpoint", "run/checkpoint_4.mdl"), "step 4\nsteps 5 to 5,")
    for _, wrong in ipairs { "modell", "[model, modell]", "[]", "[1]", "{model: 1}" } do
      write(wrong)
      local status, _, err = harness.cbk(dir, "train", "params.yaml")
      equal(status, 1)
      has(err:gsub("%s+", " "), ": expected \"all\", or some of dataloader, global_step, ")
    end
  end)
end)

describe("cbk train: cadences and states", function()
  local function evaluated(out)
    local list = {}
    for step in out:gmatch "| Eval Device=CSX, GlobalStep=(%d+)" do list[#list + 1] = tonumber(step) end
    return list
  end

  it("evaluates after so many steps, or a share of all, from where the run began", function()
    for frequency, steps in pairs { ["1"] = { 1, 2, 3, 4 }, ["1.0"] = { 4 }, ["0.5"] = { 2, 4 }, ["3"] = { 3, 4 }, ["0"] = {} } do
      equal(evaluated((train(folder(changed(TRAINER, "eval_frequency: 5", "eval_frequency: " .. frequency)), "--max-steps", "4"))), steps)
    end
    local dir = folder()
    train(dir, "--max-steps", "3")
    local out = train(dir, "--max-steps", "14", "--model-dir", "other", "--checkpoint", "run/checkpoint_3.mdl")
    equal(evaluated(out), { 8, 13, 14 })
    for _, step in ipairs { 7, 11, 14 } do has(out, ("Saved checkpoint other/checkpoint_%d.mdl"):format(step)) end
  end)

  it("does not evaluate where eval_frequency is null or 0, and evaluates at the end where it is left out", function()
    for value, steps in pairs { ["eval_frequency: null"] = {}, ["eval_frequency: 0"] = {}, ["grad_accum_steps: 1"] = { 2 } } do
      equal(evaluated((train(folder(changed(TRAINER, "eval_frequency: 5", value)), "--max-steps", "2"))), steps)
    end
  end)

  it("divides the steps of an epoch by the batches of a step", function()
    local text = changed(TRAINER, "max_steps: 12", "num_epochs: 2\n      steps_per_epoch: 4\n      grad_accum_steps: 2")
    has(train(folder(text)), "steps 1 to 4, a batch of 8 samples each in 2 parts")
    has(select(2, harness.cbk(folder(text), "schedule", "params.yaml")), "params.yaml: 4 steps\n")
  end)

  it("continues bit for bit with several workers and evaluations between", function()
    local dir = folder(changed(TRAINER, "backend_type: CSX", "backend_type: CSX\n      cluster_config: {num_workers_per_csx: 3}"))
    train(dir)
    local want = bytes(dir, 12)
    for _, step in ipairs { 8, 4 } do
      cbk.fs.remove(dir .. "/run/checkpoint_12.mdl")
      if step == 4 then cbk.fs.remove(dir .. "/run/checkpoint_8.mdl") end
      train(dir)
      assert(bytes(dir, 12) == want, ("continued after step %d, it is another one"):format(step))
    end
  end)

  it("names what the file says of states that the checkpoint has", function()
    local dir = folder()
    train(dir, "--max-steps", "4")
    cbk.fs.write(dir .. "/params.yaml", changed(TRAINER, "weight_decay: 0.1", "weight_decay: 0.5"), { overwrite = true })
    local _, err = train(dir, "--max-steps", "5")
    has(err, "trainer.init.optimizer.AdamW.weight_decay is 0.1 there and 0.5 in 'params.yaml'")
  end)

  it("refuses the state of another optimizer or schedule, also of an inner one", function()
    local dir = folder()
    train(dir, "--max-steps", "4")
    local places = { LinearLR = "schedulers.0.SequentialLR.schedulers.0.", SequentialLR = "schedulers.0.", AdamW = "optimizer." }
    for old, new in pairs { LinearLR = "CosineDecayLR", SequentialLR = "ChainedScheduler", AdamW = "Adam" } do
      local text = ("%s%s: 'run/checkpoint_4.mdl' has the state of %s, which does not fit %s; "):format(places[old], new, old, new)
      cbk.fs.write(dir .. "/params.yaml", changed(TRAINER, old, new), { overwrite = true })
      local status, _, err = harness.cbk(dir, "train", "params.yaml", "--max-steps", "5")
      equal(status, 1)
      has((err:gsub("%s+", " ")), "trainer.init." .. text .. "with another --model-dir and --checkpoint run/checkpoint_4.mdl, the")
      status, _, err = harness.cbk(dir, "train", "params.yaml", "--model-dir", "new", "--checkpoint", "run/checkpoint_4.mdl")
      equal({ status, cbk.fs.exists(dir .. "/new") }, { 1, false })
      has((err:gsub("%s+", " ")), text .. "the callback LoadCheckpointStates with `model` takes its weights alone")
      cbk.fs.write(dir .. "/params.yaml", changed(cbk.fs.read(dir .. "/params.yaml"), "    logging:",
        "    callbacks: [{LoadCheckpointStates: {load_checkpoint_states: model}}]\n    logging:"), { overwrite = true })
      has(train(dir, "--max-steps", "1", "--model-dir", "new", "--checkpoint", "run/checkpoint_4.mdl"), "step 0\n")
      cbk.fs.remove(dir .. "/new", { recursive = true })
    end
  end)

  it("names what `cbk convert` will refuse", function()
    local _, err = train(folder(changed(TRAINER, "      dropout_rate: 0.1\n      attention_dropout_rate: 0.1\n", "")), "--validate-only")
    has(err, "`cbk convert --to hf` will refuse the checkpoints: the config has no 'dropout_rate'")
  end)
end)

describe("cbk train: activation checkpointing", function()
  it("computes the same, also dropout and parts of batches", function()
    for _, text in ipairs { EVERY_STEP, changed(EVERY_STEP, "fp16_type: cbfloat16", "fp16_type: bfloat16"),
      changed(EVERY_STEP, "backend_type: CSX", "backend_type: CPU"),
      changed(EVERY_STEP, "max_steps: 12", "max_steps: 12\n      grad_accum_steps: 2") } do
      local dir = folder(text)
      local plain = losses(train(dir))
      local again = losses(train(dir, "--model-dir", "again", "--activation-checkpointing"))
      for step = 1, 12 do harness.near(again[step], plain[step], 2e-5) end
    end
  end)

  it("keeps the inner values of one layer only", function()
    local function within(layers, ...)
      local dir = folder(changed(TRAINER, "num_hidden_layers: 2", ("num_hidden_layers: %d"):format(layers)))
      local out = train(dir, "--dry-run", ...)
      local number, unit = out:match "within a step ([%d.]+) (%a+)"
      return tonumber(number) * (unit == "MiB" and 1024 or 1)
    end
    local flag = "--activation-checkpointing"
    local grows, stays = within(20) - within(10), within(20, flag) - within(10, flag)
    local gradients, hidden = 10 * 2224 * 4 / 1024, 10 * 4 * 8 * 16 * 4 / 1024 -- KiB
    assert(stays < 1.1 * (gradients + hidden) and grows > 2 * stays, ("%g KiB, without it %g"):format(stays, grows))
  end)

  it("computes the same where the experts of a mixture are balanced", function()
    local losses_of = {}
    for i, balance in ipairs { ", load_balancing_loss_coef: 0.0", ", load_balancing_loss_coef: 0.5", "" } do
      local text = changed(EVERY_STEP, "share_embedding_weights: true", ("share_embedding_weights: true\n      nonlinearity: swiglu\n"
        .. "      moe_params: {num_experts: 3, top_k: 2%s}"):format(balance))
      local dir = folder(changed(text, "      nonlinearity: gelu\n", ""))
      local plain = losses(train(dir))
      local again = losses(train(dir, "--model-dir", "again", "--activation-checkpointing"))
      for step = 1, 12 do harness.near(again[step], plain[step], 2e-5) end
      losses_of[i] = plain
    end
    assert(math.abs(losses_of[1][12] - losses_of[2][12]) > 1e-3, "the balance has no effect")
    equal(losses_of[3], losses_of[1]) -- the class's default
  end)
end)

describe("cbk train: LoRA", function()
  local LORA = changed(TRAINER, "    logging:", "    callbacks:\n    - Lora:\n        lora_params: {r: 2, alpha: 4, dropout: 0.1, "
    .. "target_modules: [TransformerDecoderLayer, Linear]}\n    logging:")

  it("trains low-rank matrices alone, which can be folded", function()
    local dir = folder()
    train(dir, "--max-steps", "4")
    cbk.fs.write(dir .. "/lora.yaml", changed(LORA, "model_dir: run", "model_dir: tuned"))
    local function run(...)
      local status, out, err = harness.cbk(dir, ...)
      assert(status == 0, err)
      return out
    end
    has(run("train", "lora.yaml", "--checkpoint", "run/checkpoint_4.mdl"), "from run/checkpoint_4.mdl, step 0\nsteps 1 to 12,")
    local before, after, count = values(dir .. "/run/checkpoint_4.mdl"), values(dir .. "/tuned/checkpoint_12.mdl"), 0
    for key, value in pairs(before) do equal(after[key], value, key) end
    for key, value in pairs(after) do
      local is_b = key:find "%.lora_B$"
      assert(before[key] or is_b or key:find "^transformer_decoder%.layers%.%d%..*%.lora_A$", key)
      if is_b then assert(math.abs(value[1][1]) > 0, key) end
      count = count + (is_b and 1 or 0)
    end
    equal(count, 2 * 6) -- queries, keys, values, output and two of the feed-forward part
    local last = cbk.fs.read(dir .. "/tuned/checkpoint_12.mdl")
    cbk.fs.remove(dir .. "/tuned/checkpoint_12.mdl")
    has(run("train", "lora.yaml"), "from tuned/checkpoint_8.mdl, step 8\n")
    equal(cbk.fs.read(dir .. "/tuned/checkpoint_12.mdl") == last, true)
    run("fold-lora-checkpoint", "--model", "gpt2", "-p", "lora.yaml", "--checkpoint_path", "tuned/checkpoint_12.mdl")
    local function loss(...) return cbk.parse_json(run("eval", "--json", ...)).loss end
    local own, base = loss "lora.yaml", loss("params.yaml", "--checkpoint", "run/checkpoint_4.mdl")
    harness.near(loss("lora_folded.yaml", "--checkpoint", "tuned/checkpoint_12_folded.mdl"), own, 1e-5)
    assert(math.abs(own - base) > 1e-3)
    equal(cbk.config.load(dir .. "/lora_folded.yaml").trainer.init.callbacks, nil)
    local status, _, err = harness.cbk(dir, "generate", "tuned/checkpoint_12.mdl", "--ids", "1")
    equal(status, 1)
    has(err, "`cbk fold-lora-checkpoint` adds them")
    for _, words in ipairs { { "eval", "params.yaml" }, { "train", "params.yaml", "--model-dir", "new" } } do
      words[#words + 1], words[#words + 2] = "--checkpoint", "tuned/checkpoint_12.mdl"
      status, _, err = harness.cbk(dir, unpack(words))
      equal(status, 1)
      has((err:gsub("%s+", " ")), "'tuned/checkpoint_12.mdl' has LoRA matrices beside its weights ('")
      has((err:gsub("%s+", " ")), "'); `cbk fold-lora-checkpoint` adds them")
    end
  end)

  it("continues after its own checkpoints in the folder of those that it began with", function()
    local dir = folder()
    train(dir)
    cbk.fs.write(dir .. "/lora.yaml", LORA)
    local function run(file, last)
      local status, out, err = harness.cbk(dir, "train", file, "--max-steps", last)
      assert(status == 0, err)
      return out
    end
    has(run("lora.yaml", "5"), "from run/checkpoint_12.mdl, step 0\nsteps 1 to 5,")
    has(run("lora.yaml", "6"), "from run/checkpoint_5.mdl, step 5\nsteps 6 to 6,")
    has(run("params.yaml", "13"), "from run/checkpoint_12.mdl, step 12\nsteps 13 to 13,")
  end)

  it("refuses what it cannot adapt", function()
    for _, case in ipairs {
      { "target_modules: [TransformerDecoderLayer, Linear]", "target_modules: [Conv2d]", "no module of the model is among the target" },
      { "Linear]", "Linaer]", "lora_params.target_modules: no module of the model is among the target_modules of lora_params; "
        .. "did you mean 'Linear'?; known: Embedding, " },
      { "alpha: 4", "alhpa: 4",
        "'params.yaml', line 48: trainer.init.callbacks.0.Lora.lora_params.alhpa is not a LoRA setting; did you mean 'alpha'?" },
      { "alpha: 4", "strength: 4", "Lora.lora_params.strength is not a LoRA setting; known: r, alpha, dropout, fan_in_fan_out, " },
      { "r: 2, ", "", "'params.yaml', line 48: trainer.init.callbacks.0.Lora.lora_params.r, the rank, is missing" },
      { "r: 2", "r: 2, fan_in_fan_out: true", "fan_in_fan_out=true is not emulated" },
      { "dropout: 0.1, ", "dropout: 2, ", "lora_params.dropout=2: it must be a number from 0 to 1" },
    } do
      local dir = folder(changed(LORA, case[1], case[2]))
      local status, _, err = harness.cbk(dir, "train", "params.yaml")
      equal(status, 1)
      has(err:gsub("%s+", " "), case[3])
    end
  end)
end)

describe("The run of the demo and of the tutorial", function()
  it("has one file", function()
    local here = debug.getinfo(1, "S").source:match "^@(.*)tests/lua/" or ""
    local page, indented = cbk.fs.read(here .. "scripts/help/training.md"), {}
    for line in cbk.fs.read(here .. "scripts/examples/params.yaml"):gmatch "([^\n]*)\n" do indented[#indented + 1] = "  " .. line end
    has(page, table.concat(indented, "\n") .. "\n")
  end)
end)

describe("The progress line of a run", function()
  local progress_bar = require "cbk.training.progress_bar"

  it("has the loss as ticks, the speed and the time left", function()
    local bar = progress_bar.new(10, 20)
    for loss = 4, 1, -1 do bar:add(loss) end
    equal(bar:line(14, 32, 2), "step 14 of 20  loss 1.0000 █▆▃▁  16 samples/s  0:03 left")
    bar:add(0 / 0)
    equal(bar:ticks(), "█▆▃▁█")
  end)

  it("needs no more of it for a long run", function()
    local bar = progress_bar.new(0, 100000)
    for step = 1, 100000 do bar:add(100000 - step) end
    local text = bar:ticks()
    local _, count = text:gsub("[\192-\255]", "")
    assert(count > 12 and count <= 24, count)
    assert(text:find "^█" and text:find "▁$", text)
  end)

  it("is shown in a terminal, and removed at the end", function()
    local dir = folder()
    local command = ("cd '%s' && TERM=xterm script -qec '%s train params.yaml' .typed >/dev/null </dev/null"):format(dir, cbk.fs.program())
    equal(os.execute(command), 0)
    local typed = cbk.fs.read(dir .. "/.typed")
    has(typed, "step 1 of 12  loss ")
    has(typed, " left")
    has(typed, "Training completed successfully!")
    has(typed, "\nloss\r\n") -- the curves
  end)
end)
