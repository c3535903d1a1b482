-- How far data loaders had come: every form that a release writes, the files of 1.8 and 1.9, and where a run resumes.

local cbk = require "cbk"
local dataloader_state = require "cbk.dataloader_state"
require "cbk.converters" -- finds the engine
local zoo_checkpoint = require "converters.modelzoo.checkpoint"
local harness = require "harness"

local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises

--- A folder with the files of a 1.9 run: { ["name"] = text }.
local function make_files(files)
  local folder = harness.temp_dir()
  cbk.fs.write(folder .. "/data_iter_checkpoint_state_file_global", "100\n")
  for name, text in pairs(files) do cbk.fs.write(folder .. "/" .. name, text, { overwrite = true }) end
  return folder
end

local four = {
  ["data_iter_state_file_worker_0_step_100.txt"] = "320", ["data_iter_state_file_worker_10_step_100.txt"] = "7\r\nrest",
  ["data_iter_state_file_worker_2_step_100.txt"] = " 3_00 ", ["foo_1_bar_100.x.txt"] = "288",
  ["data_iter_state_file_worker_1_step_50.txt"] = "is not read",
}

describe("the data loader state of a checkpoint", function()
  it("is read in every form, and written as it was", function()
    local forms = {
      { { samples_streamed = 915, seed = 3 }, { kind = "map", version = 0, samples_streamed = 915, seed = 3 } },
      { { samples_streamed = 5, __version__ = 1 }, { kind = "map", version = 1, samples_streamed = 5 } },
      { { all_worker_states = { { samples_streamed = 4, shard_index = 1 }, { samples_streamed = 6, shard_index = 0 } } },
        { kind = "iterable", workers = { { samples_streamed = 4, shard_index = 1 }, { samples_streamed = 6, shard_index = 0 } } } },
      { { all_worker_states = cbk.list() }, { kind = "iterable", workers = {} } },
    }
    for _, form in ipairs(forms) do
      local read = dataloader_state.read(cbk.dict(form[1]))
      equal(read, form[2])
      equal(dataloader_state.to_dict(read), form[1])
    end
    equal(dataloader_state.read { samples_streamed = 1, seed = 2, __version__ = 0 }.version, 0)
    local dataset = cbk.dict { opaque = 1 }
    local later = dataloader_state.read(cbk.dict { samples_streamed = 1, __version__ = 1, dataset = dataset })
    equal(later.dataset, dataset)
    equal(dataloader_state.to_dict(later).dataset.opaque, 1)
    equal(dataloader_state.read { samples_streamed = cbk.full({}, 12, { dtype = "int64" }), seed = 0 }.samples_streamed, 12)
  end)

  it("is refused when no release writes it", function()
    local worker = { samples_streamed = 1, shard_index = 0 }
    local cases = {
      { "not a dict", 5 }, { "not a dict", cbk.null }, { "neither", cbk.dict() }, { "'seed'", { samples_streamed = 1 } },
      { "'other'", { samples_streamed = 1, seed = 0, other = 2 } }, { "version is 2", { samples_streamed = 1, __version__ = 2 } },
      { "'seed'", { samples_streamed = 1, __version__ = 1, seed = 0 } }, { "not a whole number", { samples_streamed = 1.5, seed = 0 } },
      { "'seed'", { all_worker_states = { worker }, seed = 1 } }, { "not a list", { all_worker_states = 4 } },
      { "worker state 2 is not a dict", { all_worker_states = { worker, 1 } } },
      { "worker state 1 has no 'shard_index'", { all_worker_states = { { samples_streamed = 1 } } } },
      { "'x'", { all_worker_states = { { samples_streamed = 1, shard_index = 0, x = 1 } } } },
    }
    for _, case in ipairs(cases) do raises(case[1], function() dataloader_state.read(case[2]) end, "format") end
  end)

  it("comes from those of its workers", function()
    local map = dataloader_state.aggregate("map", {
      { samples_streamed = 4, previous_samples_streamed = 100 }, { samples_streamed = 6, previous_samples_streamed = 200 },
    }, 9)
    equal(map, { kind = "map", version = 0, samples_streamed = 110, seed = 9 })
    local iterable = dataloader_state.aggregate("iterable", {
      { samples_streamed = 1, shard_index = 10 }, { samples_streamed = 2, shard_index = 2 }, { samples_streamed = 3, shard_index = 10 },
    })
    equal(iterable.workers, {
      { samples_streamed = 2, shard_index = 2 }, { samples_streamed = 1, shard_index = 10 }, { samples_streamed = 3, shard_index = 10 },
    })
    raises("there is no worker", function() dataloader_state.aggregate("map", {}) end)
  end)
end)

