-- BERT with a classifier: the class of a text. Source: bert/classifier/model.py of the Model Zoo 2.9.

local losses = require "cstorch.models.losses"
local read = require "cbk.training.tasks.read"

---@type TokenLayout
local LAYOUT = {
  groups = { { "input_ids", "attention_mask", "token_type_ids" }, { "labels", is_single = true } },
  optional = { token_type_ids = true },
}

---@type TrainingTaskKind
return {
  processors = { "HDF5IterableDataProcessor" }, fields = { "mlm_loss_weight", "mlm_nonlinearity", "share_embedding_weights" },
  open = function(module, section, refuse)
    read.choice(section, refuse, "problem_type", { "single_label_classification" })
    local metrics, classes = { { key = "accuracy", name = "eval/accuracy", class = "AccuracyMetric" } }, module:limits().labels
    if classes == 2 then
      metrics[2] = { key = "f1", name = "eval/f1_score", class = "FBetaScoreMetric",
        options = { num_classes = classes, beta = 1, average_type = "micro" } }
    end
    return {
      layout = LAYOUT,
      loss = function(model, batch, pass) return losses.classification(model(batch, pass), batch) end,
      evaluate = function(model, batch)
        local logits = model(batch)
        local predicted = { labels = batch.labels, predictions = logits:argmax(-1) }
        return losses.classification(logits, batch), { accuracy = predicted, f1 = predicted }
      end,
      metrics = metrics,
    }
  end,
}
