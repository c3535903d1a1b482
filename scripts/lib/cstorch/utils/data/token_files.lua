-- A restartable source of batches of tokens, over the samples in folders of HDF5 files. Its options and its state are those of the Model
-- Zoo's GptHDF5MapDataProcessor.

local cbk = require "cbk"
local class = require "cstorch.class"
local dataloader_state = require "cbk.dataloader_state"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local record_samples = require "cstorch.utils.data.record_samples"
local session = require "cstorch.session"
local ShardedSampler = require "cstorch.utils.data.sharded_sampler"
local token_samples = require "cstorch.utils.data.token_samples"
local workers = require "cstorch.utils.data.workers"

local check, show = errors.check, errors.show

local token_files = {}

---@class TokenFilesOptions
---@field data_dir string|string[]
---@field batch_size integer             of all systems
---@field shuffle? boolean               each epoch in another order; false by default
---@field shuffle_seed? integer          0 by default
---@field drop_last? boolean             true by default: samples of an incomplete batch begin the next epoch
---@field max_sequence_length? integer   cuts the samples
---@field layout? TokenLayout             what samples have; default: input_ids, attention_mask and labels
---@field limits? table<string, integer>   of parts: a number that is not below it is an error
---@field from_start? boolean            each iteration begins at the first sample, as evaluations do; false by default
---@field source? RecordSource           makes samples of text files; default: HDF5 files

---@class cstorch.utils.data.TokenFiles : cstorch.Class   What an input function returns: batches of the parts of samples.
---@field samples TokenSamples|RecordSamples
---@field batch_size integer   of all systems
local TokenFiles = class.Object:subclass("TokenFiles", {
  data_dir = keywords.REQUIRED, batch_size = keywords.REQUIRED, shuffle = false, shuffle_seed = 0, drop_last = true,
  max_sequence_length = keywords.OPTIONAL, layout = keywords.OPTIONAL, limits = keywords.OPTIONAL, from_start = false,
  source = keywords.OPTIONAL,
})

TokenFiles.positional = 0
class.optional(TokenFiles, "batches")

local function check_count(kw, name, least)
  local value = kw[name]
  local is_count = value == nil or type(value) == "number" and value == math.floor(value) and value >= least and value < 2 ^ 53
  check(is_count, "value", "%s must be an integer >= %d, not %s", name, least, show(value))
end

local function check_folders(value)
  local is_list = type(value) == "table" and value[1] ~= nil
  check(type(value) == "string" or is_list, "type", "data_dir must be a folder or a list of folders, not %s", show(value))
end

---@param kw table
function TokenFiles:init(kw)
  check_folders(kw.data_dir)
  check_count(kw, "batch_size", 1)
  check_count(kw, "shuffle_seed", 0)
  check_count(kw, "max_sequence_length", 1)
  for name, value in pairs(kw) do self[name] = value end
  self.samples = kw.source
    and record_samples.open(kw.source, { data_dir = kw.data_dir, seed = kw.shuffle_seed, limits = kw.limits or {} })
    or token_samples.open(kw.data_dir, { max_sequence_length = kw.max_sequence_length, layout = kw.layout, limits = kw.limits })
  local count = self.samples.count
  check(count > 0, "value", "data_dir %s: its files have no samples", self:_folders())
  local is_csx = session.backend and session.backend.kind == "CSX"
  check(count >= kw.batch_size or not kw.drop_last, "value", "data_dir %s has %d samples, fewer than one batch of %d; lower batch_size%s",
    self:_folders(), count, kw.batch_size, is_csx and " or add data" or ", add data or set drop_last to false")
  self.garbage = 0
  self:_continue(0)
end

function TokenFiles:_folders() return type(self.data_dir) == "string" and cbk.quote(self.data_dir) or table.concat(self.data_dir, ", ") end

--- Continues behind `samples`, which all workers have streamed.
function TokenFiles:_continue(samples)
  local place = workers.get_worker_state() or {}
  self.previous, self.streamed, self.batches = samples, 0, nil
  self.sampler = ShardedSampler {
    dataset_size = self.samples.count, batch_size = self.batch_size, shuffle = self.shuffle, seed = self.shuffle_seed,
    start_index = samples, drop_last = self.drop_last, num_csx = place.num_csx, num_workers_per_csx = place.num_workers_per_csx,
    wse_id = place.wse_id, local_worker_id = place.local_worker_id,
  }
end

---The number of batches of an epoch.
---@return integer
function TokenFiles:length()
  local batches = self.samples.count / self.batch_size
  return self.drop_last and math.floor(batches) or math.ceil(batches)
end

local COLLECT = 8 * 2 ^ 20 -- bytes; Lua's collector does not see how large a batch is

local function batch_of(self, indices)
  local batch = self.samples:read(indices, self.sampler.epoch - 1) -- that of the batches that are iterated
  for _, tensor in pairs(batch) do self.garbage = self.garbage + 16 * tensor:numel() end -- rows and parts, int64
  if self.garbage > COLLECT then
    collectgarbage()
    self.garbage = 0
  end
  return batch
