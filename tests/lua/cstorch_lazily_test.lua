-- Formulas over tensors of checkpoints: cstorch.lazily, and the example that applies gradients.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local tensors = require "cstorch.tensors"
local describe, it, equal, raises = harness.describe, harness.it, harness.equal, harness.raises
local nn, optim = cstorch.nn, cstorch.optim

-- More elements than are computed at once, so that parts and threads meet.
local SHAPES = { { 300, 300 }, { 7 }, { 1 } }

local function parameters()
  cstorch.manual_seed(5)
  local list = {}
  for i, shape in ipairs(SHAPES) do
    list[i] = nn.Parameter(cstorch.randn(shape))
    list[i].grad = cstorch.randn(shape)
  end
  return list
end

--- The next step of an optimizer in memory and over lazy tensors, as trees of tensors of cbk.
local function two_ways(class, options)
  local params = parameters()
  local optimizer = class(params, options)
  optimizer:step()
  local saved, values, grads = {}, {}, {}
  for i, p in ipairs(params) do
    values[i], grads[i] = tensors.to_lazy(p:clone()), tensors.to_lazy(p.grad)
  end
  local folder = harness.temp_dir()
  cstorch.save({ optimizer = optimizer:state_dict(), values = values, grads = grads }, folder .. "/state.mdl")
  optimizer:step()
  for i, p in ipairs(params) do saved[i] = p end
  cstorch.save({ optimizer = optimizer:state_dict(), values = saved }, folder .. "/memory.mdl")

  local state = cstorch.load(folder .. "/state.mdl")
  local lazy = cstorch.lazily(function()
    local list = {}
    for i = 1, #SHAPES do
      list[i] = nn.Parameter(cstorch.tensor(state.values[i]))
      list[i].grad = cstorch.tensor(state.grads[i])
    end
    local next_optimizer = class(list, options)
    next_optimizer:load_state_dict(state.optimizer)
    next_optimizer:step()
    return { optimizer = next_optimizer:state_dict(), values = list }
  end)
  cstorch.save(lazy, folder .. "/lazy.mdl")
  return cbk.open(folder .. "/memory.mdl"), cbk.open(folder .. "/lazy.mdl")
end

describe("cstorch: steps over checkpoints", function()
  for name, options in pairs {
    AdamW = { lr = 0.01, weight_decay = 0.1 }, Adam = { lr = 0.01, amsgrad = true }, SGD = { lr = 0.1, momentum = 0.9, nesterov = true },
    Adagrad = {}, Adadelta = {}, Adamax = {}, ASGD = {}, Lion = {}, NAdam = {}, RAdam = {}, RMSprop = { centered = true }, Rprop = {},
  } do
    it("have the bits of those in memory: " .. name, function()
      local memory, lazy = two_ways(optim[name], options)
      local count = 0
      for key, tensor in memory:tensors() do
        local other = lazy:get(key)
        assert(other, key)
        equal({ other.dtype, other:shape() }, { tensor.dtype, tensor:shape() }, key)
        equal(tensor:compare(other).different, 0, key)
        count = count + 1
      end
      assert(count > #SHAPES, count)
    end)
  end

  it("are refused where they need whole tensors", function()
    raises("element-wise operators only", function() two_ways(optim.Lamb, {}) end)
  end)

  it("average weights in one line", function()
    local a, b = cbk.randn({ 40000 }, { mean = 0, std = 1, seed = 1 }), cbk.randn({ 40000 }, { mean = 0, std = 1, seed = 2 })
    local out = cstorch.lazily(function() return { w = cstorch.tensor(a) * 0.9 + cstorch.tensor(b) * 0.1 } end)
    local want = (cstorch.tensor(a) * 0.9 + cstorch.tensor(b) * 0.1):tolist()
    equal(out.w:tolist()[40000], want[40000])
    equal(out.w:shape(), { 40000 })
  end)

  it("cannot read a value that is not computed, or use a part", function()
    local a = cbk.randn({ 40 }, { mean = 0, std = 1, seed = 1 })
    raises("value is gone", function() cstorch.lazily(function() return { cstorch.tensor(a):sum():item() } end) end)
    raises("use them whole", function() cstorch.lazily(function() return { cstorch.tensor(a):slice(0, 0, 20) * 2 } end) end)
    local b = cbk.randn({ 3, 40 }, { mean = 0, std = 1, seed = 2 })
    raises("cannot broadcast one of shape [40] to [3, 40]", function()
      cstorch.lazily(function() return { cstorch.tensor(a) * cstorch.tensor(b) } end)
    end)
    local row = cstorch.tensor(a):clone()
    local out = cstorch.lazily(function() return { row * cstorch.tensor(b) } end)
    equal(out[1]:tolist(), (row * cstorch.tensor(b)):tolist())
  end)
end)
