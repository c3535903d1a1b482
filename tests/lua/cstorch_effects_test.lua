-- Training loops that run to their end and train nothing, or not what was asked for: each is warned about once.

local cbk = require "cbk"
local cstorch = require "cstorch"
local effects = require "cstorch.run.effects"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, near = harness.describe, harness.it, harness.equal, harness.is_true, harness.near
local nn, optim = cstorch.nn, cstorch.optim

local BACKENDS = { "CPU", "CSX" }

local function loader(count)
  local list = {}
  for i = 1, count do list[i] = cstorch.full({ 1, 2 }, 1 / i) end
  return cstorch.utils.data.DataLoader(function() return list end, { num_steps = count })
end

---What is warned about while a model trains.
---@param kind string
---@param count integer   steps
---@param prepare fun(model: table, net: table): fun(batch: any): any   makes the body of the step
---@param options? table   of configure
---@return string[] texts, table model
local function warnings_of(kind, count, prepare, options)
  local texts = {}
  local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
  if options then cstorch.configure(options) end
  cstorch.manual_seed(1)
  local model = nn.Linear(2, 1)
  local net = cstorch.compile(model, { backend = kind })
  local step, see = cstorch.compile_step(prepare(model, net)), cstorch.step_closure(function() end)
  for _, batch in loader(count):iter() do see(step(batch)) end
  effects.end_script()
  cstorch.on_warning(before)
  return texts, model
end

local function sgd(model) return optim.SGD(model:parameters(), { lr = 1 }) end

local function linear(optimizer, count)
  return optim.lr_scheduler.LinearLR(optimizer, { initial_learning_rate = 1, end_learning_rate = 0, total_iters = count })
end

--- An optimizer of one's own that gives new tensors the names of parameters.
local function rebinding(model)
  local Own = optim.Optimizer:subclass("Own", { lr = 0.1 })
  Own.preinitialize = function() end
  function Own:step()
    for p, grad in self:gradients() do
      p = p - grad * 0.1
      is_true(p ~= nil)
    end
  end
  return Own(model:parameters(), {})
end

--- What each loop is warned of; none of them trains as it seems to.
local LOOPS = {
  ["a schedule that is never stepped"] = { "LinearLR was not stepped once while SGD took steps", function(model, net)
    local optimizer = sgd(model)
    linear(optimizer, 4)
    return function(batch)
      local loss = net(batch):mean()
      cstorch.amp.optimizer_step(loss, optimizer)
      return loss
    end
  end },
  ["a step that writes no parameter"] = { "Own: its step wrote into no parameter", function(model, net)
    local optimizer = rebinding(model)
    return function(batch)
      local loss = net(batch):mean()
      cstorch.amp.optimizer_step(loss, optimizer)
      return loss
    end
  end },
  ["parameters that are not written in place"] = { "parameters got gradients, again and again, and none of them was written",
    function(model, net)
      return function(batch)
        local loss = net(batch):mean()
        loss:backward()
        cstorch.no_grad(function()
          for _, p in ipairs(model:parameters()) do
            p = p - p.grad * 0.1
            is_true(p ~= nil)
          end
        end)
        return loss
      end
    end },
  ["an optimizer that is not stepped"] = { "parameters got gradients, again and again, and none of them was written", function(model, net)
    local optimizer = sgd(model)
    return function(batch)
      local loss = net(batch):mean()
      loss:backward()
      optimizer:zero_grad()
      return loss
    end
  end },
  ["an optimizer of another model's parameters"] = { "SGD:step: none of its parameters has a gradient", function(_, net)
    local optimizer = sgd(nn.Linear(2, 1))
    return function(batch)
      local loss = net(batch):mean()
      cstorch.amp.optimizer_step(loss, optimizer)
      return loss
    end
  end },
  ["a loss that stays NaN"] = { "the loss is nan or infinite since step 1", function(model, net)
    local optimizer = sgd(model)
    return function(batch)
      local loss = net(batch):mean() * (0 / 0)
      cstorch.amp.optimizer_step(loss, optimizer)
      return loss
    end
  end, { check_loss_values = false } },
  ["weights that become NaN"] = { "the weights that SGD changes are nan or infinite", function(model, net)
    local optimizer = sgd(model)
    return function(batch)
      local loss = net(batch):mean() * (0 / 0)
      loss:backward()
      optimizer:step()
      return batch:mean()
    end
  end },
}

