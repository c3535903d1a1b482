-- Extents, numbers and memory at their limits: an error or the right values, never a crash or values of another tensor.

local cbk = require "cbk"
local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local near = harness.near
local nn, optim = cstorch.nn, cstorch.optim
local F = nn.functional

local function leaf(values) return cstorch.tensor(values, { requires_grad = true }) end

describe("cstorch: coroutines", function()
  it("yield neither out of no_grad nor out of a recorded step", function()
    local function refused(body)
      local fine, problem = coroutine.resume(coroutine.create(body))
      assert(not fine and tostring(problem):find("a coroutine cannot yield inside", 1, true), tostring(problem))
      is_true(cstorch.is_grad_enabled())
      equal((cstorch.ones { 2 } + 1):tolist(), { 2, 2 })
    end
    refused(function() cstorch.no_grad(coroutine.yield) end)
    refused(function() cstorch.formula(function() coroutine.yield(1) end) end)
    cstorch.testing.reset()
    cstorch.backend "CSX"
    refused(function() cstorch.compile_step(function(x) coroutine.yield(x * 2) end)(cstorch.ones { 1 }) end)
    cstorch.testing.reset()
    local results = coroutine.wrap(function() coroutine.yield { cstorch.no_grad(function(a, b) return b, a end, 1, nil) } end)()
    equal({ results[1] == nil, results[2] }, { true, 1 })
    local generator = cstorch.no_grad(function() return coroutine.wrap(function() coroutine.yield(cstorch.is_grad_enabled()) end)() end)
    equal(generator, false)
  end)
end)

describe("cstorch: extents", function()
  local x = cstorch.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
  for text, body in pairs {
    ["a negative extent in the shape [-1]"] = function() cstorch.zeros { -1 } end,
    ["a negative extent in the shape [0, -3]"] = function() cstorch.zeros { 0, -3 } end,
    ["a negative extent in the shape [-2, -3]"] = function() x:reshape { -2, -3 } end,
    ["cannot reshape [2, 3] to [-1, -1]: only one extent can be -1"] = function() x:reshape { -1, -1 } end,
    ["stack: the tensors must have one shape, not [2, 3] and [1, 3]"] = function() cstorch.stack { x, x:slice(0, 0, 1) } end,
    ["there is no memory for a tensor of 3"] = function() cstorch.zeros { 1e15 } end,
    ["cannot reshape [0, 3] to [0, -1]: -1 can be any extent beside 0"] = function() cstorch.zeros({ 0, 3 }):reshape { 0, -1 } end,
    ["a negative extent in the shape [-1, 2, 3]"] = function() x:expand { -1, 2, 3 } end,
    ["the shape [1099511627776, 1099511627776] is too large"] = function() cstorch.ones({ 1 }):expand { 2 ^ 40, 2 ^ 40 } end,
    ["the shape [2147483648, 2147483648] is too large"] = function() cstorch.zeros { 2 ^ 31, 2 ^ 31 } end,
    ["too much for Lua"] = function() cstorch.zeros({ 2 ^ 30, 0 }):tolist() end,
    ["nested more than"] = function()
      local list = {}
      list[1] = list
      cstorch.tensor(list)
    end,
    ["have no classes"] = function() F.cross_entropy(cstorch.zeros { 2, 0 }, cstorch.tensor({ -100, -100 }, { dtype = "int64" })) end,
    ["found float32 and float64; cast one"] = function() x:matmul(cstorch.ones({ 3, 1 }, { dtype = "float64" })) end,
  } do
    it("are checked: " .. text, function() raises(text, body) end)
  end

  it("are joined by flatten", function()
    local cube, y = cstorch.ones { 2, 3, 4 }, leaf { { 1, 2 }, { 3, 4 } }
    equal({ cube:flatten():shape(), cube:flatten(1):shape(), cube:flatten(0, 1):shape(), cube:flatten(-1):shape() },
      { { 24 }, { 2, 12 }, { 6, 4 }, { 2, 3, 4 } })
    equal({ cstorch.ones({}):flatten():shape(), cstorch.ones({ 0, 3 }):flatten(0, -1):shape() }, { { 1 }, { 0 } })
    y:flatten(1):slice(0, 0, 1):mul(2):sum():backward()
    equal(y.grad:tolist(), { { 2, 2 }, { 0, 0 } })
  end)

  it("may be any one of topk", function()
    local rows = cstorch.tensor { { 1, 5, 2 }, { 4, 3, 6 } }
    local values, places = rows:topk(1, 0)
    equal({ values:tolist(), places:tolist() }, { { { 4, 5, 6 } }, { { 1, 0, 1 } } })
    equal({ rows:topk(2, 1):tolist(), (rows:topk(2):tolist()) }, { { { 5, 2 }, { 6, 4 } }, { { 5, 2 }, { 6, 4 } } })
    raises("dim 2 does not exist", function() rows:topk(1, 2) end, "value")
  end)

  it("of a slice may be any number", function()
    equal(x:slice(1, 0, 3, 2 ^ 53):tolist(), { { 1 }, { 4 } })
    equal(x:slice(1, 1, 3, 9223372036854775807LL):tolist(), { { 2 }, { 5 } })
    equal(x:slice(1, -2 ^ 53, 2 ^ 53):numel(), 6)
    equal(x:slice(0, 5, 9, 3):shape()[1], 0)
  end)
end)

