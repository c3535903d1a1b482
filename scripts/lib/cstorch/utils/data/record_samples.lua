-- Samples that are made of the records of text files, for TokenFiles.

local draws = require "cbk.draws"
local record_files = require "cstorch.utils.data.record_files"
local tensors = require "cstorch.tensors"

local record_samples = {}

---@class RecordSource   What makes samples of records.
---@field format RecordFormat
---@field length? integer    tokens of a sample; nil: those of the first one
---@field ids? integer       of its vocabulary, with marks; nil if unknown
---@field make fun(record: Record, i: integer, random: Draws): table<string, integer[]|integer>
---                          the parts of a record's sample, from 0; the random numbers are this sample's in this epoch

---@class RecordSamples
---@field count integer
---@field length integer
local Samples = {}
Samples.__index = Samples

---@class RecordSamplesOptions
---@field data_dir string|string[]
---@field seed integer                      of what is random in samples
---@field limits table<string, integer>     of parts

---@param source RecordSource
---@param options RecordSamplesOptions
---@return RecordSamples
function record_samples.open(source, options)
  local self = setmetatable({ source = source, seed = options.seed, limits = options.limits }, Samples)
  self.files = record_files.open(options.data_dir, source.format)
  self.count, self.length = self.files.count, source.length
  if self.count > 0 and not self.length then self.length = #self:sample(0, 0).input_ids end
  return self
end

--- Fails if a part has a number outside of its limits. Negative labels are those that a loss ignores.
local function check_limits(self, record, parts)
  for part, limit in pairs(self.limits) do
    local list = parts[part]
    for _, number in ipairs(type(list) == "number" and { list } or list or {}) do
      if number >= limit or number < 0 and part ~= "labels" then
        record_files.refuse(record, ("%d in %s, expected a number from 0 to %d"):format(number, part, limit - 1))
      end
    end
  end
end

---The parts of a sample.
---@param index integer   from 0
---@param epoch integer   from 0
---@return table<string, integer[]|integer>, Record
function Samples:sample(index, epoch)
  local record, i = self.files:record(index)
  local parts = self.source.make(record, i, draws.of(self.seed, epoch, index))
  check_limits(self, record, parts)
  return parts, record
end

--- Fails if a part of a sample has another length than that of the batch's first one.
local function check_length(record, part, first, own)
  local is_list = type(first) == "table"
  if (type(own) == "table") ~= is_list or is_list and #first ~= #own then
    record_files.refuse(record, ("%s has %s, but %d in an earlier record"):format(part,
      own and ("%d numbers"):format(type(own) == "table" and #own or 1) or "no numbers", is_list and #first or 1))
  end
end

---@param indices integer[]   from 0
---@param epoch integer       from 0
---@return table<string, cstorch.Tensor>
function Samples:read(indices, epoch)
  local rows = {}
  for i, index in ipairs(indices) do
    local parts, record = self:sample(index, epoch)
    self.first = self.first or parts
    for part in pairs(self.first) do
      check_length(record, part, self.first[part], parts[part])
      rows[part] = rows[part] or {}
      rows[part][i] = parts[part]
    end
  end
  local batch = {}
  for part, list in pairs(rows) do batch[part] = tensors.tensor(list, { dtype = "int64" }) end
  return batch
end

---A list that is filled up to a length.
---@param list integer[]
---@param length integer
---@param fill integer
---@return integer[]
function record_samples.padded(list, length, fill)
  for i = #list + 1, length do list[i] = fill end
  return list
end

---@param count integer    ones
---@param length integer   of the list, which is filled up
---@param fill integer
---@return integer[]
function record_samples.mask(count, length, fill)
  local out = {}
  for i = 1, count do out[i] = 1 end
  return record_samples.padded(out, length, fill)
end

---A number rounded as Python does: halves to the even one.
---@param value number
---@return integer
function record_samples.rounded(value)
  local low = math.floor(value)
  if value - low == 0.5 then return low % 2 == 0 and low or low + 1 end
  return math.floor(value + 0.5)
end

return record_samples
