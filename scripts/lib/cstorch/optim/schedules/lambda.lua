-- LambdaLR, LambdaWD: a product of functions of the step.

local keywords = require "cstorch.keywords"

---f(t) = the product of initial·λ(t) over the functions λ that `set_value_lambda` returns: here t/30 and 0.95^t.
local Lambda = { name = "Lambda", keywords = { initial_val = keywords.REQUIRED, total_iters = keywords.REMOVED } }

---A subclass overrides it (under the older name `set_lr_lambda`, too): functions of the step, a 0-dim tensor.
---@return (fun(t: any): any)[]
function Lambda.set_value_lambda()
  return { function(t) return t / 30 end, function(t) return 0.95 ^ t end }
end

function Lambda:closed_form(t)
  local value
  for _, lambda in ipairs(self.set_lr_lambda and self:set_lr_lambda() or self:set_value_lambda()) do
    local factor = lambda(t) * self.initial_val
    value = value and value * factor or factor
  end
  return value
end

return Lambda
