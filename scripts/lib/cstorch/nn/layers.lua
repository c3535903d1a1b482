-- Layers with parameters, and activations. Initial values are those of PyTorch: uniform within ±1/√inputs for Linear, normal for
-- Embedding, ones and zeros for norms.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local keywords = require "cstorch.keywords"
local Module = require "cstorch.nn.module"
local ordered_map = require "cstorch.ordered_map"
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
---Returns its input.
activation("Identity", function(x) return x end)

---x · Φ(x), or its tanh form.
layers.GELU = Module:subclass("GELU", { approximate = "none" })

---@param kw { approximate: "none"|"tanh" }
function layers.GELU:init(kw)
  Module.init(self)
  self.approximate = kw.approximate
end

function layers.GELU:forward(x) return functional.gelu(x, { approximate = self.approximate }) end

--- The base class of lists of modules: `list[1]` is named "0", `#list` and `ipairs(list)` work, `list[#list + 1] = module` appends.
local List = Module:subclass "List"

local function name_of(position) return ("%d"):format(position - 1) end

--- The position of a name such as "0"; nil for other names.
local function position_of(name) return type(name) == "string" and name:find "^%d+$" and tonumber(name) + 1 or nil end

function List:add_module(name, module)
  Module.add_module(self, name, module)
  local position = position_of(name)
  if position and position <= #self + 1 then rawset(self, position, module) end
end

---@param module cstorch.nn.Module
function List:append(module)
  errors.check(class.is_a(module, Module), "type", "%s: expected a module to append, found %s", self.class.name, errors.show(module))
  self:add_module(name_of(#self + 1), module)
end

---The number of members.
---@return integer
function List:length() return #self end

--- Updates the names of items that a script replaced or removed, because Lua does not report such changes.
function List:_children()
  local modules = self._modules
  for i, item in ipairs(self) do
    errors.check(class.is_a(item, Module), "type", "%s: expected a module as item %d, found %s", self.class.name, i, errors.show(item))
    if not rawequal(modules[name_of(i)], item) then modules[name_of(i)] = item end
  end
  local position = #self + 1
  while modules[name_of(position)] do
    modules[name_of(position)] = nil
    position = position + 1
  end
  return modules
end

function List:__index(key)
  local position = position_of(key)
  return position and rawget(self, position) or Module.__index(self, key)
end

function List:__newindex(key, value)
  local position, count = type(key) == "number" and key or position_of(key), #self
  if not position then return Module.__newindex(self, key, value) end
  errors.check(position <= count + 1, "value", "%s: there is no module %g to replace; the next new one is %d", self.class.name, position,
    count + 1)
  if value == nil then return rawset(self, position, nil) end
  self:add_module(name_of(position), value)
end

---Modules one after the other.
layers.Sequential = List:subclass "Sequential"

---@param ... cstorch.nn.Module
function layers.Sequential:init(...)
  Module.init(self)
  for i = 1, select("#", ...) do
    local module = select(i, ...)
    errors.check(class.is_a(module, Module), "type", "Sequential: expected modules, found %s as argument %d", errors.show(module), i)
    self:append(module)
  end
end

function layers.Sequential:forward(x)
  for _, module in ordered_map.items(self:_children()) do x = module(x) end
  return x
end

---A list of modules: `list[1]` is named "0".
layers.ModuleList = List:subclass "ModuleList"

---@param list cstorch.nn.Module[]
function layers.ModuleList:init(list)
  Module.init(self)
  local is_list = list == nil or type(list) == "table" and getmetatable(list) == nil
  errors.check(is_list, "type", "ModuleList: expected a list of modules { a, b }, found %s", errors.show(list))
  for _, module in ipairs(list or {}) do self:append(module) end
end

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
