-- The numbers of the samples that one input worker streams.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local session = require "cstorch.session"

local check, show = errors.check, errors.show

---@class cstorch.utils.data.ShardedSampler : cstorch.Class   Indices of samples in batches, shared out to systems and workers.
---@field epoch integer   the next one that `batches` iterates, from 0
local ShardedSampler = class.Object:subclass("ShardedSampler", {
  dataset_size = keywords.REQUIRED, batch_size = keywords.OPTIONAL, shuffle = false, seed = 0, start_index = 0,
  drop_last = keywords.OPTIONAL, pad_last = false, num_csx = 1, num_workers_per_csx = 1, wse_id = 0, local_worker_id = 0,
})

ShardedSampler.positional = 0

local MOST = 1e8 -- samples, as an epoch is a list of Lua

local function check_integer(kw, name, least, most)
  local value = kw[name]
  local is_inside = type(value) == "number" and value == math.floor(value) and value >= least and value <= (most or 2 ^ 53)
  local range = most and ("from %d to %d"):format(least, most) or (">= %d"):format(least)
  check(is_inside, "value", "ShardedSampler: %s must be an integer %s, not %s", name, range, show(value))
end

---`drop_last` is true unless `pad_last` is. Incomplete batches are dropped (their samples begin the next epoch), padded with the first
---samples of the epoch, or kept.
---@param kw table
function ShardedSampler:init(kw)
  check_integer(kw, "dataset_size", 1, MOST)
  check_integer(kw, "start_index", 0)
  check_integer(kw, "seed", 0)
  check_integer(kw, "num_csx", 1)
  check_integer(kw, "num_workers_per_csx", 1)
  check_integer(kw, "wse_id", 0, kw.num_csx - 1)
  check_integer(kw, "local_worker_id", 0, kw.num_workers_per_csx - 1)
  local is_sharded = kw.num_csx * kw.num_workers_per_csx > 1
  check(kw.batch_size ~= nil or not is_sharded, "value", "ShardedSampler: sharding over several workers needs batch_size")
  if kw.batch_size == nil then kw.batch_size = 1 end
  check_integer(kw, "batch_size", 1, MOST)
  if kw.drop_last == nil then kw.drop_last = not kw.pad_last end
  local is_csx = session.backend and session.backend.kind == "CSX"
  check(kw.drop_last or kw.pad_last or not is_csx, "value", "ShardedSampler: CSX needs batches of one size; set drop_last or pad_last")
  for name, value in pairs(kw) do self[name] = value end
  self.epoch, self.offset = math.floor(kw.start_index / kw.dataset_size), kw.start_index % kw.dataset_size
  self.batch_count, self.carried = 0, {}
end

--- A multiplicative generator modulo 2^31 - 1: the order of an epoch follows from the seed alone.
local function generator(seed)
  local state = seed % 2147483646 + 1
  return function(limit)
    state = state * 16807 % 2147483647
    return state % limit
  end
end

--- The samples of an epoch in their order.
local function order(self, epoch)
  local list = {}
  for i = 1, self.dataset_size do list[i] = i - 1 end
  if not self.shuffle then return list end
  local random = generator(self.seed + epoch)
  for _ = 1, 10 do random(2) end -- seeds that are close give first numbers that are close
  for i = #list, 2, -1 do
    local j = random(i) + 1
    list[i], list[j] = list[j], list[i]
  end
  return list
end

local function copy(list, first, last)
  local part = {}
  for i = first, last do part[#part + 1] = list[i] end
  return part
end

--- The system's contiguous slice of a global batch: the first `size mod num_csx` systems get one sample more.
local function slice(self, batch)
  local base, extra = math.floor(#batch / self.num_csx), #batch % self.num_csx
  local first = self.wse_id * base + math.min(self.wse_id, extra)
  local count = base + (self.wse_id < extra and 1 or 0)
  return copy(batch, first + 1, first + count)
end

--- The samples of the next epoch, after those that were left over.
local function next_epoch(self)
  local samples, own = self.carried, order(self, self.epoch)
  for i = self.offset + 1, #own do samples[#samples + 1] = own[i] end
  self.epoch, self.offset, self.carried = self.epoch + 1, 0, {}
  return samples
end

---Iterates over this worker's batches of the next epoch: lists of sample numbers, from 0.
---@return fun(): integer[]?
function ShardedSampler:batches()
  local samples, at = next_epoch(self), 0
  local function take()
    local batch = copy(samples, at + 1, math.min(at + self.batch_size, #samples))
    if batch[1] == nil then return nil end
    if #batch < self.batch_size and self.pad_last then
      for i = 1, self.batch_size - #batch do batch[#batch + 1] = samples[(i - 1) % #samples + 1] end
    elseif #batch < self.batch_size and self.drop_last then
      self.carried = batch
      return nil
    end
    at = at + self.batch_size
    return batch
  end
  return function()
    while true do
      local batch = take()
      if batch == nil then return nil end
      local is_own = self.batch_count % self.num_workers_per_csx == self.local_worker_id
      self.batch_count = self.batch_count + 1
      if is_own then return slice(self, batch) end
    end
  end
end

return ShardedSampler
