-- Adamax: Adam with the infinity norm.

local check = require("cstorch.errors").check
local loaded = require "cstorch.loaded"
local Optimizer = require "cstorch.optim.optimizer"

---g = ±g + wd·p; m = β1·m + (1 - β1)·g; n = max(β2·n, |g| + eps); p = p - lr/(1 - β1^t)·m/n.
---Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, section 7.1.
---@class cstorch.optim.Adamax : cstorch.optim.Optimizer
---@alias Adamax.Keywords { lr: number, betas: number[], eps: number, weight_decay: number, maximize: boolean }
---@overload fun(params: table, keywords?: Adamax.Keywords): cstorch.optim.Adamax
local Adamax = Optimizer:subclass("Adamax", { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-6, weight_decay = 0, maximize = false })

Adamax.limits = { lr = { min = 0 }, eps = { min = 0 }, betas = { min = 0, below = 1 } }
Adamax.sparsified_state = { "exp_avg", "exp_inf" }

function Adamax:preinitialize()
  for p, state, group in self:parameters() do
    state.exp_avg = self.zeros(p)
    state.exp_inf = self.zeros(p)
    state.beta1_power = self.scalar(group.betas[1])
  end
end

--- Files of torch store the number of steps instead of the power of beta1, which is that of the next step.
function Adamax:convert_state(group, state)
  local step, betas = state.step, loaded.plain(group.betas) or self.param_groups[1].betas
  if step == nil or state.beta1_power ~= nil then return end
  step = tonumber(loaded.plain(step))
  local are_numbers = step and type(betas) == "table" and type(betas[1]) == "number"
  check(are_numbers, "type", "%s: the state dict has a step or betas that are no numbers", self.class.name)
  state.step, state.beta1_power = nil, betas[1] ^ (step + 1)
end

function Adamax:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    local m, n, beta1, beta2 = state.exp_avg, state.exp_inf, group.betas[1], group.betas[2]
    if group.maximize then g = -g end
    g = g + p * group.weight_decay
    m:mul_(beta1):add_(g * (1 - beta1))
    n:copy_((n * beta2):maximum(g:abs() + group.eps))
    p:sub_(m / n * (group.lr / (1 - state.beta1_power)))
    state.beta1_power:mul_(beta1)
  end
  return loss
end

return Adamax
