-- What a recorded step does not let go wrong in silence, and what an error in one leaves behind.

local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local nn, optim = cstorch.nn, cstorch.optim

local function loop(count, body)
  local list = {}
  for i = 1, count do list[i] = cstorch.full({ 2, 2 }, i) end
  local loader = cstorch.utils.data.DataLoader(function() return list end, { num_steps = count })
  for i, batch in loader:iter() do body(batch, i) end
end

--- A model on a backend, compiled; weights can be read after each step.
local function compiled(kind)
  cstorch.configure { checkpoint_steps = 1 }
  cstorch.manual_seed(1)
  local model = nn.Linear(2, 1)
  return model, cstorch.compile(model, { backend = kind })
end

describe("cstorch: an argument of a step closure", function()
  it("is no weight, no optimizer state and no view of one on CSX", fresh(function()
    local model, net = compiled "CSX"
    local optimizer, seen = optim.Adam(model:parameters(), { lr = 0.1 }), 0
    local look = cstorch.step_closure(function(t) seen = seen + t:numel() end)
    local step = cstorch.compile_step(function(batch)
      cstorch.amp.optimizer_step(net(batch):mean(), optimizer)
      look(model.bias:clone())
    end)
    loop(2, function(batch)
      step(batch)
      for _, refused in ipairs {
        model.weight, model.weight:detach(), model.weight:reshape { 2 }, optimizer.state[model.weight].exp_avg, model:state_dict(),
        optimizer:state_dict(),
      } do
        raises("cannot be an argument of a step closure on CSX: pass t:clone()", function() look(refused) end, "runtime")
      end
      look(optimizer.state[model.weight].exp_avg:clone())
    end)
    equal(seen, 6)
  end))

  it("may be any of them on the CPU", fresh(function()
    local model = compiled "CPU"
    local seen
    local look = cstorch.step_closure(function(t) seen = t:shape() end)
    loop(1, function() look(model.weight) end)
    equal(seen, { 1, 2 })
  end))
end)

