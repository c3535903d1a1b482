-- RMSprop.

local Optimizer = require "cstorch.optim.optimizer"

---g = g + wd·p; v = alpha·v + (1 - alpha)·g²; d = √v + eps, or with `centered` a = alpha·a + (1 - alpha)·g and d = √(v - a²) + eps;
---with momentum b = momentum·b + g/d and p = p - lr·b, else p = p - lr·g/d.
---Source: Hinton, "Neural Networks for Machine Learning", lecture 6e, 2012; centered: Graves, "Generating Sequences With Recurrent
---Neural Networks", 2013.
---@class cstorch.optim.RMSprop : cstorch.optim.Optimizer
---@alias RMSprop.Keywords { lr: number, alpha: number, eps: number, weight_decay: number, momentum: number, centered: boolean }
---@overload fun(params: table, keywords?: RMSprop.Keywords): cstorch.optim.RMSprop
local RMSprop = Optimizer:subclass("RMSprop", { lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0, centered = false })

RMSprop.limits = { lr = { min = 0 }, alpha = { min = 0 }, eps = { min = 0 }, weight_decay = { min = 0 }, momentum = { min = 0 } }
RMSprop.sparsified_state = { "square_avg", "momentum_buffer", "grad_avg" }

function RMSprop:preinitialize()
  for p, state, group in self:parameters() do
    state.square_avg = self.zeros(p)
    if group.momentum ~= 0 then state.momentum_buffer = self.zeros(p) end
    if group.centered then state.grad_avg = self.zeros(p) end
  end
end

function RMSprop:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local v, alpha = state.square_avg, group.alpha
    g = g + p * group.weight_decay
    v:mul_(alpha):add_(g * (1 - alpha) * g)
    if group.centered then
      local average = state.grad_avg:mul_(alpha):add_(g * (1 - alpha))
      v = v - average * average
    end
    local u = g / (v:sqrt() + group.eps)
    if group.momentum ~= 0 then u = state.momentum_buffer:mul_(group.momentum):add_(u) end
    p:sub_(u * group.lr)
  end
  return loss
end

return RMSprop