end

--- The numbers of the next batch's samples; nil at the end of the epoch. An epoch in which this worker has no batch left is skipped.
local function next_indices(self, has_begun)
  repeat
    self.batches = self.batches or self.sampler:batches()
    local indices = self.batches()
    if indices then return indices end
    self.batches = nil
  until has_begun
end

---Iterates over the batches up to the end of the epoch, from where the last iteration stopped: so a run continues behind an evaluation,
---and a resumed one behind its checkpoint. With `from_start`, each iteration begins at the first sample, as evaluations do.
---@return fun(): table<string, cstorch.Tensor>?
function TokenFiles:iter()
  if self.from_start then self:_continue(0) end
  local has_begun = false
  return function()
    local indices = next_indices(self, has_begun)
    if not indices then return nil end
    has_begun = true
    self.streamed = self.streamed + #indices
    return batch_of(self, indices)
  end
end

-- --- the position

---The samples that this worker streamed, and those of the runs before.
---@return { samples_streamed: integer, previous_samples_streamed: integer }
function TokenFiles:state_dict() return { samples_streamed = self.streamed, previous_samples_streamed = self.previous } end

--- The options that the state has, by their names in the Model Zoo.
function TokenFiles:_options()
  local folders = type(self.data_dir) == "table" and cbk.list(self.data_dir) or self.data_dir
  local length = self.max_sequence_length or cbk.null
  return cbk.dict {
    { "use_worker_cache", false }, { "max_sequence_length", length }, { "shuffle", self.shuffle }, { "shuffle_seed", self.shuffle_seed },
    { "data_dir", folders }, { "mixture_params", cbk.null }, { "batch_size", self.batch_size }, { "drop_last", self.drop_last },
    { "num_samples", cbk.null }, { "sort_files", true }, { "use_vsl", false }, { "pad_last", false },
  }
end

---The position of all workers: `samples_streamed`, `__version__` and `dataset`, the options.
---@param states table[]   of `state_dict`
---@return Dict
function TokenFiles:aggregate_state_dict(states)
  local state = dataloader_state.aggregate("map", states)
  return dataloader_state.to_dict { kind = "map", version = 1, samples_streamed = state.samples_streamed, dataset = self:_options() }
end

---@param state table
---@return table
function TokenFiles.deaggregate_state_dict(_, state, _) return state end

--- Options that decide which samples come next. The others may change from run to run.
local ORDER = { "shuffle", "shuffle_seed", "drop_last", "mixture_params", "num_samples", "use_vsl" }

local function check_options(saved, own, is_random)
  for _, name in ipairs(ORDER) do
    local before, now = saved[name], own[name]
    local matters = before ~= nil and (name ~= "shuffle_seed" or own.shuffle or is_random)
    if matters and not cbk.equal(before, now) then
      errors.raise("value", "the data loader's state was saved with %s = %s, but this run has %s: other samples would come next; set it as "
        .. "before", name, show(before), show(now))
    end
  end
  if saved.data_dir ~= nil and not cbk.equal(saved.data_dir, own.data_dir) then
    errors.warn(("the data loader's state is of the data in %s; it continues at the same position in %s"):format(
      cbk.json(saved.data_dir, { shown = true }), cbk.json(own.data_dir, { shown = true })))
  end
end

--- Samples that all workers of an iterable loader streamed, which went through the files in another order.
local function of_iterable(state)
  local restart = dataloader_state.restart(state)
  errors.warn(("the data loader's state is of an iterable loader (GptHDF5DataProcessor) with %d workers: this run continues after as many "
    .. "samples (%d), in its own order"):format(#state.workers, restart.samples_streamed))
  return restart.samples_streamed
end

---Continues at a saved position: of this loader, of the Model Zoo's, or of an earlier release's.
---@param saved table
---@param options { strict: boolean }   strict: refuses the state of a run with other options
function TokenFiles:load_state_dict(saved, options)
  local state = dataloader_state.read(saved)
  if state.kind == "iterable" then return self:_continue(of_iterable(state)) end
  local is_strict = not options or options.strict ~= false
  if is_strict and state.version == 1 and state.dataset ~= nil then check_options(state.dataset, self:_options(), self.source ~= nil) end
  local seed = is_strict and self.shuffle and self.shuffle_seed or nil
  self:_continue(dataloader_state.restart(state, { seed = seed }).samples_streamed)
end

---Opens the token files of a folder or of several: what the Model Zoo's processors of HDF5 files read. Those of decoders have a dataset
---`data`, [samples, 3, tokens], or three: input_ids, attention_mask and labels, [samples, tokens]. Rows are read
---when their batch is due, so the data may be larger than memory.
---@param options TokenFilesOptions
---@return cstorch.utils.data.TokenFiles
function token_files.open(options) return TokenFiles(options) end

return token_files
