-- The gradient of every operator, function and module against central differences, in float64.

local cstorch = require "cstorch"
local gradients = require "gradients"
local harness = require "harness"
local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises
local nn, F = cstorch.nn, cstorch.nn.functional

local ELEMENTS = { { 2, 3 }, {}, { 0, 3 }, { 2, 1, 2 } }
local PAIRS = { { { 2, 3 }, { 2, 3 } }, { { 2, 3 }, { 3 } }, { { 2, 1, 3 }, { 2, 1 } }, { {}, { 2, 2 } }, { { 2 }, {} }, { {}, {} },
  { { 0, 3 }, { 3 } } }

--- { name, function, shapes of each variant's inputs, low, high }
local cases = {}
local function add(name, variants, fn, low, high) cases[#cases + 1] = { name = name, variants = variants, fn = fn, low = low,
  high = high } end

--- A method with each of the shapes as its only input.
local function add_unary(name, fn, low, high)
  local variants = {}
  for i, shape in ipairs(ELEMENTS) do variants[i] = { shape } end
  add(name, variants, fn, low, high)
end

for _, name in ipairs { "abs", "exp", "square", "sign", "floor", "ceil", "cos", "sin", "tanh", "sigmoid", "relu", "erf", "neg", "clone",
  "contiguous", "flatten" } do
  add_unary(name, function(x) return x[name](x) end)
end
for _, name in ipairs { "log", "sqrt", "rsqrt" } do add_unary(name, function(x) return x[name](x) end, 0.3, 2) end
for _, exponent in ipairs { 3, 2, 1, 0, 0.5, -0.5, -1, 2.5 } do
  add_unary("^" .. exponent, function(x) return x ^ exponent end, 0.3, 2)
end
add_unary("numbers on the left", function(x) return 2 - x + 3 / x + 2 ^ x + 4 * x end, 0.3, 2)
add_unary("numbers on the right", function(x) return (x - 2) / 3 + x * 4 end)
add_unary("-x", function(x) return -x end)
add_unary("clamp", function(x) return x:clamp(-0.5, 0.5) + x:clamp(nil, 0.1) + x:clamp(-0.1) end)
add_unary("gelu", function(x) return F.gelu(x) + F.gelu(x, { approximate = "tanh" }) end, -3, 3)
add_unary("silu", F.silu, -3, 3)
add_unary("functional.tanh and sigmoid", function(x) return F.tanh(x) + F.sigmoid(x) + F.relu(x) end)
add_unary("dropout", function(x)
  cstorch.manual_seed(5)
  return F.dropout(x, { p = 0.4 }) + F.dropout(x, { p = 1 }) + F.dropout(x, { training = false })
end)
add_unary("to float64", function(x) return x:to "float64" * 2 end)
add_unary("one tensor twice", function(x) return x * x + x / (x + 3) end)

for name, fn in pairs {
  add = function(a, b) return a + b end,
  sub = function(a, b) return a - b end,
  mul = function(a, b) return a * b end,
  maximum = function(a, b) return a:maximum(b) end,
  minimum = function(a, b) return a:minimum(b) end,
  where = function(a, b) return cstorch.where((a:detach() * 3):sin():gt(0), a, b) + cstorch.where(a:detach():gt(0), 2, b) end,
  masked_fill = function(a, b) return a:masked_fill((a:detach() * b:detach()):gt(0), 3) * b end,
  mse_loss = function(a, b)
    a, b = a + b * 0, b + a * 0 -- of one shape
    return F.mse_loss(a, b, { reduction = "none" }), F.mse_loss(a, b, { reduction = "sum" })
  end,
} do
  add(name, PAIRS, fn)
end
add("div", PAIRS, function(a, b) return a / b end, 0.4, 2)
add("pow", PAIRS, function(a, b) return a ^ b end, 0.4, 2)
add("clamp between tensors", { { { 2, 3 }, { 3 }, {} } }, function(x, low, high) return x:clamp(low - 0.5, high + 0.5) end)
add("binary_cross_entropy_with_logits", { { { 2, 3 }, { 2, 3 } }, { {}, {} } }, function(x, y)
  return F.binary_cross_entropy_with_logits(x, y), F.binary_cross_entropy_with_logits(x, y, { reduction = "none" })
end, 0.1, 0.9)

for _, name in ipairs { "sum", "mean", "norm", "amax", "amin" } do
  add(name, { { { 2, 3, 2 } } }, function(x)
    return x[name](x), x[name](x, 1), x[name](x, { 0, -1 }), x[name](x, 0, { keepdim = true }), x[name](x, nil, { keepdim = true })
  end)
  add(name .. " of 0 dims", { { {} } }, function(x) return x[name](x) end)
end
add("sum of nothing", { { { 0, 3 } } }, function(x) return x:sum(), x:sum(0), x:sum(1), x:mean(1) end)

add("reshape", { { { 2, 6 } } }, function(x) return x:reshape { 3, -1 }, x:reshape { 12 }, x:reshape({ 2, 2, 3 }) * 2 end)
add("reshape of 0 dims", { { {} } }, function(x) return x:reshape { 1, 1 } end)
add("permute", { { { 2, 3, 2 } } }, function(x) return x:permute { 2, 0, 1 }, x:permute { -1, 0, 1 } end)
add("transpose", { { { 2, 3, 2 } }, { { 0, 2, 1 } } }, function(x) return x:transpose(0, -1), x:transpose(1, 1) end)
add("expand", { { { 1, 3 } } }, function(x) return x:expand { 4, 3 }, x:expand { 2, 2, -1 } end)
add("expand 0 dims", { { {} } }, function(x) return x:expand { 2, 3 } end)
add("squeeze and unsqueeze", { { { 2, 1, 3, 1 } } }, function(x)
  return x:squeeze(), x:squeeze(1), x:squeeze(0), x:unsqueeze(0), x:unsqueeze(-1)
end)
add("slice", { { { 5, 3 } } }, function(x)
  return x:slice(0, 1, 5, 2), x:slice(1, -2), x:slice(0, 4, 2), x:slice(0, 0, 3):slice(0, 1, 3)
end)
add("select", { { { 3, 2 } } }, function(x) return x:select(0, 1), x:select(1, -1), x:select(0, 2):select(0, 0) end)
add("split", { { { 5, 2 } } }, function(x) return unpack(x:split(2, 0)) end)
add("cat", { { { 2, 3 }, { 2, 1 } }, { { 2, 0 }, { 2, 3 } } }, function(a, b) return cstorch.cat({ a, b, a }, 1) end)
add("stack", { { { 2, 3 }, { 2, 3 } }, { {}, {} } }, function(a, b) return cstorch.stack({ a, b }, 0), cstorch.stack({ b, a }, -1) end)

add("matmul", {
  { { 2, 3 }, { 3, 4 } }, { { 3 }, { 3 } }, { { 3 }, { 3, 2 } }, { { 2, 3 }, { 3 } }, { { 2, 2, 3 }, { 2, 3, 2 } }, { { 2, 1, 2, 3 },
    { 2, 3, 2 } },
  { { 2, 2, 3 }, { 3 } }, { { 0, 3 }, { 3, 2 } }, { { 2, 0 }, { 0, 3 } }, { { 1, 2, 3 }, { 3, 2 } },
}, function(a, b) return a:matmul(b) end)
add("linear", { { { 2, 2, 3 }, { 4, 3 }, { 4 } }, { { 3 }, { 2, 3 }, { 2 } }, { { 0, 3 }, { 2, 3 }, { 2 } } }, F.linear)
add("linear without bias", { { { 2, 3 }, { 4, 3 } }, { { 3 }, { 4, 3 } } }, function(x, w) return F.linear(x, w) end)
add("embedding", { { { 4, 3 } } }, function(w)
  return F.embedding(cstorch.tensor({ { 1, 3, 1 }, { 0, 1, 1 } }, { dtype = "int64" }), w), F.embedding(cstorch.tensor(2,
    { dtype = "int32" }), w)
end)
for _, dim in ipairs { -1, 0, 1 } do
  local shapes = { { { 2, 3 } }, { { 3, 2, 2 } }, { { 0, 3 } } }
  add("softmax over " .. dim, shapes, function(x) return x:softmax(dim), F.softmax(x * 2, dim) end, -2, 2)
  add("log_softmax over " .. dim, shapes, function(x) return x:log_softmax(dim), F.log_softmax(x * 2, dim) end, -2, 2)
end
add("softmax of 0 dims", { { {} } }, function(x) return x:softmax(0), x:log_softmax(0) end)
add("layer_norm", { { { 2, 3, 4 }, { 4 }, { 4 } }, { { 2, 3, 2 }, { 3, 2 }, { 3, 2 } }, { { 3 }, { 3 }, { 3 } }, { { 0, 3 }, { 3 },
  { 3 } } }, function(x, w, b)
  return F.layer_norm(x, w, b), F.layer_norm(x, w, nil, { eps = 0.1 })
end)
add("rms_norm", { { { 2, 3, 4 }, { 4 } }, { { 2, 3, 2 }, { 3, 2 } }, { { 3 }, { 3 } }, { { 0, 3 }, { 3 } } }, function(x, w)
  return F.rms_norm(x, w), F.rms_norm(x, w, { eps = 0.1 })
end)
add("cross_entropy", { { { 4, 3 } } }, function(x)
  local labels = cstorch.tensor({ 0, 2, -100, 1 }, { dtype = "int64" })
  return F.cross_entropy(x, labels), F.cross_entropy(x, labels, { reduction = "none" }), F.cross_entropy(x, labels:relu(),
    { reduction = "sum", ignore_index = 2 })
end, -2, 2)
add("cross_entropy of several dims", { { { 2, 2, 3 } } }, function(x)
  return F.cross_entropy(x, cstorch.tensor({ { 0, 1 }, { 2, 2 } }, { dtype = "int32" }))
end, -2, 2)

-- --- attention

local function attention(name, shapes, options)
  add("attention " .. name, { shapes }, function(q, k, v)
    local given = {}
    cstorch.manual_seed(5) -- dropout takes the same weights each time
    for key, value in pairs(options) do given[key] = type(value) == "function" and value() or value end
    return F.scaled_dot_product_attention(q, k, v, given)
  end)
end
local SQUARE = { { 2, 2, 3, 2 }, { 2, 2, 3, 2 }, { 2, 2, 3, 4 } }
local GROUPED = { { 1, 4, 3, 2 }, { 1, 2, 3, 2 }, { 1, 2, 3, 2 } }
local CACHED = { { 1, 2, 2, 2 }, { 1, 2, 5, 2 }, { 1, 2, 5, 2 } }
local function bools()
  return cstorch.tensor({ { true, false, true }, { false, true, true }, { true, true, false } }, { dtype = "bool" })
end
attention("in full", SQUARE, {})
attention("of 2 dims", { { 3, 2 }, { 4, 2 }, { 4, 3 } }, {})
attention("with a scale", SQUARE, { scale = 0.3 })
attention("with capped scores", SQUARE, { cap = 0.4 })
attention("of groups with capped scores, a window and slopes", GROUPED, {
  causal = true, cap = 0.7, window = 2, scale = 2, slopes = function() return cstorch.tensor { 0.5, 0.25, 0.125, 0.0625 } end,
})
attention("with dropout", SQUARE, { dropout_p = 0.4 })
attention("of groups with dropout, a cap and a window", GROUPED, { causal = true, dropout_p = 0.3, cap = 0.7, window = 2 })
attention("that is causal", SQUARE, { causal = true })
attention("with a window", SQUARE, { causal = true, window = 2 })
attention("with a mask of bools", SQUARE, { mask = bools })
attention("that sees nothing in a row", SQUARE, {
  mask = function() return cstorch.tensor({ { true, true, true }, { false, false, false }, { true, false, true } }, { dtype = "bool" }) end,
})
attention("with a mask that is added", SQUARE, {
  causal = true, mask = function() return cstorch.tensor({ { { { 0.5, 0, -1 } } }, { { { 0, 1, 0.1 } } } }, { dtype = "float64" }) end,
})
attention("with slopes", SQUARE, { causal = true, slopes = function() return cstorch.tensor { 0.5, 0.25 } end })
attention("with slopes, not causal", SQUARE, { slopes = function() return cstorch.tensor { 0.5, 0.25 } end })
attention("of groups", GROUPED, { causal = true })
attention("of groups with window and slopes", GROUPED, { causal = true, window = 2, slopes = function()
  return cstorch.tensor { 0.5, 0.25, 0.1, 0.05 }
end })
attention("of fewer queries than keys", CACHED, { causal = true })
attention("of fewer queries than keys in a window", CACHED, { causal = true, window = 2 })
attention("of more queries than keys", { { 1, 1, 4, 2 }, { 1, 1, 2, 2 }, { 1, 1, 2, 2 } }, { causal = true })
attention("without queries", { { 1, 1, 0, 2 }, { 1, 1, 3, 2 }, { 1, 1, 3, 2 } }, {})
attention("without keys", { { 1, 1, 2, 2 }, { 1, 1, 0, 2 }, { 1, 1, 0, 2 } }, {})
attention("without a batch", { { 0, 1, 2, 2 }, { 0, 1, 2, 2 }, { 0, 1, 2, 2 } }, { causal = true })

-- --- in place, on tensors that are computed

local function in_place(name, fn, low, high)
  add(name, PAIRS, function(a, b)
    local shape = (a.detach(a) + b:detach()):shape()
    return fn(a:expand(shape) * 1, b)
  end, low, high)
end
in_place("add_", function(y, b) return y:add_(b):add_(2) end)
in_place("add_ with alpha", function(y, b) return y:add_(b * 2):sub_(b) end)
in_place("mul_", function(y, b) return y:mul_(b):mul_(3) end)
in_place("div_", function(y, b) return y:div_(b):div_(3) end, 0.4, 2)
in_place("sub_", function(y, b) return y:sub_(b):sub_(1) end)
in_place("copy_", function(y, b)
  local z = y * 2
  return z:copy_(b) + y
end)
in_place("fill_ and zero_", function(y, b) return (y * 1):fill_(3) * b + (y * 1):zero_() + y end)
in_place("clamp_", function(y, b) return y:clamp_(-0.5, 0.5) * b end)
in_place("sqrt_ and neg_", function(y, b) return y:neg_() * b + (y * y):sqrt_() end, 0.4, 2)

describe("cstorch: gradients of", function()
  for _, case in ipairs(cases) do
    it(case.name, function()
      for _, shapes in ipairs(case.variants) do
        for _, is_strided in ipairs { false, true } do
          gradients.check { shapes = shapes, fn = case.fn, low = case.low, high = case.high, is_strided = is_strided }
        end
      end
    end)
  end
end)

-- --- where there is a convention instead of a slope

describe("cstorch: gradients at kinks", function()
  local function slopes(values, fn)
    local x = cstorch.tensor(values, { requires_grad = true })
    fn(x):sum():backward()
    return x.grad:tolist()
  end

  it("of binary_cross_entropy_with_logits is sigmoid(x) - y, also at 0", function()
    local x = cstorch.tensor({ 0, 0, 0 }, { requires_grad = true })
    F.binary_cross_entropy_with_logits(x, cstorch.tensor { 0, 0.5, 1 }, { reduction = "sum" }):backward()
    equal(x.grad:tolist(), { 0.5, 0, -0.5 })
  end)

  it("are those of PyTorch", function()
    equal(slopes({ 0 }, function(x) return x:relu() end), { 0 }, "relu")
    equal(slopes({ 0 }, function(x) return x:abs() end), { 0 }, "abs")
    equal(slopes({ -1, -0.5, 0, 0.5, 1 }, function(x) return x:clamp(-0.5, 0.5) end), { 0, 1, 1, 1, 0 }, "clamp")
    equal(slopes({ 0, 0 }, function(x) return x:norm() end), { 0, 0 }, "norm")
    equal(slopes({ { 0, 0 }, { 3, 4 } }, function(x)
      return x:norm(1)
    end), { { 0, 0 }, { 0.6000000238418579, 0.800000011920929 } }, "norm of rows")
    equal(slopes({ 0, 2 }, function(x) return x ^ 0 end), { 0, 0 }, "x ^ 0")
    equal(slopes({ 0, 2 }, function(x) return x ^ cstorch.tensor { 0, 3 } end), { 0, 12 }, "x ^ tensor")
    equal(slopes({ 1, 3, 3, 0 }, function(x) return x:amax() end), { 0, 0.5, 0.5, 0 }, "amax")
    equal(slopes({ 1, 2 }, function(x) return x:maximum(cstorch.tensor { 1, 1 }) end), { 0.5, 1 }, "maximum")
  end)
end)

describe("cstorch: writing in place where a gradient would be wrong", function()
  local function computed() return cstorch.tensor({ 1, 2, 3 }, { requires_grad = true }) * 2 end

  it("refuses views of what needs a gradient", function()
    raises("in place into a view", function() computed():slice(0, 0, 1):mul_(2) end, "refused")
    raises("in place into a view", function() computed():select(0, 1):fill_(0) end, "refused")
    raises("in place into a view", function() cstorch.zeros({ 2, 3 }):select(0, 1):copy_(computed()) end, "refused")
    raises("in place into a view", function() computed():reshape({ 3, 1 }):neg_() end, "refused")
    equal(cstorch.no_grad(function() return computed():select(0, 1):fill_(0):item() end), 0)
  end)

  it("refuses operators for optimizers, also where only an operand needs a gradient", function()
    raises("no gradient", function() computed():lerp_(cstorch.ones { 3 }, 0.5) end, "refused")
    raises("no gradient", function() cstorch.zeros({ 3 }):addcmul_(computed(), computed()) end, "refused")
  end)

  it("refuses a mask of attention that needs a gradient", function()
    local q, mask = cstorch.ones { 1, 1, 2, 2 }, cstorch.tensor({ { 0, 1 }, { 0, 0 } }, { requires_grad = true })
    raises("no gradient for its mask", function() F.scaled_dot_product_attention(q, q, q, { mask = mask }) end, "refused")
  end)
end)

-- --- modules: their parameters are inputs, too

--- Replaces the parameters of a module by the tensors in `given`, in order.
local function with_parameters(module, given)
  local at = 0
  for _, part in module:named_modules() do
    for name in cstorch.items(part._parameters) do
      at = at + 1
      part._parameters[name] = given[at]
    end
  end
end

local function modules(name, inputs, make, call)
  it(name, function()
    cstorch.manual_seed(1)
    local module = make()
    local shapes = {}
    for i, shape in ipairs(inputs) do shapes[i] = shape end
    for _, p in module:named_parameters() do shapes[#shapes + 1] = p:shape() end
    local checked = gradients.check {
      shapes = shapes, low = -0.8, high = 0.8,
      fn = function(...)
        local all = { ... }
        with_parameters(module, { unpack(all, #inputs + 1) })
        return (call or module)(unpack(all, 1, #inputs))
      end,
    }
    harness.is_true(checked > 0)
  end)
end

describe("cstorch: gradients of the module", function()
  local X = { { 1, 3, 4 } }
  modules("Linear", { { 2, 3 } }, function() return nn.Linear(3, 2) end)
  modules("Linear without bias", { { 2, 3 } }, function() return nn.Linear(3, 2, { bias = false }) end)
  modules("LayerNorm", X, function() return nn.LayerNorm { 3, 4 } end)
  modules("LayerNorm without bias", X, function() return nn.LayerNorm(4, { bias = false }) end)
  modules("RMSNorm", X, function() return nn.RMSNorm(4) end)
  modules("Sequential of activations", { { 2, 3 } }, function()
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.SiLU(), nn.Tanh(), nn.Identity(), nn.GELU {}, nn.GELU { approximate = "tanh" },
      nn.Dropout(0))
  end)
  modules("CrossEntropyLoss", { { 2, 3 } }, function() return nn.CrossEntropyLoss {} end, function(x)
    return nn.CrossEntropyLoss {}(x, cstorch.tensor({ 1, 2 }, { dtype = "int64" }))
  end)
  modules("MSELoss", { { 2, 3 }, { 2, 3 } }, function() return nn.MSELoss {} end)
  local embedding
  modules("Embedding", {}, function()
    embedding = nn.Embedding(3, 2)
    return embedding
  end, function() return embedding(cstorch.tensor({ 2, 0, 2 }, { dtype = "int64" })) end)

  for name, options in pairs {
    plain = {}, causal = { causal = true }, ["in groups"] = { kv_groups = 1 }, window = { causal = true, window = 2 },
      rotary = { position = "rotary" },
    ["rotary in part"] = { position = "rotary", rotary_dim = 2, inner_width = 8 }, alibi = { position = "alibi", causal = true },
    ["without bias"] = { bias = false, output_bias = false }, ["of another width"] = { inner_width = 6, position = "alibi" },
  } do
    modules("MultiheadAttention " .. name, X, function() return nn.MultiheadAttention(4, 2, options) end)
  end
  modules("MultiheadAttention over memory", { { 1, 2, 4 }, { 1, 3, 4 }, { 1, 3, 4 } }, function() return nn.MultiheadAttention(4, 2) end)
  for name, options in pairs {
    plain = {}, ["norm last"] = { norm_first = false }, gated = { gated = true, nonlinearity = "silu", norm = "rmsnorm", ffn_bias = false },
    relu = { nonlinearity = "relu" }, tanh = { nonlinearity = "gelu_tanh", position = "rotary" },
  } do
    options.filter_size = 3
    modules("TransformerDecoderLayer " .. name, X, function() return nn.TransformerDecoderLayer(4, 2, options) end)
    modules("TransformerEncoderLayer " .. name, X, function() return nn.TransformerEncoderLayer(4, 2, options) end)
  end
  local layer
  modules("TransformerDecoderLayer with memory", { { 1, 2, 4 }, { 1, 3, 4 } }, function()
    layer = nn.TransformerDecoderLayer(4, 2, { cross_attention = true, filter_size = 3 })
    return layer
  end, function(x, memory) return layer(x, { memory = memory }) end)
end)
