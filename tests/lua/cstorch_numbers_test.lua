-- Numbers where rounding, range and dtypes show: large logits, masks of the lowest float, half precision, whole numbers.

local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, raises, is_true = harness.describe, harness.it, harness.equal, harness.raises, harness.is_true
local F = cstorch.nn.functional

local function leaf(values, dtype) return cstorch.tensor(values, { dtype = dtype, requires_grad = true }) end
local function whole(values, dtype) return cstorch.tensor(values, { dtype = dtype or "int64" }) end

local function near(found, expected, tolerance)
  for i = 1, #expected do
    is_true(math.abs(found[i] - expected[i]) <= tolerance, ("number %d is %.9g, expected %.9g"):format(i, found[i], expected[i]))
  end
end

describe("cstorch: gradients of large numbers", function()
  it("of cross_entropy do not depend on what is added to all logits", function()
    for _, base in ipairs { 0, 1e4, 1e8, -1e8 } do
      local logits = leaf { { base, base } }
      F.cross_entropy(logits, whole { 0 }):backward()
      equal(logits.grad:tolist(), { { -0.5, 0.5 } })
    end
  end)

  it("of attention are right where a row sees the lowest floats only", function()
    local lowest = -3.4028234663852886e38
    local function gradient(mask)
      local q, k, v = leaf { { 1 } }, leaf { { 1 }, { 2 } }, cstorch.tensor { { 1 }, { 3 } }
      F.scaled_dot_product_attention(q, k, v, { mask = cstorch.tensor { { mask, mask } } }):sum():backward()
      return { q.grad:item(), k.grad:select(-1, 0):tolist()[1], k.grad:select(-1, 0):tolist()[2] }
    end
    near(gradient(0), { 0.39322, -0.39322, 0.39322 }, 1e-4)
    near(gradient(lowest), { 0.5, -0.5, 0.5 }, 1e-6) -- the scores are lost, so both keys weigh the same
    near(gradient(-1e6), { 0.5, -0.5, 0.5 }, 0.12)
  end)

  it("of attention with dropout are those of attention without it on average", function()
    cstorch.testing.reset()
    cstorch.backend "CSX"
    cstorch.manual_seed(1)
    local x, total = cstorch.randn { 2, 4, 30, 8 }, cstorch.zeros { 2, 4, 30, 8 }
    local see = cstorch.step_closure(function(out) total:add_(out) end)
    local step = cstorch.compile_step(function(batch) -- replayed: each step drops other weights
      see(F.scaled_dot_product_attention(batch, batch, batch, { causal = true, dropout_p = 0.3 }))
    end)
    for _, batch in cstorch.utils.data.DataLoader(function() return { x } end, { num_steps = 400 }):iter() do step(batch) end
    local apart = (total / 400 - F.scaled_dot_product_attention(x, x, x, { causal = true })):abs():mean():item()
    assert(apart > 1e-4 and apart < 0.02, apart) -- one draw is 0.2 away
  end)

  it("of a quotient stay within the range", function()
    for _, case in ipairs { { "float32", 1e25 }, { "float32", 1e-25 }, { "float16", 512 }, { "float16", 2 ^ -10 } } do
      local a, b = leaf({ case[2] }, case[1]), leaf({ case[2] }, case[1]);
      (a / b):sum():backward()
      near({ b.grad:item() * case[2] }, { -1 }, 1e-3)
    end
  end)
end)

describe("cstorch: powers", function()
  it("of float64 have gradients of float64", function()
    local x = leaf({ 2 }, "float64");
    (x ^ 0.1):backward(cstorch.ones({ 1 }, { dtype = "float64" }))
    near(x.grad:tolist(), { 0.1 * 2 ^ -0.9 }, 1e-15)
  end)

  it("of whole numbers are exact and wrap around", function()
    equal((whole { 3, -3, 2 } ^ 39):tolist(), { 4052555153018976267LL, -4052555153018976267LL, 549755813888 })
    equal((whole { 2 } ^ 64):tolist(), { 0 })
    equal((whole({ 200 }, "uint8") ^ 3):tolist(), { 0 })
    equal((whole { 2, 1, -1 } ^ whole { -1, -5, -3 }):tolist(), { 0, 1, -1 })
    raises("negative power of int64", function() return whole { 2 } ^ -2 end)
  end)
end)

