-- The first values of a model of the Model Zoo that is to be trained. Source: gpt2_model.py, mup_utils.py and layers/init.py of the
-- Model Zoo 2.9.

local class = require "converters.engine.class"
local errors = require "cstorch.errors"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local positions = require "cstorch.nn.positions"
local tensors = require "cstorch.tensors"

local initial = {}

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
---@field value? number

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
local function stated(config, field)
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
local function scaled(one, factor)
  local out = {}
  for name, value in pairs(one) do out[name] = value end
  local std = one.std or 1
  out.std = std * factor
  if one.name == "truncated_normal" then out.a, out.b = (one.a or -2 * std) * factor, (one.b or 2 * std) * factor end
  return out
end

local function ratio(config, size, base)
  local own, of = config[size], config[base]
  return kinds.present(of) and kinds.present(own) and own / of or nil
end

---The initializers of a config: of embeddings, matrices, their outputs and the router.
---@param config Dict
---@param layers integer
local function initializers_of(config, layers)
  local range = kinds.present(config.initializer_range) and config.initializer_range or 0.02
  local usual = { name = "truncated_normal", std = range }
  local all, by_depth = stated(config, "initializer"), (2 * layers) ^ -0.5
  local out = { embedding = stated(config, "embedding_initializer") or usual, matrix = all or usual,
    ffn = stated(config, "ffn_initializer") or all or usual, gate = all or usual, head = { name = "normal", std = range } }
  local output, ffn_output = stated(config, "output_layer_initializer"), stated(config, "ffn_output_layer_initializer")
  local wider, wider_filter = ratio(config, "hidden_size", "mup_base_hidden_size"), ratio(config, "filter_size", "mup_base_filter_size")
  if wider then
    out.matrix, out.ffn = scaled(out.matrix, wider ^ -0.5), scaled(out.ffn, wider ^ -0.5)
    output = scaled(output or usual, wider ^ -0.5 * by_depth)
  end
  if wider_filter then ffn_output = scaled(ffn_output or usual, wider_filter ^ -0.5 * by_depth) end
  out.output = output or not all and scaled(usual, by_depth) or all
  out.ffn_output = ffn_output or out.output
  return out
end

--- Which initializer a tensor has, by its key; the first that fits.
local PLACES = {
  { "^embedding_layer%.", "embedding" }, { "^lm_head%.", "head" }, { "%.ffn%.gate%.", "gate" }, { "%.proj_output_dense_layer%.", "output" },
  { "ffn.*%f[%d]1%.linear_layer", "ffn_output" }, { "%.ffn%.", "ffn" }, { "", "matrix" },
}

local function place_of(key)
  for _, place in ipairs(PLACES) do
    if key:find(place[1]) then return place[2] end
  end
end

---The values of buffers, which follow from the config.
---@type table<string, fun(shape: integer[]): cstorch.Tensor>   by the last part of their keys
local BUFFERS = { slopes = function(shape) return positions.alibi_slopes(shape[1]):reshape(shape) end }

---The first values of all tensors that a new model has. Each has random numbers of its own, so that a tensor is the same in models of
---other depths.
---@param list ClassTensors
---@param seed integer
---@return table<string, cstorch.Tensor>   # by key; tied tensors are one
function initial.values(list, seed)
  local by_place, out = initializers_of(list.config, list.values.num_hidden_layers), {}
  for _, one in ipairs(list) do
    local shape, fixed = class.shape(one), BUFFERS[naming.last(one.key)]
    if fixed then
      out[one.key] = fixed(shape)
    elseif not (one.buffer or one.optional or one.foreign or one.tied_to) then
      local own = by_place[place_of(one.key)]
      tensors.manual_seed(keys.seed_of(one.key, seed))
      out[one.key] = one.init and tensors.full(shape, one.init) or DISTRIBUTIONS[own.name](shape, own)
    end
  end
  for _, one in ipairs(list) do
    if one.tied_to then out[one.key] = out[one.tied_to] end
  end
  return out
end

return initial
