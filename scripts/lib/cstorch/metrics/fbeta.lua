-- FBetaScoreMetric: the F score over classes.

local ConfusionMetric = require "cstorch.metrics.confusion"
local errors = require "cstorch.errors"
local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"

local check, show = errors.check, errors.show

---F = (1 + β²)·P·R/(β²·P + R) from precision P and recall R. "micro": of all kept classes together; "macro": the mean of F over the kept
---classes, where a class that does not occur counts as 0.
---@class cstorch.metrics.FBetaScoreMetric : cstorch.metrics.ConfusionMetric
---@alias FBeta.Keywords { num_classes: integer, beta: number, average_type: "micro"|"macro", ignore_labels: integer[] }
---@overload fun(name: string, keywords: FBeta.Keywords): cstorch.metrics.FBetaScoreMetric
local FBetaScoreMetric = ConfusionMetric:subclass("FBetaScoreMetric", {
  beta = 1, average_type = "micro", ignore_labels = keywords.OPTIONAL,
})

FBetaScoreMetric.inputs = { labels = keywords.REQUIRED, predictions = keywords.REQUIRED, dtype = keywords.OPTIONAL }

function FBetaScoreMetric:init(name, kw)
  check(type(kw.beta) == "number" and kw.beta > 0, "value", "FBetaScoreMetric: beta must be a number > 0, not %s", show(kw.beta))
  local is_known = kw.average_type == "micro" or kw.average_type == "macro"
  check(is_known, "value", "FBetaScoreMetric: average_type must be 'micro' or 'macro', not %s", show(kw.average_type))
  check(kw.num_classes ~= 1, "value", "FBetaScoreMetric: num_classes must be above 1")
  FBetaScoreMetric.super.init(self, name, kw)
end

function FBetaScoreMetric:compute()
  local kept = self:kept_classes(self.ignore_labels)
  local correct, actual, predicted = self:parts(self.confusion_matrix)
  correct, actual, predicted = correct * kept, actual * kept, predicted * kept
  if self.average_type == "micro" then correct, actual, predicted = correct:sum(), actual:sum(), predicted:sum() end
  local precision, recall = inputs.safe_divide(correct, predicted), inputs.safe_divide(correct, actual)
  local square = self.beta * self.beta
  local score = inputs.safe_divide(precision * recall * (1 + square), precision * square + recall)
  if self.average_type == "micro" then return score end
  return inputs.safe_divide(score:sum(), kept:sum())
end

return FBetaScoreMetric
