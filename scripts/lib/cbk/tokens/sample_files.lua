-- Samples for training from documents, as the Model Zoo's preprocessing writes them: HDF5 files with a dataset `data`, int32
-- [samples, 3, tokens], of input ids, mask and labels, and data_params.json.

local cbk = require "cbk"
local documents = require "cbk.tokens.documents"
local token_stream = require "cbk.tokens.token_stream"

local sample_files = {}

---@class SampleOptions
---@field key string                 of the text in a line of JSON
---@field max_seq_length integer     tokens of a sample
---@field samples_per_file integer
---@field progress fun(path?: string, bytes?: integer)   called after each piece, and at the end

---@class SampleCounts
---@field documents integer
---@field bytes integer      of their texts
---@field tokens integer     with those that end documents
---@field samples integer
---@field padding integer    tokens that fill the last sample

--- All documents one after another, each with the token that ends it.
local function add_documents(stream, paths, tokenizer, options)
  local counts, encode = { documents = 0, bytes = 0 }, nil
  for _, path in ipairs(paths) do
    documents.read(path, options.key, function(text, is_last)
      encode = encode or tokenizer:encoder()
      stream:add(encode(text, is_last))
      counts.bytes = counts.bytes + #text
      options.progress(path, #text)
      if not is_last then return end
      stream:add { tokenizer.end_of_text }
      encode, counts.documents = nil, counts.documents + 1
    end)
  end
  options.progress()
  return counts
end

--- Fills the last sample; each has one token more than its length, as labels are the tokens that follow.
local function add_padding(stream, counts, length, id)
  counts.tokens = stream.count
  counts.samples = math.ceil((stream.count - 1) / length)
  counts.padding = counts.samples * length + 1 - stream.count
  local padding = {}
  for i = 1, counts.padding do padding[i] = id end
  stream:add(padding)
end

--- 1 for tokens that a loss counts: [samples, length].
local function mask_of(counts, length)
  local last = {}
  for i = 1, length do last[i] = i <= length - counts.padding and 1 or 0 end
  last = cbk.tensor(last, { dtype = "int32", shape = { 1, length } })
  if counts.samples == 1 then return last end
  return cbk.cat({ cbk.full({ counts.samples - 1, length }, 1, { dtype = "int32" }), last }, 0)
end

--- All samples, lazily: int32 [samples, 3, length].
local function samples_of(tokens, counts, length)
  local count = counts.samples
  local function rows(first) return tokens:slice(0, first, first + count * length):reshape { count, length } end
  return cbk.stack({ rows(0), mask_of(counts, length), rows(1) }, 1)
end

---@param paths string[]
---@return Dict
local function params_of(paths, tokenizer, counts, options)
  local names = cbk.list()
  for i, path in ipairs(paths) do names[i] = cbk.fs.basename(path) end
  local seen = counts.samples * options.max_seq_length
  return cbk.dict {
    { "setup", cbk.dict { { "data", cbk.dict { { "type", "local" }, { "source", names } } }, { "mode", "pretraining" } } },
    { "processing", cbk.dict { { "tokenizer", tokenizer.name == "bytes" and "bytes" or cbk.fs.basename(tokenizer.name) },
      { "max_seq_length", options.max_seq_length }, { "eos_id", tokenizer.end_of_text }, { "pad_id", tokenizer.end_of_text },
      { "input_ids_dtype", "int32" }, { "input_mask_dtype", "int32" }, { "samples_per_file", options.samples_per_file } } },
    { "dataset", cbk.dict { { "pack_sequences", true } } },
    { "features", cbk.list { "input_ids", "attention_mask", "labels" } },
    { "post-process", cbk.dict { { "n_examples", counts.samples }, { "documents", counts.documents }, { "raw_bytes_count", counts.bytes },
      { "num_tokens", seen }, { "non_pad_tokens", seen - counts.padding }, { "num_pad_tokens", counts.padding },
      { "vocab_size", tokenizer.vocab_size } } },
  }
end

---What was planned, to be committed as one; `close` after that.
---@class SampleFiles
---@field outputs Output[]
---@field counts SampleCounts
local Files = {}
Files.__index = Files

---Removes the temporary file.
function Files:close() self.stream:remove() end

local function outputs_of(self, folder, samples, params, options)
  local per_file = options.samples_per_file
  for first = 0, self.counts.samples - 1, per_file do
    local number = #self.outputs
    local part = samples:slice(0, first, first + per_file)
    local companions = number == 0 and { ["data_params.json"] = cbk.json(params, { indent = 4 }) .. "\n" } or nil
    self.outputs[number + 1] = cbk.create(cbk.fs.join(folder, ("output_chunk_0_%05d.h5"):format(number)), {
      h5_version = "flat", root = { data = part }, metadata = { n_examples = cbk.int(#part) }, companions = companions })
  end
end

---Encodes documents into a temporary file beside `folder`, and plans the files of samples in it.
---@param folder string
---@param paths string[]
---@param tokenizer Tokenizer
---@param options SampleOptions
---@return SampleFiles
function sample_files.plan(folder, paths, tokenizer, options)
  local length, target = options.max_seq_length, cbk.fs.absolute(folder)
  cbk.fs.mkdir(cbk.fs.dirname(target))
  local self = setmetatable({ outputs = {}, stream = token_stream.create(target) }, Files)
  local fine, problem = pcall(function()
    self.counts = add_documents(self.stream, paths, tokenizer, options)
    if self.stream.count < 2 then cbk.fail("value", "the texts are empty: there is nothing to write") end
    add_padding(self.stream, self.counts, length, tokenizer.end_of_text)
    local samples = samples_of(self.stream:finish(), self.counts, length)
    outputs_of(self, folder, samples, params_of(paths, tokenizer, self.counts, options), options)
  end)
  if fine then return self end
  self:close()
  error(problem, 0)
end

return sample_files