describe("cstorch: a run that trains nothing", function()
  for _, kind in ipairs(BACKENDS) do
    for name, loop in pairs(LOOPS) do
      it(("is warned of once: %s, on %s"):format(name, kind), fresh(function()
        local texts = warnings_of(kind, 3, loop[2], loop[3])
        is_true(texts[1] and texts[1]:find(loop[1], 1, true), texts[1] or "no warning")
        equal(#texts, 1, table.concat(texts, "\n"))
      end))
    end

    it("is none that trains, with or without a schedule, accumulates gradients or evaluates, on " .. kind, fresh(function()
      local texts = warnings_of(kind, 4, function(model, net)
        local optimizer = sgd(model)
        local schedule = linear(optimizer, 4)
        return function(batch)
          local loss = net(batch):mean()
          cstorch.amp.optimizer_step(loss, optimizer)
          schedule:step()
          return loss
        end
      end)
      equal(texts, {})
      cstorch.testing.reset()
      equal(warnings_of(kind, 4, function(_, net) return function(batch) return net(batch):mean() end end), {})
      cstorch.testing.reset()
      local count = 0
      equal(warnings_of("CPU", 4, function(model, net)
        local optimizer = sgd(model)
        return function(batch)
          local loss = net(batch):mean()
          loss:backward()
          count = count + 1
          if count % 2 == 0 then
            optimizer:step()
            optimizer:zero_grad()
          end
          return loss
        end
      end), {})
    end))
  end

  it("is no second run of a recorded step", fresh(function()
    local texts = {}
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local model = nn.Linear(2, 1)
    local net, optimizer = cstorch.compile(model, { backend = "CSX" }), sgd(model)
    local see = cstorch.step_closure(function() end)
    local step = cstorch.compile_step(function(batch)
      local loss = net(batch):mean()
      loss:backward()
      optimizer:step()
      return loss
    end)
    for _ = 1, 2 do
      for _, batch in loader(2):iter() do see(step(batch)) end
    end
    cstorch.on_warning(before)
    equal(texts, {})
  end))

  it("is noticed outside of runs, too", fresh(function()
    local texts = {}
    local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
    local model = nn.Linear(2, 1)
    local optimizer = sgd(model)
    linear(optimizer, 200)
    for _ = 1, 120 do
      model(cstorch.ones { 1, 2 }):mean():backward()
      optimizer:step()
      optimizer:zero_grad()
    end
    cstorch.no_grad(function() model.bias:fill_(0 / 0) end)
    for _ = 1, 1000 - 120 do
      model(cstorch.ones { 1, 2 }):mean():backward()
      optimizer:step()
      optimizer:zero_grad()
    end
    equal(#texts, 1)
    effects.end_script()
    cstorch.on_warning(before)
    equal(#texts, 2, table.concat(texts, "\n"))
    is_true(texts[1]:find("the weights that SGD changes are nan or infinite", 1, true), texts[1])
    is_true(texts[2]:find("LinearLR was not stepped once", 1, true), texts[2])
  end))
end)

describe("cstorch: a script without a loop over a loader", function()
  local HEAD = [[
local cstorch = require "cstorch"
local model = cstorch.nn.Linear(2, 1)
local optimizer = cstorch.optim.SGD(model:parameters(), { lr = 0.1 })
local schedule = cstorch.optim.lr_scheduler.LinearLR(optimizer, { initial_learning_rate = 1, end_learning_rate = 0, total_iters = 9 })
local function gradients() model(cstorch.ones { 1, 2 }):mean():backward() end
]]
  local NO_OPTIMIZER = [[
local cstorch = require "cstorch"
local model = cstorch.nn.Linear(2, 1)
local function gradients() model(cstorch.ones { 1, 2 }):mean():backward() end
]]
  local LOADER = "local loader = cstorch.utils.data.DataLoader(function() return { cstorch.ones { 1, 2 } } end, { num_steps = 4 })\n"
  local REBINDS = [[
for i = 1, 3 do
  gradients()
  cstorch.no_grad(function()
    for _, p in ipairs(model:parameters()) do p = p - p.grad * 0.1 end
  end)
  model:zero_grad()
end
]]
  local STEPS = "for i = 1, 2 do gradients() optimizer:step() optimizer:zero_grad() end\n"
  for name, case in pairs {
    ["names parameters that were not written"] = { REBINDS, "parameters got gradients, again and again, and none of them was written" },
    ["names them if it ends with os.exit"] = { REBINDS .. "os.exit(0)",
      "parameters got gradients, again and again, and none of them was written" },
    ["names a schedule that was not stepped"] = { STEPS, "LinearLR was not stepped once while SGD took steps" },
    ["names it though it was collected"] = { STEPS .. "model, optimizer, schedule = nil collectgarbage() collectgarbage()",
      "LinearLR was not stepped once while SGD took steps" },
    ["is quiet where a loop trains"] = { (REBINDS:gsub("p = p %- p.grad %* 0.1", "p:sub_(p.grad * 0.1)")) },
    ["is quiet where a schedule is stepped"] = { (STEPS:gsub(" end", " schedule:step() end")) },
    ["names parameters of a loop over a loader without an optimizer"] = { LOADER .. [[
for _, batch in loader:iter() do
  gradients()
  for _, p in ipairs(model:parameters()) do p = p - p.grad * 0.1 end
end]], "parameters got gradients, again and again, and none of them was written" },
    ["names parameters that became nan"] = { [[
for i = 1, 3 do
  gradients()
  cstorch.no_grad(function() model.weight:sub_(model.weight.grad * (0 / 0)) end)
end]], "parameters are nan or infinite" },
    ["is quiet where a loop trains and another one evaluates"] = { LOADER .. [[
for _, batch in loader:iter() do optimizer:zero_grad() gradients() optimizer:step() schedule:step() end
for _, batch in loader:iter() do cstorch.no_grad(function() model(batch) end) end]] },
    ["is quiet where a schedule counts epochs"] = { LOADER .. [[
for epoch = 1, 2 do
  for _, batch in loader:iter() do optimizer:zero_grad() gradients() optimizer:step() end
  schedule:step()
end]] },
    ["is quiet where gradients add up over a loop"] = { LOADER .. [[
for _, batch in loader:iter() do gradients() end
optimizer:step()
schedule:step()]] },
    ["is quiet where an optimizer writes in every fourth step"] = { [[
local Own = cstorch.optim.Optimizer:subclass("Own", {})
Own.preinitialize = function() end
local count = 0
function Own:step()
  count = count + 1
  for p, grad in self:gradients() do if count % 4 == 0 then p:sub_(grad) end end
end
local own = Own(model:parameters(), {})
for i = 1, 4 do gradients() own:step() end]] },
    ["is quiet where an input is trained"] = { [[
local x = cstorch.nn.Parameter(cstorch.ones { 1, 2 })
local adam = cstorch.optim.Adam({ x }, { lr = 0.1 })
for i = 1, 3 do model(x):mean():backward() adam:step() adam:zero_grad() end]] },
    ["is quiet where gradients are looked at"] = { [[
for i = 1, 5 do gradients() print(model.weight.grad:sum():item()) end]], nil, NO_OPTIMIZER },
    ["is quiet where a schedule becomes a part of another"] = { [[
for i = 1, 3 do gradients() optimizer:step() end
local both = cstorch.optim.lr_scheduler.SequentialLR(optimizer, { schedulers = { schedule, cstorch.optim.lr_scheduler.ConstantLR(optimizer,
  { learning_rate = 1 }) }, milestones = { 2 } })
both:step()]] },
    ["is quiet where it fails"] = { REBINDS .. "error 'wrong'", "cbk: script.lua:13: wrong" },
  } do
    it(name, function()
      local dir = harness.temp_dir()
      cbk.fs.write(dir .. "/script.lua", (case[3] or HEAD) .. case[1])
      local status, _, err = harness.cbk(dir, "run", "script.lua")
      equal(err:match "^(.-)\n?$":sub(1, #("warning: " .. (case[2] or ""))):gsub("^warning: ", ""), case[2] or "")
      equal(status, case[2] and case[2]:find "^cbk" and 1 or 0)
    end)
  end
end)

describe("cstorch: a rate that is set where a schedule writes it", function()
  for _, kind in ipairs(BACKENDS) do
    for _, is_inside in ipairs { true, false } do
      it(("does not end the schedule, on %s, stepped %s the step"):format(kind, is_inside and "in" or "after"), fresh(function()
        local texts, rates = {}, {}
        local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
        cstorch.configure { checkpoint_steps = 1 }
        local model = nn.Linear(2, 1)
        local net = cstorch.compile(model, { backend = kind })
        local optimizer = sgd(model)
        local schedule = linear(optimizer, 4)
        optimizer.param_groups[1].lr = 0.5
        local step = cstorch.compile_step(function(batch)
          local loss = net(batch * 0 + 1):mean()
          cstorch.amp.optimizer_step(loss, optimizer)
          if is_inside then schedule:step() end
          return loss
        end)
        local see = cstorch.step_closure(function() rates[#rates + 1] = model.bias:item() end)
        cstorch.no_grad(function() model.bias:zero_() end)
        for _, batch in loader(5):iter() do
          step(batch)
          if not is_inside then schedule:step() end
          see(step ~= nil and batch)
        end
        cstorch.on_warning(before)
        is_true(texts[1] and texts[1]:find("param_groups[1].lr was set to 0.5, but LinearLR writes it", 1, true), texts[1] or "no warning")
        -- the bias falls by the rate of each step; on the CPU the number holds for the first one, as in PyTorch
        local first = kind == "CPU" and 0.5 or 1
        for i, rate in ipairs { first, first + 0.75, first + 1.25, first + 1.5, first + 1.5 } do near(rates[i], -rate, 1e-6) end
      end))
    end
  end
end)

describe("cstorch: a gradient scaler", function()
  for text, step in pairs {
    ["the dynamic scale never changes: call scaler:update()"] = function(scaler, optimizer) scaler:step(optimizer) end,
    ["SGD:step: the gradients are still multiplied by the loss scale"] = function(scaler, optimizer)
      optimizer:step()
      scaler.overflowed = nil
    end,
    ["clip_grad_norm_: the gradients are still multiplied by the loss scale: call scaler:unscale_"] = function(scaler, optimizer, model)
      nn.utils.clip_grad_norm_(model:parameters(), 1)
      scaler:step(optimizer)
    end,
    ["no loss was scaled, but its gradients are divided by the loss scale"] = function(scaler, optimizer)
      scaler:step(optimizer)
      scaler:update()
      scaler:step(optimizer)
    end,
  } do
    it("is warned about in a recorded step: " .. text, fresh(function()
      local texts = warnings_of("CSX", 3, function(model, net)
        local optimizer = sgd(model)
        local scaler = cstorch.amp.GradScaler { loss_scale = "dynamic" }
        return function(batch)
          local loss = net(batch):mean()
          scaler:scale(loss):backward()
          step(scaler, optimizer, model)
          optimizer:zero_grad()
          return loss
        end
      end)
      is_true(table.concat(texts, "\n"):find(text, 1, true), table.concat(texts, "\n"))
    end))
  end

  it("is none where it is complete, unscaled by hand, or off the CSX", fresh(function()
    for _, kind in ipairs(BACKENDS) do
      cstorch.testing.reset()
      equal(warnings_of(kind, 3, function(model, net)
        local optimizer = sgd(model)
        local scaler = cstorch.amp.GradScaler { loss_scale = 8 }
        return function(batch)
          local loss = net(batch):mean()
          scaler:scale(loss):backward()
          scaler:unscale_(optimizer)
          nn.utils.clip_grad_norm_(model:parameters(), 1)
          optimizer:step()
          optimizer:zero_grad()
          scaler:update()
          return loss
        end
      end), {})
    end
  end))
end)

describe("cstorch: the state dict of a schedule", function()
  it("restores how often it was stepped, also of its members", fresh(function()
    local function schedule()
      local optimizer = sgd(nn.Linear(2, 1))
      local list = { linear(optimizer, 2), linear(optimizer, 2) }
      return optim.lr_scheduler.SequentialLR(optimizer, { schedulers = list, milestones = { 2 } })
    end
    local first, second = schedule(), schedule()
    for _ = 1, 3 do first:step() end
    second:load_state_dict(first:state_dict())
    equal(second:state_dict()._step_count:item(), 4)
    second:step()
    equal(second:state_dict()._step_count:item(), 5)
    equal(second:state_dict()._schedulers[1]._step_count:item(), first:state_dict()._schedulers[1]._step_count:item())
  end))
end)
