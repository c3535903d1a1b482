-- Layers with parameters, and activations. Initial values are those of PyTorch: uniform within ±1/√inputs for Linear, normal for
-- Embedding, ones and zeros for norms.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local keywords = require "cstorch.keywords"
local Module = require "cstorch.nn.module"
local parameter = require "cstorch.nn.parameter"
local tensors = require "cstorch.tensors"

local layers = {}

local function extent(what, name, value)
  local is_extent = type(value) == "number" and value >= 1 and value == math.floor(value)
  errors.check(is_extent, "value", "%s: %s must be a whole number from 1, not %s", what, name, errors.show(value))
  return value
end

---x · weightᵀ + bias: x [..., inputs] to [..., outputs].
layers.Linear = Module:subclass("Linear", { bias = true })

---@param inputs integer
---@param outputs integer
---@param kw { bias: boolean }   default true
function layers.Linear:init(inputs, outputs, kw)
  Module.init(self)
  self.in_features, self.out_features = extent("Linear", "inputs", inputs), extent("Linear", "outputs", outputs)
  local bound = 1 / math.sqrt(inputs)
  local function uniform(shape) return parameter.new((tensors.rand(shape) * 2 - 1) * bound) end
  self.weight = uniform { outputs, inputs }
  self.bias = kw.bias and uniform { outputs } or nil
end

function layers.Linear:forward(x) return functional.linear(x, self.weight, self.bias) end
function layers.Linear:extra_text() return ("%d, %d%s"):format(self.in_features, self.out_features, self.bias and "" or ", no bias") end

---Rows of a table [count, width] by whole numbers.
layers.Embedding = Module:subclass "Embedding"

---@param count integer
---@param width integer
function layers.Embedding:init(count, width)
  Module.init(self)
  self.weight = parameter.new(tensors.randn { extent("Embedding", "count", count), extent("Embedding", "width", width) })
end

function layers.Embedding:forward(ids) return functional.embedding(ids, self.weight) end
function layers.Embedding:extra_text() return table.concat(self.weight:shape(), ", ") end

local function norm_shape(what, shape)
  if type(shape) == "number" then shape = { shape } end
  local is_list = type(shape) == "table" and #shape > 0
  errors.check(is_list, "type", "%s: expected an extent or a list of them, found %s", what, errors.show(shape))
  for _, one in ipairs(shape) do extent(what, "an extent", one) end
  return shape
end

---(x - mean) / √(variance + eps) · weight + bias over the last dims.
layers.LayerNorm = Module:subclass("LayerNorm", { eps = 1e-5, bias = true })

---@param shape integer|integer[]
---@param kw { eps: number, bias: boolean }
function layers.LayerNorm:init(shape, kw)
  Module.init(self)
  self.eps, shape = kw.eps, norm_shape("LayerNorm", shape)
  self.weight = parameter.new(tensors.ones(shape))
  self.bias = kw.bias and parameter.new(tensors.zeros(shape)) or nil
end

function layers.LayerNorm:forward(x) return functional.layer_norm(x, self.weight, self.bias, { eps = self.eps }) end
function layers.LayerNorm:extra_text() return table.concat(self.weight:shape(), ", ") end

---x / √(mean(x²) + eps) · weight over the last dims.
layers.RMSNorm = Module:subclass("RMSNorm", { eps = 1e-6 })

---@param shape integer|integer[]
---@param kw { eps: number }
function layers.RMSNorm:init(shape, kw)
  Module.init(self)
  self.eps = kw.eps
  self.weight = parameter.new(tensors.ones(norm_shape("RMSNorm", shape)))
end

function layers.RMSNorm:forward(x) return functional.rms_norm(x, self.weight, { eps = self.eps }) end
layers.RMSNorm.extra_text = layers.LayerNorm.extra_text

---Sets elements to 0 with the probability p while training.
layers.Dropout = Module:subclass "Dropout"

---@param p? number   default 0.5
function layers.Dropout:init(p)
  Module.init(self)
  p = p or 0.5
  errors.check(type(p) == "number" and p >= 0 and p <= 1, "value", "Dropout: p must be in [0, 1], not %s", errors.show(p))
  self.p = p
