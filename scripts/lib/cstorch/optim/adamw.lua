-- Adam with decoupled weight decay.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local AdamBase = require "cstorch.optim.adam_base"

---m = β1·m + (1 - β1)·g; v = β2·v + (1 - β2)·g²; u = m/(√v + eps)·√(1 - β2^t)/(1 - β1^t); p = p - lr·(u + wd·p).
---Unlike torch, eps is added before the bias correction.
---Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
---@class cstorch.optim.AdamW : cstorch.optim.AdamBase
---@alias AdamW.Keywords { lr: number, betas: number[], eps: number, weight_decay: number, correct_bias: boolean, amsgrad: boolean }
---@overload fun(params: table, keywords?: AdamW.Keywords): cstorch.optim.AdamW
local AdamW = AdamBase:subclass("AdamW", { l2_regularization_rate = keywords.REMOVED })

function AdamW:init(params, kw)
  kw.l2_regularization_rate = 0
  AdamW.super.init(self, params, kw)
end

--- Fails on settings that the step does not compute.
function AdamW.check_group(group)
  local rate = group.l2_regularization_rate
  errors.check(not rate or rate == 0, "value", "AdamW: l2_regularization_rate must be 0, not %s; give weight_decay, or use Adam",
    errors.show(rate))
end

function AdamW:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local beta1, beta2 = group.betas[1], group.betas[2]
    local m, v = state.exp_avg, state.exp_avg_sq
    m:mul_(beta1):add_(g * (1 - beta1))
    v:mul_(beta2):add_(g * (1 - beta2) * g)
    if group.amsgrad then v = state.max_exp_avg_sq:copy_(state.max_exp_avg_sq:maximum(v)) end
    local u = m / (v:sqrt() + group.eps)
    if group.correct_bias then
      local power1, power2 = state.beta1_power, state.beta2_power
      u = u * ((1 - power2):sqrt() / (1 - power1))
      power1:mul_(beta1)
      power2:mul_(beta2)
    end
    p:sub_((u + p * group.weight_decay) * group.lr)
  end
  return loss
end

return AdamW
