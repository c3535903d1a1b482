-- Rprop: steps of their own size for each element, from the signs of the gradient alone.

local tensors = require "cstorch.tensors"
local Optimizer = require "cstorch.optim.optimizer"

---s = g·prev; size = clamp(size·f, step_sizes) with f = etas[2] where s > 0, etas[1] where s < 0, else 1; g = 0 where s < 0 (in
---p.grad itself); p = p - sign(g)·size; prev = g.
---Source: Riedmiller and Braun, "A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP Algorithm", 1993.
---@class cstorch.optim.Rprop : cstorch.optim.Optimizer
---@alias Rprop.Keywords { lr: number, etas: number[], step_sizes: number[] }
---@overload fun(params: table, keywords?: Rprop.Keywords): cstorch.optim.Rprop
local Rprop = Optimizer:subclass("Rprop", { lr = 1e-3, etas = { 0.5, 1.2 }, step_sizes = { 1e-6, 50 } })

Rprop.limits = { lr = { min = 0 } }
Rprop.sparsified_state = { "prev", "step_size" }

function Rprop:preinitialize()
  for p, state, group in self:parameters() do
    state.prev = self.zeros(p)
    state.step_size = self.zeros(p):fill_(group.lr)
  end
end

function Rprop:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local size, sign = state.step_size, g * state.prev
    local factor = tensors.ones_like(sign):masked_fill(sign:gt(0), group.etas[2]):masked_fill(sign:lt(0), group.etas[1])
    size:mul_(factor):clamp_(group.step_sizes[1], group.step_sizes[2])
    g:copy_(g:masked_fill(sign:lt(0), 0))
    p:sub_(g:sign() * size)
    state.prev:copy_(g)
  end
  return loss
end

return Rprop
