-- An evaluation: the loss of a model over a data set, and what its task measures.

local cbk = require "cbk"
local cstorch = require "cstorch"
local data = require "cbk.training.data"

---@class EvaluationResult
---@field loss number          the mean over the batches
---@field metrics { key: string, name: string, value: number }[]
---@field batches integer
---@field samples integer
---@field seconds number

---@class TrainingEvaluation
---@field private loader cstorch.utils.data.DataLoader
---@field private steps integer
---@field private step_of fun(batch: cstorch.models.TokenBatch): cstorch.Tensor
local Evaluation = {}
Evaluation.__index = Evaluation

local evaluation = {}

---@param compiled cstorch.CompiledModel
---@param loader cstorch.utils.data.DataLoader
---@param task TrainingTask
---@param steps? integer   batches; default: all
---@return TrainingEvaluation
function evaluation.new(compiled, loader, task, steps)
  local self = setmetatable({ compiled = compiled, loader = loader, steps = steps, metrics = {} }, Evaluation)
  for i, one in ipairs(task.metrics) do
    local options = { compute_on_system = true }
    for name, value in pairs(one.options or {}) do options[name] = value end
    self.metrics[i] = { key = one.key, name = one.name, own = cstorch.metrics[one.class](one.name, options) }
  end
  self.step_of = cstorch.compile_step(function(batch)
    return cstorch.no_grad(function()
      local loss, inputs = task.evaluate(compiled, batch)
      for _, metric in ipairs(self.metrics) do metric.own(inputs[metric.key]) end
      return loss
    end)
  end)
  return self
end

---@param on_batch? fun(batch: integer, count: integer, loss: number)
---@return EvaluationResult
function Evaluation:run(on_batch)
  local sum, count = 0, 0
  local begin = cbk.clock()
  local current
  local executor = cstorch.utils.data.DataExecutor(self.loader, { num_steps = self.steps or self.loader:length(), mode = "eval",
    advise = function() return data.advice(current) end })
  local note = cstorch.step_closure(function(i, loss)
    sum, count = sum + loss:item(), i
    if on_batch then on_batch(i, executor.num_steps, loss:item()) end
  end)
  for _, metric in ipairs(self.metrics) do metric.own:reset() end
  self.compiled:eval()
  for i, batch in executor:iter() do
    current = batch
    note(i, self.step_of(batch))
  end
  self.compiled:train()
  local metrics = {}
  for i, metric in ipairs(self.metrics) do metrics[i] = { key = metric.key, name = metric.name, value = metric.own:value() } end
  return { loss = sum / count, metrics = metrics, batches = count,
    samples = count * (self.loader.batch_size or 1), seconds = cbk.clock() - begin }
end

---What a run prints of an evaluation.
---@param found EvaluationResult
---@return string[]
function evaluation.lines(found)
  local out = { ("Avg Eval Loss: %.5f"):format(found.loss) }
  for _, metric in ipairs(found.metrics) do out[#out + 1] = ("Metric: %s = %.5f"):format(metric.name, metric.value) end
  return out
end

---The numbers of an evaluation, by short names.
---@param found EvaluationResult
---@param prefix string
---@return { [1]: string, [2]: number }[]
function evaluation.members(found, prefix)
  local out = { { prefix .. "loss", found.loss } }
  for _, metric in ipairs(found.metrics) do out[#out + 1] = { prefix .. metric.key, metric.value } end
  return out
end

return evaluation
