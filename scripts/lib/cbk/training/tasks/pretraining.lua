-- BERT: masked words, and whether a sentence follows another. Source: bert/model.py and BertHDF5DataProcessor.py of the Model Zoo 2.9.

local losses = require "cstorch.models.losses"
local read = require "cbk.training.tasks.read"

---@param has_next_sentence boolean
---@return TokenLayout
local function layout_of(has_next_sentence)
  return {
    groups = { { "input_ids", "attention_mask", "token_type_ids" }, { "labels", "masked_lm_positions", "masked_lm_mask" },
      has_next_sentence and { "next_sentence_label", is_single = true } or nil },
    optional = { token_type_ids = not has_next_sentence, masked_lm_positions = true, masked_lm_mask = true },
    datasets = not has_next_sentence and {
      { name = "data", parts = { "input_ids", "attention_mask" } },
      { name = "labels", parts = { "labels", "masked_lm_positions", "masked_lm_mask" }, is_partial = true },
    } or nil,
    within = { masked_lm_positions = "input_ids" },
  }
end

local WORDS = {
  { key = "accuracy", name = "eval/accuracy_masked_lm", class = "AccuracyMetric" },
  { key = "perplexity", name = "eval/mlm_perplexity", class = "PerplexityMetric" },
}
local NEXT_SENTENCE = { key = "next_sentence_accuracy", name = "eval/accuracy_cls", class = "AccuracyMetric" }

---@type TrainingTaskKind
return {
  processors = { "BertHDF5DataProcessor", "HDF5IterableDataProcessor", "BertCSVDynamicMaskDataProcessor", "BertCSVDataProcessor" },
  fields = { "mlm_loss_weight", "label_smoothing" },
  open = function(module, section, refuse)
    local options = { weight = read.number(section, refuse, "mlm_loss_weight", 1),
      smoothing = read.number(section, refuse, "label_smoothing", 0, 0, 1) }
    local has_next_sentence = module:limits().next_sentence_label ~= nil
    return {
      layout = layout_of(has_next_sentence),
      loss = function(model, batch, pass)
        local words, next_sentence = model(batch, pass)
        return (losses.pretraining(words, next_sentence, batch, options))
      end,
      evaluate = function(model, batch)
        local words, next_sentence = model(batch)
        local loss, sum = losses.pretraining(words, next_sentence, batch, { weight = options.weight })
        local weights, inputs = losses.masked_words(batch), {}
        inputs.accuracy = { labels = batch.labels, predictions = words:argmax(-1), weights = weights }
        inputs.perplexity = { labels = batch.labels, loss = sum, weights = weights }
        if next_sentence then
          inputs.next_sentence_accuracy = { labels = batch.next_sentence_label, predictions = next_sentence:argmax(-1) }
        end
        return loss, inputs
      end,
      metrics = has_next_sentence and { NEXT_SENTENCE, unpack(WORDS) } or WORDS,
    }
  end,
}
