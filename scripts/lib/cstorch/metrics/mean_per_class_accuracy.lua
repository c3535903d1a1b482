-- MeanPerClassAccuracyMetric: the mean of the accuracies of the classes.

local ConfusionMetric = require "cstorch.metrics.confusion"
local inputs = require "cstorch.metrics.inputs"

---For each class the weight of its correct predictions over that of its labels; the mean over all classes, also those that do not occur.
---@class cstorch.metrics.MeanPerClassAccuracyMetric : cstorch.metrics.ConfusionMetric
---@overload fun(name: string, keywords: { num_classes: integer }): cstorch.metrics.MeanPerClassAccuracyMetric
local MeanPerClassAccuracyMetric = ConfusionMetric:subclass "MeanPerClassAccuracyMetric"

function MeanPerClassAccuracyMetric:reset()
  self:zero_state("total_per_class_correct_predictions", { self.num_classes })
  self:zero_state("total_per_class_tokens", { self.num_classes })
end

function MeanPerClassAccuracyMetric:update(given)
  local correct, actual = self:parts(self:confusion(given))
  self.total_per_class_correct_predictions:add_(correct)
  self.total_per_class_tokens:add_(actual)
end

function MeanPerClassAccuracyMetric:compute()
  return inputs.safe_divide(self.total_per_class_correct_predictions, self.total_per_class_tokens):mean()
end

return MeanPerClassAccuracyMetric
