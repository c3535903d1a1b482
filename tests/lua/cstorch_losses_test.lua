-- A loss that is NaN or infinite stops the run at the end of its step; long loops do not grow.

local cbk = require "cbk"
local cstorch = require "cstorch"
local fresh = require "fresh"
local harness = require "harness"
local describe, it, equal, is_true, raises = harness.describe, harness.it, harness.equal, harness.is_true, harness.raises
local nn, optim = cstorch.nn, cstorch.optim

--- A loop whose loss is `bad` in step 3; `finish` gets the loss, the optimizer. Steps that a closure saw.
local function train(kind, bad, finish)
  cstorch.backend(kind)
  local model = nn.Linear(1, 1)
  local compiled = cstorch.compile(model)
  local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
  local batches, seen = {}, 0
  for i = 1, 5 do batches[i] = cstorch.tensor { { i == 3 and bad or 1 } } end
  local look = cstorch.step_closure(function() seen = seen + 1 end)
  local step = cstorch.compile_step(function(batch)
    local loss = compiled(batch):square():mean()
    return finish(loss, optimizer)
  end)
  local loader = cstorch.utils.data.DataLoader(function() return batches end, { num_steps = 5 })
  local fine, problem = pcall(function()
    for _, batch in loader:iter() do look(step(batch)) end
  end)
  return seen, not fine and problem or nil
end

local WAYS = {
  ["optimizer_step"] = function(loss, optimizer)
    cstorch.amp.optimizer_step(loss, optimizer)
    return loss:detach()
  end,
  ["a loss in a table"] = function(loss, optimizer)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return { loss = loss }
  end,
  ["a detached loss"] = function(loss, optimizer)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss:detach()
  end,
  ["a returned loss"] = function(loss, optimizer)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss
  end,
}

describe("cstorch: a loss without a value", function()
  for _, kind in ipairs { "CPU", "CSX" } do
    for name, finish in pairs(WAYS) do
      for _, bad in ipairs { 0 / 0, math.huge } do
        it(("stops the run: %s on %s, with %s"):format(name, kind, tostring(bad)), fresh(function()
          local seen, problem = train(kind, bad, finish)
          equal(seen, 2)
          is_true(tostring(problem):find "^the loss of step 3 is %-?%a+; try a lower learning rate", tostring(problem))
          equal(problem.kind, "runtime")
        end))
      end
    end

    it("does not stop the run where that is not wanted: " .. kind, fresh(function()
      cstorch.configure { check_loss_values = false }
      equal({ train(kind, 0 / 0, WAYS["optimizer_step"]) }, { 5 })
    end))
  end

  it("is no matter outside of a run", fresh(function()
    local p = nn.Parameter(cstorch.tensor { 0 / 0 })
    cstorch.amp.optimizer_step(p:sum(), optim.SGD({ p }, { lr = 1 }))
    raises("check_loss_values must be true or false", function() cstorch.configure { check_loss_values = 1 } end, "type")
  end))
end)

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  return text
end

--- Memory of the process in KiB; 0 under a sanitizer, where memory has shadows, and what is freed stays for a while.
local function resident()
  if read("/proc/self/maps"):find "lib[at]san" then return 0 end
  return tonumber(read("/proc/self/status"):match "VmRSS:%s+(%d+)")
end

--- Bytes that tensors hold when all garbage is gone.
local function held()
  collectgarbage()
  collectgarbage()
  return tonumber((cbk.compute.memory()))
end

describe("cstorch: a loop of eager steps", function()
  it("does not grow", fresh(function()
    local model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
    local x, y = cstorch.randn { 16, 32 }, cstorch.randn { 16, 8 }
    local function steps(count)
      for _ = 1, count do cstorch.amp.optimizer_step(nn.functional.mse_loss(model(x), y), optimizer, nil, { max_gradient_norm = 1 }) end
    end
    steps(700)
    local process, before = resident(), held()
    steps(1500) -- they make 200 MB of tensors
    is_true(resident() - process < 48 * 1024, ("the process has %d KiB more"):format(resident() - process))
    equal(held(), before)
  end))
end)
