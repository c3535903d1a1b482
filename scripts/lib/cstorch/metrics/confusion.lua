-- The base class of metrics over a confusion matrix: rows are labels, columns predictions, cells sums of weights.

local errors = require "cstorch.errors"
local inputs = require "cstorch.metrics.inputs"
local keywords = require "cstorch.keywords"
local Metric = require "cstorch.metrics.metric"
local session = require "cstorch.session"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

---@class cstorch.metrics.ConfusionMetric : cstorch.metrics.Metric
local ConfusionMetric = Metric:subclass("ConfusionMetric", { num_classes = keywords.REQUIRED })

ConfusionMetric.inputs = {
  labels = keywords.REQUIRED, predictions = keywords.REQUIRED, weights = keywords.OPTIONAL, dtype = keywords.OPTIONAL,
}

function ConfusionMetric:init(name, kw)
  local count = kw.num_classes
  local is_count = type(count) == "number" and count == math.floor(count) and count >= 1
  check(is_count, "value", "%s: num_classes must be an integer >= 1, not %s", self.class.name, show(count))
  Metric.init(self, name, kw)
end

function ConfusionMetric:reset() self:zero_state("confusion_matrix", { self.num_classes, self.num_classes }) end

--- [n] class numbers as [n, num_classes] zeros and ones.
local function one_hot(classes, count)
  local all = tensors.to_device(tensors.arange(0, count))
  return classes:flatten():unsqueeze(-1):to("int64"):eq(all):to "float32"
end

--- Checks class numbers; not on CSX, where their values cannot be read.
local function check_classes(self, name, classes)
  local is_csx = session.backend and session.backend.kind == "CSX"
  if is_csx or classes:numel() == 0 then return end
  local least, most = classes:amin():item(), classes:amax():item()
  least, most = tonumber(least), tonumber(most)
  local metric, count = self.class.name, self.num_classes
  check(least >= 0, "value", "%s: %s must not be negative, but one is %g", metric, name, least)
  check(most < count, "value", "%s: %s must be below num_classes %d, but one is %g", metric, name, count, most)
end

---The confusion matrix of one batch.
---@param given table   labels, predictions, weights
---@return any
function ConfusionMetric:confusion(given)
  local labels, predictions, weights = given.labels, given.predictions, given.weights
  inputs.check_tensors(self, given, { "labels", "predictions", "weights" })
  for name, other in pairs { predictions = predictions, weights = weights } do
    local shape, other_shape = shapes.text(labels), shapes.text(other)
    check(shapes.same(labels, other), "value", "%s: labels have shape %s, %s have %s", self.class.name, shape, name, other_shape)
  end
  check_classes(self, "labels", labels)
  check_classes(self, "predictions", predictions)
  local columns = one_hot(predictions, self.num_classes)
  if weights then columns = columns * weights:flatten():to("float32"):unsqueeze(-1) end
  return one_hot(labels, self.num_classes):transpose(0, 1):matmul(columns)
end

function ConfusionMetric:update(given) self.confusion_matrix:add_(self:confusion(given)) end

---The diagonal of a confusion matrix, its sums over rows (labels) and over columns (predictions): each [num_classes].
---@param matrix any
---@return any correct, any actual, any predicted
function ConfusionMetric:parts(matrix)
  local all = tensors.to_device(tensors.arange(0, self.num_classes))
  local diagonal = one_hot(all, self.num_classes)
  return (matrix * diagonal):sum(0), matrix:sum(1), matrix:sum(0)
end

---1 for the classes that count, 0 for those in `ignored`: [num_classes].
---@param ignored? integer[]
---@return any
function ConfusionMetric:kept_classes(ignored)
  local list = {}
  for c = 1, self.num_classes do list[c] = 1 end
  if type(ignored) == "number" then ignored = { ignored } end
  check(ignored == nil or type(ignored) == "table", "type", "%s: expected a list of classes to ignore, found %s", self.class.name,
    show(ignored))
  for _, class in ipairs(ignored or {}) do
    local is_known = type(class) == "number" and list[class + 1] ~= nil
    check(is_known, "value", "%s: class %s to ignore is not one of 0 to %d", self.class.name, show(class), self.num_classes - 1)
    list[class + 1] = 0
  end
  return tensors.to_device(tensors.tensor(list))
end

---The mean over the classes that count and whose denominator is positive; 0 without any.
---@param numerator any
---@param denominator any
---@param ignored? integer[]
---@return any
function ConfusionMetric:mean_of_ratios(numerator, denominator, ignored)
  local kept = self:kept_classes(ignored)
  denominator = denominator * kept
  local ratios = inputs.safe_divide(numerator * kept, denominator)
  return inputs.safe_divide(ratios:sum(), denominator:gt(0):to("float32"):sum())
end

return ConfusionMetric
