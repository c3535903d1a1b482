-- What a run costs: parameters, memory, floating-point operations and time of its steps.

local cstorch = require "cstorch"

local cost = {}

---@class TrainingCost
---@field parameters integer
---@field weights integer      bytes
---@field states integer       bytes of the optimizer's
---@field within? integer      bytes of values that live only within a step, gradients among them; nil where steps are not recorded
---@field tokens integer       of a step
---@field flop number          of a step, about
---@field recorded? integer    operators of the recorded step
---@field kernels? integer     after joining
---@field seconds? number      of a step

local FLOAT = 4 -- bytes

---Multiplications and additions of a step: two for each weight of a matrix and token, and those of attention; the way back needs twice as
---many.
---@param self TrainingRun
---@param lengths table<string, integer>   of the parts of a sample
local function operations(self, lengths)
  local tokens_of, count = self.module.description:work(lengths)
  for name, p in pairs(self.module.values) do
    local is_table = name:find "embedding" ~= nil
    if p:dim() > 1 and not is_table then count = count + 2 * p:numel() * tokens_of(name) end
  end
  return 3 * self.loader.batch_size * count
end

local function bytes_of_states(optimizer)
  local bytes = 0
  optimizer:visit_state(function(value)
    if cstorch.is_tensor(value) then bytes = bytes + value:numel() * FLOAT end
  end)
  return bytes
end

---@param self TrainingRun
---@param lengths table<string, integer>   of the parts of a sample
---@param size? { recorded: integer, kernels: integer, arena_bytes: integer }
---@return TrainingCost
function cost.of(self, lengths, size)
  local count = 0
  for _, p in ipairs(self.module:parameters()) do count = count + p:numel() end
  return { parameters = count, weights = count * FLOAT, states = bytes_of_states(self.optimizing.optimizer),
    within = size and size.arena_bytes, tokens = self.loader.batch_size * lengths.input_ids, flop = operations(self, lengths),
    recorded = size and size.recorded, kernels = size and size.kernels }
end

return cost