describe("cstorch: state of a recorded step", function()
  for name, step in pairs {
    replaced = function(state, grad) state.m = state.m * 0.9 + grad end,
    new = function(state, grad) state.other = state.other or cstorch.zeros_like(grad) end,
  } do
    for _, kind in ipairs { "CPU", "CSX" } do
      it(("of an optimizer is not %s on %s"):format(name, kind), fresh(function()
        local Own = optim.Optimizer:subclass("Own", { lr = 0.1 })
        function Own:preinitialize()
          for p, state in self:parameters() do state.m = cstorch.zeros_like(p) end
        end
        function Own:step()
          for _, grad, state in self:gradients() do step(state, grad) end
        end
        local model, net = compiled(kind)
        local optimizer = Own(model:parameters(), {})
        local train = cstorch.compile_step(function(batch)
          local loss = net(batch):mean()
          cstorch.amp.optimizer_step(loss, optimizer)
          return loss
        end)
        raises("make all state in preinitialize", function() loop(2, train) end, "runtime")
      end))
    end
  end

  it("of an optimizer is written by visit_state, and replacing it is noticed", fresh(function()
    local model, net = compiled "CSX"
    local optimizer, texts, seen = optim.SGD(model:parameters(), { lr = 0.1, momentum = 1 }), {}, {}
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local step = cstorch.compile_step(function(batch)
      local loss = net(batch * 0 + 1):mean()
      cstorch.amp.optimizer_step(loss, optimizer)
      return loss
    end)
    local look = cstorch.step_closure(function() seen[#seen + 1] = optimizer.state[model.bias].momentum_buffer:item() end)
    loop(4, function(batch, i)
      if i == 3 then optimizer:visit_state(function(t) return t * 0 end) end
      if i == 4 then optimizer.state[model.bias].momentum_buffer = cstorch.zeros { 1 } end
      step(batch)
      look()
    end)
    cstorch.on_warning(before)
    equal(seen, { 1, 2, 1, 0 })
    is_true(texts[1]:find("compile_step: no step closure gets a tensor of the step", 1, true), texts[1])
    is_true(texts[2]:find("SGD: the state 'momentum_buffer' was replaced by another tensor", 1, true), texts[2])
    equal(#texts, 2)
  end))

  it("of a module is written in place", fresh(function()
    local Running = nn.Module:subclass "Running"
    function Running:init()
      Running.super.init(self)
      self:register_buffer("mean", cstorch.zeros {})
    end
    function Running:forward(x)
      if self.in_place then self.mean:copy_(self.mean + x:mean()) else self.mean = self.mean + x:mean() end
      return x * 2
    end
    Running.fields.in_place = true
    cstorch.configure { checkpoint_steps = 1 }
    local model = Running()
    local net, seen = cstorch.compile(model, { backend = "CSX" }), {}
    local step = cstorch.compile_step(function(batch) return net(batch) end)
    raises("the buffer 'mean' was replaced inside of a compiled step", function() loop(1, step) end, "runtime")
    model.in_place = true
    local look = cstorch.step_closure(function() seen[#seen + 1] = model.mean:item() end)
    loop(3, function(batch)
      step(batch)
      look()
    end)
    equal(seen, { 1, 3, 6 })
  end))
end)

describe("cstorch: a step that failed while it was recorded", function()
  --- Two more steps after one whose body raises an error at `place`: the weights, and those of a run without the error.
  local function weights(place)
    local model, net = compiled "CSX"
    local optimizer = optim.Adam(model:parameters(), { lr = 0.1 })
    local scaler, seen = cstorch.amp.GradScaler { loss_scale = "dynamic" }, {}
    local function at(here)
      if here ~= place then return end
      place = nil
      error("mine", 0)
    end
    local step = cstorch.compile_step(function(batch)
      local loss = net(batch):mean()
      local scaled = scaler:scale(loss)
      at "scale"
      scaled:backward()
      at "backward"
      scaler:unscale_(optimizer)
      at "unscale"
      scaler:step(optimizer)
      at "step"
      scaler:update()
      optimizer:zero_grad()
      at "end"
      return loss
    end)
    local look = cstorch.step_closure(function() seen[#seen + 1] = model.weight:tolist() end)
    local fails = place ~= nil
    loop(2, function(batch)
      if fails and place then equal({ pcall(step, batch) }, { false, "mine" }) end
      step(batch)
      look()
    end)
    cstorch.testing.reset()
    return seen
  end

  for _, place in ipairs { "scale", "backward", "unscale", "step", "end" } do
    it("can be recorded again: after " .. place, fresh(function() equal(weights(place), weights()) end))
  end
end)

describe("cstorch: what was made before the backend", function()
  it("is put on it: schedules, scalers and metrics", fresh(function()
    local model, rates = nn.Linear(2, 1), {}
    local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
    local schedule = optim.configure_lr_scheduler(optimizer, {
      { scheduler = "Constant", learning_rate = 0.5, total_iters = 1 }, { scheduler = "Constant", learning_rate = 0.25 },
    })
    local scaler, mean = cstorch.amp.GradScaler { loss_scale = "dynamic" }, cstorch.metrics.MeanMetric "mean"
    local net = cstorch.compile(model, { backend = "CSX" })
    local step = cstorch.compile_step(function(batch)
      local loss = net(batch):mean()
      mean { value = batch }
      cstorch.amp.optimizer_step(loss, optimizer, scaler)
      schedule:step()
      return loss
    end)
    local look = cstorch.step_closure(function() rates[#rates + 1] = schedule:get_last_lr()[1] end)
    loop(3, function(batch)
      step(batch)
      look()
    end)
    equal({ rates, mean:value() }, { { 0.25, 0.25, 0.25 }, 2 })
  end))
end)

describe("cstorch: a step on CSX that is not compiled", function()
  it("is computed as it is written, also with dynamic loss scaling", fresh(function()
    local model, net = compiled "CSX"
    local optimizer = optim.SGD(model:parameters(), { lr = 0.5 })
    local scaler, steps = cstorch.amp.GradScaler { loss_scale = "dynamic" }, {}
    local look = cstorch.step_closure(function(loss) steps[#steps + 1] = loss:item() end)
    loop(2, function(batch)
      local loss = net(batch):mean()
      cstorch.amp.optimizer_step(loss, optimizer, scaler)
      look(loss)
    end)
    is_true(#steps == 2 and steps[2] < steps[1])
  end))
end)
