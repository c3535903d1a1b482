-- AUCMetric: the area under the ROC or the precision-recall curve.

local errors = require "cstorch.errors"
local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"
local Metric = require "cstorch.metrics.metric"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---Counts of predictions above each of `num_thresholds` thresholds from 0 to 1 (or those given, and both ends). The area under ROC by
---trapezoids, under PR by the interpolation of Davis and Goadrich, or by lower ("minoring") or upper ("majoring") sums. Not on CSX.
---Source: Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves", 2006.
---@class cstorch.metrics.AUCMetric : cstorch.metrics.Metric
---@alias AUC.Keywords { num_thresholds: integer, curve: "ROC"|"PR", summation_method: string, thresholds: number[] }
---@overload fun(name: string, keywords?: AUC.Keywords): cstorch.metrics.AUCMetric
local AUCMetric = Metric:subclass("AUCMetric", {
  num_thresholds = 200, curve = "ROC", summation_method = "interpolation", thresholds = keywords.OPTIONAL,
})

AUCMetric.runs_on_csx = false
AUCMetric.inputs = {
  labels = keywords.REQUIRED, predictions = keywords.REQUIRED, weights = keywords.OPTIONAL, dtype = keywords.OPTIONAL,
}

local EPSILON = 1e-7 -- the ends lie just outside of [0, 1], so that predictions of 0 and 1 are inside

local function make_thresholds(kw)
  local inner, count = kw.thresholds, kw.num_thresholds
  if inner == nil then
    local is_count = type(count) == "number" and count == math.floor(count) and count >= 2 and count <= 1e6
    check(is_count, "value", "AUCMetric: num_thresholds must be an integer from 2 to 1000000, not %s", show(count))
    inner = {}
    for i = 1, count - 2 do inner[i] = i / (count - 1) end
  end
  check(type(inner) == "table", "type", "AUCMetric: expected a list of numbers as thresholds, found %s", show(inner))
  local list = { -EPSILON }
  for i, x in ipairs(inner) do
    check(type(x) == "number" and x >= 0 and x <= 1, "value", "AUCMetric: threshold %d must be a number from 0 to 1, not %s", i, show(x))
    list[i + 1] = x
  end
  table.sort(list)
  list[#list + 1] = 1 + EPSILON
  return list
end

local METHODS = { interpolation = true, minoring = true, majoring = true }
local STATES = { "true_positive", "true_negative", "false_positive", "false_negative" }

function AUCMetric:init(name, kw)
  check(kw.curve == "ROC" or kw.curve == "PR", "value", "AUCMetric: curve must be 'ROC' or 'PR', not %s", show(kw.curve))
  check(METHODS[kw.summation_method], "value", "AUCMetric: summation_method must be 'interpolation', 'minoring' or 'majoring', not %s",
    show(kw.summation_method))
  kw.thresholds = make_thresholds(kw)
  kw.num_thresholds = #kw.thresholds
  Metric.init(self, name, kw)
end

function AUCMetric:reset()
  for _, name in ipairs(STATES) do self:zero_state(name, { self.num_thresholds }) end
end

function AUCMetric:update(given)
  inputs.check_tensors(self, given, { "labels", "predictions", "weights" })
  local labels, predictions = given.labels:flatten():unsqueeze(-1), given.predictions:flatten():unsqueeze(-1)
  check(shapes.same(labels, predictions), "value", "AUCMetric: labels have shape %s, predictions %s", shapes.text(given.labels),
    shapes.text(given.predictions))
  local positive = labels:ne(0):to "float32"
  local above = predictions:to("float32"):gt(tensors.tensor(self.thresholds)):to "float32"
  local weight = given.weights and given.weights:flatten():to("float32"):unsqueeze(-1) or 1
  self.true_positive:add_((above * positive * weight):sum(0))
  self.false_positive:add_((above * (1 - positive) * weight):sum(0))
  self.false_negative:add_(((1 - above) * positive * weight):sum(0))
  self.true_negative:add_(((1 - above) * (1 - positive) * weight):sum(0))
end

--- All elements but the last, and all but the first.
local function neighbours(x) return x:slice(0, 0, -1), x:slice(0, 1, x:numel()) end

--- The area under the precision-recall curve where, between two thresholds, precision is linear in the number of true positives.
local function interpolated_area(self)
  local tp, next_tp = neighbours(self.true_positive)
  local p, next_p = neighbours(self.true_positive + self.false_positive)
  local _, next_fn = neighbours(self.false_negative)
  local slope = inputs.safe_divide(tp - next_tp, (p - next_p):clamp(0, nil))
  local intercept = next_tp - slope * next_p
  local has_both = p:gt(0):logical_and(next_p:gt(0))
  local ratio = tensors.where(has_both, p / next_p, tensors.ones_like(p))
  return inputs.safe_divide(slope * (tp - next_tp + intercept * ratio:log()), next_tp + next_fn):sum()
end

function AUCMetric:compute()
  if self.curve == "PR" and self.summation_method == "interpolation" then return interpolated_area(self) end
  local tp, fp, tn, fn = self.true_positive, self.false_positive, self.true_negative, self.false_negative
  local recall = inputs.safe_divide(tp, tp + fn)
  local x, y = recall, inputs.safe_divide(tp, tp + fp)
  if self.curve == "ROC" then x, y = inputs.safe_divide(fp, fp + tn), recall end
  local x1, x2 = neighbours(x)
  local y1, y2 = neighbours(y)
  local height = (y1 + y2) / 2
  if self.summation_method == "minoring" then height = y1:minimum(y2) end
  if self.summation_method == "majoring" then height = y1:maximum(y2) end
  return ((x1 - x2) * height):sum()
end

return AUCMetric
