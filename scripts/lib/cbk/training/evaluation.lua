-- An evaluation: the loss of a model over a data set, perplexity and accuracy.

local causal_loss = require "cstorch.models.causal_loss"
local cbk = require "cbk"
local cstorch = require "cstorch"

---@class EvaluationResult
---@field loss number          the mean over the batches
---@field perplexity number    exp of the mean over tokens
---@field accuracy number      of the most likely token
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
---@param options cstorch.models.LossOptions
---@param steps? integer   batches; default: all
---@return TrainingEvaluation
function evaluation.new(compiled, loader, options, steps)
  local self = setmetatable({ compiled = compiled, loader = loader, steps = steps }, Evaluation)
  self.perplexity = cstorch.metrics.PerplexityMetric("eval/lm_perplexity", { compute_on_system = true })
  self.accuracy = cstorch.metrics.AccuracyMetric("eval/accuracy", { compute_on_system = true })
  self.step_of = cstorch.compile_step(function(batch)
    return cstorch.no_grad(function()
      local logits = compiled(batch.input_ids)
      local loss, sum = causal_loss.cross_entropy(logits, batch, options)
      local weights = batch.attention_mask:to "float32"
      self.perplexity { labels = batch.labels, loss = sum, weights = weights }
      self.accuracy { labels = batch.labels, predictions = logits:argmax(-1), weights = weights }
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
  local executor = cstorch.utils.data.DataExecutor(self.loader, { num_steps = self.steps or self.loader:length() })
  local note = cstorch.step_closure(function(i, loss)
    sum, count = sum + loss:item(), i
    if on_batch then on_batch(i, executor.num_steps, loss:item()) end
  end)
  self.perplexity:reset()
  self.accuracy:reset()
  self.compiled:eval()
  for i, batch in executor:iter() do note(i, self.step_of(batch)) end
  self.compiled:train()
  return { loss = sum / count, perplexity = self.perplexity:value(), accuracy = self.accuracy:value(), batches = count,
    samples = count * (self.loader.batch_size or 1), seconds = cbk.clock() - begin }
end

---What a run prints of an evaluation.
---@param found EvaluationResult
---@return string[]
function evaluation.lines(found)
  return { ("Avg Eval Loss: %.5f"):format(found.loss), ("Metric: eval/lm_perplexity = %.5f"):format(found.perplexity),
    ("Metric: eval/accuracy = %.5f"):format(found.accuracy) }
end

return evaluation
