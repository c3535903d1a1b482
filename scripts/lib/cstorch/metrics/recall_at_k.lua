-- RecallAtKMetric: which share of the labels is among the k highest scores.

local AtKMetric = require "cstorch.metrics.at_k"
local inputs = require "cstorch.metrics.inputs"

---Hits of the k highest scores among the labels, over the number of labels of each row. Not on CSX.
---@class cstorch.metrics.RecallAtKMetric : cstorch.metrics.AtKMetric
---@overload fun(name: string, keywords: { k: integer }): cstorch.metrics.RecallAtKMetric
local RecallAtKMetric = AtKMetric:subclass "RecallAtKMetric"

function RecallAtKMetric:reset()
  self:zero_state("true_positive_at_k", {})
  self:zero_state("false_negative_at_k", {})
end

function RecallAtKMetric:update(given)
  local hits, rows, labels_per_row = self:hits(given)
  self.true_positive_at_k:add_(hits)
  self.false_negative_at_k:add_(rows * labels_per_row - hits)
end

function RecallAtKMetric:compute()
  return inputs.safe_divide(self.true_positive_at_k, self.true_positive_at_k + self.false_negative_at_k)
end

return RecallAtKMetric
