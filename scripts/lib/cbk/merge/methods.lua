-- The methods of merging: what each needs, and its tensor from those of the models.
-- Formulas: mergekit/merge_methods (linear.py, slerp.py, passthrough.py, generalized_task_arithmetic.py) and mergekit/sparsify.py.

local cbk = require "cbk"

local methods = {}

---@class MergeInput
---@field model string     for messages
---@field tensor Tensor    float32 or float64
---@field is_base boolean
---@field weight? number
---@field density? number
---@field scale? number

---@class MergeGlobals     parameters that are the same for all models
---@field normalize? number   0 or 1
---@field rescale? number
---@field lambda? number
---@field t? number
---@field seed integer
---@field name string      of the output's tensor

---@class MergeDefault
---@field value? number        flags are 0 or 1
---@field is_required? boolean

---@class MergeMethod
---@field globals table<string, MergeDefault>   parameters for all models
---@field locals table<string, MergeDefault>    parameters of each model; a base model of `has_base` needs none
---@field has_base boolean                        the result is the base model and differences from it
---@field models? integer                         the number it needs
---@field rounds_like_base boolean                models are rounded to the base model's dtype
---@field merge fun(inputs: MergeInput[], globals: MergeGlobals): Tensor

local REQUIRED = { is_required = true }

local function field_of(inputs, name)
  local out = {}
  for i, input in ipairs(inputs) do out[i] = input[name] end
  return out
end

local function linear(inputs, globals)
  return cbk.weighted_sum(field_of(inputs, "tensor"), field_of(inputs, "weight"), { normalize = globals.normalize ~= 0 })
end

local function slerp(inputs, globals)
  local first, second = inputs[1], inputs[2]
  if second.is_base then first, second = second, first end
  return cbk.slerp(first.tensor, second.tensor, globals.t)
end

local function passthrough(inputs)
  local input = inputs[1]
  return input.scale and input.tensor:affine(input.scale, 0) or input.tensor
end

---A method of differences from a base model.
---@class DifferencesMethod   base + lambda · Σ weight · scale · trim(tuned - base, density); the sum is `cbk.add_differences`
---@field trim? "magnitude"|"random"   what of a difference is kept: the largest elements, or random ones (host/tensor/trim.cpp)
---@field consensus? boolean           only elements with the sign of the majority are added
---@field normalizes? boolean          by default, the sum is divided by that of the weights
---@field rescales? boolean            by default, what is kept of a difference gets the sum of sizes that the whole had

---@param method DifferencesMethod
---@return MergeMethod
local function differences(method)
  local function merge(inputs, globals)
    local base, tuned = nil, {}
    for _, input in ipairs(inputs) do
      if input.is_base then base = input.tensor else tuned[#tuned + 1] = input end
    end
    if #tuned == 0 then return base end
    return cbk.add_differences(base, field_of(tuned, "tensor"), field_of(tuned, "weight"), {
      trim = method.trim, densities = field_of(tuned, "density"), consensus = method.consensus == true, normalize = globals.normalize ~= 0,
      rescale = globals.rescale ~= 0, factor = globals.lambda, seed = globals.seed, name = globals.name,
    })
  end
  return {
    globals = { normalize = { value = method.normalizes and 1 or 0 }, rescale = { value = method.rescales and 1 or 0 },
      lambda = { value = 1 }, int8_mask = { value = 0 } },
    locals = { weight = REQUIRED, density = { value = 1 } }, has_base = true, rounds_like_base = true, merge = merge,
  }
end

---@type table<string, MergeMethod>
methods.all = {
  linear = {
    globals = { normalize = { value = 1 } }, locals = { weight = REQUIRED }, has_base = false, rounds_like_base = false, merge = linear,
  },
  slerp = { globals = { t = REQUIRED }, locals = {}, models = 2, has_base = true, rounds_like_base = true, merge = slerp },
  passthrough = { globals = {}, locals = { scale = {} }, models = 1, has_base = false, rounds_like_base = false, merge = passthrough },
  task_arithmetic = differences {},
  ties = differences { trim = "magnitude", consensus = true, normalizes = true },
  dare_linear = differences { trim = "random", rescales = true },
  dare_ties = differences { trim = "random", consensus = true, rescales = true },
}

return methods
