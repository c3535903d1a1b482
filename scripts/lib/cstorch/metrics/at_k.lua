-- The base class of PrecisionAtKMetric and RecallAtKMetric: how many of the k highest scores are labels.

local errors = require "cstorch.errors"
local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"
local Metric = require "cstorch.metrics.metric"
local shapes = require "cstorch.shapes"

local check, show = errors.check, errors.show

---@class cstorch.metrics.AtKMetric : cstorch.metrics.Metric
local AtKMetric = Metric:subclass("AtKMetric", { k = keywords.REQUIRED })

AtKMetric.runs_on_csx = false
AtKMetric.inputs = {
  labels = keywords.REQUIRED, predictions = keywords.REQUIRED, weights = keywords.OPTIONAL, dtype = keywords.OPTIONAL,
}

function AtKMetric:init(name, kw)
  local is_count = type(kw.k) == "number" and kw.k == math.floor(kw.k) and kw.k >= 1
  check(is_count, "value", "%s: k must be an integer >= 1, not %s", self.class.name, show(kw.k))
  Metric.init(self, name, kw)
end

---The weighted number of hits of a batch, and of rows.
---@param given table   labels [B, L], predictions [B, C], weights [B]
---@return any hits, any rows, integer labels_per_row
function AtKMetric:hits(given)
  inputs.check_tensors(self, given, { "labels", "predictions", "weights" })
  local labels, predictions, weights = given.labels, given.predictions, given.weights
  local are_rows = labels:dim() == 2 and predictions:dim() == 2 and labels:size(0) == predictions:size(0)
  local name, found, other = self.class.name, shapes.text(labels), shapes.text(predictions)
  check(are_rows, "value", "%s: expected labels [B, L] and predictions [B, C], found shapes %s and %s", name, found, other)
  local classes = predictions:size(1)
  check(self.k <= classes, "value", "%s: k is %d, but predictions have only %d classes", name, self.k, classes)
  local _, top = predictions:topk(self.k)
  local is_hit = top:unsqueeze(-1):eq(labels:unsqueeze(1):to "int64"):to("float32"):amax(-1)
  local row_hits = is_hit:sum(-1)
  if not weights then return row_hits:sum(), labels:size(0), labels:size(1) end
  weights = weights:to "float32"
  return (row_hits * weights):sum(), weights:sum(), labels:size(1)
end

return AtKMetric
