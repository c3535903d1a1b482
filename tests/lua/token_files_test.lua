-- Batches of tokens from folders of HDF5 files: their order, what a resumed run continues with, and files that do not fit.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local token_files = require "cstorch.utils.data.token_files"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local data = cstorch.utils.data

local TOKENS = 4

local function write(path, tree, options)
  cbk.create(path, { h5_version = "flat", root = tree, compression = options and options.compression }):commit()
end

--- Sample n has the ids n, n + 0.25, … as whole numbers: 4 n, 4 n + 1, …; the labels are one more.
local function sample(n)
  local ids, mask, labels = {}, {}, {}
  for t = 1, TOKENS do ids[t], mask[t], labels[t] = TOKENS * n + t - 1, n % 2, TOKENS * n + t end
  return { ids, mask, labels }
end

--- A folder with a file for each count, whose samples are numbered through.
local function folder(counts, options)
  local path, n = harness.temp_dir(), 0
  for i, count in ipairs(counts) do
    local rows = {}
    for k = 1, count do rows[k], n = sample(n), n + 1 end
    local tensor = cbk.tensor(rows, { dtype = options and options.dtype or "int32" })
    local tree = { data = tensor }
    if options and options.is_split then
      tree = { input_ids = tensor:select(1, 0), attention_mask = tensor:select(1, 1), labels = tensor:select(1, 2) }
    end
    write(cbk.fs.join(path, ("data-%05d.h5"):format(i - 1)), tree, options)
  end
  return path
end

--- The numbers of a batch's samples.
local function numbers(batch)
  local list = {}
  for i, row in ipairs(batch.input_ids:tolist()) do list[i] = row[1] / TOKENS end
  return list
end

