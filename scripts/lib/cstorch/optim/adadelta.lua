-- Adadelta.

local Optimizer = require "cstorch.optim.optimizer"

---g = ±g + wd·p; v = rho·v + (1 - rho)·g²; d = √(a + eps)/√(v + eps)·g; a = rho·a + (1 - rho)·d²; p = p - lr·d.
---Source: Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
---@class cstorch.optim.Adadelta : cstorch.optim.Optimizer
---@alias Adadelta.Keywords { lr: number, rho: number, eps: number, weight_decay: number, maximize: boolean }
---@overload fun(params: table, keywords?: Adadelta.Keywords): cstorch.optim.Adadelta
local Adadelta = Optimizer:subclass("Adadelta", { lr = 1.0, rho = 0.9, eps = 1e-6, weight_decay = 0, maximize = false })

Adadelta.limits = { lr = { min = 0 }, rho = { min = 0, max = 1 }, eps = { min = 0 }, weight_decay = { min = 0 } }
Adadelta.sparsified_state = { "square_avg", "acc_delta" }

function Adadelta:preinitialize()
  for p, state in self:parameters() do
    state.square_avg = self.zeros(p)
    state.acc_delta = self.zeros(p)
  end
end

function Adadelta:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local v, a, rho, eps = state.square_avg, state.acc_delta, group.rho, group.eps
    if group.maximize then g = -g end
    g = g + p * group.weight_decay
    v:mul_(rho):add_(g * (1 - rho) * g)
    local delta = (a + eps):sqrt() / (v + eps):sqrt() * g
    a:mul_(rho):add_(delta * (1 - rho) * delta)
    p:sub_(delta * group.lr)
  end
  return loss
end

return Adadelta
