-- PrecisionAtKMetric: which share of the k highest scores are labels.

local AtKMetric = require "cstorch.metrics.at_k"
local inputs = require "cstorch.metrics.inputs"

---Hits of the k highest scores among the labels, over k for each row. Not on CSX.
---@class cstorch.metrics.PrecisionAtKMetric : cstorch.metrics.AtKMetric
---@overload fun(name: string, keywords: { k: integer }): cstorch.metrics.PrecisionAtKMetric
local PrecisionAtKMetric = AtKMetric:subclass "PrecisionAtKMetric"

function PrecisionAtKMetric:reset()
  self:zero_state("true_positive_at_k", {})
  self:zero_state("false_positive_at_k", {})
end

function PrecisionAtKMetric:update(given)
  local hits, rows = self:hits(given)
  self.true_positive_at_k:add_(hits)
  self.false_positive_at_k:add_(rows * self.k - hits)
end

function PrecisionAtKMetric:compute()
  return inputs.safe_divide(self.true_positive_at_k, self.true_positive_at_k + self.false_positive_at_k)
end

return PrecisionAtKMetric
