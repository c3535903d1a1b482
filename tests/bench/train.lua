-- What `cstorch` does of shared benchmarks of training:
--
--   cbk run tests/bench/train.lua gpt2|mlp|adamw [--threads N] [--steps K] [--eager] [--save FILE]
--
-- The same models as the peer's script trains, so that two lines can be compared: 10.9M-parameter GPT-2 (6 layers, width 384, 6 heads,
-- sequence 256, batch 8, bytes; forward, backward, AdamW), an MLP 16 → 32 → 4 (batch 32, SGD), AdamW over 100M parameters.

local cbk = require "cbk"
local cstorch = require "cstorch"
local nn, F = cstorch.nn, cstorch.nn.functional

local what, threads, steps, backend, path = arg[1], 1, nil, "CSX", nil
for i = 2, #arg do
  if arg[i] == "--threads" then threads = tonumber(arg[i + 1]) end
  if arg[i] == "--steps" then steps = tonumber(arg[i + 1]) end
  if arg[i] == "--eager" then backend = "CPU" end
  if arg[i] == "--save" then path = arg[i + 1] end
end
cbk.compute.threads(threads)

--- The peak of the process's memory so far, in MB.
local function peak()
  local file = assert(io.open "/proc/self/status")
  local text = file:read "*a"
  file:close()
  return tonumber(text:match "VmHWM:%s+(%d+)") / 1024
end

local function median(list)
  table.sort(list)
  return list[math.floor((#list + 1) / 2)]
end

--- Seconds of each step of a compiled loop, without the first two.
local function loop(count, batch, body)
  local loader = cstorch.utils.data.DataLoader(function() return { batch } end, { num_steps = count + 2 })
  local step = cstorch.compile_step(body)
  local last
  local see = cstorch.step_closure(function(loss) last = loss:item() end)
  local times, start = {}, nil
  for i, one in loader:iter() do
    if i == 3 then start = cbk.clock() end
    local begin = cbk.clock()
    see(step(one))
    times[i] = cbk.clock() - begin
  end
  local mean = (cbk.clock() - start) / count
  return mean, median { unpack(times, math.max(3, #times - 500)) }, last
end

local models = {}

function models.gpt2()
  local layers, width, heads, length, vocabulary = 6, 384, 6, 256, 256
  local Gpt = nn.Module:subclass "Gpt"
  function Gpt:init()
    Gpt.super.init(self)
    self.tok = nn.Embedding(vocabulary, width)
    self.pos = nn.Embedding(length, width)
    local blocks = {}
    for i = 1, layers do blocks[i] = nn.TransformerDecoderLayer(width, heads) end
    self.blocks = nn.ModuleList(blocks)
    self.norm = nn.LayerNorm(width)
    self.head = nn.Linear(width, vocabulary, { bias = false })
  end
  function Gpt:forward(ids)
    local x = self.tok(ids) + self.pos.weight
    for i = 1, layers do x = self.blocks[i](x) end
    return self.head(self.norm(x))
  end
  local model = Gpt()
  local compiled = cstorch.compile(model, { backend = backend })
  local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 1e-3 })
  local batch = { cstorch.randint(0, 256, { 8, length }), cstorch.randint(0, 256, { 8, length }) }
  local count = 0
  for _, p in ipairs(model:parameters()) do count = count + p:numel() end
  local seconds, middle, loss = loop(steps or 10, batch, function(one)
    local value = F.cross_entropy(compiled(one[1]), one[2])
    optimizer:zero_grad()
    value:backward()
    optimizer:step()
    return value
  end)
  local before, after = peak(), nil
  if path then
    cstorch.step_closure(function() cstorch.save({ model = model:state_dict(), optimizer = optimizer:state_dict() }, path) end)()
    cstorch.run_step_closures()
    after = peak()
  end
  return { seconds = seconds, median = middle, tokens_per_second = 8 * 256 / seconds, parameters = count, loss = loss, peak_mb = before,
    peak_mb_after_save = after }
end

function models.mlp()
  local model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
  local compiled = cstorch.compile(model, { backend = backend })
  local optimizer = cstorch.optim.SGD(model:parameters(), { lr = 0.01, momentum = 0.5 })
  local seconds, _, loss = loop(steps or 20000, { cstorch.randn { 32, 16 }, cstorch.randint(0, 4, { 32 }) }, function(one)
    local value = F.cross_entropy(compiled(one[1]), one[2])
    optimizer:zero_grad()
    value:backward()
    optimizer:step()
    return value
  end)
  return { seconds = seconds, steps_per_second = 1 / seconds, loss = loss }
end

function models.adamw()
  local params = {}
  for i = 1, 100 do
    params[i] = nn.Parameter(cstorch.randn { 1000, 1000 })
    params[i].grad = cstorch.randn { 1000, 1000 }
  end
  local optimizer = cstorch.optim.AdamW(params, { lr = 1e-3 })
  local function timed(fn, count)
    local times = {}
    fn()
    for i = 1, count do
      local begin = cbk.clock()
      fn()
      times[i] = cbk.clock() - begin
    end
    return median(times)
  end
  local seconds = timed(function() optimizer:step() end, steps or 5)
  local x, y, z = cstorch.randn { 50e6 }, cstorch.randn { 50e6 }, cstorch.zeros { 50e6 }
  local triad = timed(function() cstorch.formula(function() z:copy_(x + y * 3) end) end, 5)
  return { seconds = seconds, adamw_gb_per_s = 100e6 * 28 / seconds / 1e9, triad_gb_per_s = 50e6 * 12 / triad / 1e9 }
end

local result = models[what]()
result.what, result.threads, result.backend = what, threads, backend
print(cbk.json(result))