describe("cstorch: numbers", function()
  it("has a transformer of half precision, close to that of float32", function()
    for _, options in ipairs { { position = "rotary", rotary_dim = 2 }, { position = "rotary" }, { position = "alibi", kv_groups = 1 } } do
      cstorch.manual_seed(4)
      local layer, x = nn.TransformerDecoderLayer(8, 2, options), cstorch.randn { 1, 5, 8 }
      local want = layer(x)
      for _, module in layer:named_modules() do
        local own = rawget(module, "_parameters")
        for _, name in ipairs { "weight", "bias" } do
          if own[name] then module[name] = nn.Parameter(own[name]:to "float16") end
        end
      end
      local got = layer(x:to "float16")
      got:sum():backward()
      near((got:to "float32" - want):abs():amax():item(), 0, 0.02)
      equal({ got.dtype, layer:parameters()[1].grad.dtype }, { "float16", "float16" })
    end
  end)

  it("has means and norms of float16 whose sums are beyond its range", function()
    local x = cstorch.ones({ 300, 300 }, { dtype = "float16" }):requires_grad_(true)
    x:mean():backward()
    equal({ x:mean():item(), x:mean().dtype }, { 1, "float16" })
    near(x.grad:amax():item() * 90000, 1, 0.01)
    near(cstorch.full({ 100 }, 300, { dtype = "float16" }):norm():item(), 3000, 1)
    near(cstorch.full({ 100 }, 1e-4, { dtype = "float16" }):norm():item(), 1e-3, 1e-6)
    near(cstorch.nn.functional.mse_loss(x, x * 0):item(), 1, 1e-3)
  end)

  it("of int64 are read exactly", function()
    local most = cstorch.tensor(2 ^ 53, { dtype = "int64" }) + 1
    is_true(most:item() == 9007199254740993LL, tostring(most:item()))
    is_true((cstorch.ones({ 2 }, { dtype = "int64" }) * 2 ^ 53 + 1):tolist()[2] == 9007199254740993LL)
    equal(tostring(cstorch.tensor({ 1234567, 0 }, { dtype = "int64" })), "Tensor int64 [2]: 1234567, 0")
  end)

  it("that are NaN are the largest", function()
    local values, places = cstorch.tensor({ 1, 0 / 0, 3, 0 / 0, 2 }):topk(3)
    equal(places:tolist(), { 1, 3, 2 })
    equal(values:tolist()[3], 3)
  end)

  it("that are NaN differ from all, and are true", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local nan, zero = cstorch.full({ 20 }, 0 / 0, { dtype = dtype }), cstorch.zeros({ 20 }, { dtype = dtype })
      for name, found in pairs {
        ne = nan:ne(nan), ["ne of a number"] = nan:ne(1), ["or"] = zero:logical_or(nan), ["and"] = nan:logical_and(nan),
        to = nan:to "bool", where = cstorch.where(nan, zero + 1, zero), ["not eq"] = nan:eq(nan):logical_not(),
        ["not not"] = nan:logical_not():logical_not(),
      } do
        equal(found:to("int64"):sum():item(), 20, name)
      end
    end
  end)

  it("of randint fill their range evenly, also below 0", function()
    cstorch.manual_seed(1)
    local counts = {}
    for _, value in ipairs(cstorch.randint(-3, 3, { 6000 }):tolist()) do
      counts[tonumber(value)] = (counts[tonumber(value)] or 0) + 1
    end
    for value = -3, 2 do is_true(math.abs((counts[value] or 0) - 1000) < 150, value) end
    equal(cstorch.randint(-5, -4, { 2 }):tolist(), { -5, -5 })
  end)

  it("of arange are numbers", function()
    equal(cstorch.arange(1, 4, nil, { dtype = "int32" }):tolist(), { 1, 2, 3 })
    raises("arange", function() cstorch.arange(1, 4, "x") end, "usage")
    raises("arange", function() cstorch.arange(1, "x") end, "usage")
  end)
end)

