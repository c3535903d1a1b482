-- Statistics of the states of optimizers, summed up: one row for each state of all parameters.

local numbers = require "cbk.numbers"
local optimizer_table = require "cbk.optimizer_table"
local optimizers = require "cbk.optimizers"

local state_stats = {}

---@class StateStats
---@field found Optimizer[]
---@field order string[]              "optimizer.state.*.exp_avg", with its dtype
---@field sums table<string, table>   by the texts of `order`
local StateStats = {}
StateStats.__index = StateStats

---@param root any   of a checkpoint, as `Checkpoint:raw_root` returns it
---@return StateStats
function state_stats.new(root)
  return setmetatable({ found = optimizers.find(root), order = {}, sums = {} }, StateStats)
end

---The key of a state with the name of its parameter, "optimizer.state.3.exp_avg (of layers.1.w)"; nil for other keys.
---@param key string
---@return string|nil
function StateStats:named(key)
  local optimizer, part = optimizer_table.part_of(self.found, key)
  if part ~= "state" then return nil end
  local _, parameter = optimizer_table.slot_of(optimizer, key)
  local is_in_key = parameter == "" or key:find(parameter, 1, true) ~= nil
  return is_in_key and key or ("%s (of %s)"):format(key, parameter)
end

local COUNTS = { "nan", "inf", "zeros", "subnormal", "numel" }

---Adds the statistics of a tensor, if it is a state of an optimizer.
---@param row StatsRow
---@return boolean
function StateStats:add(row)
  local optimizer, part = optimizer_table.part_of(self.found, row.key)
  if part ~= "state" then return false end
  local key = ("%s.*.%s"):format(optimizer_table.state_path(optimizer), (optimizer_table.slot_of(optimizer, row.key)))
  local id, stats = key .. "\0" .. row.dtype, row.stats
  local sum = self.sums[id]
  if not sum then
    sum = { file = row.file, key = key, dtype = row.dtype, tensors = 0, bytes = 0, finite = 0, total = 0, squares = 0, spread = 0,
      stats = {} }
    for _, name in ipairs(COUNTS) do sum.stats[name] = 0 end
    self.sums[id], self.order[#self.order + 1] = sum, id
  end
  sum.tensors, sum.bytes = sum.tensors + 1, sum.bytes + row.bytes
  for _, name in ipairs(COUNTS) do sum.stats[name] = sum.stats[name] + tonumber(stats[name]) end
  if stats.min == nil then return true end -- nothing finite
  local finite = tonumber(stats.numel) - tonumber(stats.nan) - tonumber(stats.inf)
  local own = sum.stats
  if own.min == nil or stats.min < own.min then own.min = stats.min end
  if own.max == nil or stats.max > own.max then own.max = stats.max end
  local apart, count = stats.mean - (sum.finite > 0 and sum.total / sum.finite or stats.mean), sum.finite + finite
  sum.spread = sum.spread + stats.std ^ 2 * finite + apart ^ 2 * sum.finite * finite / count
  sum.finite, sum.total, sum.squares = count, sum.total + stats.mean * finite, sum.squares + stats.norm ^ 2
  return true
end

---@return StatsRow[]   without quantiles
function StateStats:rows()
  local out = {}
  for i, id in ipairs(self.order) do
    local sum = self.sums[id]
    local stats = sum.stats
    stats.quantiles = {}
    if sum.finite > 0 then
      stats.mean, stats.std, stats.norm = sum.total / sum.finite, math.sqrt(sum.spread / sum.finite), math.sqrt(sum.squares)
    end
    out[i] = { file = sum.file, key = sum.key, dtype = sum.dtype, of_tensors = numbers.counted(sum.tensors, "tensor"), bytes = sum.bytes,
      stats = stats }
  end
  return out
end

return state_stats
