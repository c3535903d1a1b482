-- Trains a small classifier on random data for 1000 steps, on the emulated CSX: prints the loss of every step, and writes
-- checkpoint_100.mdl, checkpoint_200.mdl, … into the current folder. With a checkpoint it continues from there.
--
--   cbk run scripts/examples/train.lua
--   cbk run scripts/examples/train.lua checkpoint_500.mdl

local cstorch = require "cstorch"
local nn = cstorch.nn

local checkpoint_steps = 100
cstorch.configure{ checkpoint_steps = checkpoint_steps, mgmt_address = "cluster:9000" }   -- before the model

local model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
local compiled_model = cstorch.compile(model, { backend = "wse_ws" })
local loss_fn = nn.CrossEntropyLoss()
local optimizer = cstorch.optim.configure_optimizer{ optimizer_type = "SGD", params = model:parameters(), lr = 0.001, momentum = 0.5 }
local lr_scheduler = cstorch.optim.configure_lr_scheduler(optimizer, {
  { scheduler = "Linear", initial_learning_rate = 0, end_learning_rate = 0.001, total_iters = 100 },
  { scheduler = "CosineDecay", initial_learning_rate = 0.001, end_learning_rate = 0, total_iters = 900 },
})
local loss_scale = "dynamic"
local grad_scaler = loss_scale ~= 0 and cstorch.amp.GradScaler{ loss_scale = loss_scale } or nil

local save_checkpoint = cstorch.step_closure(function(step)
  local state_dict = { model = model:state_dict(), optimizer = optimizer:state_dict() }
  if lr_scheduler then state_dict.lr_scheduler = lr_scheduler:state_dict() end
  if grad_scaler then state_dict.grad_scaler = grad_scaler:state_dict() end
  state_dict.global_step = step
  cstorch.save(state_dict, ("checkpoint_%d.mdl"):format(step))
end)

local global_step, checkpoint_path = 0, arg[1]
if checkpoint_path then
  local state_dict = cstorch.load(checkpoint_path)
  model:load_state_dict(state_dict.model)
  optimizer:load_state_dict(state_dict.optimizer)
  if lr_scheduler then lr_scheduler:load_state_dict(state_dict.lr_scheduler) end
  if grad_scaler then grad_scaler:load_state_dict(state_dict.grad_scaler) end
  global_step = state_dict.global_step or 0
end

local function train_dataloader_fn(kw)                   -- every worker calls it once
  local batches = {}
  for b = 1, 50 do batches[b] = { cstorch.randn{ kw.batch_size, 16 }, cstorch.randint(0, 4, { kw.batch_size }) } end
  return batches
end
local dataloader = cstorch.utils.data.DataLoader(train_dataloader_fn, { num_steps = 1000, batch_size = 32 })

local training_step = cstorch.compile_step(function(batch)
  local inputs, targets = batch[1], batch[2]
  local loss = loss_fn(compiled_model(inputs), targets)
  cstorch.amp.optimizer_step(loss, optimizer, grad_scaler, { max_gradient_norm = 1.0 })
  if lr_scheduler then lr_scheduler:step() end           -- the section on the training step has it, the full example forgot it
  return loss
end)

local post_training_step = cstorch.step_closure(function(loss) print("Loss: ", loss:item()) end)

for i, batch in dataloader:iter() do                     -- i counts from 1, so the condition below meets the checkpoint steps
  local loss = training_step(batch)
  post_training_step(loss)
  if i % checkpoint_steps == 0 then save_checkpoint(global_step + i) end
end
