-- The loss of the Model Zoo's decoders. Source: GPTLMHeadModelLoss.py of the Model Zoo 2.9.

local functional = require "cstorch.nn.functional"

---@class cstorch.models.LossScaling
---@field by "num_tokens"|"batch_size"   what the sum over all tokens is divided by
---@field weight number                  times this; of "batch_size" only

---@class cstorch.models.TokenBatch
---@field input_ids cstorch.Tensor        [batch, length], whole numbers
---@field labels cstorch.Tensor           [batch, length], the ids that follow
---@field attention_mask cstorch.Tensor   [batch, length], 1 where a label counts

---The cross entropy of the labels that count.
---@param logits cstorch.Tensor   [batch, length, vocabulary]
---@param batch cstorch.models.TokenBatch
---@param scaling cstorch.models.LossScaling
---@return cstorch.Tensor loss, cstorch.Tensor sum   both without dims; the sum is over all labels that count
return function(logits, batch, scaling)
  local mask = batch.attention_mask:to(logits.dtype):flatten()
  local each = functional.cross_entropy(logits:reshape { -1, logits:size(-1) }, batch.labels:flatten(), { reduction = "none" })
  local sum = (each * mask):sum()
  if scaling.by == "num_tokens" then return sum / mask:sum(), sum end
  return sum * (scaling.weight / logits:size(0)), sum
end
