-- States of data loaders as typed tables: the entry `dataloader` of a checkpoint, and the files that releases 1.8 and 1.9 kept beside
-- their checkpoints. Also computes where a run that loads them continues.

local cbk = require "cbk"
local links = require "cbk.links"
local python_int = require "cbk.python_int"
local scalar = require "cbk.scalar"

local state = {}

---@class MapState                The state of a map-style loader: one count for all workers.
---@field kind "map"
---@field version 0|1             0: releases from 2.0 on; 1: later ones
---@field samples_streamed integer
---@field seed? integer           version 0: the seed of the shuffling
---@field dataset? any            version 1: the dataset's own state, unchanged

---@class ShardState
---@field samples_streamed integer
---@field shard_index integer

---@class IterableState           The state of an iterable loader: a count for each worker.
---@field kind "iterable"
---@field workers ShardState[]    in the order of the file

---@class FilesState              The files that releases 1.8 and 1.9 wrote into `cerebras.save_iter_state_path`.
---@field kind "files"
---@field folder string
---@field step integer            the step of these workers' files
---@field last_step integer       the global step of the last checkpoint
---@field other_workers table<integer, true>   workers with files of other steps
---@field workers { worker: integer, samples_streamed: integer|Value }[]   those of that step, in the order of the workers;
---                               a Value if it is at least 2^53
---@field other_steps integer[]   the steps of files that were not opened

---@alias DataLoaderState MapState|IterableState|FilesState

-- --- the entry of a checkpoint

local function bad(format, ...) cbk.fail("format", "data loader state: " .. format:format(...)) end

local function is_dict(value) return type(value) == "table" or (cbk.kind(value) or ""):find "dict" ~= nil end

local function is_list(value)
  return type(value) == "table" or (cbk.kind(value) or "") == "list" or (cbk.kind(value) or "") == "tuple"
end

--- The whole number at `key`; a tensor with one element is one as well.
local function count_at(dict, key)
  local value = dict[key]
  if type(value) == "userdata" and (cbk.kind(value) or "") == "tensor" and value:numel() == 1 then value = value:item() end
  if type(value) == "cdata" then value = tonumber(value) end
  if type(value) == "userdata" and cbk.kind(value) == "int" then value = tonumber(tostring(value)) end
  if type(value) ~= "number" or value % 1 ~= 0 then bad("'%s' is not a whole number", key) end
  return value
end

