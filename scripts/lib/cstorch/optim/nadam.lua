-- NAdam: Adam with Nesterov momentum.

local Optimizer = require "cstorch.optim.optimizer"

---g = g + wd·p; μt = β1·(1 - 0.96^(t·md)/2), μn the same for t + 1; P = P·μt; m and v as in Adam; d = √(v/(1 - β2^t)) + eps;
---p = p - lr·(μn·m/(1 - P·μt·μn) + g·(1 - μt)/(1 - P))/d. The product P·μt·μn has μt twice, as in the reference; torch has P·μn.
---Source: Dozat, "Incorporating Nesterov Momentum into Adam", 2016.
---@class cstorch.optim.NAdam : cstorch.optim.Optimizer
---@alias NAdam.Keywords { lr: number, betas: number[], eps: number, weight_decay: number, momentum_decay: number }
---@overload fun(params: table, keywords?: NAdam.Keywords): cstorch.optim.NAdam
local NAdam = Optimizer:subclass("NAdam", { lr = 2e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3 })

NAdam.limits = {
  lr = { min = 0 }, betas = { min = 0, below = 1 }, eps = { min = 0 }, weight_decay = { min = 0 }, momentum_decay = { min = 0 },
}
NAdam.sparsified_state = { "exp_avg", "exp_avg_sq" }

function NAdam:init(params, kw) NAdam.super.init(self, params, kw, { enable_global_step = true }) end

function NAdam:preinitialize()
  for p, state in self:parameters() do
    state.mu_product = self.scalar(1)
    state.exp_avg = self.zeros(p)
    state.exp_avg_sq = self.zeros(p)
  end
end

function NAdam:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local step = self:increment_global_step(p):to "float64" -- as 1 - β2^t is a difference of numbers that are close
    local m, v, beta1, beta2 = state.exp_avg, state.exp_avg_sq, group.betas[1], group.betas[2]
    local function momentum_at(t) return (1 - 0.96 ^ (t * group.momentum_decay) * 0.5) * beta1 end
    local mu, mu_next = momentum_at(step), momentum_at(step + 1)
    local product = state.mu_product:mul_(mu)
    g = g + p * group.weight_decay
    m:mul_(beta1):add_(g * (1 - beta1))
    v:mul_(beta2):add_(g * (1 - beta2) * g)
    local denominator = (v / (1 - beta2 ^ step)):sqrt() + group.eps
    local u = m * (mu_next / (1 - product * mu * mu_next)) + g * ((1 - mu) / (1 - product))
    p:sub_(u * group.lr / denominator)
  end
  return loss
end

return NAdam
