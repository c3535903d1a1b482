-- Data-parallel runs: started as several ranks (`mpirun -n 4 cbk run train.lua`), each process is one of the `num_csx` systems. It streams
-- the batches of its own workers; gradients, losses and metrics are reduced over all of them.

local buffer = require "string.buffer"
local cbk = require "cbk"
local errors = require "cstorch.errors"
local nested = require "cstorch.nested"
local session = require "cstorch.session"

local check = errors.check
local compute = cbk.compute

local systems = {}

---Whether each of several ranks is a system of this run.
---@return boolean
function systems.are_ranks()
  local _, size = cbk.team_place()
  return size > 1 and session.backend ~= nil and session.backend.kind == "CSX"
end

---How many systems a configuration without a number has, and whether it may have `num_csx`.
---@param num_csx? integer
---@return integer
function systems.count(num_csx)
  local _, size = cbk.team_place()
  check(size == 1 or num_csx == nil or num_csx == size, "value",
    "configure: num_csx is %d, but %d ranks were started, and each is a system", num_csx or 0, size)
  return num_csx or size
end

---The numbers of the systems that this process emulates.
---@param num_csx integer
---@return integer first, integer last   from 0
function systems.own(num_csx)
  if not systems.are_ranks() then return 0, num_csx - 1 end
  local rank = cbk.team_place()
  return rank, rank
end

---What each rank gives, in their order; of one process, a list of its own. All ranks have to call it.
---@param value any   numbers, texts, and tables of them
---@return any[]
function systems.exchange(value)
  if not systems.are_ranks() then return { value } end
  local fine, bytes = pcall(buffer.encode, value)
  check(fine, "type", "ranks can exchange numbers, texts and tables of them only: %s", tostring(bytes))
  local out = {}
  for i, of_rank in ipairs(cbk.team_exchange(bytes)) do out[i] = buffer.decode(of_rank) end
  return out
end

--- All ranks train the same weights.
local function check_same_weights(model)
  local digests, names = {}, {}
  for _, list in ipairs { "named_parameters", "named_buffers" } do
    for name, tensor in model[list](model) do
      names[#names + 1] = name
      digests[#digests + 1] = compute.digest { tensor }
    end
  end
  for rank, others in ipairs(systems.exchange(digests)) do
    for i, digest in ipairs(digests) do
      check(others[i] == digest, "runtime",
        "'%s' has other values on rank %d: each rank must make or load the same weights, from the same seed", names[i], rank - 1)
    end
  end
end

---Before the first batch of a loop is used. Returns the size of the batch of all systems.
---@param size integer   of the batch of this process
---@return integer
function systems.begin(size)
  if not systems.are_ranks() then return size end
  local sizes, total, shares = systems.exchange(size), 0, {}
  for _, one in ipairs(sizes) do total = total + one end
  for i, one in ipairs(sizes) do shares[i] = one / total end
  if session.model then check_same_weights(session.model) end
  compute.set_team_shares(shares)
  session.share = shares[cbk.team_place() + 1]
  return total
end

-- Keys in an order that all ranks share.
local function sorted_keys(map)
  local keys = {}
  for key in nested.entries(map) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    if type(a) == "number" or type(a) == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local function is_number(tensor) return tensor:dim() == 0 and cbk.dtype(tensor.dtype).floating end

local function numbers_in(value, list)
  if compute.is_tensor(value) then
    if is_number(value) then list[#list + 1] = value end
  elseif nested.is(value) then
    for _, key in ipairs(sorted_keys(value)) do numbers_in(value[key], list) end
  end
  return list
end

local function check_share()
  check(session.share, "runtime",
    "a step of several ranks runs in a loop over a loader: that says which part of a batch each of them has")
end

---This system's share of the sum over all: losses that are divided by it have the sums' quotient as their mean.
---@param x cstorch.Tensor   without dims
---@return cstorch.Tensor
function systems.share_of_sum(x)
  if not systems.are_ranks() then return x end
  check_share()
  return compute.team_sum({ x }, false)[1] * session.share
end

---Values of a step with each tensor without dims, such as a loss, replaced by its mean over all systems.
---@param values table   with `n`
---@return table
function systems.means(values)
  if not systems.are_ranks() then return values end
  check_share()
  local own, place = numbers_in(values, {}), {}
  if own[1] == nil then return values end
  local means = compute.team_sum(own, true)
  for i, tensor in ipairs(own) do place[tensor] = means[i] end
  local out = { n = values.n }
  for i = 1, values.n do
    out[i] = nested.map(values[i], function(tensor) return place[tensor] or tensor end)
  end
  return out
end

---Calls `f` while the tensors of a map are those of all systems together.
---@param map table<string, any>
---@param f function
---@return any
function systems.with_sums(map, f, ...)
  if not systems.are_ranks() then return f(...) end
  local keys, own = sorted_keys(map), {}
  for i, key in ipairs(keys) do own[i] = map[key] end
  local sums = compute.team_sum(own, false)
  for i, key in ipairs(keys) do map[key] = sums[i] end
  local result = f(...)
  for i, key in ipairs(keys) do map[key] = own[i] end
  return result
end

return systems
