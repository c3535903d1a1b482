-- Gradient checks: what backward gives against central differences, in float64.

local cstorch = require "cstorch"
local harness = require "harness"

local gradients = {}

local TOLERANCE, STEP = 1e-4, 1e-5

---A stream of numbers in [0, 1) that is the same in every run.
---@param seed integer
---@return fun(): number
function gradients.numbers(seed)
  local state = seed * 7919 % 2147483647 + 1
  return function()
    state = state * 48271 % 2147483647
    return state / 2147483647
  end
end

local function count_of(shape)
  local count = 1
  for _, extent in ipairs(shape) do count = count * extent end
  return count
end

--- A leaf of float64 with the shape, or with one that a transposed view of every second element has.
local function leaf_shape(shape, is_strided)
  if not is_strided or #shape == 0 then return shape end
  local reversed = {}
  for i = #shape, 1, -1 do reversed[#reversed + 1] = shape[i] end
  reversed[#reversed] = reversed[#reversed] * 2
  return reversed
end

local function view(leaf, shape, is_strided)
  if not is_strided or #shape == 0 then return leaf end
  local back = {}
  for i = 1, #shape do back[i] = #shape - i end
  return leaf:slice(-1, 0, 2 * shape[1], 2):permute(back)
end

--- The sum of the results of `fn`, each element with a weight of its own.
local function weighted(results)
  local total
  for number, result in ipairs(results) do
    local next_number, weights = gradients.numbers(100 + number), {}
    for i = 1, result:numel() do weights[i] = next_number() + 0.5 end
    local part = (result * cstorch.tensor(weights, { shape = result:shape(), dtype = "float64" })):sum()
    total = total and total + part or part
  end
  return total
end

--- What `fn` gives for leaves with these values: the weighted sum, and the leaves.
local function run(fn, shapes, values, is_strided, needs_grad)
  local leaves, inputs = {}, {}
  for i, shape in ipairs(shapes) do
    leaves[i] = cstorch.tensor(values[i], { shape = leaf_shape(shape, is_strided), dtype = "float64", requires_grad = needs_grad })
    inputs[i] = view(leaves[i], shape, is_strided)
  end
  return weighted { fn(unpack(inputs)) }, leaves
end

local function difference(fn, shapes, values, is_strided, input, place)
  local before = values[input][place]
  local function at(value)
    values[input][place] = value
    return cstorch.no_grad(function() return run(fn, shapes, values, is_strided, false):item() end)
  end
  local slope = (at(before + STEP) - at(before - STEP)) / (2 * STEP)
  values[input][place] = before
  return slope
end

local function compare(what, found, expected)
  harness.checked()
  local scale = math.max(math.abs(found), math.abs(expected), 1e-2)
  local distance = math.abs(found - expected)
  if distance ~= distance or distance > TOLERANCE * scale then
    error(("%s: backward gives %.9g, differences %.9g"):format(what, found, expected), 0)
  end
end

---@class GradientCase
---@field shapes integer[][]            of the inputs
---@field fn fun(...): ...              tensors to tensors
---@field low? number                   inputs are from [low, high); default [-1, 1)
---@field high? number
---@field is_strided? boolean           inputs are views with gaps, transposed

---Raises unless the gradients of all inputs agree with central differences.
---@param case GradientCase
---@return integer checked   elements
function gradients.check(case)
  local low, high, values, checked = case.low or -1, case.high or 1, {}, 0
  local next_number = gradients.numbers(1)
  for i, shape in ipairs(case.shapes) do
    values[i] = {}
    for k = 1, count_of(leaf_shape(shape, case.is_strided)) do values[i][k] = low + (high - low) * next_number() end
  end
  local total, leaves = run(case.fn, case.shapes, values, case.is_strided, true)
  total:backward()
  for i, leaf in ipairs(leaves) do
    harness.checked()
    if not leaf.grad then error(("input %d has no gradient"):format(i), 0) end
    local found = leaf.grad:reshape({ leaf:numel() }):tolist()
    for k, value in ipairs(found) do
      compare(("input %d, element %d"):format(i, k - 1), value, difference(case.fn, case.shapes, values, case.is_strided, i, k))
      checked = checked + 1
    end
  end
  return checked
end

return gradients