--- Numbers of the samples in the next `steps` batches, across epochs.
local function stream(source, steps)
  local list, iterator = {}, nil
  while #list < steps do
    iterator = iterator or source:iter()
    local batch = iterator()
    if batch then list[#list + 1] = numbers(batch) else iterator = nil end
  end
  return list
end

local function open(path, options)
  local given = { data_dir = path, batch_size = 3 }
  for name, value in pairs(options or {}) do given[name] = value end
  return token_files.open(given)
end

local function resumed(source, state, options) return source:load_state_dict(source:deaggregate_state_dict(state), options) end

describe("token files: batches", function()
  for name, options in pairs { ["one dataset"] = {}, ["three datasets"] = { is_split = true }, ["int64"] = { dtype = "int64" },
    ["uint16"] = { dtype = "uint16" }, ["chunks"] = { compression = "deflate" } } do
    it("have ids, mask and labels, from " .. name, function()
      local source = open(folder({ 2, 3 }, options))
      local batch = source:iter()()
      local expected = { input_ids = {}, attention_mask = {}, labels = {} }
      for n = 0, 2 do
        local ids, mask, labels = unpack(sample(n))
        table.insert(expected.input_ids, ids)
        table.insert(expected.attention_mask, mask)
        table.insert(expected.labels, labels)
      end
      for key, rows in pairs(expected) do equal(batch[key]:tolist(), rows, key) end
      equal({ batch.input_ids.dtype, batch.input_ids:shape() }, { "int64", { 3, TOKENS } })
    end)
  end

  it("go through the files in their order, and carry what is left over into the next epoch", function()
    local source = open(folder { 2, 1, 4 })
    equal(source:length(), 2)
    equal(stream(source, 5), { { 0, 1, 2 }, { 3, 4, 5 }, { 6, 0, 1 }, { 2, 3, 4 }, { 5, 6, 0 } })
    equal(stream(open(folder { 2, 1, 4 }, { drop_last = false }), 4), { { 0, 1, 2 }, { 3, 4, 5 }, { 6 }, { 0, 1, 2 } })
    equal(open(folder { 2, 1, 4 }, { drop_last = false }):length(), 3)
  end)

  it("take the files of several folders in the order of their paths", function()
    local root = harness.temp_dir()
    for i, name in ipairs { "a-b", "a" } do
      write(cbk.fs.join(root, name, "x.h5"), { data = cbk.tensor({ sample(i) }, { dtype = "int32" }) })
    end
    local source = open({ cbk.fs.join(root, "a-b"), cbk.fs.join(root, "a") }, { batch_size = 2 })
    equal(stream(source, 1), { { 2, 1 } })
  end)

  it("are shuffled by seed and epoch", function()
    local path = folder { 5, 4 }
    local once = stream(open(path, { shuffle = true, shuffle_seed = 7 }), 6)
    equal(stream(open(path, { shuffle = true, shuffle_seed = 7 }), 6), once)
    local function epoch(first)
      local list = {}
      for i = first, first + 2 do
        for _, n in ipairs(once[i]) do list[#list + 1] = n end
      end
      return list
    end
    local first, second = epoch(1), epoch(4)
    is_true(not cbk.equal(cbk.list(first), cbk.list(second)), "another order in each epoch")
    table.sort(first)
    table.sort(second)
    equal({ first, second }, { { 0, 1, 2, 3, 4, 5, 6, 7, 8 }, { 0, 1, 2, 3, 4, 5, 6, 7, 8 } })
    is_true(not cbk.equal(cbk.list(once[1]), cbk.list(stream(open(path, { shuffle = true, shuffle_seed = 8 }), 1)[1])), "another seed")
  end)

  it("are cut to max_sequence_length", function()
    local batch = open(folder { 3 }, { max_sequence_length = 2 }):iter()()
    equal({ batch.input_ids:tolist(), batch.labels:shape() }, { { { 0, 1 }, { 4, 5 }, { 8, 9 } }, { 3, 2 } })
  end)

  it("begin at the first sample each time for an evaluation", function()
    local source = open(folder { 7 }, { from_start = true })
    equal({ stream(source, 1), stream(source, 1) }, { { { 0, 1, 2 } }, { { 0, 1, 2 } } })
    source = open(folder { 7 })
    equal({ stream(source, 1), stream(source, 1) }, { { { 0, 1, 2 } }, { { 3, 4, 5 } } })
  end)

  it("are all that is read of a file", function()
    local path = harness.temp_dir()
    write(cbk.fs.join(path, "x.h5"), { data = cbk.full({ 4000, 3, 256 }, 7, { dtype = "int32" }) })
    local function bytes_read()
      local file = assert(io.open "/proc/self/io")
      local count = tonumber(file:read("*a"):match "rchar: (%d+)")
      file:close()
      return count
    end
    local source = open(path, { shuffle = true })
    local before = bytes_read()
    stream(source, 4)
    local rows = 4 * 3 * 3 * 256 * 4
    local count = bytes_read() - before
    is_true(count >= rows and count < 20 * rows, ("%d bytes were read for rows of %d"):format(count, rows))
  end)

  it("come from more files than stay open", function()
    local counts = {}
    for i = 1, 40 do counts[i] = 1 end
    local source = open(folder(counts), { batch_size = 20 })
    local seen = stream(source, 3)
    equal({ seen[1][1], seen[2][20], seen[3][20] }, { 0, 39, 19 })
  end)
end)

describe("token files: a position", function()
  local OPTIONS = { shuffle = true, shuffle_seed = 3 }

  for name, options in pairs { ["in order"] = {}, ["shuffled"] = OPTIONS, ["with short last batches"] = { drop_last = false } } do
    it("is continued exactly after any step, across epochs: " .. name, function()
      local path = folder { 5, 3 }
      local whole = stream(open(path, options), 9)
      for steps = 0, 8 do
        local source = open(path, options)
        stream(source, steps)
        local after = open(path, options)
        resumed(after, source:aggregate_state_dict { source:state_dict() })
        local again = open(path, options)
        local rest = stream(after, 1)
        resumed(again, after:aggregate_state_dict { after:state_dict() })
        equal({ rest[1] }, { whole[steps + 1] }, "after step " .. steps)
        equal(stream(again, 1)[1], whole[steps + 2] or stream(open(path, options), 10)[10], "resumed twice, after step " .. steps)
      end
    end)
  end

  it("has the names of the Model Zoo's loader and survives a checkpoint", function()
    local path = folder { 5 }
    local source = open(path, OPTIONS)
    stream(source, 1)
    local state = source:aggregate_state_dict { source:state_dict() }
    local file = cbk.fs.join(harness.temp_dir(), "c.mdl")
    cstorch.save({ dataloader = state }, file)
    local loaded = cstorch.load(file).dataloader
    equal({ loaded.samples_streamed, loaded.__version__, loaded.dataset.shuffle_seed, loaded.dataset.data_dir }, { 3, 1, 3, path })
    local after = open(path, OPTIONS)
    resumed(after, loaded)
    equal(stream(after, 1)[1], stream(source, 1)[1])
  end)

  it("is taken over from an upgraded run", function()
    local path = folder { 5, 3 }
    local map = open(path)
    resumed(map, { samples_streamed = 6, seed = 0 })
    equal(stream(map, 1), { { 6, 7, 0 } })
    local texts = {}
    cstorch.testing.reset()
    cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local iterable = open(path)
    resumed(iterable, { all_worker_states = { { samples_streamed = 2, shard_index = 0 }, { samples_streamed = 1, shard_index = 1 } } })
    equal(stream(iterable, 1), { { 3, 4, 5 } })
    is_true(texts[1]:find("2 workers: this run continues after as many samples (3)", 1, true), texts[1])
    cstorch.testing.reset()
  end)

  it("of a run with another order is refused", function()
    local path = folder { 5 }
    local state = (function(source) return source:aggregate_state_dict { source:state_dict() } end)(open(path, OPTIONS))
    local other = { shuffle = true, shuffle_seed = 4 }
    raises("saved with shuffle_seed = 3, but this run has 4", function() resumed(open(path, other), state) end)
    raises("saved with shuffle = true, but this run has false", function() resumed(open(path), state) end)
    resumed(open(path), state, { strict = false })
    raises("the state has seed 3, but the run has seed 4", function() resumed(open(path, other), { samples_streamed = 3, seed = 3 }) end)
  end)

  it("is one position of several systems and workers", function()
    local path = folder { 9, 7 }
    local function loader()
      cstorch.testing.reset()
      cstorch.backend "CSX"
      cstorch.configure { num_csx = 2, num_workers_per_csx = 2 }
      return data.DataLoader(function(kw) return token_files.open(kw) end, { data_dir = path, batch_size = 4, shuffle = true })
    end
    local function run(source, steps)
      local list = {}
      local seen = cstorch.step_closure(function(batch) list[#list + 1] = numbers(batch) end)
      for _, batch in data.DataExecutor(source, { num_steps = steps, checkpoint_steps = steps }):iter() do seen(batch) end
      return list
    end
    local whole = run(loader(), 7)
    for steps = 1, 6 do
      local first = loader()
      run(first, steps)
      local state, second = first:state_dict(), loader()
      equal(state.samples_streamed, 4 * steps)
      second:load_state_dict(state)
      equal(run(second, 7 - steps), { unpack(whole, steps + 1) }, "after step " .. steps)
    end
    cstorch.testing.reset()
  end)
end)

describe("token files: what does not fit", function()
  local function with(tree)
    local path = harness.temp_dir()
    write(cbk.fs.join(path, "x.h5"), tree)
    return path
  end
  local function ids(shape, dtype) return cbk.full(shape, 1, { dtype = dtype or "int32" }) end

  for problem, tree in pairs {
    ["x.h5': expected a dataset 'data' or 'input_ids', 'attention_mask' and 'labels', found 'a', 'input_ids'"] =
      { a = ids { 2 }, input_ids = ids { 2, 4 } },
    ["x.h5': the dataset 'data' is float32, but token ids are whole numbers"] = { data = ids({ 4, 3, 4 }, "float32") },
    ["x.h5': expected the shape [samples, 3, tokens] of 'data', found [4, 2, 4]"] = { data = ids { 4, 2, 4 } },
    ["x.h5': 'data' is [4, 5, 4]: sequences of variable length"] = { data = ids { 4, 5, 4 } },
    ["x.h5': expected the shape [samples, tokens] of 'labels', found [4]"] =
      { input_ids = ids { 4, 4 }, attention_mask = ids { 4, 4 }, labels = ids { 4 } },
    ["x.h5': 'input_ids' is [4, 4], but 'labels' is [4, 3]"] =
      { input_ids = ids { 4, 4 }, attention_mask = ids { 4, 4 }, labels = ids { 4, 3 } },
    ["has 2 samples, fewer than one batch of 3; lower batch_size, add data or set drop_last to false"] = { data = ids { 2, 3, 4 } },
  } do
    it("is named: " .. problem, function() raises(problem, function() open(with(tree)) end) end)
  end

  it("is named: folders without files, and files that are no HDF5", function()
    local path = harness.temp_dir()
    raises("has no files *.h5; name the folder", function() open(path) end)
    raises("there is no folder", function() open(cbk.fs.join(path, "none")) end)
    raises("data_dir must be a folder or a list of folders", function() open(3) end)
    cbk.fs.write(cbk.fs.join(path, "x.h5"), "text")
    raises("x.h5': it is text", function() open(path) end)
    raises("is a file; name the folder that it is in", function() open(cbk.fs.join(path, "x.h5")) end)
    cbk.fs.remove(cbk.fs.join(path, "x.h5"))
    cbk.create(cbk.fs.join(path, "x.safetensors"), { root = { data = ids { 2, 3, 4 } } }):commit()
    os.rename(cbk.fs.join(path, "x.safetensors"), cbk.fs.join(path, "x.h5"))
    raises("x.h5': this is safetensors, not HDF5", function() open(path) end)
  end)

  it("is named: files of different lengths, and sequences that are too short", function()
    local path = folder { 3 }
    write(cbk.fs.join(path, "z.h5"), { data = ids { 3, 3, 5 } })
    raises("z.h5': its samples have 5 tokens, but those of", function() open(path) end)
    raises("fewer than max_sequence_length, 9", function() open(folder { 3 }, { max_sequence_length = 9 }) end)
  end)

  it("is named: a record with an id outside of the vocabulary", function()
    local path = folder { 2, 4 }
    equal(#stream(open(path, { limits = { input_ids = 25, labels = 25 } }), 2), 2)
    raises("data-00001.h5': record 3 has the id 24 in labels, but the vocabulary has 24 (vocab_size)",
      function() stream(open(path, { limits = { input_ids = 24, labels = 24 } }), 2) end)
    raises("record 3 has the id 23 in input_ids", function() stream(open(path, { limits = { input_ids = 23, labels = 23 } }), 2) end)
    local negative = with { data = cbk.tensor({ { { 1, -2 }, { 1, 1 }, { 1, -100 } } }, { dtype = "int32" }) }
    local masked = with { data = cbk.tensor({ { { 1, 2 }, { 1, 7 }, { 1, 2 } } }, { dtype = "int32" }) }
    raises("record 0 has 7 in attention_mask, expected a number from 0 to 1",
      function() stream(open(masked, { batch_size = 1, limits = { input_ids = 9, labels = 9 } }), 1) end)
    equal(#stream(open(masked, { batch_size = 1 }), 1), 1)
    raises("record 0 has the id -2 in input_ids",
      function() stream(open(negative, { batch_size = 1, limits = { input_ids = 9, labels = 9 } }), 1) end)
  end)

  it("is named: a record that is damaged after the file was opened", function()
    local path = harness.temp_dir()
    local file = cbk.fs.join(path, "data.h5")
    write(file, { data = cbk.randn({ 4000, 3, 16 }, { seed = 1 }):bits():to "int64" }, { compression = "deflate" })
    local text = cbk.fs.read(file)
    local middle = math.floor(#text / 2)
    cbk.fs.write(file, text:sub(1, middle) .. ("\0"):rep(64) .. text:sub(middle + 65), { overwrite = true })
    raises("cannot be read: ", function() stream(open(path, { batch_size = 100 }), 40) end)
  end)
end)
