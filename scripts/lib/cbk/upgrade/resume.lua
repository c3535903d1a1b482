-- Where a run continues in its data after it loads a checkpoint, according to its config.

local cbk = require "cbk"
local dataloader_report = require "cbk.upgrade.dataloader_report"
local dataloader_state = require "cbk.dataloader_state"
local errors = require "cbk.errors"
local naming = require "cbk.naming"
local zoo_checkpoint = require "converters.modelzoo.checkpoint"

local resume = {}

local function is_dict(tree) return (cbk.kind(tree) or ""):find "dict" ~= nil end

---The whole number at a path of a config, or nil.
local function whole(config, place)
  local value = cbk.find(config, place)
  return type(value) == "number" and value % 1 == 0 and value > 0 and value or nil
end

--- The releases' names for the run's options, before and after the trainer layout.
local clusters = { "trainer.init.backend.cluster_config.", "runconfig." }

---The number of tasks that stream, if it is in the config.
local function workers_of(config)
  for _, cluster in ipairs(clusters) do
    local systems, workers = cbk.find(config, cluster .. "num_csx"), cbk.find(config, cluster .. "num_workers_per_csx")
    if systems ~= nil or workers ~= nil then
      systems = systems == nil and 1 or whole(config, cluster .. "num_csx")
      workers = workers == nil and 1 or whole(config, cluster .. "num_workers_per_csx")
      return systems and workers and systems * workers
    end
  end
end

---The known facts about the run that loads a checkpoint.
---@param config Dict
---@return Run
function resume.run_of(config)
  local run = { workers = workers_of(config) }
  for _, place in ipairs { "trainer.fit.train_dataloader", "train_input" } do
    local input = cbk.find(config, place)
    if is_dict(input) then
      local seed = zoo_checkpoint.shuffle_seed(input)
      run.batch_size, run.seed = whole(config, place .. ".batch_size"), seed and tonumber(tostring(seed))
      break
    end
  end
  return run
end

---The fields that select which parts of a checkpoint the run loads.
local function selections(config)
  local out = {}
  local function add(field, value)
    if value ~= nil and value ~= cbk.null then out[#out + 1] = { field = field, value = value } end
  end
  add("runconfig.load_checkpoint_states", cbk.find(config, "runconfig.load_checkpoint_states"))
  local callbacks = cbk.find(config, "trainer.init.callbacks")
  for i, callback in cbk.items((cbk.kind(callbacks) or "") == "list" and callbacks or cbk.list()) do
    local loads = is_dict(callback) and callback.LoadCheckpointStates
    local field = ("trainer.init.callbacks.%d.LoadCheckpointStates"):format(i - 1)
    if is_dict(loads) then
      add(field .. ".load_checkpoint_states", loads.load_checkpoint_states)
    elseif loads then
      add(field, loads)
    end
  end
  return out
end

---Names in a list, or in a text with commas.
local function names_in(value)
  local out = {}
  if type(value) == "string" then
    for name in value:gmatch "[^,]+" do out[naming.trimmed(name)] = true end
  elseif (cbk.kind(value) or "") == "list" then
    for _, name in cbk.items(value) do out[tostring(name)] = true end
  end
  return out
end

---Why the run ignores the state of its data loader, or nil.
---@param config Dict
---@return string|nil
function resume.unloaded(config)
  for _, one in ipairs(selections(config)) do
    local names = names_in(one.value)
    if not names.dataloader and not names.all then
      return ("%s is %s: the run ignores this state and begins at sample 0; add dataloader there to resume")
        :format(one.field, cbk.json(one.value))
    end
  end
end

---@param root Dict     the checkpoint's tree
---@param config Dict
---@return UpgradePart
function resume.part(root, config)
  local part = { title = "data loader", lines = {}, warnings = {} }
  local ok, problem = pcall(function()
    local state = dataloader_state.of { root = root }
    if not state then
      part.lines[1] = "no state: a run that loads the checkpoint begins at sample 0"
      return
    end
    part.lines[1] = dataloader_report.form(state)
    local unloaded = resume.unloaded(config)
    if unloaded then
      part.warnings[1] = unloaded
      return
    end
    local run = resume.run_of(config)
    local restart = dataloader_state.restart(state, run)
    part.warnings = restart.warnings
    for _, line in ipairs(dataloader_report.lines(restart, run)) do part.lines[#part.lines + 1] = line end
  end)
  if not ok then part.warnings[1] = errors.text(problem) end
  return part
end

return resume