--- Fails unless a dict has exactly the keys in `required`, and perhaps those in `optional`.
local function check_keys(what, dict, required, optional)
  local known, found = {}, {}
  for _, key in ipairs(required) do
    known[key] = true
    if dict[key] == nil then bad("%s has no '%s'", what, key) end
  end
  for _, key in ipairs(optional or {}) do known[key] = true end
  for key in cbk.items(dict) do
    if not known[key] then found[#found + 1] = cbk.quote(tostring(key)) end
  end
  if #found > 0 then bad("%s has a key %s that it should not have", what, table.concat(found, ", ")) end
end

local function read_map(value)
  local version = value.__version__ ~= nil and count_at(value, "__version__") or 0
  if version == 0 then
    check_keys("a map state", value, { "samples_streamed", "seed" }, { "__version__" })
    return { kind = "map", version = 0, samples_streamed = count_at(value, "samples_streamed"), seed = count_at(value, "seed") }
  elseif version == 1 then
    check_keys("a map state of version 1", value, { "samples_streamed", "__version__" }, { "dataset" })
    return { kind = "map", version = 1, samples_streamed = count_at(value, "samples_streamed"), dataset = value.dataset }
  end
  bad("its version is %d; 0 and 1 are known", version)
end

local function read_iterable(value)
  check_keys("an iterable state", value, { "all_worker_states" })
  if not is_list(value.all_worker_states) then bad "'all_worker_states' is not a list" end
  local workers = {}
  for i, worker in cbk.items(value.all_worker_states) do
    local what = ("worker state %d"):format(i)
    if not is_dict(worker) then bad("%s is not a dict", what) end
    check_keys(what, worker, { "samples_streamed", "shard_index" })
    workers[i] = { samples_streamed = count_at(worker, "samples_streamed"), shard_index = count_at(worker, "shard_index") }
  end
  return { kind = "iterable", workers = workers }
end

---The state in the entry `dataloader` of a checkpoint of any release. An entry that no release writes is an error.
---@param value any   a Dict, or a Lua table
---@return MapState|IterableState
function state.read(value)
  if value == nil or value == cbk.null or not is_dict(value) then bad "it is not a dict" end
  if value.all_worker_states ~= nil then return read_iterable(value) end
  if value.samples_streamed ~= nil then return read_map(value) end
  bad "neither 'all_worker_states' nor 'samples_streamed' is in it"
end

---The state in a checkpoint, or nil if it has none.
---@param checkpoint Checkpoint
---@return MapState|IterableState|nil
function state.of(checkpoint)
  local root = checkpoint.root
  if not is_dict(root) or root.dataloader == nil or root.dataloader == cbk.null then return nil end
  return state.read(root.dataloader)
end

---The entry `dataloader` for a state.
---@param from MapState|IterableState
---@return Dict
function state.to_dict(from)
  if from.kind == "iterable" then
    local list = cbk.list()
    for i, worker in ipairs(from.workers) do
      list[i] = cbk.dict { { "samples_streamed", worker.samples_streamed }, { "shard_index", worker.shard_index } }
    end
    return cbk.dict { { "all_worker_states", list } }
  elseif from.version == 1 then
    local dict = cbk.dict { { "samples_streamed", from.samples_streamed }, { "__version__", 1 } }
    dict.dataset = from.dataset
    return dict
  end
  return cbk.dict { { "samples_streamed", from.samples_streamed }, { "seed", from.seed } }
end

-- --- states of single workers

---The state of a whole loader from the states of its workers, as a save makes it. For a map loader these are
---{ samples_streamed, previous_samples_streamed } in the order of the workers. For an iterable loader they are { samples_streamed,
---shard_index }, and samples_streamed includes the samples of earlier runs.
---@param kind "map"|"iterable"
---@param workers table[]
---@param seed? integer   map only, 0 by default
---@return MapState|IterableState
function state.aggregate(kind, workers, seed)
  if kind == "map" then
    if #workers == 0 then bad "there is no worker" end
    local total = 0
    for i, worker in ipairs(workers) do
      check_keys(("worker %d"):format(i), worker, { "samples_streamed", "previous_samples_streamed" })
      total = total + count_at(worker, "samples_streamed")
    end
    total = total + count_at(workers[1], "previous_samples_streamed")
    return { kind = "map", version = 0, samples_streamed = total, seed = seed or 0 }
  end
  local sorted = read_iterable { all_worker_states = workers }
  local place = {}
  for i, worker in ipairs(sorted.workers) do place[worker] = i end
  table.sort(sorted.workers, function(a, b)
    if a.shard_index ~= b.shard_index then return a.shard_index < b.shard_index end
    return place[a] < place[b]
  end)
  return sorted
end

-- --- the files of 1.8 and 1.9

local LARGEST = 9.2e18 -- the range of int64, with a margin for Lua's rounding

local function check_int64(count, what)
  if math.abs(count) > LARGEST then cbk.fail("value", ("%s, %.3g, are more than a checkpoint can hold"):format(what, count)) end
end

local GLOBAL = "data_iter_checkpoint_state_file_global"

---Whether a folder holds such files.
---@param folder string
function state.is_files(folder) return cbk.fs.exists(cbk.fs.join(folder, GLOBAL)) end

local function first_number(folder, name, is_wide)
  local path = links.file(folder, name, "put the file itself there, if you trust it") or cbk.fs.join(folder, name)
  local line = cbk.fs.read(path):match "^[^\r\n]*"
  local number, problem = python_int(line, is_wide)
  return number or cbk.fail("value", ("'%s': its first line, %s, %s"):format(path, cbk.quote(line), problem), { file = path })
end

--- Worker and step from a name such as data_iter_state_file_worker_2_step_100.txt: the third part from the end, and the last.
local function parse_name(folder, name)
  local fields = {}
  for field in (name .. "_"):gmatch "([^_]*)_" do fields[#fields + 1] = field end
  local worker = #fields >= 3 and python_int(fields[#fields - 2])
  local step = worker and python_int(fields[#fields]:match "^[^.]*")
  if not step then
    cbk.fail("value", ("'%s' is not a worker's state file (expected …_WORKER_step_STEP.txt); remove other .txt files from the folder")
      :format(cbk.fs.join(folder, name)))
  end
  return worker, step
end

---@param folder string
---@return integer   the global step of the last checkpoint
local function global_step(folder)
  if not cbk.fs.is_dir(folder) then
    local from = folder:find "^/" and "" or (" (relative to '%s')"):format(cbk.fs.absolute ".")
    cbk.fail("io", ("'%s' is not a folder%s"):format(folder, from), { file = folder })
  end
  local path = cbk.fs.join(folder, GLOBAL)
  if not cbk.fs.exists(path) then
    cbk.fail("io", ("'%s' is missing: the step of the last checkpoint is unknown"):format(path), { file = path })
  end
  return first_number(folder, GLOBAL)
end

---Reads the folder that releases 1.8 and 1.9 kept (`cerebras.save_iter_state_path`). Files of other steps are not opened.
---@param folder string
---@param wanted? integer   the step to read, if it has files; else the step of the last checkpoint
---@return FilesState
function state.read_files(folder, wanted)
  local last, names, is_there = global_step(folder), {}, false
  for _, name in ipairs(cbk.fs.list(folder)) do
    if name:find "%.txt$" then
      local worker, step = parse_name(folder, name)
      names[#names + 1] = { name = name, worker = worker, step = step }
      is_there = is_there or step == wanted
    end
  end
  local out = { kind = "files", folder = folder, step = is_there and wanted or last, last_step = last, workers = {}, other_steps = {},
    other_workers = {} }
  local place, seen = {}, {}
  for i, one in ipairs(names) do
    if one.step == out.step then
      local path = cbk.fs.join(folder, one.name)
      local state_of = { worker = one.worker, samples_streamed = first_number(folder, one.name, true) }
      check_int64(tonumber(tostring(state_of.samples_streamed)), ("'%s': its samples"):format(path))
      place[state_of] = i
      out.workers[#out.workers + 1] = state_of
    else
      out.other_workers[one.worker] = true
      if not seen[one.step] then out.other_steps[#out.other_steps + 1], seen[one.step] = one.step, true end
    end
  end
  table.sort(out.other_steps)
  table.sort(out.workers, function(a, b)
    if a.worker ~= b.worker then return a.worker < b.worker end
    return place[a] < place[b]
  end)
  return out
end

---The step of a checkpoint, or nil.
---@param root Dict
---@return number|nil
function state.step_of(root)
  local step = is_dict(root) and scalar.of(root, "global_step")
  return step and tonumber(step) or nil
end

local function joined(numbers, what)
  local shown = table.concat(numbers, ", ", 1, math.min(#numbers, 10)) .. (#numbers > 10 and ", …" or "")
  return ("%s%s %s"):format(what, #numbers == 1 and "" or "s", shown)
end

---Problems in a set of workers: missing or repeated workers, or negative counts.
---@param from IterableState|FilesState
---@return string[] warnings
function state.worker_doubts(from)
  local out, count, largest, others = {}, {}, -1, from.other_workers or {}
  local missing, doubled, negative = {}, {}, {}
  for _, one in ipairs(from.workers) do
    local worker = one.worker or one.shard_index
    count[worker] = (count[worker] or 0) + 1
    if count[worker] == 2 then doubled[#doubled + 1] = worker end
    if tonumber(tostring(one.samples_streamed)) < 0 then negative[#negative + 1] = worker end
    largest = math.max(largest, worker)
  end
  if #from.workers == 0 then return out end
  for worker = 0, math.min(largest, 2 ^ 16) do
    if not count[worker] then missing[#missing + 1] = worker end
  end
  for worker in pairs(others) do
    if worker > largest then missing[#missing + 1] = worker end
  end
  table.sort(missing)
  if #missing > 0 then out[#out + 1] = joined(missing, "there is no state of worker") .. ": their samples are not counted" end
  if #doubled > 0 then out[#out + 1] = "there are several states of " .. joined(doubled, "worker") .. ": all of them are counted" end
  if #negative > 0 then out[#out + 1] = "the count of samples is negative in the state of " .. joined(negative, "worker") end
  return out
end

---Signs that the files belong to another checkpoint.
---@param files FilesState
---@param root Dict     the checkpoint's tree
---@param step? number  the checkpoint's step, if its tree may lack it
---@return string[] warnings
---@return boolean is_useless   neither the step nor any worker's file is the checkpoint's
---@return boolean is_other     the step is not the checkpoint's; the first warning says so
function state.doubts(files, root, step)
  local out = {}
  step = step or state.step_of(root)
  local is_other = step ~= nil and step ~= files.step
  local steps = #files.other_steps > 0 and (" (there are files of %s)"):format(joined(files.other_steps, "step")) or ""
  if is_other then
    out[1] = ("the data loaders' files in '%s' are of step %d, but the checkpoint is of step %d: the run would resume elsewhere in its "
      .. "data%s"):format(files.folder, files.step, step, steps)
  elseif files.step ~= files.last_step then
    out[1] = ("the data loaders' files of step %d in '%s' are used, as the checkpoint is of that step; the last checkpoint was of step %d")
      :format(files.step, files.folder, files.last_step)
  end
  if #files.workers == 0 then
    out[#out + 1] = ("'%s' has no worker's file of step %d, the last checkpoint's%s: the new state says that no samples were streamed")
      :format(files.folder, files.step, steps)
  end
  for _, warning in ipairs(state.worker_doubts(files)) do out[#out + 1] = ("'%s': %s"):format(files.folder, warning) end
  return out, is_other and #files.workers == 0, is_other
end

--- The exact sum; a Value from 2^53 on.
local function total_of(workers)
  local total, exact = 0, 0LL
  for _, worker in ipairs(workers) do
    local samples = worker.samples_streamed
    local text = type(samples) == "number" and ("%d"):format(samples) or tostring(samples)
    local digits = text:gsub("^%-", "")
    local number = (tonumber(digits:sub(1, -10)) or 0) * 1000000000LL + tonumber(digits:sub(-9))
    exact = text:find "^%-" and exact - number or exact + number
    total = total + tonumber(text)
  end
  if math.abs(total) < 2 ^ 53 then return total end
  check_int64(total, "the workers' samples together")
  return cbk.int((tostring(exact):gsub("LL$", "")))
end

--- A count as a number, rounded from 2^53 on.
local function rounded(count) return tonumber(tostring(count)) end

---The state for a checkpoint of release 2.0, from the files of the earlier run.
---@param files FilesState
---@param kind "map"|"iterable"
---@param seed? integer   map only, 0 by default
---@return MapState|IterableState
function state.from_files(files, kind, seed)
  if kind == "map" then return { kind = "map", version = 0, samples_streamed = total_of(files.workers), seed = seed or 0 } end
  local workers = {}
  for i, one in ipairs(files.workers) do workers[i] = { samples_streamed = one.samples_streamed, shard_index = one.worker } end
  return { kind = "iterable", workers = workers }
end

-- --- where a run continues

---@class Run                    A run that loads a state; unknown facts are left out.
---@field workers? integer       tasks that stream
---@field batch_size? integer    samples of one batch
---@field seed? integer          of the shuffling or mixing; leave it out if the run does neither
---@field kind? "map"|"iterable" for files, which do not record it; iterable by default

---@class RestartTask
---@field task integer           from 0
---@field shard_index integer    the shard whose state it takes
---@field samples_streamed integer
---@field batch_index? integer   with a batch size: the first batch to come, counted from 0

---@class Restart
---@field kind "map"|"iterable"
---@field samples_streamed integer  of all
---@field tasks? RestartTask[]      iterable
---@field from_start boolean        this run cannot use the state
---@field warnings string[]

local function restart_map(samples) return { kind = "map", samples_streamed = samples, from_start = false, warnings = {} } end

local function restart_iterable(workers, run)
  local out = { kind = "iterable", samples_streamed = rounded(total_of(workers)), tasks = {}, from_start = false, warnings = {} }
  local count = run.workers or #workers
  if count ~= #workers then
    out.from_start, out.samples_streamed = true, 0
    out.warnings[1] = ("the state is of %d workers, but the run has %d: all of them start from sample 0"):format(#workers, count)
    for task = 0, count - 1 do
      out.tasks[task + 1] = { task = task, shard_index = task, samples_streamed = 0 }
    end
    return out
  end
  local offset = 0 -- the next worker is the first of those with the fewest samples
  for i, worker in ipairs(workers) do
    if worker.samples_streamed < workers[offset + 1].samples_streamed then offset = i - 1 end
  end
  for task = 0, count - 1 do
    local worker = workers[(task + offset) % count + 1]
    out.tasks[task + 1] = { task = task, shard_index = worker.shard_index, samples_streamed = worker.samples_streamed }
  end
  return out
end

--- In 1.8 and 1.9 each worker continues from its own file, at a whole batch.
local function restart_files(files, run)
  local total = rounded(total_of(files.workers))
  if run.kind == "map" then return restart_map(total) end
  local out = { kind = "iterable", samples_streamed = total, tasks = {}, from_start = false, warnings = {} }
  for i, one in ipairs(files.workers) do
    local samples = rounded(one.samples_streamed)
    out.tasks[i] = { task = one.worker, shard_index = one.worker, samples_streamed = samples,
      batch_index = run.batch_size and math.ceil(samples / run.batch_size) }
  end
  if run.workers and run.workers ~= #files.workers then
    out.warnings[1] = ("there are files of %d workers, but the run has %d"):format(#files.workers, run.workers)
  end
  return out
end

---Where a run that loads the state continues. If the run must not load the state, it is an error.
---@param from DataLoaderState
---@param run? Run
---@return Restart
function state.restart(from, run)
  run = run or {}
  if from.kind == "files" then return restart_files(from, run) end
  if from.kind == "iterable" then return restart_iterable(from.workers, run) end
  if run.seed and from.seed and run.seed ~= from.seed then
    cbk.fail("value", ("the state has seed %d, but the run has seed %d: a run that shuffles or mixes its data refuses the state")
      :format(from.seed, run.seed))
  end
  return restart_map(from.samples_streamed)
end

return state
