-- The samples in folders of HDF5 files of token ids. Their rows are read when they are asked for.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local tensor_kinds = require "cbk.tensor_kinds"
local tensors = require "cstorch.tensors"

local token_samples = {}

---@class TokenLayout   What a sample has, and how files hold it.
---@field groups string[][]                  parts of one length each, the tokens of the text first; `is_single`: one number each
---@field optional? table<string, true>      parts that files may lack
---@field datasets? TokenDataset[]           that hold several parts; files without them have a dataset for each part, or say in
---                                          data_params.json what `data`, or `data_0`, `data_1` and so on hold
---@field within? table<string, string>      numbers in one part that are places in another

---@class TokenDataset
---@field name string
---@field parts string[]
---@field is_partial? boolean   it may have the first part alone

---The layout of decoders' samples.
---@type TokenLayout
token_samples.TEXTS = {
  groups = { { "input_ids", "attention_mask", "labels" } },
  datasets = { { name = "data", parts = { "input_ids", "attention_mask", "labels" } } },
}

---@class TokenFile
---@field path string
---@field first integer     the number of its first sample, from 0
---@field count integer     of its samples

---@class TokenSource   Rows that belong together, and the parts of a sample that they hold.
---@field rows Tensor      [samples, parts, length], [samples, parts], [samples, length] or [samples]; int64
---@field parts string[]
---@field is_one boolean   one part without a dim for it

---@class TokenSamples
---@field files TokenFile[] in the order of their paths
---@field count integer     samples of all files
---@field length integer    tokens of a sample
---@field lengths table<string, integer|false>   of each part; false: one number
---@field layout TokenLayout
---@field limits table<string, integer>
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

local function quoted(names)
  local out = {}
  for i, name in ipairs(names) do out[i] = cbk.quote(name) end
  return #out > 1 and table.concat(out, ", ", 1, #out - 1) .. " and " .. out[#out] or out[1]
end

