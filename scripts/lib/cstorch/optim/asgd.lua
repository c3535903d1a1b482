-- Averaged stochastic gradient descent.

local tensors = require "cstorch.tensors"
local Optimizer = require "cstorch.optim.optimizer"

---g = ±g + wd·p; p = p·(1 - lambd·η) - η·g; ax = p where μ = 1, else ax + (p - ax)·μ; then η = lr/(1 + lambd·lr·t)^alpha and
---μ = 1/max(1, t - t0). The first step uses η = lr.
---Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
---@class cstorch.optim.ASGD : cstorch.optim.Optimizer
---@alias ASGD.Keywords { lr: number, lambd: number, alpha: number, t0: number, weight_decay: number, maximize: boolean }
---@overload fun(params: table, keywords?: ASGD.Keywords): cstorch.optim.ASGD
local ASGD = Optimizer:subclass("ASGD", { lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0, maximize = false })

ASGD.limits = { lr = { min = 0 }, weight_decay = { min = 0 } }
ASGD.sparsified_state = { "ax" }

function ASGD:init(params, kw) ASGD.super.init(self, params, kw, { enable_global_step = true }) end

function ASGD:preinitialize()
  for p, state, group in self:parameters() do
    state.eta = self.scalar(group.lr)
    state.mu = self.scalar(1)
    state.ax = self.zeros(p)
  end
end

function ASGD:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local step = self:increment_global_step(p)
    local eta, mu, ax = state.eta, state.mu, state.ax
    if group.maximize then g = -g end
    g = g + p * group.weight_decay
    p:mul_(1 - eta * group.lambd):sub_(g * eta)
    ax:copy_(tensors.where(mu:eq(1), p, ax + (p - ax) * mu))
    eta:copy_(group.lr / (step * group.lr * group.lambd + 1) ^ group.alpha)
    mu:copy_(1 / (step - group.t0):clamp(1, nil))
  end
  return loss
end

return ASGD
