-- `cbk eval`, `cbk generate` and `cbk schedule`.

local cbk = require "cbk"
local cstorch = require "cstorch"
local classes = require "cbk.classes"
local converters = require "cbk.converters"
local curves = require "cbk.plot.curves"
local generate = require "cstorch.models.generate"
local harness = require "harness"
local models = require "cstorch.models"
local training_data = require "training_data"

local describe, it, equal, has, raises = harness.describe, harness.it, harness.equal, harness.has, harness.raises
local lacks = harness.lacks
local changed, TRAINER = training_data.changed, training_data.TRAINER

converters.load()

---@return string dir   with a run of four steps
local function trained()
  local dir = harness.temp_dir()
  training_data.write(dir .. "/data", 22, training_data.LENGTH, training_data.WORDS)
  cbk.fs.write(dir .. "/params.yaml", TRAINER)
  local status, _, err = harness.cbk(dir, "train", "params.yaml", "--max-steps", "4")
  assert(status == 0, err)
  return dir
end

local function run(dir, ...)
  local status, out, err = harness.cbk(dir, ...)
  assert(status == 0, err)
  return out
end

local function fails_with(dir, text, ...)
  local status, _, err = harness.cbk(dir, ...)
  equal(status ~= 0, true)
  has((err:gsub("%s+", " ")), text)
end

describe("cbk eval", function()
  it("gives the same loss for a run's checkpoint and for what it converts to", function()
    local dir = trained()
    local own = run(dir, "eval", "params.yaml")
    has(own, "gpt2 (cs-2.9), run/checkpoint_4.mdl\nAvg Eval Loss: ")
    has(own, "Processed 8 sample(s) in ") -- eval_steps: 2
    run(dir, "convert", "run/checkpoint_4.mdl", "--to", "hf", "-o", "new")
    local function loss(...) return cbk.parse_json(run(dir, "eval", "--json", ...)).loss end
    local all = loss("params.yaml", "--steps", "5")
    harness.near(loss("params.yaml", "--checkpoint", "new/checkpoint_4_to_hf", "--steps", "5"), all, 1e-6)
    harness.near(loss("--checkpoint", "new/checkpoint_4_to_hf", "--data-dir", "data", "--batch-size", "4"), all, 1e-6)
    harness.near(loss("--checkpoint", "run/checkpoint_4.mdl", "--data-dir", "data", "--batch-size", "4"), all, 1e-6)
    local cut = loss("params.yaml", "--max-sequence-length", "3")
    assert(math.abs(cut - all) > 1e-3)
    local of_all = { "eval", "--checkpoint", "run/checkpoint_4.mdl", "--data-dir", "data" }
    has(run(dir, unpack(of_all)), "6 samples at the end, which fill no batch of 8, were left out\n")
    lacks(run(dir, "eval", "params.yaml"), "left out")
  end)

  it("says what it lacks", function()
    local dir = trained()
    fails_with(dir, "name params.yaml, or a checkpoint and its data with --checkpoint and --data-dir", "eval",
      "--checkpoint", "run/checkpoint_4.mdl")
    fails_with(dir, "there is no folder 'none'", "eval", "params.yaml", "--data-dir", "none")
    fails_with(dir, "data_dir 'data' has 22 samples, fewer than one batch of 99", "eval", "params.yaml", "--batch-size", "99")
    for _, command in ipairs { "eval", "train", "schedule" } do
      fails_with(dir, "cannot read 'run': expected the params.yaml of a run, found a folder; name 'run/params.yaml'", command, "run")
      fails_with(dir, "cannot read 'run/checkpoint_4.mdl': expected the params.yaml of a run, found a checkpoint", command,
        "run/checkpoint_4.mdl")
    end
    fails_with(dir, "cannot read 'data': expected the params.yaml of a run, found a folder; --checkpoint FILE", "eval", "data")
    cbk.fs.remove(dir .. "/run", { recursive = true })
    fails_with(dir, "there is no checkpoint in 'run'; --checkpoint names one", "eval", "params.yaml")
    cbk.fs.write(dir .. "/params.yaml", (TRAINER:gsub("    val_dataloader:.*", "")), { overwrite = true })
    fails_with(dir, "it has no val_dataloader to evaluate with; --data-dir names a folder", "eval", "params.yaml", "--checkpoint",
      "data/data.h5")
  end)
end)

