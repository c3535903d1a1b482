-- Shared code for the inputs of metrics.

local errors = require "cstorch.errors"
local tensors = require "cstorch.tensors"

local inputs = {}

local check, show = errors.check, errors.show

---Checks that the named inputs are tensors; nil is left out.
---@param metric cstorch.metrics.Metric
---@param given table
---@param names string[]
function inputs.check_tensors(metric, given, names)
  for _, name in ipairs(names) do
    local value = given[name]
    check(value == nil or tensors.is_tensor(value), "type", "%s: expected a tensor as %s, found %s", metric.class.name, name, show(value))
  end
end

---A number or a tensor as a float32 tensor.
---@param metric cstorch.metrics.Metric
---@param name string
---@param value any
---@return any
function inputs.as_float(metric, name, value)
  if type(value) == "number" then return tensors.to_device(tensors.full({}, value)) end
  check(tensors.is_tensor(value), "type", "%s: expected a number or a tensor as %s, found %s", metric.class.name, name, show(value))
  return value:to "float32"
end

---How many tokens count: those with a weight above 0, or all of `labels`. A 0-dim tensor or a number.
---@param labels any
---@param weights? any
---@return any
function inputs.count_tokens(labels, weights)
  if weights then return weights:gt(0):to("float32"):sum() end
  return labels:numel()
end

---`a/b` where b is positive, else 0.
---@return any
function inputs.safe_divide(a, b) return (a / b):masked_fill(b:le(0), 0) end

return inputs
