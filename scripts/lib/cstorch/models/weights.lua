-- The weights of a model by their names, and the layers that are computed with them.

local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local tensors = require "cstorch.tensors"

---@class cstorch.models.Weights   Tensors of checkpoints are read when they are needed, as float32, and let go at once.
---@field given table<string, Tensor|cstorch.Tensor>
---@field prefix string
---@field routes? cstorch.models.Route[]   gets one of each mixture that is computed
---@field adapted? table<string, cstorch.models.Adapted>   by the names of modules with matrices lora_A and lora_B
---@field training? boolean                 the matrices have dropout
local Weights = {}
Weights.__index = Weights

---@class cstorch.models.Norm
---@field kind "layernorm"|"rmsnorm"
---@field eps number
---@field plus_one? boolean   the scale is 1 + weight, as in Gemma

local weights = {}

---@class cstorch.models.Route   Where the tokens of a mixture go: [batch, length, experts].
---@field all cstorch.Tensor         the probabilities of all experts
---@field is_chosen cstorch.Tensor   1 or 0

---@class cstorch.models.Adapted   A module with low-rank matrices beside its weight.
---@field scale number     of their product
---@field dropout number   of what goes into them

---@param given table<string, Tensor|cstorch.Tensor>
---@param options? { routes: cstorch.models.Route[], adapted: table<string, cstorch.models.Adapted>, training: boolean }   all optional
---@return cstorch.models.Weights
function weights.new(given, options)
  options = options or {}
  return setmetatable({ given = given, prefix = "", routes = options.routes, adapted = options.adapted, training = options.training },
    Weights)
end

---The weights whose names begin with a prefix, without it.
---@param prefix string
---@return cstorch.models.Weights
function Weights:below(prefix)
  return setmetatable({ given = self.given, prefix = self.prefix .. prefix, routes = self.routes, adapted = self.adapted,
    training = self.training }, Weights)
end

---The same weights with another list for what mixtures choose.
---@param routes cstorch.models.Route[]
---@return cstorch.models.Weights
function Weights:routed(routes)
  local out = self:below ""
  out.routes = routes
  return out
end

---@param name string
---@return boolean
function Weights:has(name) return self.given[self.prefix .. name] ~= nil end

---A tensor in memory, as float32.
---@param found Tensor|cstorch.Tensor
---@return cstorch.Tensor
local function read(found) return tensors.is_tensor(found) and found or tensors.tensor(found:to "float32") end

---@param name string
---@return cstorch.Tensor|nil
function Weights:find(name)
  local found = self.given[self.prefix .. name]
  return found and read(found)
end

---The matrix or vector of one expert, of a tensor of all of them, of which no more is read.
---@param name string
---@param i integer              from 0
---@return cstorch.Tensor|nil    # [rows, columns] of a tensor [rows, experts, columns]; nil: there is no such tensor
function Weights:of_expert(name, i)
  local found = self.given[self.prefix .. name]
  return found and read(found:select(1, i))
end

---@param name string
---@return Tensor|cstorch.Tensor
function Weights:stored(name)
  local found = self.given[self.prefix .. name]
  errors.check(found, "value", "the model needs the tensor '%s', which is missing", self.prefix .. name)
  return found
end

---@param name string
---@return cstorch.Tensor
function Weights:get(name) return read(self:stored(name)) end

local MOST = 2 ^ 23 -- elements of a matrix that are read at once

---x · weightᵀ, of a matrix that is read in parts.
local function linear_by_rows(matrix, x)
  local rows, columns = unpack(matrix:shape())
  local count, parts = math.max(1, math.floor(MOST / tonumber(columns))), {}
  for start = 0, tonumber(rows) - 1, count do
    parts[#parts + 1] = functional.linear(x, read(matrix:slice(0, start, math.min(start + count, tonumber(rows)))))
  end
  return tensors.cat(parts, -1)
end

---@param name string
---@return cstorch.models.Adapted|nil
function Weights:adaption(name) return self.adapted and self.adapted[self.prefix .. name] end

---x · weightᵀ + bias; the bias may be missing.
---@param name string
---@param x cstorch.Tensor   [..., inputs]
---@return cstorch.Tensor    # [..., outputs]
function Weights:linear(name, x)
  local matrix, bias, adapted = self:stored(name .. ".weight"), self:find(name .. ".bias"), self:adaption(name)
  if adapted then
    local input = self.training and adapted.dropout > 0 and functional.dropout(x, { p = adapted.dropout }) or x
    local low = functional.linear(functional.linear(input, self:get(name .. ".lora_A")), self:get(name .. ".lora_B"))
    return functional.linear(x, matrix, bias) + low * adapted.scale
  end
  if tensors.is_tensor(matrix) or matrix:numel() <= MOST then return functional.linear(x, read(matrix), bias) end
  local out = linear_by_rows(matrix, x)
  return bias and out + bias or out
end

---x · weight + bias, as GPT-2 has it.
---@param name string
---@param x cstorch.Tensor   [..., inputs]
---@return cstorch.Tensor    # [..., outputs]
function Weights:conv1d(name, x)
  local out, bias = x:matmul(self:get(name .. ".weight")), self:find(name .. ".bias")
  return bias and out + bias or out
end

---The rows of a table; of a checkpoint's, no others are read.
---@param name string
---@param ids cstorch.Tensor   [...]
---@return cstorch.Tensor      # [..., width]
function Weights:embedding(name, ids)
  local rows = self:stored(name .. ".weight")
  local adapted = self:adaption(name)
  if adapted then
    local low = functional.embedding(ids, self:get(name .. ".lora_A"):transpose(0, 1):contiguous())
    return functional.embedding(ids, rows) + functional.linear(low, self:get(name .. ".lora_B")) * adapted.scale
  end
  if tensors.is_tensor(rows) then return functional.embedding(ids, rows) end
  local shape = ids:shape()
  shape[#shape + 1] = tonumber(rows:shape()[2])
  return read(rows:index_select(0, ids:flatten():tolist())):reshape(shape)
end

---@param name string
---@param x cstorch.Tensor   [..., width]
---@param how cstorch.models.Norm
---@return cstorch.Tensor
function Weights:norm(name, x, how)
  local weight = self:get(name .. ".weight")
  if how.plus_one then weight = weight + 1 end
  if how.kind == "rmsnorm" then return functional.rms_norm(x, weight, { eps = how.eps }) end
  return functional.layer_norm(x, weight, self:find(name .. ".bias"), { eps = how.eps })
end

weights.read = read

return weights
