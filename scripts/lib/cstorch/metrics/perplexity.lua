-- PerplexityMetric: the exponential of the mean loss.

local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"
local Metric = require "cstorch.metrics.metric"

---exp(sum of the losses / number of tokens). `loss` is the sum over a batch; with weights the tokens with a weight above 0 count.
---@class cstorch.metrics.PerplexityMetric : cstorch.metrics.Metric
---@overload fun(name: string, keywords?: table): cstorch.metrics.PerplexityMetric
local PerplexityMetric = Metric:subclass "PerplexityMetric"

PerplexityMetric.inputs = {
  labels = keywords.REQUIRED, loss = keywords.REQUIRED, weights = keywords.OPTIONAL, dtype = keywords.OPTIONAL,
}

function PerplexityMetric:reset()
  self:zero_state("total_loss", {})
  self:zero_state("total_num_tokens", {})
end

function PerplexityMetric:update(given)
  inputs.check_tensors(self, given, { "labels", "weights" })
  self.total_loss:add_(inputs.as_float(self, "loss", given.loss):sum())
  self.total_num_tokens:add_(inputs.count_tokens(given.labels, given.weights))
end

function PerplexityMetric:compute() return (self.total_loss / self.total_num_tokens):exp() end

return PerplexityMetric
