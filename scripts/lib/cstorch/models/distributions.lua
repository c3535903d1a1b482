-- Random numbers of the distributions that configs of the Model Zoo name for first values. Source: layers/init.py of the Model Zoo 2.9.

local errors = require "cstorch.errors"
local kinds = require "converters.engine.kinds"
local tensors = require "cstorch.tensors"

local distributions = {}

--- Coefficients of the polynomial in -ln(1 - x²) - 2.5 that is erf⁻¹(x) / x for |x| < 0.99. Source: Giles, "Approximating the erfinv
--- function" (2010), single precision.
local INVERSE_ERF = { 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
  0.246640727, 1.50140941 }

---@param x cstorch.Tensor   within (-0.99, 0.99)
local function inverse_erf(x)
  local w = ((1 - x * x):log() * -1) - 2.5
  local out = tensors.full_like(x, INVERSE_ERF[1])
  for i = 2, #INVERSE_ERF do out = out * w + INVERSE_ERF[i] end
  return out * x
end

local WIDEST = 2.5 -- standard deviations; erf(2.5 / √2) = 0.9876

---The error function, by its power series.
---@param x number   |x| <= 1.8
local function erf(x)
  local sum, term = 0, x
  for n = 0, 60 do
    sum = sum + term / (2 * n + 1)
    term = -term * x * x / (n + 1)
  end
  return 2 / math.sqrt(math.pi) * sum
end

---@class cstorch.models.Initializer   A distribution, by the names of the Model Zoo.
---@field name string
---@field mean? number
---@field std? number
---@field a? number      the least value, where it is cut
---@field b? number
---@field gain? number
---@field val? number
---@field zero_row? integer   of a table: this row is 0

---Normal numbers within [a, b].
local function truncated_normal(shape, one)
  local mean, std = one.mean or 0, one.std or 1
  local low, high = ((one.a or -2 * std) - mean) / std, ((one.b or 2 * std) - mean) / std
  errors.check(low >= -WIDEST and high <= WIDEST and low < high, "value",
    "truncated_normal: a and b must be within %g standard deviations of the mean, not %g and %g", WIDEST, low, high)
  local least, most = erf(low / math.sqrt(2)), erf(high / math.sqrt(2))
  local numbers = inverse_erf(tensors.rand(shape) * (most - least) + least) * (math.sqrt(2) * std) + mean
  return numbers:clamp(mean + low * std, mean + high * std)
end

---Inputs and outputs of a matrix.
local function fans(shape)
  errors.check(#shape >= 2, "value", "an initializer by the numbers of inputs and outputs needs a matrix, not %d dims", #shape)
  return shape[2], shape[1]
end

local function uniform(shape, bound, mean) return (tensors.rand(shape) * 2 - 1) * bound + (mean or 0) end

---@type table<string, fun(shape: integer[], one: cstorch.models.Initializer): cstorch.Tensor>
local DISTRIBUTIONS = {
  truncated_normal = truncated_normal,
  normal = function(shape, one) return tensors.randn(shape) * (one.std or 1) + (one.mean or 0) end,
  uniform = function(shape, one)
    local a, b = one.a or 0, one.b or 1
    return uniform(shape, (b - a) / 2, (a + b) / 2)
  end,
  xavier_uniform = function(shape, one)
    local inputs, outputs = fans(shape)
    return uniform(shape, (one.gain or 1) * math.sqrt(6 / (inputs + outputs)))
  end,
  xavier_normal = function(shape, one)
    local inputs, outputs = fans(shape)
    return tensors.randn(shape) * ((one.gain or 1) * math.sqrt(2 / (inputs + outputs)))
  end,
  zeros = function(shape) return tensors.zeros(shape) end,
  ones = function(shape) return tensors.ones(shape) end,
  constant = function(shape, one) return tensors.full(shape, one.val or 0) end,
}
DISTRIBUTIONS.glorot_uniform, DISTRIBUTIONS.glorot_normal = DISTRIBUTIONS.xavier_uniform, DISTRIBUTIONS.xavier_normal

---The initializer of a field: a name, or a map with it; nil if the config has none.
---@param config Dict
---@param field string
---@return cstorch.models.Initializer|nil
function distributions.stated(config, field)
  local value = config[field]
  if kinds.absent(value) then return nil end
  if type(value) == "string" then value = { name = value } end
  local out = {}
  for _, name in ipairs { "name", "mean", "std", "a", "b", "gain", "val" } do
    local own = value[name]
    if kinds.present(own) then out[name] = own end
  end
  out.name = type(out.name) == "string" and out.name:lower() or out.name
  errors.check(DISTRIBUTIONS[out.name], "value", "%s: the initializer %s is not emulated", field, errors.show(out.name))
  return out
end

---An initializer whose standard deviation is scaled.
---@param one cstorch.models.Initializer
---@param factor number
---@return cstorch.models.Initializer
function distributions.scaled(one, factor)
  local out = {}
  for name, value in pairs(one) do out[name] = value end
  local std = one.std or 1
  out.std = std * factor
  if one.name == "truncated_normal" then out.a, out.b = (one.a or -2 * std) * factor, (one.b or 2 * std) * factor end
  return out
end

---@param shape integer[]
---@param one cstorch.models.Initializer
---@return cstorch.Tensor
function distributions.values(shape, one) return DISTRIBUTIONS[one.name](shape, one) end

return distributions
