-- Stochastic gradient descent with momentum.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Optimizer = require "cstorch.optim.optimizer"

---g = ±g + wd·p; with momentum: b = momentum·b + (1 - dampening)·g and d = g + momentum·b (nesterov) or b, else d = g; p = p - lr·d.
---Unlike torch, dampening applies to the first step, too.
---Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
---@class cstorch.optim.SGD : cstorch.optim.Optimizer
---@alias SGD.Keywords { lr: number, momentum: number, dampening: number, weight_decay: number, nesterov: boolean, maximize: boolean }
---@overload fun(params: table, keywords: SGD.Keywords): cstorch.optim.SGD
local SGD = Optimizer:subclass("SGD", {
  lr = keywords.REQUIRED, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false, maximize = false,
})

SGD.limits = { lr = { min = 0 }, momentum = { min = 0 }, weight_decay = { min = 0 } }
SGD.sparsified_state = { "momentum_buffer" }

function SGD:preinitialize()
  for p, state, group in self:parameters() do
    errors.check(not group.nesterov or group.momentum ~= 0 and group.dampening == 0, "value",
      "SGD: nesterov needs momentum > 0 and dampening 0, found momentum %s and dampening %s", errors.show(group.momentum),
      errors.show(group.dampening))
    if group.momentum ~= 0 then state.momentum_buffer = self.zeros(p) end
  end
end

function SGD:step(closure)
  local loss = closure and closure()
  for p, g, state, group in self:gradients() do
    if group.maximize then g = -g end
    g = g + p * group.weight_decay
    if group.momentum ~= 0 then
      local buffer = state.momentum_buffer:mul_(group.momentum):add_(g * (1 - group.dampening))
      g = group.nesterov and g + buffer * group.momentum or buffer
    end
    p:sub_(g * group.lr)
  end
  return loss
end

return SGD
