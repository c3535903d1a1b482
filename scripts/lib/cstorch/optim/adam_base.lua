-- The base class of Adam and AdamW: arguments, state, and the conversion of state that counts steps.

local check = require("cstorch.errors").check
local loaded = require "cstorch.loaded"
local Optimizer = require "cstorch.optim.optimizer"

---@class cstorch.optim.AdamBase : cstorch.optim.Optimizer   The base class of Adam and AdamW, and of optimizers of your own.
local AdamBase = Optimizer:subclass("AdamBase", {
  lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-6, weight_decay = 0, l2_regularization_rate = 0, correct_bias = true, amsgrad = false,
})

AdamBase.limits = { lr = { min = 0 }, eps = { min = 0 }, betas = { min = 0, below = 1 } }
AdamBase.sparsified_state = { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" }

function AdamBase:preinitialize()
  for p, state, group in self:parameters() do
    state.exp_avg = self.zeros(p)
    state.exp_avg_sq = self.zeros(p)
    if group.amsgrad then state.max_exp_avg_sq = self.zeros(p) end
    if group.correct_bias then
      state.beta1_power = self.scalar(group.betas[1])
      state.beta2_power = self.scalar(group.betas[2])
    end
  end
end

--- Files of torch or Hugging Face store the number of steps instead of the powers of the betas.
function AdamBase:convert_state(group, state)
  local step = state.step
  if step == nil or state.beta1_power ~= nil then return end
  step = tonumber(loaded.plain(step))
  state.step = nil
  if group.correct_bias ~= false then
    local betas = loaded.plain(group.betas) or self.param_groups[1].betas
    local are_numbers = type(betas) == "table" and type(betas[1]) == "number" and type(betas[2]) == "number"
    check(step and are_numbers, "type", "%s: the state dict has a step or betas that are no numbers", self.class.name)
    state.beta1_power = betas[1] ^ step
    state.beta2_power = betas[2] ^ step
  end
end

return AdamBase