describe("cstorch: gradients of what is written in place", function()
  it("by itself are those of PyTorch", function()
    for name, expected in pairs { mul_ = { 12, 24 }, add_ = { 4, 4 }, sub_ = { 0, 0 }, div_ = { 0, 0 } } do
      local w = leaf { 1.5, 3 }
      local x = w * 2
      x[name](x, x)
      x:sum():backward()
      equal(w.grad:tolist(), expected, name)
    end
  end)

  it("by a view of itself, too", function()
    local w = leaf { { 1, 2 }, { 3, 4 } }
    local x = w * 1
    x:mul_(x:transpose(0, 1))
    x:sum():backward()
    equal(w.grad:tolist(), { { 2, 6 }, { 4, 8 } })
  end)

  it("are refused for views that were taken before", function()
    local w = leaf { 1, 2, 3 }
    local x = w * 2
    local view = x:slice(0, 0, 2)
    x:mul_(3)
    raises("take the view after the write", function() (view * 1):sum():backward() end, "refused")
    raises("take the view after the write", function() view:sum() end, "refused")
    equal(cstorch.no_grad(function() return view:sum():item() end), 18)
    x:slice(0, 0, 2):sum():backward()
    equal(w.grad:tolist(), { 6, 6, 0 })
  end)

  it("are refused for views that had no gradient before", function()
    local w, x = leaf { 1, 2 }, cstorch.zeros { 2 }
    local view = x:reshape { 2, 1 }
    x:copy_(w)
    raises("take the view after the write", function() return view * 2 end, "refused")
    raises("take the view after the write", function() cstorch.zeros({ 2, 1 }):copy_(view) end, "refused")
  end)

  it("do not mind what no gradient was recorded for", function()
    local p = nn.Parameter(cstorch.tensor { 1, 2 })
    local view = p:reshape { 2, 1 }
    cstorch.no_grad(function() p:add_(1) end)
    view:sum():backward()
    equal(p.grad:tolist(), { 1, 1 })
  end)

  it("are refused for attention whose result or mask changed", function()
    local q, mask = leaf { { { { 1, 2 }, { 3, 4 } } } }, cstorch.zeros { 2, 2 }
    local out = F.scaled_dot_product_attention(q, q, q, { mask = mask })
    cstorch.no_grad(function() mask:fill_(-1) end)
    raises("was changed in place", function() out:sum():backward() end, "refused")
    out = F.scaled_dot_product_attention(q, q, q)
    out:mul_(2)
    raises("was changed in place", function() out:sum():backward() end, "refused")
  end)

  it("may come in another dtype", function()
    local x = leaf { { 1, 2 } }
    x:softmax(-1):backward(cstorch.tensor({ { 1, 0 } }, { dtype = "int64" }))
    is_true(x.grad:tolist()[1][1] > 0.19)
  end)
end)

describe("cstorch: long chains", function()
  it("of operators are freed without a deep stack", function()
    do
      local x = leaf { 1 }
      for _ = 1, 300000 do x = x + 0 end
      equal(x:tolist(), { 1 })
    end
    collectgarbage()
    collectgarbage()
  end)
end)

local function csx_step(fn)
  cstorch.testing.reset()
  cstorch.backend "CSX"
  return cstorch.compile_step(fn)
end

describe("cstorch: tensors that wait for a backend", function()
  it("may be garbage when it comes", fresh(function()
    local model, kept = nn.Linear(2, 2), nil
    for _ = 1, 500 do kept = optim.AdamW(model:parameters(), { lr = 1 }) end
    collectgarbage()
    cstorch.backend "CSX"
    equal(kept.state[model.weight].beta1_power.device, "csx")
  end))
end)

