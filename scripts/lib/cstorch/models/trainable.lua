-- Models that train: modules whose state dict has the names and shapes of a class of the converters.

local class = require "cstorch.class"
local keys = require "converters.engine.keys"
local layers = require "cstorch.nn.layers"
local Module = require "cstorch.nn.module"
local naming = require "cbk.naming"
local parameter = require "cstorch.nn.parameter"
local tensors = require "cstorch.tensors"
local weights = require "cstorch.models.weights"

--- A part of a model, which has tensors and no computation of its own.
local Part = Module:subclass "Part"

--- The tensors of a norm: optimizers know it by its class, and do not decay them.
local Norm = Part:subclass "LayerNorm"

---@class cstorch.models.Trainable : cstorch.nn.Module   A model of the Model Zoo with parameters.
---@field class_name string                    of the Model Zoo
---@field description cstorch.models.Description   what it computes
---@field values table<string, cstorch.Tensor>   its parameters by their names
---@field adapted? table<string, cstorch.models.Adapted>   by the names of modules; nil: none are
local Trainable = Module:subclass "Trainable"
class.optional(Trainable, "adapted")

---The part that has a tensor, made with those around it: "a.b.0.c" is in part 0 of the list b of a.
---@param parts table<string, cstorch.nn.Module>   by their names; "" is the model
---@param name string
---@param is_norm boolean
---@return cstorch.nn.Module part, string own
local function part_of(parts, name, is_norm)
  local place, own = name:match "^(.*)%.([^.]*)$"
  if not place then return parts[""], name end
  local at = ""
  for step, rest in place:gmatch "([^.]+)()" do
    local inner = at == "" and step or at .. "." .. step
    if not parts[inner] then
      local is_list = place:find("^%.%d+", rest) ~= nil
      parts[inner] = is_list and layers.ModuleList() or is_norm and inner == place and Norm() or Part()
      parts[at]:add_module(step, parts[inner])
    end
    at = inner
  end
  return parts[at], own
end

---Whether a tensor belongs to a norm that has a mean to subtract.
---@param list ClassTensors
---@param one ClassTensor
local function is_of_norm(list, one, description)
  local weight = list.by_key[(one.key:match "^.*%." or "") .. "weight"]
  return description.norm.kind == "layernorm" and weight ~= nil and weight.init == 1
end

---@param list ClassTensors
---@param description cstorch.models.Description
---@param first table<string, cstorch.Tensor>   values, by the keys of the class; tied ones are one tensor
---@param by_newest_name fun(class: Class, by_key: table): table   by the names that the computation has for them
function Trainable:init(list, description, first, by_newest_name)
  Module.init(self)
  local parts, of, by_key = { [""] = self }, {}, {}
  for _, one in ipairs(list) do
    local value = first[one.key]
    if value then
      local part, own = part_of(parts, one.key, is_of_norm(list, one, description))
      of[value] = of[value] or one.buffer and value or parameter.new(value)
      if one.buffer then part:register_buffer(own, value) else part:register_parameter(own, of[value]) end
      by_key[one.key] = of[value]
    end
  end
  self.class_name, self.description, self.values = list.class.name, description, by_newest_name(list.class, by_key)
end

---Token ids are below this.
---@return integer
function Trainable:vocabulary() return self.description:vocabulary(self.values) end

---The tokens that a text may have; math.huge where nothing limits them.
---@return number
function Trainable:longest() return self.description:longest(self.values) end

---The parts of a batch that are numbers below a limit: ids of tokens, classes.
---@return table<string, integer>
function Trainable:limits() return self.description:limits(self.values) end

---@param batch table|cstorch.Tensor      input_ids [batch, length], and what else the model takes; a tensor: input_ids alone
---@param pass? cstorch.models.Pass       default: with dropout if the model is in training mode
---@return cstorch.Tensor                 # logits, such as [batch, length, vocabulary], and those of a second head
function Trainable:forward(batch, pass)
  pass = pass or { training = self.training }
  if tensors.is_tensor(batch) then batch = { input_ids = batch } end
  local w = weights.new(self.values, { routes = pass.routes, adapted = self.adapted, training = pass.training })
  return self.description:forward(w, batch, pass)
end

---Puts low-rank matrices beside some weights: they are trained from now on, and nothing else. A begins with random numbers, B with
---zeros; of an embedding the other way round. Source: lora.py of the Model Zoo 2.9.
---@param modules table<string, { rank: integer, scale: number, dropout: number, class: "Linear"|"Embedding" }>   by their names
---@param seed integer
function Trainable:adapt(modules, seed)
  for _, p in ipairs(self:parameters()) do p:requires_grad_(false) end
  self.adapted = {}
  for _, path in ipairs(naming.sorted(modules)) do
    local one, weight = modules[path], self.values[path .. ".weight"]
    local rows, columns = unpack(weight:shape())
    local is_table = one.class == "Embedding"
    if is_table then rows, columns = columns, rows end
    tensors.manual_seed(keys.seed_of(path, seed))
    local a, b = tensors.zeros { one.rank, columns }, tensors.zeros { rows, one.rank }
    if is_table then b = tensors.randn { rows, one.rank } else a = (tensors.rand { one.rank, columns } * 2 - 1) * columns ^ -0.5 end
    local part = self:get_part(path)
    for name, value in pairs { lora_A = a, lora_B = b } do self.values[path .. "." .. name] = parameter.new(value) end
    part:register_parameter("lora_A", self.values[path .. ".lora_A"])
    part:register_parameter("lora_B", self.values[path .. ".lora_B"])
    self.adapted[path] = { scale = one.scale, dropout = one.dropout }
  end
end

---The part of the model with a name.
---@param path string   "transformer_decoder.layers.0"
---@return cstorch.nn.Module
function Trainable:get_part(path)
  for name, part in self:named_modules() do
    if name == path then return part end
  end
end

return Trainable
