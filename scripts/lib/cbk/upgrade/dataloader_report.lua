-- Reports where a run resumes in its data, for people or as JSON: `cbk show --dataloader`, and the plan of `cbk upgrade`.

local cbk = require "cbk"
local cli = require "cbk.cli"
local dataloader_state = require "cbk.dataloader_state"
local errors = require "cbk.errors"
local numbers = require "cbk.numbers"

local report = {}

--- "915 samples"
local function samples(count) return ("%s sample%s"):format(numbers.grouped(count), count == 1 and "" or "s") end

local FORMS = {
  files = function(state)
    local others = #state.other_steps > 0 and ("; there are also files of step %s"):format(table.concat(state.other_steps, ", ")) or ""
    return ("files of release 1.8 or 1.9, step %d, %d workers%s"):format(state.step, #state.workers, others)
  end,
  iterable = function(state) return ("iterable, states of %d workers"):format(#state.workers) end,
  map = function(state)
    if state.version == 1 then return "map style, version 1" .. (state.dataset ~= nil and ", with the dataset's own state" or "") end
    return ("map style, seed %s"):format(tostring(state.seed))
  end,
}

--- Whole batches that are done, and samples of the one that was begun.
local function batches(count, size)
  local rest, whole = count % size, math.floor(count / size)
  return ("%s %s of %d%s"):format(numbers.grouped(whole), whole == 1 and "batch" or "batches", size,
    rest > 0 and " and " .. samples(rest) or "")
end

local function map_lines(restart, run)
  local behind = run.batch_size and (" (%s)"):format(batches(restart.samples_streamed, run.batch_size)) or ""
  return { ("all workers together resume after %s%s"):format(samples(restart.samples_streamed), behind) }
end

local function task_lines(restart, run)
  local out = {}
  for i, task in ipairs(restart.tasks) do
    local batch = task.batch_index and (", at batch %s"):format(numbers.grouped(task.batch_index))
      or run.batch_size and (" (%s)"):format(batches(task.samples_streamed, run.batch_size)) or ""
    local shard = task.shard_index ~= task.task and (" from worker %d's state"):format(task.shard_index) or ""
    out[i] = ("task %d resumes%s after %s%s"):format(task.task, shard, samples(task.samples_streamed), batch)
  end
  if #out == 0 then out[1] = "no worker had streamed anything: every task begins at sample 0" end
  return out
end

---A description of a state: "iterable, states of 2 workers".
---@param state DataLoaderState
---@return string
function report.form(state) return FORMS[state.kind](state) end

---Where the tasks of a run continue, one line each.
---@param restart Restart
---@param run Run
---@return string[]
function report.lines(restart, run)
  return restart.kind == "map" and map_lines(restart, run) or task_lines(restart, run)
end

local function read(path, args)
  if cbk.fs.is_dir(path) and dataloader_state.is_files(path) then return dataloader_state.read_files(path) end
  local state = dataloader_state.of(cbk.open(path, cli.reading(args)))
  return state or cbk.fail("key", "there is no 'dataloader' in it: a run that loads it begins at sample 0")
end

local function print_json(restarts)
  local by_kind = cbk.dict()
  for _, restart in ipairs(restarts) do
    restart.warnings, restart.tasks = cbk.list(restart.warnings), restart.tasks and cbk.list(restart.tasks)
    by_kind[restart.kind] = restart
  end
  cli.print_json(#restarts == 1 and restarts[1] or by_kind)
end

---`cbk show --dataloader`.
---@param args table   the parsed command line
function report.show(args)
  if #args.key > 0 then cli.usage_error("show", "--dataloader takes no key") end
  if args.batch_size == 0 or args.workers == 0 then cli.usage_error("show", "--workers and --batch-size must be at least 1") end
  local ok, state = pcall(read, args.file, args)
  local function refuse(problem)
    local is_named = type(problem) == "table" and problem.file ~= nil
    error(is_named and problem or errors.put_in(problem, ("'%s'"):format(args.file)), 0)
  end
  if not ok then refuse(state) end
  if state.workers then cli.warn(dataloader_state.worker_doubts(state)) end
  local kinds = state.kind == "files" and { "map", "iterable" } or { state.kind }
  local restarts = {}
  for i, kind in ipairs(kinds) do
    local run = { workers = args.workers, batch_size = args.batch_size, seed = args.seed, kind = kind }
    local possible, restart = pcall(dataloader_state.restart, state, run)
    if not possible then refuse(restart) end
    restarts[i] = restart
    cli.warn(restart.warnings)
  end
  if args.json then return print_json(restarts) end
  print(("%s: %s"):format(args.file, report.form(state)))
  for _, restart in ipairs(restarts) do
    if state.kind == "files" then print(("as %s loader:"):format(restart.kind == "map" and "a map-style" or "an iterable")) end
    for _, line in ipairs(report.lines(restart, args)) do print("  " .. line) end
  end
end

return report
