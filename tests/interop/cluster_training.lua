-- A small run for cluster_interop.py: cluster_training.lua OUT [name=value …]; prints step, loss and accuracy, saves OUT_<step>.mdl.
-- systems: num_csx. steps. load: a checkpoint to continue. dropout. seed: of rank 1. alike: every system gets the same samples.
-- slow: seconds that a step takes. width: of the layer in the middle. apart: rank 1 does not use the first layer.

local cstorch = require "cstorch"
local F = cstorch.nn.functional

local given = {}
for i = 2, #arg do
  local name, value = arg[i]:match "^(%w+)=(.*)$"
  given[name] = tonumber(value) or value
end

cstorch.configure { checkpoint_steps = 5, num_csx = given.systems }
cstorch.manual_seed(cstorch.distributed.get_rank() == 1 and given.seed or 1)

local Net = cstorch.nn.Module:subclass "Net"
function Net:init()
  Net.super.init(self)
  local width = given.width or 32
  self.first, self.last = cstorch.nn.Linear(20, width), cstorch.nn.Linear(width, 3)
  self.dropout = cstorch.nn.Dropout(given.dropout or 0)
end
function Net:forward(x)
  if given.apart and cstorch.distributed.get_rank() == 1 then return self.last(cstorch.zeros { x:size(0), given.width or 32 }) end
  return self.last(self.dropout(F.relu(self.first(x))))
end

local model = Net()
local compiled = cstorch.compile(model, { backend = "CSX" })
local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.01 })
local scaler = cstorch.amp.GradScaler { loss_scale = "dynamic" }
local accuracy = cstorch.metrics.AccuracyMetric "accuracy"

cstorch.manual_seed(2)
local SAMPLES, BATCH = 112, 16
local xs, ys = cstorch.randn { SAMPLES, 20 }, cstorch.randint(0, 3, { SAMPLES })

-- A source whose position is saved: the number of batches that were streamed.
local Source = cstorch.class.Object:subclass "Source"
function Source:init()
  local place = cstorch.utils.data.get_worker_state()
  self.system, self.systems, self.count = given.alike and 0 or place.wse_id, given.alike and 1 or place.num_csx, 0
end
function Source:iter()
  return function()
    local base, extra = math.floor(BATCH / self.systems), BATCH % self.systems
    local first = self.count * BATCH + self.system * base + math.min(self.system, extra)
    local x, y = {}, {}
    for i = 1, base + (self.system < extra and 1 or 0) do
      local sample = (first + i - 1) % SAMPLES
      x[i], y[i] = xs:select(0, sample), ys:select(0, sample)
    end
    self.count = self.count + 1
    return { cstorch.stack(x), cstorch.stack(y) }
  end
end
function Source:state_dict() return { count = self.count } end
function Source:load_state_dict(state) self.count = state.count end
function Source:aggregate_state_dict(states) -- luacheck: no self
  local counts = {}
  for i, state in ipairs(states) do counts[i] = state.count end
  return { counts = counts }
end
function Source:deaggregate_state_dict(state) -- luacheck: no self
  return { count = state.counts[1] }
end

local loader = cstorch.utils.data.DataLoader(function() return Source() end, { num_steps = given.steps or 10 })
local done = 0
if given.load then
  local state = cstorch.load(given.load)
  model:load_state_dict(state.model)
  optimizer:load_state_dict(state.optimizer)
  scaler:load_state_dict(state.scaler)
  loader:load_state_dict(state.loader)
  done = cstorch.value(state.step)
end

local step = cstorch.compile_step(function(batch)
  local logits = compiled(batch[1])
  local loss = F.cross_entropy(logits, batch[2])
  accuracy:update { predictions = logits:argmax(-1), labels = batch[2] }
  cstorch.amp.optimizer_step(loss, optimizer, scaler, { max_gradient_norm = 1 })
  return { loss = loss, accuracy = accuracy:compute() }
end)
local report = cstorch.step_closure(function(i, results)
  print(("step %d %.9g %.9g"):format(i + done, results.loss:item(), results.accuracy:item()))
  io.stdout:flush()
  if given.slow then os.execute("sleep " .. given.slow) end
end)
local save = cstorch.checkpoint_closure(function(i)
  local state = { model = model:state_dict(), optimizer = optimizer:state_dict(), scaler = scaler:state_dict(),
    loader = loader:state_dict(), step = i + done }
  cstorch.save(state, ("%s_%d.mdl"):format(arg[1], i + done), { overwrite = true })
end)
for i, batch in loader:iter() do
  report(i, step(batch))
  save(i)
end
print("size", loader.batch_size)