local SECTION = { vocab_size = 257, hidden_size = 16, num_heads = 4, num_hidden_layers = 2, filter_size = 24, max_position_embeddings = 24,
  initializer_range = 0.5 }

local function model(fields)
  local section = cbk.dict(SECTION)
  for name, value in pairs(fields or {}) do section[name] = value end
  return models.trainable(classes.tensors(section, "gpt2", "cs-2.9"), 2):eval()
end

local function tokens(one, ids, options, count)
  local out = {}
  for id in generate.tokens(one, ids, options) do
    out[#out + 1] = id
    if #out == count then break end
  end
  return out
end

describe("Texts that are generated", function()
  it("have the most likely token of the whole text each time", function()
    local one, ids, want = model(), { 5, 200, 7 }, {}
    local text = { unpack(ids) }
    for i = 1, 12 do
      local logits = one(cstorch.tensor({ text }, { dtype = "int64" }))
      want[i] = logits:select(1, #text - 1):select(0, 0):argmax(-1):item()
      text[#text + 1] = want[i]
    end
    equal(tokens(one, ids, {}, 12), want)
  end)

  it("end with the stop token, or with the model's positions", function()
    local one, ids = model(), { 5, 200, 7 }
    local all = tokens(one, ids)
    equal(#all, 24 - 3 + 1) -- the last one is not read
    local before, seen = {}, { [all[1]] = true }
    for _, id in ipairs(all) do
      if not seen[id] then break end
      before[#before + 1] = id
    end
    assert(all[#before + 1], "all tokens are the same")
    equal(tokens(one, ids, { stop = all[#before + 1] }), before)
    raises("generate: expected at least one token to begin with", function() generate.tokens(one, {}) end)
  end)

  it("are drawn by probability, the same for a seed", function()
    local one, ids = model { initializer_range = 0.3 }, { 5, 200, 7 }
    local function drawn(options) return tokens(one, ids, options, 12) end
    equal(drawn { temperature = 1, seed = 3 }, drawn { temperature = 1, seed = 3 })
    assert(table.concat(drawn { temperature = 1, seed = 3 }, " ") ~= table.concat(drawn { temperature = 1, seed = 4 }, " "))
    equal(drawn { temperature = 1, top_k = 1 }, drawn {})
    for _, small in ipairs { 1e-20, 1e-38, 1e-40, 1e-300 } do equal(drawn { temperature = small }, drawn {}) end
    equal(drawn { temperature = 1, top_p = 1e-9 }, drawn {})
    equal(drawn { temperature = 1e-3 }, drawn {})
    local logits = one(cstorch.tensor({ ids }, { dtype = "int64" })):select(1, 2):select(0, 0)
    local _, best = logits:topk(3, -1)
    local allowed, seen = {}, {}
    for _, id in ipairs(best:tolist()) do allowed[id] = true end
    for seed = 1, 60 do
      local id = tokens(one, ids, { temperature = 5, top_k = 3, seed = seed }, 1)[1]
      assert(allowed[id], "a token that is not among the three most likely ones")
      seen[id] = true
    end
    local count = 0
    for _ in pairs(seen) do count = count + 1 end
    equal(count, 3)
    raises("generate: top_p must be above 0 and at most 1, not 2", function() generate.tokens(one, ids, { top_p = 2 }) end)
  end)
end)

describe("cbk diff --logits", function()
  it("computes with a text, by the tokenizer beside a model or by bytes", function()
    local dir = harness.temp_dir()
    local section = cbk.dict(SECTION)
    section.name = "gpt2"
    cbk.config.save(cbk.dict { model = section }, dir .. "/params.yaml")
    run(dir, "new", "params.yaml", "-o", "a.mdl")
    run(dir, "new", "params.yaml", "-o", "b.mdl", "--seed", "5")
    cbk.fs.write(dir .. "/text.txt", "abcdefg")
    local function tokens_of(...) return cbk.parse_json(run(dir, "diff", "a.mdl", "a.mdl", "--logits", "--json", ...)).logits.tokens end
    local sizes = { tokens_of(), tokens_of("--text", "abc"), tokens_of("--text", "text.txt"), tokens_of("--text", ("a"):rep(99)) }
    equal(sizes, { 48, 3, 7, 24 })
    local status, out = harness.cbk(dir, "diff", "a.mdl", "b.mdl", "--logits", "--text", "abc")
    equal(status, 1)
    has((out:gsub("%s+", " ")), "logits of 3 tokens differ by at most")
    fails_with(dir, "--text needs --logits", "diff", "a.mdl", "b.mdl", "--text", "abc")
    fails_with(dir, "the text is empty", "diff", "a.mdl", "b.mdl", "--logits", "--text", "")
    cbk.fs.write(dir .. "/tokenizer.json", [[{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel",
      "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "ab": 300}, "merges": ["a b"]}}]])
    fails_with(dir, "the text has the token 300, beyond a vocabulary of 257; put the tokenizer.json of the models beside them", "diff",
      "a.mdl", "b.mdl", "--logits", "--text", "ab")
    equal(tokens_of("--text", "ba"), 2)
  end)
end)

describe("cbk generate", function()
  it("continues texts and ids", function()
    local dir = harness.temp_dir()
    local section = cbk.dict(SECTION)
    section.name = "gpt2"
    cbk.config.save(cbk.dict { model = section }, dir .. "/params.yaml")
    run(dir, "new", "params.yaml", "-o", "model.mdl")
    local text = run(dir, "generate", "model.mdl", "--prompt", "ab", "--max-tokens", "5")
    equal(text:sub(1, 2), "ab")
    local ids = run(dir, "generate", "model.mdl", "--ids", "97, 98", "--max-tokens", "5")
    assert(ids:find "^%d+,%d+,%d+,%d+,%d+\n$", ids)
    equal(run(dir, "generate", "model.mdl", "--ids", "97, 98", "--max-tokens", "5", "--model", "gpt2"), ids)
    fails_with(dir, "this config is for gpt2 (name='gpt2'), not for bert", "generate", "model.mdl", "--ids", "97", "--model", "bert")
    local found = cbk.parse_json(run(dir, "generate", "model.mdl", "--prompt", "ab", "--max-tokens", "5", "--json"))
    local list = {}
    for i = 1, #found.ids do list[i] = ("%d"):format(found.ids[i]) end
    equal(table.concat(list, ",") .. "\n", ids)
    fails_with(dir, "name what to continue with --prompt or --ids", "generate", "model.mdl")
    fails_with(dir, "--top-k and --top-p draw tokens: give --temperature as well", "generate", "model.mdl", "--prompt", "a", "--top-k", "3")
    fails_with(dir, "the token 300 is not in the model's vocabulary of 257", "generate", "model.mdl", "--ids", "300")
    fails_with(dir, "--ids: 'x' is not a whole number", "generate", "model.mdl", "--ids", "1,x")
    fails_with(dir, "--ids: 'inf' is not a whole number", "generate", "model.mdl", "--ids", "inf")
    for _, ids_text in ipairs { "1,,2", ",1", "1, " } do
      fails_with(dir, ("--ids '%s': a number is missing beside a comma"):format(ids_text), "generate", "model.mdl", "--ids", ids_text)
    end
    fails_with(dir, "the text has 25 tokens, and the model 24 positions; give a shorter text", "generate", "model.mdl", "--prompt",
      ("a"):rep(25))
    fails_with(dir, "there is no token to continue: the text is empty", "generate", "model.mdl", "--prompt", "")
    section.vocab_size = 300
    cbk.config.save(cbk.dict { model = section }, dir .. "/params.yaml", { overwrite = true })
    run(dir, "new", "params.yaml", "-o", "model.mdl", "--overwrite")
    fails_with(dir, "there is no tokenizer.json beside 'model.mdl'; --tokenizer names one; --ids takes token ids", "generate", "model.mdl",
      "--prompt", "ab")
    has(run(dir, "generate", "model.mdl", "--prompt", "ab", "--tokenizer", "bytes", "--max-tokens", "1"), "ab")
  end)
end)

describe("cbk schedule", function()
  it("prints the values of a run's steps", function()
    local dir = harness.temp_dir()
    cbk.fs.write(dir .. "/params.yaml", TRAINER)
    local out = run(dir, "schedule", "params.yaml", "--rows", "4", "--ascii")
    has(out, "params.yaml: 12 steps\ncheckpoints: 3, every 4 steps\nevaluations: 3, every 5 steps, and at the last step\n")
    cbk.fs.write(dir .. "/often.yaml", training_data.changed(TRAINER, "      steps: 4", "      steps: 1"))
    has(run(dir, "schedule", "often.yaml"), "checkpoints: 12, every step\n")
    has(out, [[
step         lr  weight_decay (group 0)  weight_decay (group 1)  loss_scale
   1          0                     0.1                       0       32768
   5       0.02                     0.1                       0       32768
   8  0.0190191                     0.1                       0       32768
  12  0.0150859                     0.1                       0       32768
]])
    has(out, "\nlr\n0.02 |")
    local found = cbk.parse_json(run(dir, "schedule", "params.yaml", "--steps", "3", "--json"))
    equal({ found.steps, found.series[1].name, #found.series[1].values, #found.series[1].groups }, { 3, "lr", 3, 2 })
    harness.near(found.series[1].values[2], 0.005, 1e-6)
    equal({ cbk.totable(found.checkpoints), cbk.totable(found.evaluations) }, { { 3 }, { 3 } })
    found = cbk.parse_json(run(dir, "schedule", "params.yaml", "--json"))
    equal({ cbk.totable(found.checkpoints), cbk.totable(found.evaluations) }, { { 4, 8, 12 }, { 5, 10, 12 } })
    run(dir, "schedule", "params.yaml", "-o", "rates.svg")
    has(cbk.fs.read(dir .. "/rates.svg"), "<polyline points=")
    fails_with(dir, "rates.svg", "schedule", "params.yaml", "-o", "rates.svg")
    fails_with(dir, "expected a name that ends with .svg or .png", "schedule", "params.yaml", "-o", "rates.gif")
  end)

  it("takes some of the steps of a long run", function()
    local dir = harness.temp_dir()
    local function write(steps)
      cbk.fs.write(dir .. "/params.yaml", changed(TRAINER, "max_steps: 12", "max_steps: " .. steps), { overwrite = true })
    end
    write "2147483647"
    has(run(dir, "schedule", "params.yaml", "--rows", "2"), "\n         1      0 ")
    has(run(dir, "schedule", "params.yaml", "--rows", "2"), "\n2147483647  0.002 ")
    fails_with(dir, "cannot print each of 2,147,483,647 steps; expected at most 1,000,000; --steps N", "schedule", "params.yaml", "--json")
    equal(cbk.parse_json((run(dir, "schedule", "params.yaml", "--json", "--steps", "3"))).steps, 3)
    write "1000000000000000"
    for _, command in ipairs { "schedule", "train" } do
      fails_with(dir, "line 41: trainer.init.loop.max_steps: expected a whole number from 1, below 2^31, found 1000000000000000", command,
        "params.yaml")
    end
    fails_with(dir, "--max-steps '3000000000': expected a whole number below 2^31", "train", "params.yaml", "--max-steps", "3000000000")
  end)

  it("doubles the loss scale as long as nothing overflows, and needs a number of steps", function()
    local dir = harness.temp_dir()
    local text = changed(TRAINER, "loss_scaling_factor: dynamic",
      "loss_scaling_factor: dynamic\n      initial_loss_scale: 4\n      steps_per_increase: 2\n      max_loss_scale: 16")
    cbk.fs.write(dir .. "/params.yaml", text)
    local series = cbk.parse_json(run(dir, "schedule", "params.yaml", "--json")).series
    local values = {}
    for i = 1, 12 do values[i] = series[#series].values[i] end
    equal(values, { 4, 4, 4, 8, 8, 8, 16, 16, 16, 16, 16, 16 })
    cbk.fs.write(dir .. "/params.yaml", changed(text, "max_steps: 12", "num_epochs: 2"), { overwrite = true })
    fails_with(dir, "the number of steps depends on the data (num_epochs); --steps says how many to show", "schedule", "params.yaml")
  end)
end)

describe("Curves", function()
  it("have a panel each, with the largest and the least value", function()
    local lines = curves.lines({ { name = "loss", steps = { 1, 2, 3, 4 }, values = { 4, 3, 0 / 0, 1 } } }, { width = 20, ascii = true })
    equal({ lines[1], lines[2], lines[9]:match "^1 |%s+%*$" ~= nil, lines[10]:match "^   1%s+4$" ~= nil }, { "loss", "4 |**", true, true })
    equal(curves.lines({ { name = "x", steps = { 1 }, values = { 0 / 0 } } }, { width = 20 }), { "x", "  no finite value" })
    local flat = curves.lines({ { name = "x", steps = { 1, 2 }, values = { 5, 5 } } }, { width = 20, ascii = true })
    equal(flat[6]:match "%*+" ~= nil, true)
  end)
end)
