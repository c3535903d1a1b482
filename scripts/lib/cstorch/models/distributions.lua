-- Random numbers of the distributions that configs of the Model Zoo name for first values. Source: layers/init.py of the Model Zoo 2.9.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
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
  local mean, std = one.mean or 0, one.std
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
  normal = function(shape, one) return tensors.randn(shape) * one.std + (one.mean or 0) end,
  uniform = function(shape, one)
    return uniform(shape, (one.b - one.a) / 2, (one.a + one.b) / 2)
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
  constant = function(shape, one) return tensors.full(shape, one.val) end,
}
DISTRIBUTIONS.glorot_uniform, DISTRIBUTIONS.glorot_normal = DISTRIBUTIONS.xavier_uniform, DISTRIBUTIONS.xavier_normal

--- What each distribution takes, with its defaults; false: none.
---@type table<string, table<string, number|false>>
local PARTS = {
  truncated_normal = { mean = 0, std = 0.05, a = false, b = false }, normal = { mean = 0, std = 0.05 }, uniform = { a = -0.05, b = 0.05 },
  xavier_uniform = { gain = 1 }, xavier_normal = { gain = 1 }, zeros = {}, ones = {}, constant = { val = false },
}
PARTS.glorot_uniform, PARTS.glorot_normal = PARTS.xavier_uniform, PARTS.xavier_normal

--- Parts that other initializers have. The Model Zoo warns of them where they are not used.
local OTHERS = { mean = true, std = true, a = true, b = true, gain = true, val = true, mode = true, nonlinearity = true, scale = true,
  distribution = true, seed = true }

---Fails at a part of an initializer that is not known or not a number, and warns of one that is not used.
---@param value Dict
---@param field string
---@param name string
local function check_parts(value, field, name)
  local own = PARTS[name]
  local known = naming.sorted(own)
  table.insert(known, 1, "name")
  for part, number in cbk.items(value) do
    local place, near = ("%s.%s"):format(field, tostring(part)), errors.suggestion(part, known)
    errors.check_field(part == "name" or own[part] ~= nil or OTHERS[part], place, "unknown field of %s%s", name,
      near ~= "" and near or "; known: " .. table.concat(known, ", "))
    if own[part] ~= nil and kinds.present(number) then
      local is_number = type(number) == "number" and math.abs(number) < math.huge
      errors.check_field(is_number, place, "expected a number, found %s", errors.show(number))
    elseif part ~= "name" and kinds.present(number) then
      errors.warn(("%s has no effect: %s does not use it"):format(place, name))
    end
  end
end

---The initializer of a field: a name, or a map with it; nil if the config has none.
---@param config Dict
---@param field string
---@param within? string   the path of `config`
---@return cstorch.models.Initializer|nil
function distributions.stated(config, field, within)
  local value = config[field]
  if within then field = within .. "." .. field end
  if kinds.absent(value) then return nil end
  if type(value) == "string" then value = cbk.dict { name = value } end
  errors.check_field(kinds.is_dict(value), field, "expected the name of an initializer, or a map with it, found %s", errors.show(value))
  local name = type(value.name) == "string" and value.name:lower() or value.name
  errors.check_field(kinds.present(name), field, "it has no 'name', such as truncated_normal")
  errors.check_field(PARTS[name], field, "the initializer %s is not emulated%s; known: %s", errors.show(name),
    errors.suggestion(name, naming.sorted(PARTS)), table.concat(naming.sorted(PARTS), ", "))
  check_parts(value, field, name)
  local out = { name = name }
  for part, default in pairs(PARTS[name]) do out[part] = kinds.present(value[part]) and value[part] or default or nil end
  errors.check_field(name ~= "constant" or out.val, field, "constant needs 'val'")
  local least = name == "truncated_normal" and out.std > 0 or name ~= "truncated_normal" and (out.std or 0) >= 0
  errors.check_field(least, field .. ".std", "expected a number above 0, found %s", errors.show(out.std))
  errors.check_field(not (out.a and out.b) or out.a <= out.b, field .. ".a", "%s is above b, %s", errors.show(out.a), errors.show(out.b))
  return out
end

---@param one cstorch.models.Initializer
---@return cstorch.models.Initializer
function distributions.copied(one)
  local out = {}
  for name, value in pairs(one) do out[name] = value end
  return out
end

---An initializer whose standard deviation is scaled, as muP does.
---@param one cstorch.models.Initializer
---@param factor number
---@return cstorch.models.Initializer
function distributions.scaled(one, factor)
  errors.check(one.std, "value", "muP scales initializers of the kinds normal and truncated_normal, not %s", one.name)
  local out, std = distributions.copied(one), one.std
  out.std = std * factor
  if one.name == "truncated_normal" then out.a, out.b = (one.a or -2 * std) * factor, (one.b or 2 * std) * factor end
  return out
end

---@param shape integer[]
---@param one cstorch.models.Initializer
---@return cstorch.Tensor
function distributions.values(shape, one) return DISTRIBUTIONS[one.name](shape, one) end

return distributions
