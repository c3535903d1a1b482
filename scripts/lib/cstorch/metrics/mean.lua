-- MeanMetric: a weighted mean.

local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"
local Metric = require "cstorch.metrics.metric"
local tensors = require "cstorch.tensors"

---sum(value·weight)/sum(weight), the weight broadcast to the value.
---@class cstorch.metrics.MeanMetric : cstorch.metrics.Metric
---@overload fun(name: string, keywords?: table): cstorch.metrics.MeanMetric
local MeanMetric = Metric:subclass "MeanMetric"

MeanMetric.inputs = { value = keywords.REQUIRED, weight = 1, dtype = keywords.OPTIONAL }

function MeanMetric:reset()
  self:zero_state("mean_value", {})
  self:zero_state("weight", {})
end

function MeanMetric:update(given)
  local value, weight = inputs.as_float(self, "value", given.value), inputs.as_float(self, "weight", given.weight)
  weight = weight + tensors.zeros_like(value)
  self.mean_value:add_((value * weight):sum())
  self.weight:add_(weight:sum())
end

function MeanMetric:compute() return self.mean_value / self.weight end

return MeanMetric
