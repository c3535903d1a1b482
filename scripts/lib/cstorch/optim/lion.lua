-- Lion: the sign of an interpolated momentum.

local Optimizer = require "cstorch.optim.optimizer"

---p = p·(1 - lr·wd) - lr·sign(β1·m + (1 - β1)·g); m = β2·m + (1 - β2)·g. sign(0) is 0.
---Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
---@class cstorch.optim.Lion : cstorch.optim.Optimizer
---@alias Lion.Keywords { lr: number, betas: number[], weight_decay: number }
---@overload fun(params: table, keywords?: Lion.Keywords): cstorch.optim.Lion
local Lion = Optimizer:subclass("Lion", { lr = 1e-4, betas = { 0.9, 0.99 }, weight_decay = 0 })

Lion.limits = { lr = { min = 0 }, betas = { min = 0, below = 1 }, weight_decay = { min = 0 } }
Lion.sparsified_state = { "exp_avg" }

function Lion:preinitialize()
  for p, state in self:parameters() do state.exp_avg = self.zeros(p) end
end

function Lion:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local m, beta1, beta2 = state.exp_avg, group.betas[1], group.betas[2]
    local direction = (m * beta1 + g * (1 - beta1)):sign()
    p:mul_(1 - group.lr * group.weight_decay):sub_(direction * group.lr)
    m:mul_(beta2):add_(g * (1 - beta2))
  end
  return loss
end

return Lion
