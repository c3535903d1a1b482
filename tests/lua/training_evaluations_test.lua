-- Several evaluations in a run: a list of val_dataloader, and validate_all.

local cbk = require "cbk"
local harness = require "harness"
local training_data = require "training_data"

local describe, it, equal, has = harness.describe, harness.it, harness.equal, harness.has

local LIST = [[
    val_dataloader:
    - data_processor: GptHDF5MapDataProcessor
      data_dir: data
      batch_size: 4
    - data_processor: GptHDF5MapDataProcessor
      data_dir: other
      batch_size: 2
]]

local function run_dir(more)
  local dir = harness.temp_dir()
  training_data.write(dir .. "/data", 14, training_data.LENGTH, training_data.WORDS)
  training_data.write(dir .. "/other", 4, training_data.LENGTH, training_data.WORDS)
  local text = training_data.TRAINER
  text = text:sub(1, text:find("    val_dataloader:", 1, true) - 1) .. LIST .. (more or "")
  cbk.fs.write(dir .. "/params.yaml", text)
  return dir
end

local function call(dir, ...)
  local status, out, err = harness.cbk(dir, ...)
  assert(status == 0, err)
  return out
end

describe("Several evaluations", function()
  it("are made by the run that continues, where one that was killed did not record them", function()
    local dir = run_dir()
    local path = dir .. "/params.yaml"
    cbk.fs.write(path, training_data.changed(cbk.fs.read(path), "eval_frequency: 5", "eval_frequency: 4"), { overwrite = true })
    call(dir, "train", "params.yaml")
    local all = cbk.fs.read(dir .. "/run/metrics.jsonl")
    local function without_speed(text) return (text:gsub('"samples_per_second": [%d.e+]+', "")) end
    local last = cbk.fs.read(dir .. "/run/checkpoint_12.mdl")
    for _, step in ipairs { 12, 8 } do
      local rows = all:match(('^.-"step": %d, "validate_0[^\n]*\n'):format(step))
      cbk.fs.write(dir .. "/run/metrics.jsonl", rows, { overwrite = true }) -- validate_1 is missing
      if step == 8 then cbk.fs.remove(dir .. "/run/checkpoint_12.mdl") end
      local out = call(dir, "train", "params.yaml")
      equal(without_speed(cbk.fs.read(dir .. "/run/metrics.jsonl")), without_speed(all))
      equal(out:find("the evaluation of step 12 is missing", 1, true) ~= nil, step == 12)
      assert(cbk.fs.read(dir .. "/run/checkpoint_12.mdl") == last, "another checkpoint")
    end
    has(call(dir, "train", "params.yaml"):gsub("%s+", " "), "Nothing is left to train")
  end)

  it("are made and recorded one after the other, under the names of the Model Zoo", function()
    local dir = run_dir()
    local out = call(dir, "train", "params.yaml")
    has(out:gsub("\n", " "), "Evaluation validate_0 | Eval Device=CSX, GlobalStep=5, Batch=2")
    has(out:gsub("\n", " "), "Evaluation validate_1 | Eval Device=CSX, GlobalStep=12, Batch=2")
    local steps, last = { {}, {} }, {}
    for line in io.lines(dir .. "/run/metrics.jsonl") do
      local row = cbk.parse_json(line)
      for i = 1, 2 do
        local loss = row[("validate_%d/eval_loss"):format(i - 1)]
        if loss then
          table.insert(steps[i], tonumber(tostring(row.step)))
          last[i] = tonumber(tostring(loss))
        end
      end
    end
    equal(steps, { { 5, 10, 12 }, { 5, 10, 12 } })
    local evaluated = cbk.parse_json(call(dir, "eval", "params.yaml", "--json")).evaluations
    for i = 1, 2 do
      equal({ evaluated[i].data, tonumber(tostring(evaluated[i].loss)) }, { ("validate_%d"):format(i - 1), last[i] })
    end
    call(dir, "report", "run", "-o", "page.html")
    local page = cbk.fs.read(dir .. "/page.html")
    has(page, "least validate_0/eval_loss")
    has(page, "Evaluations")
    has(page, "validate 1/eval accuracy")
    has(call(dir, "schedule", "params.yaml"), "evaluations: 3, every 5 steps, and at the last step")
  end)

  it("continue bit for bit", function()
    local dir = run_dir()
    call(dir, "train", "params.yaml")
    local last = cbk.fs.read(dir .. "/run/checkpoint_12.mdl")
    cbk.fs.remove(dir .. "/run/checkpoint_12.mdl")
    call(dir, "train", "params.yaml")
    assert(cbk.fs.read(dir .. "/run/checkpoint_12.mdl") == last)
  end)

  it("of all checkpoints are those of validate_all", function()
    local dir = run_dir "  validate_all:\n    val_dataloaders:\n      data_dir: other\n      batch_size: 4\n"
    call(dir, "train", "params.yaml")
    local found = cbk.parse_json(call(dir, "eval", "params.yaml", "--all", "--json")).evaluations
    local names = {}
    for i = 1, #found do names[i] = { found[i].checkpoint, found[i].data or false, tonumber(tostring(found[i].batches)) } end
    equal(names, { { "run/checkpoint_4.mdl", false, 1 }, { "run/checkpoint_8.mdl", false, 1 }, { "run/checkpoint_12.mdl", false, 1 } })
    local text = cbk.fs.read(dir .. "/params.yaml")
    cbk.fs.write(dir .. "/params.yaml", text .. "    ckpt_paths: [run/checkpoint_8.mdl, 'run/checkpoint_1?.mdl']\n", { overwrite = true })
    local out = call(dir, "eval", "params.yaml", "--all")
    has(out, "run/checkpoint_8.mdl\nAvg Eval Loss")
    has(out, "run/checkpoint_12.mdl\nAvg Eval Loss")
    equal(out:find("checkpoint_4", 1, true), nil)
    cbk.fs.write(dir .. "/params.yaml", text .. "    ckpt_paths: run/none_*.mdl\n", { overwrite = true })
    local _, _, err = harness.cbk(dir, "eval", "params.yaml", "--all")
    has(err, "trainer.validate_all.ckpt_paths: there is no file 'run/none_*.mdl'")
    for _, words in ipairs { { "params.yaml", "--checkpoint", "run/checkpoint_4.mdl" },
      { "--checkpoint", "run/checkpoint_4.mdl", "--data-dir", "other" } } do
      local status, _, problem = harness.cbk(dir, "eval", "--all", unpack(words))
      equal(status, 2)
      has(problem, "--all evaluates the checkpoints of a run: name its params.yaml, and leave out --checkpoint")
    end
  end)

  it("name the loader that is wrong", function()
    local dir = run_dir()
    local text = training_data.changed(cbk.fs.read(dir .. "/params.yaml"), "data_dir: other", "data_dirs: other")
    cbk.fs.write(dir .. "/params.yaml", text, { overwrite = true })
    local _, _, err = harness.cbk(dir, "train", "params.yaml")
    has(err, "trainer.fit.val_dataloader.1.data_dirs: unknown field; did you mean 'data_dir'?")
    cbk.fs.write(dir .. "/params.yaml", training_data.changed(text, "    - data_processor: GptHDF5MapDataProcessor", "    - 3\n    - x: 1"),
      { overwrite = true })
    _, _, err = harness.cbk(dir, "train", "params.yaml")
    has(err, "trainer.fit.val_dataloader: expected a map of fields, or a list of them")
  end)
end)