end

function layers.Dropout:forward(x) return functional.dropout(x, { p = self.p, training = self.training }) end
function layers.Dropout:extra_text() return ("%g"):format(self.p) end

local function activation(name, fn)
  layers[name] = Module:subclass(name)
  layers[name].forward = function(_, x) return fn(x) end
end
---max(x, 0) of each element.
activation("ReLU", functional.relu)
---x · sigmoid(x) of each element.
activation("SiLU", functional.silu)
---The hyperbolic tangent of each element.
activation("Tanh", functional.tanh)
---Its input as it is.
activation("Identity", function(x) return x end)

---x · Φ(x), or its tanh form.
layers.GELU = Module:subclass("GELU", { approximate = "none" })

---@param kw { approximate: "none"|"tanh" }
function layers.GELU:init(kw)
  Module.init(self)
  self.approximate = kw.approximate
end

function layers.GELU:forward(x) return functional.gelu(x, { approximate = self.approximate }) end

---Modules one after the other.
layers.Sequential = Module:subclass "Sequential"

---@param ... cstorch.nn.Module
function layers.Sequential:init(...)
  Module.init(self)
  for i = 1, select("#", ...) do
    local module = select(i, ...)
    errors.check(class.is_a(module, Module), "type", "Sequential: expected modules, found %s as argument %d", errors.show(module), i)
    self:add_module(tostring(i - 1), module)
  end
end

--- `list[1]` is the module that is named "0".
local function member(self, key)
  if type(key) == "number" then key = ("%d"):format(key - 1) end
  return Module.__index(self, key)
end
layers.Sequential.__index = member

--- `list[1] = module` replaces the module that is named "0".
local function replace_member(self, key, value)
  if type(key) == "number" then
    local name, count = ("%d"):format(key - 1), self:length()
    errors.check(self._modules[name] ~= nil, "value", "%s: there is no module %g to replace, only 1 to %d", self.class.name, key, count)
    errors.check(class.is_a(value, Module), "type", "%s: expected a module as item %d, found %s", self.class.name, key, errors.show(value))
    key = name
  end
  Module.__newindex(self, key, value)
end
layers.Sequential.__newindex = replace_member

function layers.Sequential:forward(x)
  for i = 1, self:length() do x = self[i](x) end
  return x
end

---A list of modules: `list[1]` is named "0".
layers.ModuleList = Module:subclass "ModuleList"
layers.ModuleList.__index = member
layers.ModuleList.__newindex = replace_member

---@param list cstorch.nn.Module[]
function layers.ModuleList:init(list)
  Module.init(self)
  local is_list = list == nil or type(list) == "table" and getmetatable(list) == nil
  errors.check(is_list, "type", "ModuleList: expected a list of modules { a, b }, found %s", errors.show(list))
  for _, module in ipairs(list or {}) do self:append(module) end
end

---@param module cstorch.nn.Module
function layers.ModuleList:append(module)
  errors.check(class.is_a(module, Module), "type", "ModuleList: expected a module to append, found %s", errors.show(module))
  self:add_module(tostring(self:length()), module)
end

---The number of members.
---@return integer
function layers.ModuleList:length()
  local count = 0
  while self._modules[tostring(count)] ~= nil do count = count + 1 end
  return count
end
layers.Sequential.length = layers.ModuleList.length

---Cross-entropy of logits [..., classes] against labels [...].
layers.CrossEntropyLoss = Module:subclass("CrossEntropyLoss", { reduction = "mean", ignore_index = -100 })

function layers.CrossEntropyLoss:init(kw)
  Module.init(self)
  self.options = keywords.plain(kw)
end

function layers.CrossEntropyLoss:forward(logits, labels) return functional.cross_entropy(logits, labels, self.options) end

---(a - b)².
layers.MSELoss = Module:subclass("MSELoss", { reduction = "mean" })
layers.MSELoss.init = layers.CrossEntropyLoss.init
function layers.MSELoss:forward(a, b) return functional.mse_loss(a, b, self.options) end

return layers
