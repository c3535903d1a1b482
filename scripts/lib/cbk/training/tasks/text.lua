-- Decoders: each token of a text from those before.

local causal_loss = require "cstorch.models.causal_loss"
local kinds = require "converters.engine.kinds"
local read = require "cbk.training.tasks.read"
local token_samples = require "cstorch.utils.data.token_samples"

---The coefficient of the loss that keeps the experts of a mixture busy.
---@param section Dict
---@return number
local function balance_of(section, refuse)
  local name = kinds.is_dict(section.moe_params) and "moe_params" or "moe"
  if not kinds.is_dict(section[name]) then return 0 end
  local function refuse_part(field, problem) refuse(name .. "." .. field, problem) end
  return read.number(section[name], refuse_part, "load_balancing_loss_coef", 0, 0)
end

---@param section Dict
---@return cstorch.models.LossOptions
local function options_of(section, refuse, ignore)
  local by, weight = read.choice(section, refuse, "loss_scaling", { "num_tokens", "batch_size" }),
    read.number(section, refuse, "loss_weight", 1)
  if by == "num_tokens" and weight ~= 1 then ignore("loss_weight", "scales the loss with loss_scaling: batch_size") end
  return { by = by, weight = by == "num_tokens" and 1 or weight, balance = balance_of(section, refuse) }
end

---@type TrainingTaskKind
return {
  processors = { "GptHDF5MapDataProcessor", "GptHDF5DataProcessor" }, advice = "`cbk make-data` writes files for them",
  fields = { "loss_scaling", "loss_weight" },
  open = function(_, section, refuse, ignore)
    local options = options_of(section, refuse, ignore)
    return {
      layout = token_samples.TEXTS,
      loss = function(model, batch, pass) return causal_loss.of(model, batch, options, pass.recomputed) end,
      evaluate = function(model, batch)
        local logits = model(batch.input_ids)
        local loss, sum = causal_loss.cross_entropy(logits, batch, options)
        local labels, weights = batch.labels, batch.attention_mask:to "float32"
        return loss, { perplexity = { labels = labels, loss = sum, weights = weights },
          accuracy = { labels = labels, predictions = logits:argmax(-1), weights = weights } }
      end,
      metrics = {
        { key = "perplexity", name = "eval/lm_perplexity", class = "PerplexityMetric" },
        { key = "accuracy", name = "eval/accuracy", class = "AccuracyMetric" },
      },
    }
  end,
}
