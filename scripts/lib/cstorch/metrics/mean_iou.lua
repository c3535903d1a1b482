-- MeanIOUMetric: the mean intersection over union of the classes.

local ConfusionMetric = require "cstorch.metrics.confusion"
local keywords = require "cstorch.keywords"

---For each class M_cc/(row + column - M_cc) of the confusion matrix M; the mean over the classes that occur and are not ignored.
---@class cstorch.metrics.MeanIOUMetric : cstorch.metrics.ConfusionMetric
---@overload fun(name: string, keywords: { num_classes: integer, ignore_classes: integer[] }): cstorch.metrics.MeanIOUMetric
local MeanIOUMetric = ConfusionMetric:subclass("MeanIOUMetric", { ignore_classes = keywords.OPTIONAL })

function MeanIOUMetric:compute()
  local correct, actual, predicted = self:parts(self.confusion_matrix)
  return self:mean_of_ratios(correct, actual + predicted - correct, self.ignore_classes)
end

return MeanIOUMetric
