-- The losses of the Model Zoo's BERT and T5. Source: BertPretrainModelLoss.py, bert_classifier_model.py and
-- T5ForConditionalGenerationLoss.py of the Model Zoo 2.9.

local functional = require "cstorch.nn.functional"
local systems = require "cstorch.run.systems"

local losses = {}

---The cross entropy of each token. With smoothing, a part of it is that of all classes alike.
---@param logits cstorch.Tensor      [..., classes]
---@param labels cstorch.Tensor      [...]; negative ones count as 0
---@param smoothing? number
---@return cstorch.Tensor            # [tokens]
local function each_token(logits, labels, smoothing)
  local flat = logits:reshape { -1, logits:size(-1) }
  local each = functional.cross_entropy(flat, labels:flatten(), { reduction = "none" })
  if not smoothing or smoothing == 0 then return each end
  return each * (1 - smoothing) - flat:log_softmax(-1):mean(-1) * smoothing
end

---@class cstorch.models.PretrainingLoss
---@field weight number       of the masked words
---@field smoothing? number

---Which masked words count: those of the mask, or all where the labels are beside all tokens.
---@param batch table
---@return cstorch.Tensor   # of the shape of the labels, float32
function losses.masked_words(batch)
  local mask = batch.masked_lm_positions and batch.masked_lm_mask
  return mask and mask:to "float32" or (batch.labels * 0 + 1):to "float32"
end

---@param words cstorch.Tensor                  [batch, count, vocabulary]
---@param next_sentence cstorch.Tensor|nil      [batch, classes]
---@param batch table                           labels; masked_lm_mask, next_sentence_label
---@param options cstorch.models.PretrainingLoss
---@return cstorch.Tensor loss, cstorch.Tensor sum   both without dims; the sum is over all words that count
function losses.pretraining(words, next_sentence, batch, options)
  local sum = (each_token(words, batch.labels, options.smoothing) * losses.masked_words(batch):flatten()):sum()
  local loss = sum * (options.weight / batch.labels:size(0))
  if next_sentence then loss = loss + functional.cross_entropy(next_sentence, batch.next_sentence_label) end
  return loss, sum
end

---@param logits cstorch.Tensor   [batch, classes]
---@param batch table             labels [batch]
---@return cstorch.Tensor   # without dims
function losses.classification(logits, batch) return functional.cross_entropy(logits, batch.labels) end

---@class cstorch.models.GenerationLoss
---@field by "num_masked"|"batch_size"   what the sum over all tokens is divided by
---@field weight number                  times this; of "batch_size" only
---@field smoothing? number

---@param logits cstorch.Tensor   [batch, tokens, vocabulary]
---@param batch table             labels and decoder_attention_mask: [batch, tokens]
---@param options cstorch.models.GenerationLoss
---@return cstorch.Tensor loss, cstorch.Tensor sum   both without dims; the sum is over all tokens that count
function losses.generation(logits, batch, options)
  local mask = batch.decoder_attention_mask:to(logits.dtype):flatten()
  local sum = (each_token(logits, batch.labels, options.smoothing) * mask):sum()
  if options.by == "num_masked" then return sum / systems.share_of_sum(mask:sum()), sum end
  return sum * (options.weight / batch.labels:size(0)), sum
end

return losses
