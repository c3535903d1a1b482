-- T5: a text from another one. Source: t5/model.py of the Model Zoo 2.9.

local losses = require "cstorch.models.losses"
local read = require "cbk.training.tasks.read"

---@type TokenLayout
local LAYOUT = {
  groups = { { "input_ids", "attention_mask" }, { "decoder_input_ids", "decoder_attention_mask", "labels" } },
}

---@type TrainingTaskKind
return {
  processors = { "T5HDF5DataProcessor", "HDF5IterableDataProcessor", "T5DynamicDataProcessor" },
  fields = { "mlm_loss_scaling", "lm_loss_weight", "label_smoothing" },
  open = function(_, section, refuse)
    local by = read.choice(section, refuse, "mlm_loss_scaling", { "batch_size", "num_masked", "precomputed_num_masked" })
    -- Files have no loss_weight, and without one the Model Zoo goes by the batch's size.
    if by == "precomputed_num_masked" then by = "batch_size" end
    local options = { by = by, weight = read.number(section, refuse, "lm_loss_weight", 1),
      smoothing = read.number(section, refuse, "label_smoothing", 0, 0, 1) }
    return {
      layout = LAYOUT,
      loss = function(model, batch, pass) return (losses.generation(model(batch, pass), batch, options)) end,
      evaluate = function(model, batch)
        local logits = model(batch)
        local loss, sum = losses.generation(logits, batch, { by = options.by, weight = options.weight })
        local labels, weights = batch.labels, batch.decoder_attention_mask:to "float32"
        return loss, { accuracy = { labels = labels, predictions = logits:argmax(-1), weights = weights },
          perplexity = { labels = labels, loss = sum, weights = weights } }
      end,
      metrics = {
        { key = "accuracy", name = "eval/accuracy_lm", class = "AccuracyMetric" },
        { key = "perplexity", name = "eval/perplexity_lm", class = "PerplexityMetric" },
      },
    }
  end,
}
