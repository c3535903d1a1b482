-- AccuracyMetric: the share of correct predictions.

local errors = require "cstorch.errors"
local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"
local Metric = require "cstorch.metrics.metric"
local shapes = require "cstorch.shapes"

---The sum of the weights of correct predictions over the number of tokens with a weight above 0; without weights the mean.
---@class cstorch.metrics.AccuracyMetric : cstorch.metrics.Metric
---@overload fun(name: string, keywords?: table): cstorch.metrics.AccuracyMetric
local AccuracyMetric = Metric:subclass "AccuracyMetric"

AccuracyMetric.inputs = {
  labels = keywords.REQUIRED, predictions = keywords.REQUIRED, weights = keywords.OPTIONAL, dtype = keywords.OPTIONAL,
}

function AccuracyMetric:reset()
  self:zero_state("total_correct_predictions", {})
  self:zero_state("total_num_tokens", {})
end

function AccuracyMetric:update(given)
  inputs.check_tensors(self, given, { "labels", "predictions", "weights" })
  local labels, predictions, weights = given.labels, given.predictions, given.weights
  if not shapes.same(labels, predictions) then
    errors.warn(("AccuracyMetric: predictions of shape %s are reshaped to that of the labels, %s"):format(shapes.text(predictions),
      shapes.text(labels)))
    predictions = predictions:reshape(labels:shape())
  end
  local correct = labels:eq(predictions:to(labels.dtype)):to "float32"
  if weights then correct = correct * weights:reshape(labels:shape()) end
  self.total_correct_predictions:add_(correct:sum())
  self.total_num_tokens:add_(inputs.count_tokens(labels, weights))
end

function AccuracyMetric:compute() return self.total_correct_predictions / self.total_num_tokens end

return AccuracyMetric
