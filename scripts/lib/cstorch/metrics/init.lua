-- cstorch.metrics: measurements over the steps of a run.

local namespace = require "cstorch.namespace"
local session = require "cstorch.session"

local metrics = {
  Metric = require "cstorch.metrics.metric",
  AccuracyMetric = require "cstorch.metrics.accuracy",
  PerplexityMetric = require "cstorch.metrics.perplexity",
  MeanMetric = require "cstorch.metrics.mean",
  DiceCoefficientMetric = require "cstorch.metrics.dice",
  MeanIOUMetric = require "cstorch.metrics.mean_iou",
  FBetaScoreMetric = require "cstorch.metrics.fbeta",
  MeanPerClassAccuracyMetric = require "cstorch.metrics.mean_per_class_accuracy",
  AUCMetric = require "cstorch.metrics.auc",
  PrecisionAtKMetric = require "cstorch.metrics.precision_at_k",
  RecallAtKMetric = require "cstorch.metrics.recall_at_k",
}

--- The metrics with their names: several with one name are "name.0", "name.1".
local function named_metrics()
  local list, total, seen = {}, {}, {}
  for _, metric in ipairs(session.metrics) do total[metric.name] = (total[metric.name] or 0) + 1 end
  for i, metric in ipairs(session.metrics) do
    local name = metric.name
    local number = seen[name] or 0
    seen[name] = number + 1
    list[i] = { total[name] > 1 and ("%s.%d"):format(name, number) or name, metric }
  end
  return list
end

local function iterate(value_of)
  local list, i = named_metrics(), 0
  return function()
    i = i + 1
    if list[i] then return list[i][1], value_of(list[i][2]) end
  end
end

---Iterates over the names and values of all metrics.
---@return fun(): string?, number?
function metrics.compute_all_metrics() return iterate(function(metric) return metric:value() end) end

---Iterates over the names and objects of all metrics.
---@return fun(): string?, cstorch.metrics.Metric?
function metrics.get_all_metrics() return iterate(function(metric) return metric end) end

return namespace("cstorch.metrics", metrics)
