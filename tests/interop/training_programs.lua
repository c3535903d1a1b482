-- Runs programs of tensor operators: `cbk run training_programs.lua programs.lua results.json`. training_interop.py writes them, and
-- runs them in PyTorch.

local cbk = require "cbk"
local cstorch = require "cstorch"

local F = cstorch.nn.functional

--- A tensor of int64 from what JSON has.
local function ids(list) return cstorch.tensor(list, { dtype = "int64" }) end

local function option(p) return { keepdim = p.keepdim } end

--- name: function of the parameters and the input tensors
local OPERATORS = {
  add = function(_, a, b) return a + b end,
  sub = function(_, a, b) return a - b end,
  mul = function(_, a, b) return a * b end,
  div = function(_, a, b) return a / (b:abs() + 0.5) end,
  maximum = function(_, a, b) return a:maximum(b) end,
  minimum = function(_, a, b) return a:minimum(b) end,
  pow_tensor = function(_, a, b) return (a:abs() + 0.5) ^ b:tanh() end,
  pow = function(p, a) return (a:abs() + 0.5) ^ p.n end,
  rpow = function(p, a) return p.n ^ a:tanh() end,
  number = function(p, a) return p.n - a * p.n + a / p.n + p.n / (a:square() + 1) end,
  exp = function(_, a) return (a * 0.3):exp() end,
  log = function(_, a) return (a:abs() + 0.5):log() end,
  sqrt = function(_, a) return (a:abs() + 0.5):sqrt() end,
  rsqrt = function(_, a) return (a:abs() + 0.5):rsqrt() end,
  gelu_tanh = function(_, a) return F.gelu(a, { approximate = "tanh" }) end,
  gelu = function(_, a) return F.gelu(a) end,
  silu = function(_, a) return F.silu(a) end,
  clamp = function(p, a) return a:clamp(p.low, p.high) end,
  sum = function(p, a) return a:sum(p.dims, option(p)) end,
  mean = function(p, a) return a:mean(p.dims, option(p)) end,
  amax = function(p, a) return a:amax(p.dims, option(p)) end,
  amin = function(p, a) return a:amin(p.dims, option(p)) end,
  norm = function(p, a) return a:norm(p.dims, option(p)) end,
  softmax = function(p, a) return a:softmax(p.dim) end,
  log_softmax = function(p, a) return a:log_softmax(p.dim) end,
  layer_norm = function(p, a)
    local w = a:select(0, 0)
    return F.layer_norm(a, w, p.bias and w * 2 or nil, { eps = p.eps })
  end,
  rms_norm = function(p, a) return F.rms_norm(a, a:select(0, 0), { eps = p.eps }) end,
  square_product = function(_, a) return a:matmul(a:transpose(-1, -2)) end,
  inner_product = function(_, a) return a:transpose(-1, -2):matmul(a) end,
  matmul = function(_, a, b) return a:matmul(b) end,
  linear = function(p, a) return F.linear(a, a:reshape({ -1, a:size(-1) }), p.bias and a:reshape({ -1, a:size(-1) }):sum(1) or nil) end,
  reshape = function(p, a) return a:reshape(p.shape) end,
  permute = function(p, a) return a:permute(p.dims) end,
  transpose = function(p, a) return a:transpose(p.a, p.b) end,
  expand = function(p, a) return a:unsqueeze(p.dim):expand(p.shape) end,
  unsqueeze = function(p, a) return a:unsqueeze(p.dim) end,
  squeeze = function(p, a) return a:squeeze(p.dim) end,
  slice = function(p, a) return a:slice(p.dim, p.start, p.stop, p.step) end,
  select = function(p, a) return a:select(p.dim, p.index) end,
  cat = function(p, a, b) return cstorch.cat({ a, b, a }, p.dim) end,
  stack = function(p, a, b) return cstorch.stack({ a, b }, p.dim) end,
  split = function(p, a) return a:split(p.size, p.dim)[p.part] end,
  where = function(_, a, b) return cstorch.where(a:gt(b), a, b * 0.5) end,
  masked_fill = function(p, a) return a:masked_fill(a:lt(p.n), p.n) end,
  sign_floor_ceil = function(_, a) return a * ((a * 3):floor() + a:sign() - (a * 2):ceil()) end,
  compare = function(_, a, b) return a * a:ge(b) + b * a:le(b):logical_not() + a:ne(b):logical_and(a:gt(0)) * b end,
  argmax = function(p, a) return a:argmax(p.dim, option(p)):to(a.dtype) * 0.1 end,
  topk = function(p, a) return (a:topk(p.k)) end,
  embedding = function(p, a) return F.embedding(ids(p.ids), a) end,
  cross_entropy = function(p, a) return F.cross_entropy(a, ids(p.labels), { reduction = p.reduction, ignore_index = p.ignored }) end,
  mse_loss = function(p, a, b) return F.mse_loss(a, b, { reduction = p.reduction }) end,
  bce = function(p, a, b) return F.binary_cross_entropy_with_logits(a, b:sigmoid(), { reduction = p.reduction }) end,
  attention = function(p, a)
    return F.scaled_dot_product_attention(a, a * 0.7, a + 0.1, {
      causal = p.causal, scale = p.scale, window = p.window, mask = p.mask and cstorch.tensor(p.mask, { dtype = "bool" }) or nil,
    })
  end,
  in_place = function(p, a, b) return (a * 2 + b * 0):add_(b):mul_(p.n):sub_(b * 0.1) end,
  no_grad = function(_, a) return a * cstorch.no_grad(function() return a * 0.5 end) + a:detach() end,
  cast = function(_, a) return a:to("float32"):to(a.dtype) end,
}

for _, name in ipairs { "square", "cos", "sin", "tanh", "sigmoid", "relu", "erf", "abs", "neg", "clone", "contiguous", "flatten" } do
  OPERATORS[name] = function(_, a) return a[name](a) end
end

local function flat(tensor) return cbk.list(tensor:reshape({ tensor:numel() }):tolist()) end

local function run(program)
  local values, leaves = {}, {}
  for i, input in ipairs(program.inputs) do
    leaves[i] = cstorch.tensor(input.values, { shape = input.shape, dtype = program.dtype, requires_grad = true })
    values[i] = leaves[i]
  end
  for _, step in ipairs(program.steps) do
    local inputs = {}
    for i, place in ipairs(step.inputs) do inputs[i] = values[place + 1] end
    values[#values + 1] = OPERATORS[step.op](step.p, unpack(inputs))
  end
  local loss = cstorch.tensor(0, { dtype = program.dtype })
  for _, value in ipairs(values) do loss = loss + (value * 0.7):sin():sum() end
  loss:backward()
  local result = { values = {}, gradients = {}, shapes = {} }
  for i, value in ipairs(values) do result.values[i], result.shapes[i] = flat(value), cbk.list(value:shape()) end
  for i, leaf in ipairs(leaves) do result.gradients[i] = flat(leaf.grad) end
  return result
end

local results = {}
for i, program in ipairs(dofile(arg[1])) do
  local fine, result = pcall(run, program)
  results[i] = fine and result or { error = tostring(result) }
end
cbk.fs.write(arg[2], cbk.json(results))
