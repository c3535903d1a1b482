-- LAMB: Adam's moments with a trust ratio for each parameter.

local tensors = require "cstorch.tensors"
local Optimizer = require "cstorch.optim.optimizer"

---m = β1·m + (1 - β1)·g; v = β2·v + (1 - β2)·g²; u = m/(√v + eps) + wd·p; p = p - lr·r·u with r = min(‖p‖, 10)/‖u‖ where both norms
---are positive, else 1; with `adam` always 1. There is no bias correction.
---Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020.
---@class cstorch.optim.Lamb : cstorch.optim.Optimizer
---@alias Lamb.Keywords { lr: number, betas: number[], eps: number, weight_decay: number, adam: boolean }
---@overload fun(params: table, keywords?: Lamb.Keywords): cstorch.optim.Lamb
local Lamb = Optimizer:subclass("Lamb", { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-6, weight_decay = 0, adam = false })

Lamb.limits = { lr = { min = 0 }, eps = { min = 0 }, betas = { min = 0, below = 1 } }
Lamb.sparsified_state = { "exp_avg", "exp_avg_sq" }

function Lamb:preinitialize()
  for p, state in self:parameters() do
    state.exp_avg = self.zeros(p)
    state.exp_avg_sq = self.zeros(p)
  end
end

local function trust_ratio(p, u)
  local weight, update = p:norm():clamp(0, 10), u:norm()
  return tensors.where(weight:gt(0):logical_and(update:gt(0)), weight / update, tensors.ones_like(weight))
end

function Lamb:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local m, v, beta1, beta2 = state.exp_avg, state.exp_avg_sq, group.betas[1], group.betas[2]
    m:mul_(beta1):add_(g * (1 - beta1))
    v:mul_(beta2):add_(g * (1 - beta2) * g)
    local u = m / (v:sqrt() + group.eps) + p * group.weight_decay
    if not group.adam then u = u * trust_ratio(p, u) end
    p:sub_(u * group.lr)
  end
  return loss
end

return Lamb
