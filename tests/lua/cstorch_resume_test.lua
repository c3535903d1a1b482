-- A training run that is saved, and goes on from its checkpoint as if it had not stopped: optimizer, schedule, scaler and loader.

local cbk = require "cbk"
local cstorch = require "cstorch"
local harness = require "harness"
local describe, it, equal = harness.describe, harness.it, harness.equal
local nn, optim = cstorch.nn, cstorch.optim

local function batches()
  cstorch.manual_seed(1)
  local list = {}
  for i = 1, 4 do list[i] = { cstorch.randn { 4, 3 }, cstorch.randn { 4, 2 } } end
  return list
end

--- A source that goes on behind the batch it has streamed last.
local function source()
  local list, at = batches(), 0
  return {
    iter = function()
      return function()
        at = at + 1
        return list[(at - 1) % #list + 1]
      end
    end,
    state_dict = function() return { at = at } end,
    load_state_dict = function(_, state) at = tonumber(state.at) end,
    aggregate_state_dict = function(_, states) return states[1] end,
    deaggregate_state_dict = function(_, state) return state end,
  }
end

local function all_parts(kind, name)
  cstorch.testing.reset()
  cstorch.backend(kind)
  cstorch.manual_seed(7)
  local parts = {}
  parts.model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
  parts.compiled = cstorch.compile(parts.model)
  parts.optimizer = optim[name](parts.model:parameters(), { lr = 0.1 })
  parts.lr_scheduler = optim.configure_lr_scheduler(parts.optimizer, {
    { scheduler = "Linear", initial_learning_rate = 0, end_learning_rate = 0.05, total_iters = 2 },
    { scheduler = "CosineDecay", initial_learning_rate = 0.05, end_learning_rate = 0.01, total_iters = 6 },
  })
  parts.grad_scaler = cstorch.amp.GradScaler { loss_scale = "dynamic", init_scale = 4, steps_per_increase = 2 }
  parts.dataloader = cstorch.utils.data.DataLoader(source)
  return parts
end

local SAVED = { "model", "optimizer", "lr_scheduler", "grad_scaler", "dataloader" }

--- Trains for some steps; saves behind step `save_step`. The losses and the final weights.
local function train(parts, steps, save_step, path)
  local losses, weights = {}, {}
  local look = cstorch.step_closure(function(loss) losses[#losses + 1] = loss:item() end)
  local save = cstorch.checkpoint_closure(function(step)
    if step == save_step then
      local dict = {}
      for _, name in ipairs(SAVED) do dict[name] = parts[name]:state_dict() end
      cstorch.save(dict, path)
    end
    for name, value in cstorch.items(parts.model:state_dict()) do weights[name] = value:tolist() end
  end)
  local step = cstorch.compile_step(function(batch)
    local loss = nn.functional.mse_loss(parts.compiled(batch[1]), batch[2])
    cstorch.amp.optimizer_step(loss, parts.optimizer, parts.grad_scaler, { max_gradient_norm = 1 })
    parts.lr_scheduler:step()
    return loss
  end)
  local executor = cstorch.utils.data.DataExecutor(parts.dataloader, { num_steps = steps, checkpoint_steps = save_step or steps })
  for i, batch in executor:iter() do
    look(step(batch))
    save(i)
  end
  return losses, weights
end

local function finally(finish, body)
  return function()
    local fine, problem = pcall(body)
    finish()
    if not fine then error(problem, 0) end
  end
end

describe("cstorch: a resumed run", function()
  for _, kind in ipairs { "CPU", "CSX" } do
    for _, name in ipairs { "AdamW", "SGD", "NAdam", "ASGD", "Adafactor" } do
      it(("goes on as if it had not stopped: %s on %s"):format(name, kind), finally(cstorch.testing.reset, function()
        local path = cbk.fs.join(harness.temp_dir(), "checkpoint_3.mdl")
        local losses, weights = train(all_parts(kind, name), 7, 3, path)
        local parts, state = all_parts(kind, name), cstorch.load(path)
        for _, part in ipairs(SAVED) do parts[part]:load_state_dict(state[part] or {}) end
        local more, final = train(parts, 4)
        for i = 1, 4 do equal(more[i], losses[3 + i], "loss of step " .. 3 + i) end
        equal(final, weights)
      end))
    end
  end
end)
