-- Adam with L2 regularization.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local AdamBase = require "cstorch.optim.adam_base"

---g = g + l2·p; m = β1·m + (1 - β1)·g; v = β2·v + (1 - β2)·g²; p = p - lr·m/(√v + eps)·√(1 - β2^t)/(1 - β1^t).
---`weight_decay` is the L2 rate of all groups; a group's own weight_decay has no effect. Unlike torch, eps is added before the bias
---correction.
---Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015.
---@class cstorch.optim.Adam : cstorch.optim.AdamBase
---@alias Adam.Keywords { lr: number, betas: number[], eps: number, weight_decay: number, amsgrad: boolean }
---@overload fun(params: table, keywords?: Adam.Keywords): cstorch.optim.Adam
local Adam = AdamBase:subclass("Adam", { l2_regularization_rate = keywords.REMOVED, correct_bias = keywords.REMOVED })

function Adam:init(params, kw)
  kw.l2_regularization_rate, kw.weight_decay, kw.correct_bias = kw.weight_decay, 0, true
  Adam.super.init(self, params, kw)
  for _, group in ipairs(self.param_groups) do group.weight_decay = 0 end
end

--- Fails on settings that the step does not compute.
function Adam.check_group(group)
  errors.check(group.correct_bias ~= false, "value", "Adam: correct_bias must be true; use AdamW for steps without it")
end

function Adam:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local beta1, beta2 = group.betas[1], group.betas[2]
    local m, v, power1, power2 = state.exp_avg, state.exp_avg_sq, state.beta1_power, state.beta2_power
    g = g + p * group.l2_regularization_rate
    m:mul_(beta1):add_(g * (1 - beta1))
    v:mul_(beta2):add_(g * (1 - beta2) * g)
    if group.amsgrad then v = state.max_exp_avg_sq:copy_(state.max_exp_avg_sq:maximum(v)) end
    local u = m / (v:sqrt() + group.eps)
    p:sub_(u * ((1 - power2):sqrt() / (1 - power1)) * group.lr)
    power1:mul_(beta1)
    power2:mul_(beta2)
  end
  return loss
end

--- torch's groups have the rate as weight_decay.
function Adam.convert_group(group)
  if group.l2_regularization_rate == nil then group.l2_regularization_rate = group.weight_decay end
  group.weight_decay = 0
end

return Adam
