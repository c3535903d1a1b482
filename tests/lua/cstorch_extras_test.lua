-- Static sparsity, progress lines and summaries of cstorch.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local nn, utils = cstorch.nn, cstorch.utils

--- A test on each backend, which is forgotten afterwards.
local function on_all(name, body)
  for _, kind in ipairs { "CPU", "CSX" } do
    it(("%s on %s"):format(name, kind), function()
      cstorch.testing.reset()
      cstorch.backend(kind)
      local fine, problem = pcall(body, kind)
      cstorch.testing.reset()
      if not fine then error(problem, 0) end
    end)
  end
end

local function loop(step, count, cadence)
  local list = {}
  for i = 1, count do list[i] = { cstorch.full({ 4, 6 }, i / 4), cstorch.full({ 4, 2 }, 1) } end
  local loader = cstorch.utils.data.DataLoader(function() return list end)
  for i, batch in cstorch.utils.data.DataExecutor(loader, { num_steps = count, checkpoint_steps = cadence }):iter() do step(batch, i) end
end

local function warnings_of(body)
  local texts = {}
  local before = cstorch.on_warning(function(text) texts[#texts + 1] = text end)
  local fine, problem = pcall(body)
  cstorch.on_warning(before)
  if not fine then error(problem, 0) end
  return texts
end

describe("cstorch: static sparsity", function()
  on_all("keeps a share of the weights at zero", function()
    local model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    local compiled = cstorch.compile(model)
    local sparsity = cstorch.sparse.Static { sparsity = 0.4 }
    sparsity:apply(model)
    local optimizer = cstorch.optim.AdamW(model:parameters(), { lr = 0.1, weight_decay = 0.1 })
    optimizer:apply(sparsity)
    local zeros = {}
    local count = cstorch.checkpoint_closure(function()
      for name, value in cstorch.items(model:state_dict()) do
        local n = 0
        for _, x in ipairs(value:flatten():tolist()) do n = n + (x == 0 and 1 or 0) end
        zeros[name] = n
      end
    end)
    local step = cstorch.compile_step(function(batch)
      local loss = nn.functional.mse_loss(compiled(batch[1]), batch[2])
      loss:backward()
      optimizer:step()
      optimizer:zero_grad()
      return loss
    end)
    loop(function(batch)
      step(batch)
      count()
    end, 3, 3)
    equal({ zeros["0.weight"], zeros["1.weight"], zeros["0.bias"] }, { 12, 4, 0 })
    equal(require("cstorch.ordered_map").keys(sparsity:state_dict()), { "0.weight", "1.weight" })
  end)

  on_all("keeps its masks over a save and a load", function()
    local function build()
      local model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
      cstorch.compile(model)
      return model, cstorch.sparse.Static { sparsity = 0.4 }
    end
    local path = harness.temp_dir() .. "/state.mdl"
    local model, sparsity = build()
    sparsity:apply(model)
    cstorch.run_step_closures()
    local masks, weights = {}, {}
    cstorch.step_closure(function()
      cstorch.save({ model = model:state_dict(), sparsity = sparsity:state_dict() }, path)
      for name, mask in cstorch.items(sparsity:state_dict()) do
        masks[name], weights[name] = mask:tolist(), model:state_dict()[name]:tolist()
      end
    end)()
    cstorch.run_step_closures()
    local state = cstorch.load(path)
    for _, is_late in ipairs { false, true } do
      local other, loaded = build()
      other:load_state_dict(state.model)
      if is_late then loaded:apply(other) end
      if is_late then other:load_state_dict(state.model) end
      loaded:load_state_dict(state.sparsity)
      if not is_late then loaded:apply(other) end
      cstorch.step_closure(function()
        for name, mask in cstorch.items(loaded:state_dict()) do
          equal(mask:tolist(), masks[name])
          equal(other:state_dict()[name]:tolist(), weights[name])
        end
      end)()
      cstorch.run_step_closures()
      raises("the state dict has no mask for", function() loaded:load_state_dict {} end, "value")
    end
  end)

  it("takes the smallest weights, of the parameters of its filter", function()
    cstorch.testing.reset()
    local model = nn.Linear(4, 1)
    cstorch.no_grad(function() model.weight:copy_(cstorch.tensor { { 4, -1, 2, 3 } }) end)
    local sparsity = cstorch.sparse.Static { sparsity = 0.5, init_method = "topk", filter = function(name) return name == "weight" end }
    sparsity:apply(model)
    equal(model.weight:tolist(), { { 4, 0, 0, 3 } })
  end)

  it("gives dead weights no gradient, whatever it is, before it is clipped", function()
    cstorch.testing.reset()
    local model = nn.Linear(2, 1, { bias = false })
    cstorch.no_grad(function() model.weight:copy_(cstorch.tensor { { 3, 1 } }) end)
    local sparsity = cstorch.sparse.Static { sparsity = 0.5, init_method = "topk" }
    sparsity:apply(model)
    local optimizer = cstorch.optim.SGD(model:parameters(), { lr = 1 })
    optimizer:apply(sparsity)
    model(cstorch.tensor { { 1, 0 / 0 } }):sum():backward()
    equal(model.weight.grad:tolist(), { { 1, 0 } })
    optimizer:zero_grad()
    cstorch.amp.optimizer_step(model(cstorch.tensor { { 3, 4 } }):sum(), optimizer, nil, { max_gradient_norm = 3 })
    harness.near(model.weight:tolist()[1][1], 0, 1e-5) -- the gradient's norm is 3, not 5
    model.weight.grad = cstorch.tensor { { 1, 0 / 0 } }
    optimizer:step()
    equal(model.weight:tolist()[1][2], 0)
  end)

  it("warns if new masks take weights of a loaded sparse model", function()
    cstorch.testing.reset()
    local function build(seed)
      cstorch.manual_seed(seed)
      return nn.Linear(16, 16, { bias = false }), cstorch.sparse.Static { sparsity = 0.5 }
    end
    local model, sparsity = build(1)
    equal(warnings_of(function() sparsity:apply(model) end), {})
    local other, new = build(2)
    other:load_state_dict(model:state_dict())
    harness.has(table.concat(warnings_of(function() new:apply(other) end)), "'weight' has 128 weights of 256 that are not 0")
    local third, same = build(3)
    third:load_state_dict(model:state_dict())
    same:load_state_dict(sparsity:state_dict())
    equal(warnings_of(function() same:apply(third) end), {})
    equal(third.weight:tolist(), model.weight:tolist())
  end)

  for _, case in ipairs {
    { { sparsity = 1 }, "sparsity must be a number in [0, 1), not 1", "value" },
    { { sparsity = 0.5, init_method = "x" }, "init_method must be 'random' or 'topk', not 'x'", "value" },
    { { sparsity = 0.5, filter = 3 }, "expected a function as filter, found 3", "type" },
    { {}, "keyword 'sparsity' is missing", "type" },
  } do
    it("refuses: " .. case[2], function() raises(case[2], function() cstorch.sparse.Static(case[1]) end, case[3]) end)
  end

  it("refuses targets that it cannot mask", function()
    local sparsity = cstorch.sparse.Static { sparsity = 0.5 }
    raises("expected a module or an optimizer, found 5", function() sparsity:apply(5) end, "type")
    raises("the filter accepts no parameter of the LayerNorm", function() sparsity:apply(nn.LayerNorm(3)) end, "value")
    local optimizer = cstorch.optim.SGD(nn.Linear(2, 2):parameters(), { lr = 1 })
    raises("apply it to the model before its optimizer", function() sparsity:apply(optimizer) end, "runtime")
  end)
end)

describe("cstorch: a mask of the largest weights", function()
  for _, case in ipairs { { { 1, 1, 1, 1, 1, 1, 1, 1 }, 4 }, { { 0, 0, 0, 0, 0, 3, -2, 1 }, 4 }, { { 5, 4, 3, 2, 2, 2, 2, 1 }, 4 } } do
    it("has its share also where weights are equal: " .. table.concat(case[1], " "), function()
      local model = nn.Linear(4, 2)
      model:load_state_dict { weight = cstorch.tensor(case[1], { shape = { 2, 4 } }), bias = cstorch.zeros { 2 } }
      local sparsity = cstorch.sparse.Static { sparsity = 0.5, init_method = "topk" }
      sparsity:apply(model)
      local mask = sparsity.masks[model.weight]
      equal(mask:sum():item(), case[2])
      local order = {}
      for i, value in ipairs(case[1]) do order[i] = math.abs(value) end
      table.sort(order, function(a, b) return a > b end)
      equal(model.weight:abs():sum():item(), order[1] + order[2] + order[3] + order[4])
    end)
  end
end)

describe("cstorch: progress", function()
  it("counts the seconds that pass, not those of the processor", function()
    local progress = utils.Progress { batch_size = 1 }
    equal(progress.clock == cbk.clock, true)
  end)

  local function lines_of(losses, options)
    local lines, now = {}, 0
    options.batch_size, options.print = 4, function(line) lines[#lines + 1] = line end
    options.clock = function()
      now = now + 2
      return now
    end
    local progress = utils.Progress(options)
    loop(function(_, i) progress:step(cstorch.tensor(losses[i])) end, #losses)
    return lines
  end

  it("prints loss and rates", function()
    cstorch.testing.reset()
    cstorch.backend "CPU"
    equal(lines_of({ 1, 0.5, 0.25 }, { log_steps = 2 }), {
      "| Train Device=CPU, Step=2, Loss=0.50000, Rate=4.00 samples/sec, GlobalRate=4.00 samples/sec",
      "| Train Device=CPU, Step=3, Loss=0.25000, Rate=2.80 samples/sec, GlobalRate=3.00 samples/sec",
    })
    cstorch.testing.reset()
  end)

  it("stops a run whose loss is no number", function()
    for _, loss in ipairs { 0 / 0, math.huge } do
      cstorch.testing.reset()
      cstorch.backend "CPU"
      raises("the loss of step 2 is", function() lines_of({ 1, loss, 1 }, {}) end, "runtime")
      cstorch.testing.reset()
      cstorch.backend "CPU"
      equal(#lines_of({ 1, loss, 1 }, { check_loss_values = false }), 3)
    end
    cstorch.testing.reset()
  end)

  it("refuses bad arguments", function()
    raises("mode must be 'train' or 'eval', not 'x'", function() utils.Progress { mode = "x", batch_size = 1 } end, "value")
    raises("batch_size must be an integer >= 1, not 0", function() utils.Progress { batch_size = 0 } end, "value")
    raises("expected the loss as a tensor, found 3", function() utils.Progress({ batch_size = 1 }):step(3) end, "type")
  end)
end)

describe("cstorch: summaries", function()
  on_all("are written at the ends of steps, and read by globs", function()
    local folder = harness.temp_dir()
    local writer = utils.SummaryWriter { log_dir = folder }
    local step = cstorch.compile_step(function(batch)
      local sum = batch[1]:sum()
      cstorch.summarize_scalar("train/sum", sum)
      cstorch.summarize_tensor("batch/row", batch[1]:select(0, 0) * 2)
      return sum
    end)
    local save = cstorch.step_closure(function(i) cstorch.save_summaries(writer, i) end)
    loop(function(batch, i)
      writer:add_scalar("direct", step(batch))
      save(i)
    end, 2)
    local reader = utils.SummaryReader(folder)
    equal(reader:read_scalar "*", {
      ["train/sum"] = { { step = 1, value = 6 }, { step = 2, value = 12 } }, direct = { { step = 1, value = 6 }, { step = 2, value = 12 } },
    })
    equal(require("cstorch.ordered_map").keys(reader:read_scalar "train/*"), { "train/sum" })
    equal(cstorch.no_grad(function() return reader:read_tensor("batch/row", 2):tolist() end), { 1, 1, 1, 1, 1, 1 })
    raises("there is no tensor 'batch/row' of step 3", function() reader:read_tensor("batch/row", 3) end, "value")
  end)

  it("keep NaN, and refuse bad arguments", function()
    cstorch.testing.reset()
    local folder = harness.temp_dir()
    local writer = utils.SummaryWriter { log_dir = cbk.fs.join(folder, "logs") }
    writer:add_scalar("x", 0 / 0, 7)
    local event = utils.SummaryReader(writer.log_dir):read_scalar("x").x[1]
    is_true(event.step == 7 and event.value ~= event.value)
    raises("add_scalar: expected a name, found 3", function() writer:add_scalar(3, 1) end, "type")
    raises("add_scalar: step must be an integer, not 1.5", function() writer:add_scalar("x", 1, 1.5) end, "value")
    raises("add_tensor: expected a tensor, found 1", function() writer:add_tensor("x", 1, 1) end, "type")
    raises("save_summaries: expected a SummaryWriter, found 5", function() cstorch.save_summaries(5, 1) end, "type")
    raises("there is no folder 'nowhere'", function() utils.SummaryReader "nowhere" end, "value")
  end)
end)
