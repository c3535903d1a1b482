-- DiceCoefficientMetric: the mean Dice coefficient of the classes.

local ConfusionMetric = require "cstorch.metrics.confusion"
local keywords = require "cstorch.keywords"

---For each class 2·M_cc/(row + column) of the confusion matrix M; the mean over the classes that occur and are not ignored.
---@class cstorch.metrics.DiceCoefficientMetric : cstorch.metrics.ConfusionMetric
---@overload fun(name: string, keywords: { num_classes: integer, ignore_classes: integer[] }): cstorch.metrics.DiceCoefficientMetric
local DiceCoefficientMetric = ConfusionMetric:subclass("DiceCoefficientMetric", { ignore_classes = keywords.OPTIONAL })

function DiceCoefficientMetric:compute()
  local correct, actual, predicted = self:parts(self.confusion_matrix)
  return self:mean_of_ratios(correct * 2, actual + predicted, self.ignore_classes)
end

return DiceCoefficientMetric