describe("the data loader files of 1.8 and 1.9", function()
  it("are read for the step of the checkpoint", function()
    local folder = make_files(four)
    local files = dataloader_state.read_files(folder)
    equal(files, { kind = "files", folder = folder, step = 100, last_step = 100, other_steps = { 50 }, other_workers = { [1] = true },
      workers = {
        { worker = 0, samples_streamed = 320 }, { worker = 1, samples_streamed = 288 }, { worker = 2, samples_streamed = 300 },
        { worker = 10, samples_streamed = 7 },
      } })
    equal(dataloader_state.read_files(folder, 70).step, 100)
    raises("worker_1_step_50.txt': its first line", function() dataloader_state.read_files(folder, 50) end)
    equal(dataloader_state.from_files(files, "map", 4), { kind = "map", version = 0, samples_streamed = 915, seed = 4 })
    equal(dataloader_state.from_files(files, "iterable").workers[4], { samples_streamed = 7, shard_index = 10 })
    local none = dataloader_state.read_files(make_files { ["a_1_b_7.txt"] = "x" })
    equal(dataloader_state.from_files(none, "map").samples_streamed, 0)
    equal(dataloader_state.to_dict(dataloader_state.from_files(none, "iterable")), { all_worker_states = cbk.list() })
  end)

  it("keep every digit of a count", function()
    local name = "a_%d_b_100.txt"
    local big = dataloader_state.read_files(make_files { [name:format(0)] = "9007199254740993", [name:format(1)] = "4" })
    equal(tostring(dataloader_state.from_files(big, "map").samples_streamed), "9007199254740997")
    equal(tostring(dataloader_state.from_files(big, "iterable").workers[1].samples_streamed), "9007199254740993")
    equal(dataloader_state.restart(big, { batch_size = 2 }).tasks[2].batch_index, 2)
    local endless = { [name:format(0)] = "1" .. ("0"):rep(19) }
    raises("more than a checkpoint can hold", function() dataloader_state.read_files(make_files(endless)) end)
    local half = { [name:format(0)] = "5000000000000000000", [name:format(1)] = "5000000000000000000" }
    raises("together", function() dataloader_state.from_files(dataloader_state.read_files(make_files(half)), "map") end)
  end)

  it("are doubted where they are of another step than the checkpoint", function()
    local folder = make_files(four)
    local files = dataloader_state.read_files(folder)
    for worker = 3, 9 do table.insert(files.workers, worker + 1, { worker = worker, samples_streamed = 1 }) end
    local function doubts(step)
      local warnings, is_useless = dataloader_state.doubts(files, cbk.dict { global_step = step })
      return table.concat(warnings, "; "), is_useless
    end
    for _, step in ipairs { 100, cbk.float(100), cbk.tensor({ 100 }, { dtype = "int64" }), cbk.null, cbk.tensor { 1, 2 }, "x" } do
      equal(doubts(step), "")
    end
    equal(dataloader_state.doubts(files, cbk.dict()), {})
    local text = doubts(cbk.tensor({ 50 }, { dtype = "int64" }))
    harness.is_true(text:find("are of step 100, but the checkpoint is of step 50", 1, true), text)
    harness.is_true(text:find("files of step 50", 1, true), text)
    files.workers = {}
    text = doubts(100)
    harness.is_true(text:find(folder .. "' has no worker's file of step 100", 1, true), text)
    equal(select(2, doubts(100)), false)
    equal(select(2, doubts(99)), true)
  end)

  it("are doubted where workers are absent or there twice, or counts are negative", function()
    local function doubts(files)
      return table.concat(dataloader_state.doubts(dataloader_state.read_files(make_files(files)), cbk.dict()), "\n"):gsub("'[^']*'", "F")
    end
    local function name(worker, step) return ("a_%d_b_%d.txt"):format(worker, step or 100) end
    equal(doubts { [name(0)] = "1", [name(1)] = "2", [name(1, 50)] = "2" }, "")
    equal(doubts { [name(0)] = "1", [name(2)] = "2" }, "F: there is no state of worker 1: their samples are not counted")
    equal(doubts { [name(0)] = "1", [name(2, 50)] = "2", [name(1, 50)] = "2" },
      "F: there is no state of workers 1, 2: their samples are not counted")
    equal(doubts { [name(0)] = "1", ["x_" .. name(0)] = "2" }, "F: there are several states of worker 0: all of them are counted")
    equal(doubts { [name(0)] = "-1" }, "F: the count of samples is negative in the state of worker 0")
  end)

  it("are refused with the name of the file that is wrong", function()
    raises("state_file_global' is missing", function() dataloader_state.read_files(harness.temp_dir()) end)
    raises("is not a folder", function() dataloader_state.read_files(make_files(four) .. "/none") end)
    local global = "data_iter_checkpoint_state_file_global"
    for name, text in pairs {
      [global] = "abc", ["notes.txt"] = "", ["a_b.txt"] = "", ["x_b_100.txt"] = "", ["1_b_x.txt"] = "", ["a_1_b_100.txt"] = "1.0",
    } do
      raises(name, function() dataloader_state.read_files(make_files { [name] = text }) end, "value")
    end
  end)

  it("go into a checkpoint that is converted to 2.0", function()
    local config = function(processor)
      return cbk.dict { cerebras = { save_iter_state_path = make_files(four) }, train_input = { data_processor = processor } }
    end
    local root = cbk.dict()
    zoo_checkpoint.add_data_state(config "GptHDF5MapDataProcessor", root)
    equal(root.dataloader, { samples_streamed = 915, seed = 0 })
    root = cbk.dict()
    zoo_checkpoint.add_data_state(config "GptHDF5DataProcessor", root)
    equal(#root.dataloader.all_worker_states, 4)
    local shuffled = config "GptHDF5MapDataProcessor"
    for _, one in ipairs { { { shuffle = true, shuffle_seed = 7 }, 7 }, { { mixture = cbk.list { 1 }, shuffle_seed = 7 }, 7 },
      { { shuffle = false, shuffle_seed = 7 }, 0 }, { { shuffle = true }, 0 },
      { { shuffle = true, shuffle_seed = "7" }, 7 } } do
      for name in pairs { shuffle = 1, mixture = 1, shuffle_seed = 1 } do shuffled.train_input[name] = one[1][name] end
      root = cbk.dict()
      zoo_checkpoint.add_data_state(shuffled, root, { seed = "config" })
      equal(root.dataloader.seed, one[2])
    end
    root = cbk.dict()
    zoo_checkpoint.add_data_state(shuffled, root, { seed = 5 })
    equal(root.dataloader.seed, 5)
    raises("shuffle_seed: expected a whole number, found \"x\"", function()
      shuffled.train_input.shuffle_seed = "x"
      zoo_checkpoint.add_data_state(shuffled, cbk.dict(), { seed = "config" })
    end, "config")
    local qualified = config "modelzoo.data.GptHDF5MapDataProcessor"
    raises("cannot convert data loader states", function() zoo_checkpoint.add_data_state(qualified, cbk.dict()) end, "config")
    cbk.fs.write(cbk.fs.join(qualified.cerebras.save_iter_state_path, "a_0_b_60.txt"), "30")
    for options, samples in pairs { [{ is_upgrade = true }] = 915, [{ is_upgrade = true, step = 60 }] = 30 } do
      root = cbk.dict { dataloader = cbk.null }
      zoo_checkpoint.add_data_state(qualified, root, options)
      equal(root.dataloader.samples_streamed, samples)
    end
    raises("--no-dataloader-state", function()
      zoo_checkpoint.add_data_state(qualified, cbk.dict(), { is_upgrade = true, step = 70 })
    end, "value")
    for _, input in ipairs { cbk.list { 1 }, cbk.dict(), cbk.dict { data_processor = cbk.list { "a" } } } do
      qualified.train_input = input
      raises("--dataloader_type map or iterable", function()
        zoo_checkpoint.add_data_state(qualified, cbk.dict(), { is_upgrade = true })
      end, "config")
      root = cbk.dict()
      zoo_checkpoint.add_data_state(qualified, root, { is_upgrade = true, kind = "iterable" })
      equal(#root.dataloader.all_worker_states, 4)
    end
    for text, bad in pairs { ["found an empty string"] = "", ["found 5"] = 5, ["found true"] = true,
      ["save_iter_state_path: 'no/such' is not a folder (relative to '/"] = "no/such" } do
      raises(text, function()
        shuffled.cerebras.save_iter_state_path = bad
        zoo_checkpoint.add_data_state(shuffled, cbk.dict())
      end)
    end
    raises("train_input.data_processor=Other", function() zoo_checkpoint.add_data_state(config "Other", cbk.dict()) end)
    root = cbk.dict()
    zoo_checkpoint.add_data_state(cbk.dict { model = { a = 1 } }, root)
    equal(root.dataloader, nil)
  end)
end)

describe("a run", function()
  local state = dataloader_state.read { all_worker_states = {
    { samples_streamed = 30, shard_index = 0 }, { samples_streamed = 20, shard_index = 1 }, { samples_streamed = 20, shard_index = 2 },
  } }

  it("of an iterable loader begins with the worker that is behind", function()
    local restart = dataloader_state.restart(state, { workers = 3 })
    equal(restart.tasks, {
      { task = 0, shard_index = 1, samples_streamed = 20 }, { task = 1, shard_index = 2, samples_streamed = 20 },
      { task = 2, shard_index = 0, samples_streamed = 30 },
    })
    equal(restart.samples_streamed, 70)
    equal(restart.from_start, false)
  end)

  it("with another number of workers begins anew, with a warning", function()
    local restart = dataloader_state.restart(state, { workers = 2 })
    equal(restart.from_start, true)
    equal(restart.tasks[2], { task = 1, shard_index = 1, samples_streamed = 0 })
    harness.is_true(restart.warnings[1]:find "3 workers, but the run has 2")
  end)

  it("of a map loader goes on behind all samples, with the same seed only", function()
    local map = dataloader_state.read { samples_streamed = 10, seed = 3 }
    equal(dataloader_state.restart(map).samples_streamed, 10)
    equal(dataloader_state.restart(map, { seed = 3 }).from_start, false)
    raises("seed 3, but the run has seed 4", function() dataloader_state.restart(map, { seed = 4 }) end)
  end)

  it("of 1.8 or 1.9 goes on with each worker's own file, at a whole batch", function()
    local files = dataloader_state.read_files(make_files(four))
    equal(dataloader_state.restart(files, { kind = "map" }).samples_streamed, 915)
    local restart = dataloader_state.restart(files, { batch_size = 32, workers = 3 })
    equal(restart.tasks[3], { task = 2, shard_index = 2, samples_streamed = 300, batch_index = 10 })
    equal(restart.tasks[1].batch_index, 10)
    equal(#restart.warnings, 1)
  end)
end)