describe("cstorch: dtypes", function()
  it("of a gradient are those of its leaf, however often it is added to", function()
    local p, q = leaf({ 1, 2 }, "float16"), cstorch.tensor { 1, 2 }
    for _ = 1, 3 do (p * q):sum():backward() end
    equal({ p.grad.dtype, p.grad:tolist() }, { "float16", { 3, 6 } })
  end)

  it("of an extreme are those of its tensor", function()
    for _, dtype in ipairs { "int32", "uint8", "bool", "int64" } do
      local x = whole({ 1, 0 }, dtype)
      equal({ x:amax().dtype, x:amin(0).dtype }, { dtype, dtype })
    end
  end)

  it("of large whole numbers lose nothing", function()
    local large = whole { 1, 2 } ^ 0 * 2 ^ 53 + whole { 1, 0 }
    equal(large:topk(2):tolist(), { 9007199254740993LL, 9007199254740992LL })
    equal({ whole({ 1 }):lt(1e300):item(), (whole { 1 } * 1e30).dtype }, { true, "float32" })
  end)

  it("of half precision compare with numbers as they hold them", function()
    equal({ cstorch.tensor({ 0.1 }, { dtype = "float16" }):eq(0.1):item(), cstorch.tensor({ 0.1 }, { dtype = "bfloat16" }):ge(0.1):item() },
      { true, true })
  end)

  it("of half precision round a gradient once", function()
    local x = leaf({ 3 }, "bfloat16")
    x:tanh():sum():backward()
    near({ x.grad:item() }, { 1 - 0.99609375 ^ 2 }, 2e-5) -- tanh(3) is 0.99609375 there
  end)

  it("of whole numbers refuse what they cannot hold", function()
    for _, make in ipairs {
      function() return whole({ 1, 256 }, "uint8") end, function() return whole({ -1 }, "uint8") end,
      function() return whole { 0 / 0 } end, function() return cstorch.full({ 2 }, 2 ^ 31, { dtype = "int32" }) end,
      function() return cstorch.full({ 2 }, 1 / 0, { dtype = "int64" }) end, function() return whole { 1 }:fill_(1e30) end,
    } do
      raises("is no number of", make)
    end
    equal(whole({ 255, 0, 1.5, -0.5 }, "uint8"):tolist(), { 255, 0, 1, 0 })
    equal(whole({ -2 ^ 31, 2 ^ 31 - 1 }, "int32"):tolist(), { -2 ^ 31, 2 ^ 31 - 1 })
  end)

  it("of whole numbers refuse fractions in place", function()
    local x = whole { 1, 2 }
    for _, write in ipairs {
      function() x:add_(x, { alpha = 0.5 }) end, function() x:lerp_(x, 0.5) end, function() x:addcmul_(x, x, { value = 0.5 }) end,
      function() x:addcmul_(x, cstorch.ones { 2 }) end, function() x:mul_(0.5) end,
    } do
      raises("cannot hold them", write)
    end
    equal(x:add_(x, { alpha = 2 }):tolist(), { 3, 6 })
  end)
end)

describe("cstorch: gradients at bounds", function()
  it("go to the value, whether the bound is a number or a tensor", function()
    for _, clamp in ipairs {
      function(x) return x:clamp(1, 2) end, function(x) return x:clamp(cstorch.ones { 4 }, cstorch.ones { 4 } * 2) end,
      function(x) return (x * 1):clamp_(1, 2) end, function(x) return (x * 1):clamp_(cstorch.ones { 4 }, 2) end,
    } do
      local x = leaf { 0, 1, 2, 3 }
      clamp(x):sum():backward()
      equal(x.grad:tolist(), { 0, 1, 1, 0 })
    end
    local bound = leaf { 1 }
    cstorch.tensor({ 0, 1, 2 }):clamp(bound):sum():backward()
    equal(bound.grad:tolist(), { 1 })
  end)

  it("of relu are 0 also under an infinite gradient", function()
    local x = leaf { -1, 0, 1 }
    x:relu():backward(cstorch.full({ 3 }, 1 / 0))
    equal(x.grad:tolist(), { 0, 0, 1 / 0 })
  end)
end)

describe("cstorch: tensors without elements", function()
  it("are multiplied and fed to a step", function()
    equal(cstorch.ones({ 0, 3 }):argmax(1, { keepdim = true }):shape(), { 0, 1 })
    equal(cstorch.ones({ 2, 3, 0 }):matmul(cstorch.ones { 0, 4 }):sum():item(), 0)
    cstorch.testing.reset()
    cstorch.backend "CSX"
    local sums = {}
    local look = cstorch.step_closure(function(sum) sums[#sums + 1] = sum:item() end)
    local step = cstorch.compile_step(function(batch)
      local sum = batch[1]:sum() + batch[2]:sum()
      look(sum)
      return sum
    end)
    local loader = cstorch.utils.data.DataLoader(function() return { { cstorch.ones { 1, 0 }, cstorch.ones { 1 } } } end, { num_steps = 3 })
    for _, batch in loader:iter() do step(batch) end
    equal(sums, { 1, 1, 1 })
    cstorch.testing.reset()
  end)
end)

describe("cstorch: losses of two shapes", function()
  it("are refused, or said", function()
    local function loss_of_two() return F.binary_cross_entropy_with_logits(cstorch.ones { 3, 1 }, cstorch.ones { 3 }) end
    raises("x [3, 1] and y [3] must have one shape", loss_of_two)
    local said = {}
    local before = cstorch.on_warning(function(message) said[#said + 1] = message end)
    local loss = F.mse_loss(cstorch.ones { 3, 1 }, cstorch.zeros { 3 }):item()
    cstorch.on_warning(before)
    equal({ loss, #said }, { 1, 1 })
    is_true(said[1]:find("mse_loss: shapes [3, 1] and [3] differ", 1, true) ~= nil)
  end)
end)

describe("cstorch: NaN", function()
  it("is printed without a sign", function() equal(tostring(cstorch.tensor { 0 } / 0), "Tensor float32 [1]: nan") end)
end)

describe("cstorch: random numbers", function()
  it("of half precision stay below 1", function()
    cstorch.manual_seed(1)
    for _, dtype in ipairs { "float16", "bfloat16", "float32" } do is_true(cstorch.rand({ 40000 }, { dtype = dtype }):amax():item() < 1) end
  end)
end)
