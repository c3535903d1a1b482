-- Activation checkpointing: of each layer only what goes into it is kept; backward computes the layer again, with the same random numbers.
-- So the memory of a step holds the inner values of one layer, whatever their number.

local cbk = require "cbk"
local tensors = require "cstorch.tensors"

---@class cstorch.models.Part
---@field from cstorch.Tensor    what went into it
---@field out cstorch.Tensor     what came out: a leaf, which gets the gradient
---@field compute fun(x: cstorch.Tensor): cstorch.Tensor
---@field draws table             its random numbers

---@class cstorch.models.Recomputed   The layers of a pass, in their order.
---@field parts cstorch.models.Part[]
local Recomputed = {}
Recomputed.__index = Recomputed

local recomputed = {}

---@return cstorch.models.Recomputed
function recomputed.new() return setmetatable({ parts = {} }, Recomputed) end

local function with_draws(draws, compute, x)
  local before = cbk.compute.drawing(draws)
  local fine, result = pcall(compute, x)
  cbk.compute.drawing(before)
  if not fine then error(result, 0) end
  return result
end

---Computes a layer without keeping its inner values.
---@param x cstorch.Tensor
---@param compute fun(x: cstorch.Tensor): cstorch.Tensor
---@return cstorch.Tensor
function Recomputed:part(x, compute)
  local draws = cbk.compute.draws()
  local out = tensors.no_grad(with_draws, draws, compute, x:detach()):detach():requires_grad_(true)
  self.parts[#self.parts + 1] = { from = x, out = out, compute = compute, draws = draws }
  return out
end

---Takes the gradients through all layers, after `backward` of the loss.
function Recomputed:backward()
  for i = #self.parts, 1, -1 do
    local one = self.parts[i]
    local input = one.from:detach():requires_grad_(true)
    one.draws:repeat_all()
    with_draws(one.draws, one.compute, input):backward(one.out.grad)
    one.out.grad = nil
    if i > 1 then
      one.from.grad = input.grad
    elseif one.from.requires_grad then
      one.from:backward(input.grad)
    end
    self.parts[i] = nil
  end
end

return recomputed
