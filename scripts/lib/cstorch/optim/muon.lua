-- Muon: momentum with its matrix made nearly orthogonal.

local errors = require "cstorch.errors"
local session = require "cstorch.session"
local Optimizer = require "cstorch.optim.optimizer"

---b = momentum·buffer + (1 - momentum)·g, e = g + momentum·b (nesterov) or b; X = e/(‖e‖ + 1e-7) in bfloat16, ns_steps times
---X = 3.4445·X + (2.0315·A² - 4.7750·A)·X with A = X·Xᵀ; α = 0.2·lr·√(the larger extent); p = p·(1 - α·wd) - α·X.
---As in the reference, the buffer stays zero: b is not written back, and CSX makes one iteration, whatever ns_steps says.
---Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
---@class cstorch.optim.Muon : cstorch.optim.Optimizer
---@alias Muon.Keywords { lr: number, weight_decay: number, momentum: number, nesterov: boolean, ns_steps: integer }
---@overload fun(params: table, keywords?: Muon.Keywords): cstorch.optim.Muon
local Muon = Optimizer:subclass("Muon", { lr = 0.02, weight_decay = 0.01, momentum = 0.95, nesterov = true, ns_steps = 5 })

Muon.limits = {
  lr = { min = 0 }, weight_decay = { min = 0, below = 1 }, momentum = { min = 0, below = 1 }, ns_steps = { min = 0, max = 1000 },
}

function Muon:preinitialize()
  for p, state in self:parameters() do
    local rank = p:dim()
    errors.check(rank == 2 or rank == 4, "value", "Muon: expected parameters with 2 or 4 dims, found %d; give others to AdamW", rank)
    state.momentum_buffer = self.zeros(p)
  end
end

--- The iteration of Newton and Schulz towards an orthogonal matrix, with the coefficients of the source.
local function orthogonalize(matrix, iterations)
  local x = matrix:to "bfloat16"
  x = x / (x:norm() + 1e-7)
  local is_tall = x:size(0) > x:size(1)
  if is_tall then x = x:transpose(0, 1) end
  for _ = 1, iterations do
    local a = x:matmul(x:transpose(0, 1))
    x = x * 3.4445 + (a * -4.7750 + a:matmul(a) * 2.0315):matmul(x)
  end
  if is_tall then x = x:transpose(0, 1) end
  return x:to "float32"
end

function Muon:step(closure)
  local loss = closure and closure()
  local is_csx = session.backend and session.backend.kind == "CSX"
  for p, g, state, group in self:gradients() do
    local momentum = group.momentum
    local b = state.momentum_buffer * momentum + g * (1 - momentum)
    local e = group.nesterov and g + b * momentum or b
    local rows = p:size(0)
    local columns = p:numel() / rows
    local x = orthogonalize(e:reshape { rows, columns }, is_csx and 1 or group.ns_steps):reshape(p:shape())
    local rate = group.lr * (0.2 * math.sqrt(math.max(rows, columns)))
    p:mul_(1 - rate * group.weight_decay):sub_(x * rate)
  end
  return loss
end

return Muon
