-- The loss of the Model Zoo's decoders. Source: GPTLMHeadModelLoss.py and LoadBalancingLoss.py of the Model Zoo 2.9.

local functional = require "cstorch.nn.functional"
local systems = require "cstorch.run.systems"

local causal_loss = {}

---@class cstorch.models.LossOptions
---@field by "num_tokens"|"batch_size"   what the sum over all tokens is divided by
---@field weight number                  times this; of "batch_size" only
---@field balance number                 the coefficient of the loss of mixtures whose experts get unequal shares; 0: none

---@class cstorch.models.TokenBatch
---@field input_ids cstorch.Tensor        [batch, length], whole numbers
---@field labels cstorch.Tensor           [batch, length], the ids that follow
---@field attention_mask cstorch.Tensor   [batch, length], 1 where a label counts

---The cross entropy of the labels that count.
---@param logits cstorch.Tensor   [batch, length, vocabulary]
---@param batch cstorch.models.TokenBatch
---@param options cstorch.models.LossOptions
---@return cstorch.Tensor loss, cstorch.Tensor sum   both without dims; the sum is over all labels that count
function causal_loss.cross_entropy(logits, batch, options)
  local mask = batch.attention_mask:to(logits.dtype):flatten()
  local each = functional.cross_entropy(logits:reshape { -1, logits:size(-1) }, batch.labels:flatten(), { reduction = "none" })
  local sum = (each * mask):sum()
  if options.by == "num_tokens" then
    return sum / systems.share_of_sum(mask:sum()), sum
  end
  return sum * (options.weight / logits:size(0)), sum
end

---How unequal the shares of experts are: experts² times the mean of probability times share.
---@param routes cstorch.models.Route[]
---@param attention_mask cstorch.Tensor   [batch, length]
---@return cstorch.Tensor   # without dims
function causal_loss.imbalance(routes, attention_mask)
  local share, probability
  local mask = attention_mask:to(routes[1].all.dtype):unsqueeze(-1)
  for _, route in ipairs(routes) do
    local tokens = mask:sum(1)
    local chosen, likely = (route.is_chosen * mask):sum(1) / tokens, (route.all * mask):sum(1) / tokens
    share, probability = share and share + chosen or chosen, probability and probability + likely or likely
  end
  return (share * probability):mean() * ((routes[1].all:size(-1) / #routes) ^ 2)
end

---The loss that a model in training has for a batch.
---@param model cstorch.models.Trainable|cstorch.CompiledModel
---@param batch cstorch.models.TokenBatch
---@param options cstorch.models.LossOptions
---@param again? cstorch.models.Recomputed   layers are computed again: call its `backward` after that of the loss
---@return cstorch.Tensor   # without dims
function causal_loss.of(model, batch, options, again)
  local routes = options.balance > 0 and {} or nil
  local logits = model(batch.input_ids, { training = true, routes = routes, recomputed = again })
  local loss = causal_loss.cross_entropy(logits, batch, options)
  if not routes or not routes[1] then return loss end
  return loss + causal_loss.imbalance(routes, batch.attention_mask) * options.balance
end

return causal_loss
