-- A schedule of your own: a linear warm-up, then 1 / √step. Prints the learning rate of some steps.
--
--   cbk run scripts/examples/own_schedule.lua

local cstorch = require "cstorch"
local optim = cstorch.optim

-- Declared keywords become fields, and part of the state that a checkpoint keeps.
local WarmupRoot = optim.lr_scheduler.LRScheduler:subclass("WarmupRoot", { peak = cstorch.REQUIRED, warmup_steps = 10 })

function WarmupRoot:_get_closed_form_lr() -- a tensor from self.last_epoch, which counts steps from 0; tensor operations only
  local step = self.last_epoch:to "float32" + 1
  local warmup = step / self.warmup_steps
  local root = (step / self.warmup_steps):rsqrt()
  return cstorch.where(step:le(self.warmup_steps), warmup, root) * self.peak
end

local model = cstorch.nn.Linear(2, 1)
local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
-- By its name, as a config would have it.
local schedule = optim.configure_lr_scheduler(optimizer, { scheduler = "WarmupRoot", peak = 0.01, warmup_steps = 5 })
local rates = schedule:values_at(0, 40)[1]:tolist() -- of all steps at once, without a run
for _, i in ipairs { 1, 3, 5, 10, 20, 40 } do print(("step %d: learning rate %.5f"):format(i, rates[i])) end
