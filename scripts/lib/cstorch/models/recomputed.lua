-- Activation checkpointing: of each layer only what goes into it is kept; backward computes the layer again, with the same random numbers.
-- So the memory of a step holds the inner values of one layer, whatever their number.

local cbk = require "cbk"
local tensors = require "cstorch.tensors"

---@class cstorch.models.Part   Takes the gradients of what it gave to what went into it.
---@field from table<string, cstorch.Tensor>    what went in
---@field out cstorch.Tensor[]                  what came out: leaves, which get gradients
---@field compute? fun(inputs: table<string, cstorch.Tensor>): cstorch.Tensor, cstorch.Tensor[]|nil   nil: it is `from.x`, with its graph
---@field draws? table                          the random numbers of `compute`

---@class cstorch.models.Recomputed   The parts of a pass, in their order.
---@field parts cstorch.models.Part[]
local Recomputed = {}
Recomputed.__index = Recomputed

local recomputed = {}

---@return cstorch.models.Recomputed
function recomputed.new() return setmetatable({ parts = {} }, Recomputed) end

local function with_draws(draws, compute, inputs)
  local before = cbk.compute.drawing(draws)
  local fine, result, others = pcall(compute, inputs)
  cbk.compute.drawing(before)
  if not fine then error(result, 0) end
  return { result, unpack(others or {}) }
end

---@param list cstorch.Tensor[]
---@return cstorch.Tensor[]
local function leaves_of(list)
  local out = {}
  for i, x in ipairs(list) do out[i] = tensors.own_leaf(x) end
  return out
end

---An input of the layers: a leaf for them. What it was computed from gets its gradient when those of the layers are complete.
---@param x cstorch.Tensor
---@return cstorch.Tensor
function Recomputed:input(x)
  if not x.requires_grad then return x end
  local out = leaves_of { x }
  self.parts[#self.parts + 1] = { from = { x = x }, out = out }
  return out[1]
end

---Computes a layer without keeping its inner values.
---@param inputs table<string, cstorch.Tensor>   results of `input` and of other layers
---@param compute fun(inputs: table<string, cstorch.Tensor>): cstorch.Tensor, cstorch.Tensor[]|nil
---@return cstorch.Tensor    # the layer's result
---@return cstorch.Tensor[]  # the others that get gradients
function Recomputed:layer(inputs, compute)
  local draws, detached = cbk.compute.draws(), {}
  for name, x in pairs(inputs) do detached[name] = x:detach() end
  local out = leaves_of(tensors.no_grad(with_draws, draws, compute, detached))
  self.parts[#self.parts + 1] = { from = inputs, out = out, compute = compute, draws = draws }
  return out[1], { unpack(out, 2) }
end

---The sum of tensors times the gradients of their leaves: its gradient is theirs.
---@param list cstorch.Tensor[]
---@param leaves cstorch.Tensor[]
---@return cstorch.Tensor|nil   # nil: no leaf has a gradient
local function with_gradients(list, leaves)
  local sum
  for i, x in ipairs(list) do
    local gradient = leaves[i].grad
    if gradient and x.requires_grad then
      local one = (x * gradient):sum()
      sum, leaves[i].grad = sum and sum + one or one, nil
    end
  end
  return sum
end

---@param one cstorch.models.Part
local function backward(one)
  if not one.compute then
    if one.out[1].grad then one.from.x:backward(one.out[1].grad) end
    return
  end
  local inputs = {}
  for name, x in pairs(one.from) do inputs[name] = x.requires_grad and tensors.own_leaf(x) or x end
  one.draws:repeat_all()
  local root = with_gradients(with_draws(one.draws, one.compute, inputs), one.out)
  if not root then return end
  root:backward()
  for name, x in pairs(one.from) do
    local gradient = inputs[name].grad
    if x.requires_grad and gradient then x.grad = x.grad and x.grad + gradient or gradient end
  end
end

---Takes the gradients through all parts, after `backward` of the loss.
function Recomputed:backward()
  for i = #self.parts, 1, -1 do
    backward(self.parts[i])
    self.parts[i] = nil
  end
end

return recomputed
