-- The samples in folders of HDF5 files of token ids. Their rows are read when they are asked for.

local cbk = require "cbk"
local tensor_kinds = require "cbk.tensor_kinds"
local tensors = require "cstorch.tensors"

local token_samples = {}

---The parts of a sample, in the order of the dataset `data`.
token_samples.FEATURES = { "input_ids", "attention_mask", "labels" }
local FEATURES = token_samples.FEATURES

---@class TokenFile
---@field path string
---@field first integer     the number of its first sample, from 0
---@field count integer     of its samples

---@class TokenSamples
---@field files TokenFile[] in the order of their paths
---@field count integer     samples of all files
---@field length integer    tokens of a sample
---@field vocab_size? integer
local Samples = {}
Samples.__index = Samples

-- --- files

local function folder_files(folder)
  local shown = cbk.quote(folder)
  if not cbk.fs.exists(folder) then
    cbk.fail("io", ("data_dir: there is no folder %s"):format(shown), { file = folder,
      advice = ("'cbk make-data TEXT -o %s' makes one from a text"):format(folder) })
  end
  if not cbk.fs.is_dir(folder) then
    cbk.fail("usage", ("data_dir: %s is a file"):format(shown), { file = folder, advice = "name the folder that it is in" })
  end
  local paths = {}
  for _, name in ipairs(cbk.fs.list(folder)) do
    if name:find "%.h5$" then paths[#paths + 1] = cbk.fs.join(folder, name) end
  end
  if not paths[1] then
    cbk.fail("missing", ("data_dir: %s has no files *.h5"):format(shown), { file = folder,
      advice = "name the folder of the files that cbk make-data or the Model Zoo's preprocessing wrote" })
  end
  return paths
end

--- Paths in the order of their parts, as the Model Zoo sorts them.
local function sorted_files(folders)
  local paths = {}
  for _, folder in ipairs(folders) do
    for _, path in ipairs(folder_files(folder)) do paths[#paths + 1] = path end
  end
  local function parts(path) return (path:gsub("/", "\0")) end
  table.sort(paths, function(a, b) return parts(a) < parts(b) end)
  return paths
end

--- By pread: pages of a mapping would count as memory of this process until all of a shuffled file is in it.
local function open_file(path)
  local before = cbk.read_by "pread"
  local fine, result = pcall(cbk.open, path)
  cbk.read_by(before)
  if not fine then error(result, 0) end
  return result
end

local function shape_text(tensor) return ("[%s]"):format(table.concat(tensor:shape(), ", ")) end

local function misfit(path, code, format, ...)
  cbk.fail(code, ("%s: %s"):format(cbk.quote(path), format:format(...)), { file = path })
end

--- A dataset of whole numbers as int64, which holds all that a file may have.
local function dataset(checkpoint, path, name)
  local tensor = checkpoint:get(name)
  local is_tensor = type(tensor) == "userdata" and tensor_kinds.ALL[cbk.kind(tensor)]
  if not is_tensor then misfit(path, "format", "the dataset '%s' has no numbers", name) end
  if not cbk.dtype(tensor.dtype).integer then
    misfit(path, "dtype", "the dataset '%s' is %s, but token ids are whole numbers (int32)", name, tensor.dtype)
  end
  return tensor:to "int64"
end

local function missing_datasets(checkpoint, path)
  local names = {}
  for key in checkpoint:leaves() do
    if #names < 5 then names[#names + 1] = cbk.quote(key) end
  end
  misfit(path, "format", "expected a dataset 'data' or 'input_ids', 'attention_mask' and 'labels', found %s",
    names[1] and table.concat(names, ", ") or "none")
end

local function three_datasets(checkpoint, path)
  local parts = {}
  for i, name in ipairs(FEATURES) do
    if not checkpoint:has(name) then missing_datasets(checkpoint, path) end
    parts[i] = dataset(checkpoint, path, name)
    if parts[i]:dim() ~= 2 then
      misfit(path, "shape", "expected the shape [samples, tokens] of '%s', found %s", name, shape_text(parts[i]))
    end
    local own, first = shape_text(parts[i]), shape_text(parts[1])
    if own ~= first then misfit(path, "shape", "'%s' is %s, but '%s' is %s", FEATURES[1], first, name, own) end
  end
  return cbk.stack(parts, 1)
end

--- The samples of a file: [samples, 3, tokens], int64.
local function rows_of(path)
  local checkpoint = open_file(path)
  if not checkpoint.format:find "h5$" then misfit(path, "format", "this is %s, not HDF5", checkpoint.format) end
  if not checkpoint:has "data" then return three_datasets(checkpoint, path) end
  local rows = dataset(checkpoint, path, "data")
  local shape = rows:shape()
  if #shape == 3 and shape[2] == 5 then
    misfit(path, "unsupported", "'data' is %s: sequences of variable length (five parts of a sample) cannot be read", shape_text(rows))
  end
  if #shape ~= 3 or shape[2] ~= #FEATURES then
    misfit(path, "shape", "expected the shape [samples, 3, tokens] of 'data', found %s", shape_text(rows))
  end
  return rows
end

-- --- samples

local function cut(self, path, rows)
  local length = rows:shape()[3]
  if not self.full_length then
    self.full_length, self.length = length, self.max_sequence_length or length
  elseif length ~= self.full_length then
    local first = cbk.quote(self.files[1].path)
    misfit(path, "shape", "its samples have %d tokens, but those of %s have %d", length, first, self.full_length)
  end
  if self.length > length then
    misfit(path, "value", "its samples have %d tokens, fewer than max_sequence_length, %d; lower it, or make the data again", length,
      self.length)
  end
  return rows:slice(2, 0, self.length)
end

---Looks at each file of the folders, and keeps none open.
---@param folders string|string[]
---@param options { max_sequence_length: integer?, vocab_size: integer? }   with `vocab_size`, ids are compared with it when they are read
---@return TokenSamples
function token_samples.open(folders, options)
  local self = setmetatable({ files = {}, count = 0, vocab_size = options.vocab_size,
    max_sequence_length = options.max_sequence_length, opened = {}, order = {} }, Samples)
  for _, path in ipairs(sorted_files(type(folders) == "string" and { folders } or folders)) do
    local count = #cut(self, path, rows_of(path))
    self.files[#self.files + 1] = { path = path, first = self.count, count = count }
    self.count = self.count + count
  end
  return self
end

local MOST_OPEN = 32 -- files

--- The rows of a file, which stays open until many others were opened.
local function opened(self, file)
  local rows = self.opened[file]
  if rows then return rows end
  rows = cut(self, file.path, rows_of(file.path))
  if #rows ~= file.count then misfit(file.path, "changed", "it had %d samples when the run began, and now has %d", file.count, #rows) end
  if #self.order == MOST_OPEN then self.opened[table.remove(self.order, 1)] = nil end
  self.opened[file], self.order[#self.order + 1] = rows, file
  return rows
end

---The file that has a sample.
---@param index integer   from 0
---@return TokenFile
function Samples:file_of(index)
  local low, high = 1, #self.files
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if self.files[middle].first <= index then low = middle else high = middle - 1 end
  end
  return self.files[low]
end

--- Rows of one file or several, lazily.
local function gather(self, indices)
  local runs, parts = {}, {}
  for _, index in ipairs(indices) do
    local run = runs[#runs]
    local is_inside = run and index >= run.file.first and index < run.file.first + run.file.count
    if not is_inside then
      run = { file = self:file_of(index), rows = {} }
      runs[#runs + 1] = run
    end
    table.insert(run.rows, index - run.file.first)
  end
  for i, run in ipairs(runs) do parts[i] = opened(self, run.file):index_select(0, run.rows) end
  return parts[2] and cbk.cat(parts, 0) or parts[1]
end

local function read(self, indices) return tensors.tensor(gather(self, indices)) end

--- Reads rows one by one, so that an error names the one that cannot be read.
local function read_singly(self, indices)
  local rows = {}
  for i, index in ipairs(indices) do
    local fine, result = pcall(read, self, { index })
    if not fine and type(result) == "table" and result.code ~= "interrupted" then
      local file = self:file_of(index)
      misfit(file.path, "format", "record %d cannot be read: %s", index - file.first, cbk.problem_text(result))
    elseif not fine then
      error(result, 0)
    end
    rows[i] = result
  end
  return tensors.cat(rows, 0)
end

--- The name of the part with an id outside of the vocabulary, and the id. Negative labels are those that a loss ignores.
local function unknown_id(rows, vocab_size)
  for i = 0, 2, 2 do
    local ids = rows:select(1, i)
    local largest = tonumber(ids:amax():item())
    if largest >= vocab_size then return FEATURES[i + 1], largest end
  end
  local least = tonumber(rows:select(1, 0):amin():item())
  if least < 0 then return FEATURES[1], least end
end

local function check_ids(self, rows, indices)
  if not unknown_id(rows, self.vocab_size) then return end
  for i, index in ipairs(indices) do
    local name, id = unknown_id(rows:slice(0, i - 1, i), self.vocab_size)
    if name then
      local file = self:file_of(index)
      misfit(file.path, "value", "record %d has the id %d in %s, but the vocabulary has %d (vocab_size); was the text encoded by another "
        .. "tokenizer?", index - file.first, id, name, self.vocab_size)
    end
  end
end

---Reads samples: [#indices, 3, length], int64. A record that cannot be read or has an id outside of the vocabulary is an error that
---names it.
---@param indices integer[]   from 0
---@return cstorch.Tensor
function Samples:read(indices)
  local fine, rows = pcall(read, self, indices)
  if not fine then rows = read_singly(self, indices) end
  if self.vocab_size then check_ids(self, rows, indices) end
  return rows
end

return token_samples
