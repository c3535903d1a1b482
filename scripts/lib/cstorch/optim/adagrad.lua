-- Adagrad.

local Optimizer = require "cstorch.optim.optimizer"

---@class Adagrad.Keywords
---@field lr? number
---@field lr_decay? number
---@field weight_decay? number
---@field initial_accumulator_value? number
---@field eps? number
---@field maximize? boolean

---g = ±g + wd·p; s = s + g²; p = p - lr/(1 + (t - 1)·lr_decay)·g/(√s + eps).
---Source: Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", 2011.
---@class cstorch.optim.Adagrad : cstorch.optim.Optimizer
---@overload fun(params: table, keywords?: Adagrad.Keywords): cstorch.optim.Adagrad
local Adagrad = Optimizer:subclass("Adagrad", {
  lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-6, maximize = false,
})

Adagrad.limits = {
  lr = { min = 0 }, lr_decay = { min = 0 }, weight_decay = { min = 0 }, initial_accumulator_value = { min = 0 }, eps = { min = 0 },
}
Adagrad.sparsified_state = { "sum" }

function Adagrad:init(params, kw) Adagrad.super.init(self, params, kw, { enable_global_step = true }) end

function Adagrad:preinitialize()
  for p, state, group in self:parameters() do state.sum = self.zeros(p):fill_(group.initial_accumulator_value) end
end

function Adagrad:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local step = self:increment_global_step(p)
    if group.maximize then g = -g end
    g = g + p * group.weight_decay
    local sum = state.sum:add_(g * g)
    local rate = group.lr / ((step - 1) * group.lr_decay + 1)
    p:sub_(g * rate / (sum:sqrt() + group.eps))
  end
  return loss
end

return Adagrad
