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
---@param samples integer
---@param length integer   tokens of a sample
local function operations(self, samples, length)
  local decoder, weights = self.module.decoder, 0
  for name, p in self.module:named_parameters() do
    local is_table = name:find "embeddings" ~= nil
    if p:dim() > 1 and not is_table then weights = weights + p:numel() end
  end
  local head = decoder.head and self.module.values[decoder.head.name .. ".weight"]
  local is_tied = head and head == self.module.values[decoder.place .. decoder.embedding .. ".weight"]
  if is_tied then weights = weights + head:numel() end
  local inner = decoder.head_width * (self.model.list.values.num_heads or 1)
  local attention = 2 * decoder.depth * length * inner -- scores and their sums, causal
  return 3 * samples * length * (2 * weights + attention)
end

local function bytes_of_states(optimizer)
  local bytes = 0
  optimizer:visit_state(function(value)
    if cstorch.is_tensor(value) then bytes = bytes + value:numel() * FLOAT end
  end)
  return bytes
end

---@param self TrainingRun
---@param length integer   tokens of a sample
---@param size? { recorded: integer, kernels: integer, arena_bytes: integer }
---@return TrainingCost
function cost.of(self, length, size)
  local count = 0
  for _, p in ipairs(self.module:parameters()) do count = count + p:numel() end
  local samples = self.loader.batch_size
  return { parameters = count, weights = count * FLOAT, states = bytes_of_states(self.optimizing.optimizer),
    within = size and size.arena_bytes, tokens = samples * length, flop = operations(self, samples, length),
    recorded = size and size.recorded, kernels = size and size.kernels }
end

return cost
