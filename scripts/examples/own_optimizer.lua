-- An optimizer of your own: the sign of a running mean of gradients (Signum). Prints the loss of every 20th step.
--
--   cbk run scripts/examples/own_optimizer.lua

local cstorch = require "cstorch"
local optim = cstorch.optim

local Signum = optim.Optimizer:subclass("Signum", { lr = cstorch.REQUIRED, momentum = 0.9, weight_decay = 0 })

function Signum:preinitialize() -- the only place that may make states
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do self.state[p].momentum_buffer = cstorch.zeros_like(p) end
  end
end

function Signum:step()
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.params) do
      if p.grad then
        local mean = self.state[p].momentum_buffer
        mean:mul_(group.momentum):add_(p.grad * (1 - group.momentum))
        p:sub_((mean:sign() + p * group.weight_decay) * group.lr)
      end
    end
  end
end

cstorch.manual_seed(1)
local model = cstorch.nn.Linear(2, 1)
local compiled = cstorch.compile(model, { backend = "CSX" })
-- By its name, as a config would have it.
local optimizer = optim.configure_optimizer { optimizer_type = "signum", params = model:parameters(), lr = 0.02 }
local x = cstorch.randn { 64, 2 }
local y = x:matmul(cstorch.tensor { { 3 }, { -2 } }) + 1
local loader = cstorch.utils.data.DataLoader(function() return { { x, y } } end, { num_steps = 200 })
local step = cstorch.compile_step(function(batch)
  local loss = cstorch.nn.functional.mse_loss(compiled(batch[1]), batch[2])
  cstorch.amp.optimizer_step(loss, optimizer)
  return loss
end)
local report = cstorch.step_closure(function(i, loss)
  if i % 20 == 0 then print(("step %d: loss %.4f"):format(i, loss:item())) end
end)
for i, batch in loader:iter() do report(i, step(batch)) end