---The parts that files must have.
---@param layout TokenLayout
---@return string[]
local function needed(layout)
  local out = {}
  for _, group in ipairs(layout.groups) do
    for _, part in ipairs(group) do
      if not (layout.optional or {})[part] then out[#out + 1] = part end
    end
  end
  return out
end

local function refuse_datasets(checkpoint, path, layout)
  local names, usual = {}, {}
  for key in checkpoint:leaves() do
    if #names < 5 then names[#names + 1] = cbk.quote(key) end
  end
  for i, one in ipairs(layout.datasets or {}) do usual[i] = one.name end
  local stated = usual[1] and ("%s %s or "):format(usual[2] and "datasets" or "a dataset", quoted(usual)) or ""
  misfit(path, "format", "expected %s%s, found %s", stated, quoted(needed(layout)), names[1] and table.concat(names, ", ") or "none")
end

---What data_params.json says.
---@param folder string
---@return Dict|nil params, string file
local function data_params(folder)
  local file = cbk.fs.join(folder, "data_params.json")
  if not cbk.fs.exists(file) then return nil, file end
  local fine, params = pcall(cbk.parse_json, cbk.fs.read(file))
  if not fine then misfit(file, "format", "%s", cbk.problem_text(params)) end
  if cbk.kind(params) ~= "dict" then misfit(file, "format", "expected an object, found %s", cbk.json(params, { shown = true })) end
  return params, file
end

---Warns if files may have ids that the model lacks.
---@param folder string
---@param limit integer   ids of the model
local function warn_of_vocabulary(folder, limit)
  local params, file = data_params(folder)
  local counts = params and params["post-process"]
  local ids = cbk.kind(counts) == "dict" and counts.vocab_size or nil
  if ids ~= nil and ids ~= cbk.null and type(ids) ~= "number" then
    misfit(file, "format", "post-process.vocab_size: expected a number, found %s", cbk.json(ids, { shown = true }))
  end
  if type(ids) ~= "number" or ids <= limit then return end
  errors.warn(("%s: the data's tokenizer has %d ids, and the model %d (vocab_size): a record with an id of the others will end the run; "
    .. "correct vocab_size, or make the data with the model's tokenizer"):format(cbk.quote(file), ids, limit))
end

---What data_params.json says of the datasets in the files beside it.
---@param path string   of a file
---@return TokenDataset[]|nil
local function described_datasets(path)
  local params = data_params(cbk.fs.dirname(path))
  if not params then return nil end
  local out, i = {}, 0
  local function add(name, parts)
    if cbk.kind(parts) == "list" and #parts > 0 then out[#out + 1] = { name = name, parts = cbk.totable(parts) } end
  end
  add("data", params.features)
  while params[("data_%d_features"):format(i)] do
    add(("data_%d"):format(i), params[("data_%d_features"):format(i)])
    i = i + 1
  end
  return out[1] and out
end

local function has_all(checkpoint, datasets)
  for _, one in ipairs(datasets or {}) do
    if not checkpoint:has(one.name) then return false end
  end
  return datasets ~= nil
end

---@param checkpoint Checkpoint
---@param path string
---@param one TokenDataset
---@return TokenSource
local function source_of(checkpoint, path, one)
  local rows = dataset(checkpoint, path, one.name)
  local shape, count = rows:shape(), #one.parts
  if one.is_partial and shape[2] == 1 then return { rows = rows, parts = { one.parts[1] } } end
  if #shape == 3 and shape[2] == 5 and count == 3 then
    misfit(path, "unsupported", "'%s' is %s: sequences of variable length (five parts of a sample) cannot be read", one.name,
      shape_text(rows))
  end
  if #shape < 2 or #shape > 3 or shape[2] ~= count then
    misfit(path, "shape", "expected the shape [samples, %d, tokens] of '%s', found %s", count, one.name, shape_text(rows))
  end
  return { rows = rows, parts = one.parts }
end

---@param checkpoint Checkpoint
---@param path string
---@param layout TokenLayout
---@return TokenSource[]
local function sources_of(checkpoint, path, layout)
  local datasets, out = has_all(checkpoint, layout.datasets) and layout.datasets or nil, {}
  if not datasets then
    local described = described_datasets(path)
    datasets = has_all(checkpoint, described) and described or nil
  end
  for i, one in ipairs(datasets or {}) do out[i] = source_of(checkpoint, path, one) end
  if datasets then return out end
  for _, group in ipairs(layout.groups) do
    for _, part in ipairs(group) do
      if checkpoint:has(part) then
        local rows = dataset(checkpoint, path, part)
        local is_column = group.is_single and rows:dim() == 2 and rows:shape()[2] == 1
        if is_column then rows = rows:select(1, 0) end
        if rows:dim() ~= (group.is_single and 1 or 2) then
          misfit(path, "shape", "expected the shape %s of '%s', found %s", group.is_single and "[samples]" or "[samples, tokens]", part,
            shape_text(rows))
        end
        out[#out + 1] = { rows = rows, parts = { part }, is_one = true }
      end
    end
  end
  return out
end

---The lengths of the parts of a sample; false: one number.
---@param sources TokenSource[]
---@return table<string, integer|false>
local function lengths_of(sources)
  local out = {}
  for _, source in ipairs(sources) do
    local shape = source.rows:shape()
    for _, part in ipairs(source.parts) do out[part] = shape[source.is_one and 2 or 3] or false end
  end
  return out
end

---Fails if a file lacks a part, or parts of one group have other lengths.
local function check_parts(checkpoint, path, layout, sources)
  local lengths = lengths_of(sources)
  for _, part in ipairs(needed(layout)) do
    if lengths[part] == nil then refuse_datasets(checkpoint, path, layout) end
  end
  for _, source in ipairs(sources) do
    if #source.rows ~= #sources[1].rows then
      misfit(path, "shape", "'%s' has %d samples, but '%s' has %d", sources[1].parts[1], #sources[1].rows, source.parts[1], #source.rows)
    end
  end
  for _, group in ipairs(layout.groups) do
    local first = group[1]
    if lengths[first] == 0 then misfit(path, "shape", "'%s' has 0 tokens in each sample; expected at least one", first) end
    for _, part in ipairs(group.is_single and {} or group) do
      if lengths[part] ~= nil and lengths[part] ~= lengths[first] then
        local count = #sources[1].rows
        misfit(path, "shape", "'%s' is [%d, %s], but '%s' is [%d, %s]", first, count, tostring(lengths[first]), part, count,
          tostring(lengths[part]))
      end
    end
  end
  return lengths
end

-- --- samples

---Fails if the parts of a file's samples have other lengths than those of the first file.
---@param self TokenSamples
---@param path string
---@param lengths table<string, integer|false>
local function check_lengths(self, path, lengths)
  local text = self.layout.groups[1][1]
  if not self.full_lengths then
    self.full_lengths, self.lengths = lengths, lengths
    self.length = self.max_sequence_length or lengths[text]
    if self.length < lengths[text] and #self.layout.groups > 1 then
      misfit(path, "value", "its samples have %d tokens, and such samples cannot be cut to max_sequence_length, %d", lengths[text],
        self.length)
    end
  end
  local first = cbk.quote(self.files[1] and self.files[1].path or path)
  if lengths[text] ~= self.full_lengths[text] then
    misfit(path, "shape", "its samples have %d tokens, but those of %s have %d", lengths[text], first, self.full_lengths[text])
  end
  for part, length in pairs(self.full_lengths) do
    if lengths[part] ~= length then
      misfit(path, "shape", "'%s' has the length %s, but in %s %s", part, tostring(lengths[part]), first, tostring(length))
    end
  end
  if self.length > lengths[text] then
    misfit(path, "value", "its samples have %d tokens, fewer than max_sequence_length, %d; lower it, or make the data again",
      lengths[text], self.length)
  end
end

---The sources of a file, cut to the length of samples.
---@param self TokenSamples
---@param path string
---@return TokenSource[]
local function read_file(self, path)
  local checkpoint = open_file(path)
  if not checkpoint.format:find "h5$" then misfit(path, "format", "this is %s, not HDF5", checkpoint.format) end
  local sources = sources_of(checkpoint, path, self.layout)
  check_lengths(self, path, check_parts(checkpoint, path, self.layout, sources))
  for _, source in ipairs(#self.layout.groups == 1 and sources or {}) do
    source.rows = source.rows:slice(source.rows:dim() - 1, 0, self.length)
  end
  return sources
end

---@class TokenSamplesOptions
---@field layout? TokenLayout              default: token_samples.TEXTS
---@field max_sequence_length? integer
---@field limits? table<string, integer>   of parts: numbers are compared with it when they are read; with any, masks are 0 or 1

---Looks at each file of the folders, and keeps none open.
---@param folders string|string[]
---@param options TokenSamplesOptions
---@return TokenSamples
function token_samples.open(folders, options)
  local self = setmetatable({ files = {}, count = 0, limits = {}, layout = options.layout or token_samples.TEXTS,
    max_sequence_length = options.max_sequence_length, opened = {}, order = {} }, Samples)
  for _, path in ipairs(sorted_files(type(folders) == "string" and { folders } or folders)) do
    local count = #read_file(self, path)[1].rows
    self.files[#self.files + 1] = { path = path, first = self.count, count = count }
    self.count = self.count + count
  end
  for _, group in ipairs(options.limits and self.layout.groups or {}) do
    for _, part in ipairs(group) do self.limits[part] = part:find "mask$" and 2 or nil end
  end
  for part, limit in pairs(options.limits or {}) do self.limits[part] = limit end
  for _, folder in ipairs(self.limits.input_ids and (type(folders) == "string" and { folders } or folders) or {}) do
    warn_of_vocabulary(folder, self.limits.input_ids)
  end
  for part, of in pairs(self.layout.within or {}) do self.limits[part] = self.lengths[part] and self.lengths[of] or nil end
  return self
end

local MOST_OPEN = 32 -- files

--- The sources of a file, which stays open until many others were opened.
local function opened(self, file)
  local sources = self.opened[file]
  if sources then return sources end
  sources = read_file(self, file.path)
  local count = #sources[1].rows
  if count ~= file.count then misfit(file.path, "changed", "it had %d samples when the run began, and now has %d", file.count, count) end
  if #self.order == MOST_OPEN then self.opened[table.remove(self.order, 1)] = nil end
  self.opened[file], self.order[#self.order + 1] = sources, file
  return sources
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

--- Samples of one file each, in their order.
local function runs_of(self, indices)
  local runs = {}
  for _, index in ipairs(indices) do
    local run = runs[#runs]
    local is_inside = run and index >= run.file.first and index < run.file.first + run.file.count
    if not is_inside then
      run = { file = self:file_of(index), rows = {} }
      runs[#runs + 1] = run
    end
    table.insert(run.rows, index - run.file.first)
  end
  return runs
end

--- The parts of rows.
local function add_parts(batch, rows, source)
  for i, part in ipairs(source.parts) do
    local own = source.is_one and rows or rows:select(1, i - 1)
    batch[part] = batch[part] or {}
    table.insert(batch[part], own:contiguous())
  end
end

local function read(self, indices)
  local parts, batch = {}, {}
  for _, run in ipairs(runs_of(self, indices)) do
    for _, source in ipairs(opened(self, run.file)) do add_parts(parts, tensors.tensor(source.rows:index_select(0, run.rows)), source) end
  end
  for part, list in pairs(parts) do batch[part] = list[2] and tensors.cat(list, 0) or list[1] end
  return batch
end

--- Reads rows one by one, so that an error names the one that cannot be read.
local function read_singly(self, indices)
  for _, index in ipairs(indices) do
    local fine, result = pcall(read, self, { index })
    if not fine and type(result) == "table" and result.code ~= "interrupted" then
      local file = self:file_of(index)
      misfit(file.path, "format", "record %d cannot be read: %s", index - file.first, cbk.problem_text(result))
    elseif not fine then
      error(result, 0)
    end
  end
  return read(self, indices)
end

--- The first part, by its name, with a number outside of its limits, and the number. Negative labels are those that a loss ignores.
local function unfit(self, batch)
  for _, group in ipairs(self.layout.groups) do
    for _, part in ipairs(group) do
      local limit, numbers = self.limits[part], batch[part]
      if limit and numbers then
        local largest, least = tonumber(numbers:amax():item()), tonumber(numbers:amin():item())
        if largest >= limit then return part, largest end
        if least < 0 and part ~= "labels" then return part, least end
      end
    end
  end
end

local function check_limits(self, batch, indices)
  if not unfit(self, batch) then return end
  for i, index in ipairs(indices) do
    local one = {}
    for part, numbers in pairs(batch) do one[part] = numbers:slice(0, i - 1, i) end
    local part, number = unfit(self, one)
    if part then
      local file, limit = self:file_of(index), self.limits[part]
      if limit == self.limits.input_ids then
        misfit(file.path, "value", "record %d has the id %d in %s, but the vocabulary has %d (vocab_size); was the text encoded by another "
          .. "tokenizer?", index - file.first, number, part, limit)
      end
      misfit(file.path, "value", "record %d has %d in %s, expected a number from 0 to %d", index - file.first, number, part, limit - 1)
    end
  end
end

---Reads samples: each part of them, [#indices, length] or [#indices], int64. A record that cannot be read or has a number outside of
---the limits is an error that names it.
---@param indices integer[]   from 0
---@return table<string, cstorch.Tensor>
function Samples:read(indices)
  local fine, batch = pcall(read, self, indices)
  if not fine then batch = read_singly(self, indices) end
  check_limits(self, batch, indices)
  return batch
end

return token_samples
