-- The data of a run: loaders for the sections of a params.yaml, and parts of batches.

local cstorch = require "cstorch"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local params = require "cbk.training.params"
local tensors = require "cstorch.tensors"
local text_data = require "cbk.training.text_data"
local token_files = require "cstorch.utils.data.token_files"

local data = {}

---@class DataOptions
---@field place string         of the section in the file, for messages
---@field task TrainingTaskKind
---@field layout TokenLayout
---@field module cstorch.models.Trainable   whose limits samples keep
---@field accumulated? integer   batches that are one here; default 1
---@field from_start? boolean    each loop begins at the first sample
---@field systems? integer       that share a batch; default 1
---@field is_typed? boolean      options of a command are over the section

---@param run ParamsReader
---@param options DataOptions
---@param processor string
local function check_processor(run, options, processor)
  for _, known in ipairs(options.task.processors) do
    if processor == known then return end
  end
  local advice = options.task.advice and "; " .. options.task.advice or ""
  params.refuse(run, options.place .. ".data_processor",
    ("'%s' is not emulated; known: %s%s"):format(processor, table.concat(options.task.processors, ", "), advice))
end

---@class DataFacts
---@field samples? integer   in all files; nil before the loader's first use

---A loader of the data that a section names.
---@param run ParamsReader
---@param section Dict
---@param options DataOptions
---@return cstorch.utils.data.DataLoader, DataFacts
function data.loader(run, section, options)
  local processor = type(section.data_processor) == "string" and naming.last(section.data_processor) or nil
  if processor then check_processor(run, options, processor) end
  local texts = text_data.of(processor)
  local read = params.data(run, section, options.place, texts and texts.fields)
  for _, name in ipairs(texts and texts.needed or { "data_dir", "batch_size" }) do
    if not read[name] then params.refuse(run, options.place, ("it has no '%s'"):format(name)) end
  end
  if read.drop_last == false and cstorch.use_cs() then
    params.refuse(run, options.place .. ".drop_last", "false needs the backend CPU or GPU, as CSX needs batches of one size; remove it")
  end
  if read.drop_last == false and (options.accumulated or 1) > 1 then
    params.refuse(run, options.place .. ".drop_last", "false needs grad_accum_steps: 1, as the last batch has fewer samples")
  end
  if read.batch_size < (options.systems or 1) then
    params.refuse(run, options.place .. ".batch_size", ("%s cannot be shared by %d systems (num_csx, or ranks), which need one sample each")
      :format(numbers.counted(read.batch_size, "sample"), options.systems))
  end
  local own = {
    data_dir = read[texts and texts.folder or "data_dir"], batch_size = read.batch_size * (options.accumulated or 1),
    shuffle = read.shuffle, shuffle_seed = read.shuffle_seed, max_sequence_length = read.max_sequence_length, layout = options.layout,
    limits = options.module:limits(), drop_last = read.drop_last ~= false, from_start = options.from_start,
  }
  if texts and own.shuffle == nil then own.shuffle = texts.shuffles end
  local longest, facts = options.module:longest(), {}
  local function open()
    if texts then own.source = text_data.source(run, texts, read, options) end
    return token_files.open(own)
  end
  return cstorch.utils.data.DataLoader(function()
    local files = options.is_typed and open() or params.at_field(run, options.place, open)
    if files.samples.length > longest then
      params.refuse(run, options.place, ("its samples have %d tokens, and the model %d positions; set max_sequence_length to fewer tokens, "
        .. "or give the model a larger max_position_embeddings"):format(files.samples.length, longest))
    end
    facts.samples = files.samples.count
    return files
  end, { batch_size = own.batch_size }), facts
end

---What to try if the loss of a batch is not finite: nil where the batch is not the reason.
---@param batch table<string, cstorch.Tensor>
---@return string|nil
function data.advice(batch)
  for name, tensor in pairs(batch) do
    local counts_none = name:find "mask$" and tensors.readable(true, function() return tensor:sum():item() == 0 end)
    if counts_none then
      return ("'%s' is 0 in the whole batch, so that no token counts: leave out such samples, or set a larger batch_size"):format(name)
    end
  end
end

---One of several equal parts of a batch, along its first dim.
---@param batch table<string, cstorch.Tensor>
---@param i integer       from 0
---@param count integer
---@return table<string, cstorch.Tensor>
function data.part(batch, i, count)
  if count == 1 then return batch end
  local out = {}
  for name, tensor in pairs(batch) do
    local size = tensor:size(0) / count
    out[name] = tensor:slice(0, i * size, (i + 1) * size)
  end
  return out
end

return data
