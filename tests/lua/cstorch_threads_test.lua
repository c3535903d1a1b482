-- Results are the same bits for any number of threads: values and gradients of every operator on sizes that are split, and a training loop.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it = harness.describe, harness.it
local nn, F = cstorch.nn, cstorch.nn.functional

local COUNTS = { 1, 2, 3, 7 }

--- Calls `fn` with each number of threads; all results (lists of tensors) must be the same bits.
local function same_for_all_threads(fn)
  local before = cbk.compute.threads()
  local fine, problem = pcall(function()
    local expected
    for _, count in ipairs(COUNTS) do
      cbk.compute.threads(count)
      local found = {}
      for i, tensor in ipairs(fn()) do found[i] = cbk.compute.to_lazy(cbk.compute.place(tensor:detach():contiguous(), "cpu")):sha256() end
      expected = expected or found
      harness.is_true(#found > 0 and #found == #expected)
      for i = 1, #found do
        if found[i] ~= expected[i] then error(("result %d differs with %d threads"):format(i, count), 0) end
      end
    end
  end)
  cbk.compute.threads(before)
  if not fine then error(problem, 0) end
end

--- The results of `fn` and the gradients of its inputs, random numbers of these shapes.
local function both_ways(shapes, fn)
  cstorch.manual_seed(3)
  local inputs = {}
  for i, shape in ipairs(shapes) do
    inputs[i] = cstorch.randn(shape)
    inputs[i].requires_grad = true
  end
  local results = { fn(unpack(inputs)) }
  local total
  for _, result in ipairs(results) do
    if result.requires_grad then
      local part = (result * cstorch.randn(result:shape())):sum()
      total = total and total + part or part
    end
  end
  if total then
    total:backward()
    for _, input in ipairs(inputs) do results[#results + 1] = input.grad end
  end
  return results
end

local function operator(name, shapes, fn)
  it(name, function() same_for_all_threads(function() return both_ways(shapes, fn) end) end)
end

local LARGE, ROW, COLUMN = { 700, 130 }, { 130 }, { 700, 1 }

describe("cstorch: the same bits for any number of threads", function()
  for _, name in ipairs {
    "abs", "exp", "square", "sign", "floor", "ceil", "cos", "sin", "tanh", "sigmoid", "relu", "erf", "neg", "isfinite", "logical_not",
      "clone",
    "contiguous", "flatten",
  } do
    operator(name, { LARGE }, function(x) return x[name](x) end)
  end
  for _, name in ipairs { "log", "sqrt", "rsqrt" } do operator(name, { LARGE }, function(x)
    return (x:abs() + 0.5)[name](x:abs() + 0.5) end)
  end
  for _, name in ipairs {
    "add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
  } do
    for _, other in ipairs { LARGE, ROW, COLUMN, {} } do
      operator(name .. " of [700, 130] and [" .. table.concat(other, ", ") .. "]", { LARGE, other }, function(a, b)
        return a[name](a, b)
      end)
    end
  end
  for _, name in ipairs { "sum", "mean", "norm", "amax", "amin" } do
    operator(name, { LARGE }, function(x)
      return x[name](x), x[name](x, 0), x[name](x, 1), x[name](x:reshape { 7, 100, 130 }, { 0, 2 }, { keepdim = true })
    end)
  end
  operator("pow", { LARGE, ROW }, function(a, b) return (a:abs() + 0.5) ^ b, a ^ 3, 2 ^ a end)
  operator("clamp, where, masked_fill", { LARGE, ROW }, function(a, b)
    return a:clamp(-1, 1), a:clamp(b, nil), cstorch.where(a:gt(b), a, b), a:masked_fill(a:gt(0), 2)
  end)
  operator("to", { LARGE }, function(x)
    return x:to "float64", x:to "bfloat16", x:to "float16", x:to "int32", x:to "int64", x:to "bool"
  end)
  operator("argmax and topk", { LARGE }, function(x)
    local values, places = x:topk(5)
    return x:argmax(), x:argmax(0), x:argmax(1), values, places
  end)
  operator("reshape, permute, expand, squeeze, unsqueeze, flatten", { LARGE }, function(x)
    return x:reshape { 130, 700 } * 2, x:permute({ 1, 0 }):contiguous(), x:unsqueeze(0):expand { 3, 700, 130 } * 2, x:transpose(0,
      1):flatten()
  end)
  operator("slice, select, cat, stack, split", { LARGE }, function(x)
    local parts = x:split(100, 1)
    return x:slice(0, 3, 690, 2) * 2, x:select(1, 3), cstorch.cat({ x, x * 2 }, 1), cstorch.stack({ x, x }, -1), parts[1], parts[2]
  end)
  operator("in place", { LARGE, ROW }, function(a, b)
    return (a * 1):add_(b):mul_(b):sub_(3):div_(2), (a * 1):copy_(b) + 0, (a * 1):clamp_(-1, 1)
  end)
  operator("in place, for optimizers", { LARGE, ROW }, function(a, b)
    return cstorch.no_grad(function()
      return a:clone():addcmul_(a, b, { value = 0.1 }), a:clone():addcdiv_(a, b, { value = 0.1 }), a:clone():lerp_(b, 0.3),
        a:clone():zero_(),
        a:clone():fill_(3), a:clone():neg_(), a:abs():sqrt_(), a:clone():add_(b, { alpha = 0.3 })
    end)
  end)
  operator("softmax", { LARGE }, function(x) return x:softmax(-1), x:softmax(0), x:log_softmax(-1), x:log_softmax(0) end)
  operator("norms", { { 700, 130 }, ROW, ROW }, function(x, w, b) return F.layer_norm(x, w, b), F.layer_norm(x, w), F.rms_norm(x, w) end)
  operator("gelu and silu", { LARGE }, function(x) return F.gelu(x), F.gelu(x, { approximate = "tanh" }), F.silu(x) end)
  operator("embedding", { { 50, 80 } }, function(w)
    return F.embedding(cstorch.randint(0, 50, { 900 }), w)
  end)
  operator("losses", { LARGE, LARGE }, function(a, b)
    local labels = cstorch.randint(0, 130, { 700 })
    return F.cross_entropy(a, labels), F.cross_entropy(b, labels, { reduction = "none" }), F.mse_loss(a, b),
      F.binary_cross_entropy_with_logits(a, b)
  end)
  operator("dropout and random numbers", { LARGE }, function(x)
    return F.dropout(x, { p = 0.3 }), cstorch.rand(LARGE), cstorch.randn(LARGE), cstorch.randint(0, 9, LARGE)
  end)
  operator("matmul", { { 1100, 60 }, { 60, 530 } }, function(a, b) return a:matmul(b), b:transpose(0, 1):matmul(a:transpose(0, 1)) end)
  operator("matmul of batches", { { 5, 90, 70 }, { 70, 110 }, { 5, 70, 90 } }, function(a, b, c)
    return a:matmul(b), a:matmul(c), c:matmul(a)
  end)
  operator("matmul of vectors", { { 1100, 60 }, { 60 }, { 1100 } }, function(a, v, u) return a:matmul(v), u:matmul(a), v:matmul(v) end)
  operator("linear", { { 6, 200, 64 }, { 600, 64 }, { 600 } }, F.linear)
  operator("matmul of float64", { { 600, 60 }, { 60, 130 } }, function(a, b) return a:to("float64"):matmul(b:to "float64") end)
  local HEADS, SHARED = { 2, 4, 300, 16 }, { 2, 2, 300, 16 }
  for name, options in pairs {
    plain = {}, causal = { causal = true }, dropout = { causal = true, dropout_p = 0.3 }, window = { causal = true, window = 40 },
    slopes = { causal = true, slopes = cstorch.tensor { 0.5, 0.25, 0.1, 0.01 } },
  } do
    operator("attention " .. name, { HEADS, SHARED, SHARED }, function(q, k, v) return F.scaled_dot_product_attention(q, k, v, options) end)
  end
  operator("attention with a mask", { HEADS, HEADS, HEADS }, function(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, { mask = cstorch.randn({ 300, 300 }):gt(0) })
  end)
end)

--- Losses and final state of some steps of a small language model.
local function train(kind)
  cstorch.testing.reset()
  cstorch.backend(kind)
  cstorch.manual_seed(1)
  local width, words = 64, 300
  local model = nn.Sequential(nn.Embedding(words, width), nn.TransformerDecoderLayer(width, 4, { position = "rotary", dropout = 0.1 }),
    nn.LayerNorm(width), nn.Linear(width, words))
  local compiled = cstorch.compile(model)
  local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 1e-2, weight_decay = 0.1 })
  local scaler = cstorch.amp.GradScaler { loss_scale = "dynamic" }
  local losses, state = {}, {}
  local step = cstorch.compile_step(function(batch)
    local loss = F.cross_entropy(compiled(batch:slice(1, 0, 160)), batch:slice(1, 1, 161))
    cstorch.amp.optimizer_step(loss, optimizer, scaler, { max_gradient_norm = 1 })
    return loss
  end)
  local look = cstorch.step_closure(function(loss) losses[#losses + 1] = loss end)
  local keep = cstorch.checkpoint_closure(function()
    for _, p in ipairs(model:parameters()) do state[#state + 1] = p:detach():clone() end
    optimizer:visit_state(function(value) state[#state + 1] = value:detach():clone() end)
  end)
  local batches = {}
  for i = 1, 3 do batches[i] = cstorch.randint(0, words, { 4, 161 }) end
  local loader = cstorch.utils.data.DataLoader(function() return batches end)
  local executor = cstorch.utils.data.DataExecutor(loader, { num_steps = 4, checkpoint_steps = 4 })
  for _, batch in executor:iter() do
    look(step(batch))
    keep()
  end
  for _, one in ipairs(state) do losses[#losses + 1] = one end
  cstorch.testing.reset()
  return losses
end

describe("cstorch: a training loop has the same bits for any number of threads", function()
  for _, kind in ipairs { "CPU", "CSX" } do
    it(kind, function() same_for_all_threads(function() return train(kind) end) end)
  end
end)
