-- RAdam: Adam whose adaptive rate sets in when its variance is known well enough.

local tensors = require "cstorch.tensors"
local Optimizer = require "cstorch.optim.optimizer"

---g = g + wd·p; m and v as in Adam; u = m/(1 - β1^t); ρ∞ = 2/(1 - β2) - 1; ρ = ρ∞ - 2·t·β2^t/(1 - β2^t); where ρ > 5:
---u = u·√((ρ - 4)(ρ - 2)ρ∞/((ρ∞ - 4)(ρ∞ - 2)ρ))·√(1 - β2^t)/(√v + eps); p = p - lr·u.
---Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020.
---@class cstorch.optim.RAdam : cstorch.optim.Optimizer
---@alias RAdam.Keywords { lr: number, betas: number[], eps: number, weight_decay: number }
---@overload fun(params: table, keywords?: RAdam.Keywords): cstorch.optim.RAdam
local RAdam = Optimizer:subclass("RAdam", { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-6, weight_decay = 0 })

RAdam.limits = { lr = { min = 0 }, betas = { min = 0, below = 1 }, eps = { min = 0 }, weight_decay = { min = 0 } }
RAdam.sparsified_state = { "exp_avg", "exp_avg_sq" }

function RAdam:init(params, kw) RAdam.super.init(self, params, kw, { enable_global_step = true }) end

function RAdam:preinitialize()
  for p, state in self:parameters() do
    state.exp_avg = self.zeros(p)
    state.exp_avg_sq = self.zeros(p)
  end
end

function RAdam:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local step = self:increment_global_step(p):to "float64" -- as 1 - β2^t and ρ are differences of numbers that are close
    local m, v, beta1, beta2 = state.exp_avg, state.exp_avg_sq, group.betas[1], group.betas[2]
    g = g + p * group.weight_decay
    m:mul_(beta1):add_(g * (1 - beta1))
    v:mul_(beta2):add_(g * (1 - beta2) * g)

    local correction = 1 - beta2 ^ step
    local limit = 2 / (1 - beta2) - 1
    local length = limit - step * 2 * beta2 ^ step / correction
    local rectifier = ((length - 4) * (length - 2) * limit / (length * ((limit - 4) * (limit - 2)))):sqrt()
    local u = m / (1 - beta1 ^ step)
    local adaptive = u * (rectifier * correction:sqrt()) / (v:sqrt() + group.eps)
    p:sub_(tensors.where(length:gt(5), adaptive, u) * group.lr)
  end
  return loss
end

return RAdam
