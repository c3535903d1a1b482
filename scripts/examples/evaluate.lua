-- Loss and accuracy of a checkpoint of train.lua over 100 random batches, on the emulated CSX.
--
--   cbk run scripts/examples/evaluate.lua checkpoint_1000.mdl

local cstorch = require "cstorch"
local nn, metrics = cstorch.nn, cstorch.metrics

cstorch.configure{ mgmt_address = "cluster:9000" }

local model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
local compiled_model = cstorch.compile(model, { backend = "wse_ws" })
compiled_model:eval()
local loss_fn = nn.CrossEntropyLoss()
local accuracy = metrics.AccuracyMetric("accuracy", { compute_on_system = true })

model:load_state_dict(cstorch.load(arg[1]).model)

local function eval_dataloader_fn(kw)
  return { { cstorch.randn{ kw.batch_size, 16 }, cstorch.randint(0, 4, { kw.batch_size }) } }   -- one batch, repeated
end
local dataloader = cstorch.utils.data.DataLoader(eval_dataloader_fn, { num_steps = 100, batch_size = 32 })

local evaluation_step = cstorch.compile_step(function(batch)
  local inputs, targets = batch[1], batch[2]
  local outputs = compiled_model(inputs)
  accuracy{ labels = targets:clone(), predictions = outputs:argmax(-1):to("int32") }
  return loss_fn(outputs, targets)
end)

local total_loss, total_steps = 0, 0
local post_eval_step = cstorch.step_closure(function(loss)
  total_loss, total_steps = total_loss + loss:item(), total_steps + 1
end)

cstorch.no_grad(function()
  for _, batch in dataloader:iter() do post_eval_step(evaluation_step(batch)) end
end)
print(("Eval Loss: %.5f"):format(total_loss / total_steps))
print(("Eval Accuracy: %.5f"):format(accuracy:value()))
