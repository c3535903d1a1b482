-- Metrics: updates, resets, names, and errors.

local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local metrics = cstorch.metrics

local function ids(list) return cstorch.tensor(list, { dtype = "int64" }) end

describe("cstorch: metric", function()
  it("updates and computes when it is called", fresh(function()
    local metric = metrics.AccuracyMetric("accuracy", { compute_on_system = true })
    equal(metric({ labels = ids { 1, 2 }, predictions = ids { 1, 0 } }):item(), 0.5)
    metric:update { labels = ids { 1, 2 }, predictions = cstorch.tensor({ 1, 2 }, { dtype = "int32" }) }
    equal({ metric:value(), metric:compute():item(), metric.num_updates, metric.name }, { 0.75, 0.75, 2, "accuracy" })
    metric:reset()
    equal(metric({ labels = ids { 1 }, predictions = ids { 1 } }):item(), 1)
  end))

  it("keeps its state out of state dicts, and casts its value on request", fresh(function()
    local metric = metrics.MeanMetric("mean")
    equal(metric({ value = 3, dtype = "bfloat16" }).dtype, "bfloat16")
    local names = {}
    for name in metric:named_buffers() do names[#names + 1] = name end
    equal(names, { "mean_value", "weight" })
    equal(next(metric:state_dict()), nil)
  end))

  it("is NaN without tokens", fresh(function()
    local value = metrics.AccuracyMetric("a"):value()
    is_true(value ~= value)
  end))

  it("is known by name", fresh(function()
    local one, two, other = metrics.MeanMetric("m"), metrics.MeanMetric("m"), metrics.MeanMetric("n")
    one { value = 1 }
    two { value = 2 }
    other { value = 3 }
    local values, objects = {}, {}
    for name, value in metrics.compute_all_metrics() do values[name] = value end
    for name, metric in metrics.get_all_metrics() do objects[name] = metric end
    equal(values, { ["m.0"] = 1, ["m.1"] = 2, n = 3 })
    is_true(objects["m.1"] == two)
  end))

  it("can be written by a user", fresh(function()
    local Largest = metrics.Metric:subclass("Largest", { floor = 0 })
    Largest.inputs = { value = cstorch.REQUIRED }
    function Largest:reset() self:zero_state("largest", {}) end
    function Largest:update(given) self.largest:copy_(self.largest:maximum(given.value:amax())) end
    function Largest:compute() return self.largest + self.floor end
    local metric = Largest("largest", { floor = 10 })
    metric { value = cstorch.tensor { 1, 7, 3 } }
    equal(metric({ value = cstorch.tensor { 2 } }):item(), 17)
    raises("lacks the abstract method compute, reset, update", function() metrics.Metric "x" end, "type")
  end))

  for _, case in ipairs {
    { "AccuracyMetric", nil, { labels = ids { 1 } }, "keyword 'predictions' is missing", "type" },
    { "AccuracyMetric", nil, { labels = ids { 1 }, predictions = 5 }, "expected a tensor as predictions, found 5", "type" },
    { "AccuracyMetric", nil, { labels = ids { 1 }, prediction = ids { 1 } },
      "unknown keyword 'prediction'; did you mean 'predictions'?", "type" },
    { "MeanMetric", nil, { value = "x" }, "expected a number or a tensor as value, found 'x'", "type" },
    { "MeanIOUMetric", nil, {}, "keyword 'num_classes' is missing", "type" },
    { "MeanIOUMetric", { num_classes = 0 }, {}, "num_classes must be an integer >= 1, not 0" },
    { "MeanIOUMetric", { num_classes = 2 }, { labels = ids { -1 }, predictions = ids { 0 } },
      "labels must not be negative, but one is -1" },
    { "MeanIOUMetric", { num_classes = 2 }, { labels = ids { 1 }, predictions = ids { 2 } }, "predictions must be below num_classes 2" },
    { "MeanIOUMetric", { num_classes = 2 }, { labels = ids { 1 }, predictions = ids { 1, 0 } },
      "labels have shape [1], predictions have [2]" },
    { "DiceCoefficientMetric", { num_classes = 2, ignore_classes = { 2 } }, { labels = ids { 1 }, predictions = ids { 1 } },
      "class 2 to ignore is not one of 0 to 1" },
    { "FBetaScoreMetric", { num_classes = 2 }, { labels = ids { 1 }, predictions = ids { 1 }, weights = ids { 1 } },
      "unknown keyword 'weights'", "type" },
    { "FBetaScoreMetric", { num_classes = 2, beta = -1 }, {}, "beta must be a number > 0, not -1" },
    { "AUCMetric", { curve = "ROCK" }, {}, "curve must be 'ROC' or 'PR', not 'ROCK'" },
    { "AUCMetric", { summation_method = "x" }, {}, "summation_method must be" },
    { "AUCMetric", { num_thresholds = 1e300 }, {}, "num_thresholds must be an integer from 2 to 1000000, not 1e+300" },
    { "AUCMetric", { thresholds = { 2 } }, {}, "threshold 1 must be a number from 0 to 1, not 2" },
    { "PrecisionAtKMetric", { k = 0 }, {}, "k must be an integer >= 1, not 0" },
    { "RecallAtKMetric", { k = 3 }, { labels = ids { { 1 } }, predictions = cstorch.tensor { { 1, 2 } } },
      "k is 3, but predictions have only 2" },
    { "RecallAtKMetric", { k = 1 }, { labels = ids { 1 }, predictions = cstorch.tensor { { 1, 2 } } }, "expected labels [B, L]" },
  } do
    it(("%s refuses: %s"):format(case[1], case[4]), fresh(function()
      raises(case[4], function() metrics[case[1]]("m", case[2])(case[3]) end, case[5] or "value")
    end))
  end

  it("of one's own must compute a tensor without dims", fresh(function()
    local Own = metrics.Metric:subclass "Own"
    local result
    function Own:reset() self:zero_state("n", {}) end
    function Own:update() end -- luacheck: no unused args
    function Own:compute() return result end -- luacheck: no unused args
    raises("Own: its compute must return a 0-dim tensor, but returned nil", function() Own("m"):value() end, "type")
    result = 5
    raises("Own: its compute must return a 0-dim tensor, but returned 5", function() Own("m"):value() end, "type")
    result = cstorch.ones { 2 }
    raises("Own:value: its compute must return a 0-dim tensor, not one of shape [2]", function() Own("m"):value() end, "value")
    result = cstorch.ones {}
    equal(Own("m"):value(), 1)
  end))

  it("needs a name", fresh(function()
    raises("expected a name as first argument, found nil", function() metrics.MeanMetric() end, "type")
  end))

  it("on CSX must compute on the system, and some cannot", fresh(function()
    cstorch.backend "CSX"
    raises("compute_on_system must be true on CSX", function() metrics.MeanMetric("m", { compute_on_system = false }) end, "value")
    raises("AUCMetric cannot run on CSX", function() metrics.AUCMetric "auc" end, "runtime")
    raises("compute was called before any update", function() metrics.MeanMetric("m"):compute() end, "runtime")
  end))
end)