describe("cstorch: values of a finished step", function()
  local function ones() return cstorch.ones { 4 } end

  it("cannot be read in another step", fresh(function()
    local kept
    csx_step(function(x)
      kept = x * 2 + 1
      return x:sum()
    end)(ones())
    local second = cstorch.compile_step(function(x) return (x + kept):sum() end)
    raises("this tensor's value is gone", function() second(ones()) end, "refused")
  end))

  it("cannot be the batch of another step", fresh(function()
    local kept
    csx_step(function(x)
      kept = x * 2 + 1
      return (kept * 3):sum()
    end)(ones())
    local second = cstorch.compile_step(function(x) return x:sum() end)
    second(ones())
    raises("this tensor's value is gone", function() second(kept) end, "refused")
  end))

  it("cannot be made in a step inside of a step", fresh(function()
    local inner = csx_step(function(x) return x:sum() end)
    local outer = cstorch.compile_step(function(x) return inner(x) end)
    raises("a step was called inside of another one", function() outer(ones()) end, "runtime")
  end))
end)

describe("cstorch: hyper-parameters of a recorded step", function()
  --- Three steps of x - lr·1 from 0 on the CSX; `change(group, i)` runs before each.
  local function train(change, make)
    cstorch.backend "CSX"
    local model = nn.Module()
    model.p = nn.Parameter(cstorch.zeros { 1 })
    local compiled = cstorch.compile(model)
    local optimizer, texts, values = (make or optim.SGD)(model:parameters(), { lr = 0.5 }), {}, {}
    local step = cstorch.compile_step(function()
      local loss = compiled.p:sum()
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      return model.p:clone()
    end)
    local keep = cstorch.step_closure(function(p) values[#values + 1] = p:item() end)
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local loader = cstorch.utils.data.DataLoader(function() return { cstorch.ones { 1 } } end, { num_steps = 3 })
    for i in loader:iter() do
      change(optimizer.param_groups[1], i, optimizer)
      keep(step())
    end
    cstorch.on_warning(before)
    return values, texts
  end

  it("keep their first number, and a change is noticed", fresh(function()
    local values, texts = train(function(group, i) group.lr = i == 1 and 0.5 or 2 end)
    equal(values, { -0.5, -1, -1.5 })
    equal(#texts, 1)
    is_true(texts[1]:find("SGD.param_groups[1].lr was changed from 0.5 to 2", 1, true), texts[1])
  end))

  for name, change in pairs {
    ["betas was changed from { 0.9, 0.999 } to { 0.5, 0.6 }"] = function(group) group.betas = { 0.5, 0.6 } end,
    ["betas was changed from { 0.9, 0.999 } to { 0.9, 0.6 }"] = function(group) group.betas[2] = 0.6 end,
    ["amsgrad was changed from false to true"] = function(group) group.amsgrad = true end,
  } do
    it("are noticed where they are lists and flags: " .. name, fresh(function()
      local values, texts = train(function(group, i) if i == 2 then change(group) end end, optim.Adam)
      equal(#values, 3)
      is_true(#texts == 1 and texts[1]:find("Adam.param_groups[1]." .. name, 1, true), table.concat(texts, "\n"))
    end))
  end

  for text, change in pairs {
    ["Linear.training was changed from true to false, but a recorded step keeps what it was recorded with; make another step"] =
      function(net) net:eval() end,
    ["requires_grad of a parameter was changed from true to false"] = function(net) net.weight.requires_grad = false end,
  } do
    it("are noticed where they are the mode and the parameters of a module: " .. text, fresh(function()
      local net, texts = nn.Linear(1, 1), {}
      local compiled = cstorch.compile(net, { backend = "CSX" })
      local step, keep = cstorch.compile_step(function(batch) return compiled(batch):sum() end), cstorch.step_closure(function() end)
      local before = cstorch.on_warning(function(said) texts[#texts + 1] = said end)
      local loader = cstorch.utils.data.DataLoader(function() return { cstorch.ones { 1, 1 } } end, { num_steps = 4 })
      for i, batch in loader:iter() do
        if i == 3 then change(net) end
        keep(step(batch))
      end
      cstorch.on_warning(before)
      is_true(#texts == 1 and texts[1]:find(text, 1, true), table.concat(texts, "\n"))
    end))
  end

  it("are warned of once for each, and not where a loaded list has the same numbers", fresh(function()
    local _, texts = train(function(group, i, optimizer)
      if i == 2 then
        optimizer:load_state_dict(optimizer:state_dict())
        group.betas = { unpack(group.betas) }
      end
    end, optim.Adam)
    equal(texts, {})
    cstorch.testing.reset()
    _, texts = train(function(group, i) group.lr = i end)
    equal(#texts, 1)
  end))

  for text, change in pairs {
    ["SGD.param_groups[1].params was changed"] = function(net, optimizer) optimizer.param_groups[1].params = { net[3].weight } end,
    ["SGD.param_groups was changed"] = function(_, optimizer) optimizer.param_groups[2] = { params = {}, lr = 1 } end,
    ["SGD: the list of hooks before its step was changed"] = function(_, optimizer) optimizer:register_step_pre_hook(print) end,
    ["SGD: the list of hooks after its step was changed"] = function(_, optimizer) optimizer:register_step_post_hook(print) end,
    ["SGD: the list of hooks before zero_grad was changed"] = function(_, optimizer) optimizer:register_zero_grad_pre_hook(print) end,
    ["Linear.weight was replaced by another tensor"] = function(net) net[1].weight = nn.Parameter(cstorch.zeros { 2, 2 }) end,
    ["Sequential.0 was replaced by another table"] = function(net) net["0"] = nn.Linear(2, 2) end,
    ["Dropout.p was changed from 0.5 to 0"] = function(net) net[2].p = 0 end,
    ["LinearLR.end_learning_rate was changed from 0 to 0.5"] = function(_, _, schedule) schedule.end_learning_rate = 0.5 end,
    ["MultiStepLR.milestones was changed from { 2 } to { 3 }"] = function(_, _, _, other)
      other:load_state_dict { milestones = { 3 }, last_epoch = 1 }
    end,
    ["GradScaler.steps_per_increase was changed from 2000 to 5"] = function(_, _, _, _, scaler) scaler.steps_per_increase = 5 end,
  } do
    it("are noticed in all that the step used: " .. text, fresh(function()
      local net, texts = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1)), {}
      local compiled = cstorch.compile(net, { backend = "CSX" })
      local optimizer = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
      local schedule = optim.lr_scheduler.LinearLR(optimizer, { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 9 })
      local other = optim.lr_scheduler.MultiStepLR(optimizer, { initial_learning_rate = 1, gamma = 0.5, milestones = { 2 } })
      local scaler = cstorch.amp.GradScaler { loss_scale = "dynamic" }
      local step, keep = cstorch.compile_step(function(batch)
        local loss = compiled(batch):sum()
        cstorch.amp.optimizer_step(loss, optimizer, scaler)
        schedule:step()
        other:step()
        return loss
      end), cstorch.step_closure(function() end)
      local before = cstorch.on_warning(function(said) texts[#texts + 1] = said end)
      local loader = cstorch.utils.data.DataLoader(function() return { cstorch.ones { 1, 2 } } end, { num_steps = 4 })
      for i, batch in loader:iter() do
        if i == 3 then
          equal(texts, {})
          change(net, optimizer, schedule, other, scaler)
        end
        keep(step(batch))
      end
      cstorch.on_warning(before)
      is_true(#texts > 0 and texts[1]:find(text .. ", but a recorded step keeps", 1, true), table.concat(texts, "\n"))
      equal(#texts, 1)
    end))
  end

  it("are noticed where sparsity is applied later", fresh(function()
    local net, texts = nn.Linear(4, 4), {}
    local compiled, optimizer = cstorch.compile(net, { backend = "CSX" }), optim.SGD(net:parameters(), { lr = 0.1 })
    local sparsity = cstorch.sparse.Static { sparsity = 0.5 }
    local step, keep = cstorch.compile_step(function(batch)
      local loss = compiled(batch):sum()
      cstorch.amp.optimizer_step(loss, optimizer)
      return loss
    end), cstorch.step_closure(function() end)
    local before = cstorch.on_warning(function(said) texts[#texts + 1] = said end)
    local loader = cstorch.utils.data.DataLoader(function() return { cstorch.ones { 1, 4 } } end, { num_steps = 3 })
    for i, batch in loader:iter() do
      if i == 2 then
        sparsity:apply(net)
        sparsity:apply(optimizer)
      end
      keep(step(batch))
    end
    cstorch.on_warning(before)
    is_true(#texts == 1 and texts[1]:find("the list of hooks after its step was changed", 1, true), table.concat(texts, "\n"))
  end))

  it("are noticed where a whole group is replaced", fresh(function()
    local _, texts = train(function(group, i, optimizer)
      if i == 2 then optimizer.param_groups[1] = { params = group.params, lr = 0 } end
    end)
    is_true(#texts == 1 and texts[1]:find("SGD.param_groups was changed, but", 1, true), table.concat(texts, "\n"))
  end))

  it("are noticed also where a tensor was replaced by a number", fresh(function()
    local tensor = optim.Optimizer.scalar(0.5)
    local values, texts = train(function(group, i) group.lr = i == 1 and tensor or 2 end)
    equal(values, { -0.5, -1, -1.5 })
    is_true(#texts == 1 and texts[1]:find("SGD.param_groups[1].lr was changed from a tensor to 2", 1, true), texts[1])
  end))

  it("may be tensors that are written in place", fresh(function()
    local values, texts = train(function(group, i)
      if i == 1 then group.lr = optim.Optimizer.scalar(0.5) else group.lr:fill_(2) end
    end)
    equal(values, { -0.5, -2.5, -4.5 })
    equal(texts, {})
  end))
end)

describe("cstorch: names that an object lacks", function()
  local Net = nn.Module:subclass "Net"
  function Net:init()
    Net.super.init(self)
    self.fc1 = nn.Linear(2, 2)
    self.cache = nil
  end

  it("are errors that name what looks like them", function()
    local net = Net()
    raises("Net has no 'fc2'; did you mean 'fc1'?", function() return net.fc2 end, "value")
    raises("Net has no 'paramters'; did you mean 'parameters'?", function() net:paramters() end, "value")
    raises("Linear has no 'wieght'; did you mean 'weight'?", function() return net.fc1.wieght end, "value")
    raises("SGD has no 'zero_gard'; did you mean 'zero_grad'?", function() optim.SGD(net:parameters(), { lr = 1 }):zero_gard() end, "value")
    raises("did you mean 'parameters'?", function() cstorch.compile(net):paramters() end, "value")
    cstorch.testing.reset()
  end)

  it("are nil once they were assigned", function()
    local net = Net()
    equal(net.cache, nil)
    net.cache = 1
    net.cache = nil
    equal(net.cache, nil)
    net.fc1 = nil
    equal(net.fc1, nil)
    equal(net[1], nil)
  end)
end)

describe("cstorch: state dicts of unknown origin", function()
  local function model() return nn.Linear(2, 1) end
  local function optimizer() return optim.AdamW(model():parameters(), { lr = 0.1 }) end
  local function schedule()
    return optim.lr_scheduler.LinearLR(optimizer(), { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 4 })
  end

  it("are refused with an error of cstorch", function()
    local sd = optimizer():state_dict()
    for _, groups in ipairs { { 3 }, { { params = 3 } }, { { params = { "a", "b" } } }, { { params = { {}, {} } } }, 3, "x" } do
      local fine, problem = pcall(function() optimizer():load_state_dict { state = sd.state, param_groups = groups } end)
      is_true(not fine and type(problem) == "table" and problem.kind, tostring(problem))
    end
    for _, state in ipairs { { [0] = 3 }, 3, { [0] = { exp_avg = "x" } }, { [0] = { step = "x" } } } do
      local fine, problem = pcall(function() optimizer():load_state_dict { state = state, param_groups = sd.param_groups } end)
      is_true(not fine and type(problem) == "table" and problem.kind, tostring(problem))
    end
    sd.param_groups[1].lr = "fast"
    raises("expected a number as lr", function() optimizer():load_state_dict(sd) end, "type")
    raises("expected a number as total_iters", function() schedule():load_state_dict { total_iters = "x", last_epoch = 0 } end, "type")
    raises("expected a map of names", function() model():load_state_dict(cstorch.ones { 2 }) end, "type")
  end)

  it("do not replace methods", function()
    local one, texts = schedule(), {}
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    one:load_state_dict { step = 3, _write = "x", optimizer = 4, last_epoch = 2 }
    cstorch.on_warning(before)
    one:step()
    harness.near(one:get_last_lr()[1], 0.25, 1e-6)
    is_true(table.concat(texts, "\n"):find "which this class does not use", "a warning")
  end)

  it("come with an error of cstorch when the file is missing or damaged", function()
    local folder = harness.temp_dir()
    raises("missing.mdl", function() cstorch.load(folder .. "/missing.mdl") end, "runtime")
    cbk.fs.write(folder .. "/damaged.mdl", "no checkpoint")
    local fine, problem = pcall(cstorch.load, folder .. "/damaged.mdl")
    is_true(not fine and problem.kind == "runtime" and problem.where, tostring(problem))
    fine, problem = pcall(cstorch.save, { a = cstorch.ones { 1 } }, folder .. "/damaged.mdl/a.mdl")
    is_true(not fine and problem.kind == "runtime" and problem.where, tostring(problem))
  end)
end)

describe("cstorch: an optimizer's step in eval mode", function()
  it("warns, and sets the run to train mode", fresh(function()
    local model, texts = nn.Linear(1, 1), {}
    local compiled, optimizer = cstorch.compile(model), optim.SGD(model:parameters(), { lr = 1 })
    compiled(cstorch.ones { 1, 1 }):sum():backward()
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    optimizer:step()
    compiled:eval()
    optimizer:step()
    compiled:train(false)
    compiled:train()
    optimizer:step()
    cstorch.on_warning(before)
    equal(#texts, 1)
    is_true(texts[1]:find("call train() of the model", 1, true), texts[1])
    equal(cstorch.backend().mode, "train")
  end))
end)

describe("cstorch: options and fields of a wrong kind", function()
  local function optimizer() return optim.SGD(nn.Linear(2, 1):parameters(), { lr = 0.1 }) end
  local x = cstorch.ones { 1, 2, 8 }
  for text, case in pairs {
    ["(boolean expected, got number)"] = { "usage", function() cstorch.ones({ 2 }).requires_grad = 3 end },
    ["(boolean expected, got string)"] = { "usage", function() cstorch.ones({ 2 }):requires_grad_ "no" end },
    ["only a layer made with { cross_attention = true } takes memory"] = { "type", function()
      nn.TransformerDecoderLayer(8, 2)(x, { memory = x })
    end },
    ["cstorch.testing has no 'rest'; did you mean 'reset'?"] = { "value", function() cstorch.testing.rest() end },
    ["loss_scale must be >= 0 and finite, not -1"] = { "value", function() cstorch.amp.GradScaler { loss_scale = -1 } end },
    ["loss_scale must be >= 0 and finite, not nan"] = { "value", function() cstorch.amp.GradScaler { loss_scale = 0 / 0 } end },
    ["steps_per_increase must be > 0, not -1"] = { "value", function()
      cstorch.amp.GradScaler { loss_scale = "dynamic", steps_per_increase = -1 }
    end },
    ["expected a table as adjust_learning_rate, found 3"] = { "type", function()
      optim.configure_lr_scheduler(optimizer(), 0.1, { adjust_learning_rate = 3 })
    end },
  } do
    it("say: " .. text, fresh(function() raises(text, case[2], case[1]) end))
  end
end)

describe("cstorch: a step of which nothing can be seen", function()
  local function warnings_of(body)
    local texts = {}
    local before = cstorch.on_warning(function(message) texts[#texts + 1] = message end)
    local net = cstorch.compile(nn.Linear(2, 1), { backend = "CSX" })
    local step = cstorch.compile_step(function(batch) return net(batch):sum() end)
    local loader = cstorch.utils.data.DataLoader(function() return { cstorch.ones { 1, 2 } } end, { num_steps = 3 })
    for _, batch in loader:iter() do body(step(batch)) end
    cstorch.on_warning(before)
    return texts
  end

  it("is warned of once, as a cluster would refuse it", fresh(function()
    local texts = warnings_of(function() end)
    equal(#texts, 1)
    is_true(texts[1]:find("pass the loss to a function made with cstorch.step_closure", 1, true), texts[1])
  end))

  it("is none with a closure that gets a tensor", fresh(function()
    local see = cstorch.step_closure(function() end)
    equal(warnings_of(function(loss) see { loss = loss } end), {})
  end))
end)
