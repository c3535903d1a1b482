-- BERT with a head of fine-tuning: classes of sequences, of tokens, spans that answer a question, sentences of a summary.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local values = require "converters.vocabulary.values"
local bert = require "converters.shared.bert"
local labels = require "converters.shared.labels"
local classes = require "converters.classes.hf.bert"
local zoo = require "converters.classes.zoo.bert"

local absent, between = values.absent, rules.between

-- --- keys

---@param head string   what Hugging Face calls the classifier
local function with_head(head)
  return function(position)
    return rules.keys {
      { "bert",                     "bert", bert.encoder(position) },
      { head .. ".{weight,bias}",   "classifier.{weight,bias}" },
    }
  end
end

-- --- config; what a Hugging Face config leaves out is as its model assumes

local function dropout(from)
  if absent(from.classifier_dropout) then from.classifier_dropout = cbk.raw(from, "hidden_dropout_prob") end
end

local problems = {}
for _, kind in ipairs { "regression", "single_label_classification", "multi_label_classification" } do problems[kind] = kind end

local function problem(from)
  if not absent(from.problem_type) then return end
  if from.num_labels ~= 1 then
    cbk.fail("config", "the config does not say its problem_type: give single_label_classification or multi_label_classification")
  end
  from.problem_type = "regression"
end

local function all(...)
  local steps = { ... }
  return function(from)
    for _, step in ipairs(steps) do step(from) end
  end
end

-- --- the models

-- By the config classes of classifiers since release 2.3.
local taken = { "gelu", "relu", "silu", "gelu_new" }

local to_1_7 = { keys = with_head "classifier" "position_embeddings" }

---The steps that all heads have in common, and those between Hugging Face and a head that it has too.
---@param names table          model, name, note, aliases
---@param head? BertModel
local function family(names, head)
  local out = {
    between("cs-1.6", "cs-1.7 .. cs-2.0", to_1_7, bert.fine_tuned_classes),
    between("cs-1.7", "cs-1.8, cs-1.9, cs-2.0", bert.to_1_8, bert.all_classes),
    between("cs-2.0", "cs-2.1", bert.to_2_1, bert.all_classes),
  }
  for key, value in pairs(names) do out[key] = value end
  if head then
    local since_2_1, up_to_2_0, up_to_1_7 = bert.hugging_face(head)
    out[4] = between("hf", "cs-2.1 .. cs-2.9", since_2_1)
    out[5] = between("hf", "cs-1.8, cs-1.9, cs-2.0", up_to_2_0)
    out[6] = between("hf", "cs-1.7", up_to_1_7)
  end
  return out
end

return {
  family({ model = "bert-sequence-classifier", name = "bert/classifier", note = "BertForSequenceClassification",
    classes = { left = classes.BertForSequenceClassification, right = zoo.BertForSequenceClassification } }, {
    keys = with_head "classifier", has = { pooler = true }, taken = taken,
    config = fields.config {
      { "classifier_dropout", "task_dropout" },
      { "num_labels" },
      { "problem_type", nil, values.choice(problems) },
    },
    prepare = all(labels, dropout, problem),
  }),
  family({ model = "bert-token-classifier", name = "bert/token_classifier", note = "BertForTokenClassification",
    classes = { left = classes.BertForTokenClassification, right = zoo.BertForTokenClassification } }, {
    keys = with_head "classifier", has = {}, taken = taken,
    config = fields.config {
      { "classifier_dropout", "encoder_output_dropout_rate" },
      { "num_labels",         "num_classes" },
      fields.written.right { include_padding_in_loss = false, loss_weight = cbk.float(1) },
    },
    prepare = all(labels, dropout), defaults = { dropout_rate = cbk.float(0), attention_dropout_rate = cbk.float(0) },
  }),
  family({ model = "bert-qa", name = "bert-qa", note = "BertForQuestionAnswering",
    classes = { left = classes.BertForQuestionAnswering, right = zoo.BertForQuestionAnswering }, aliases = { ["bert-q&a"] = "bert-qa" } }, {
    keys = with_head "qa_outputs", has = {},
    config = fields.fixed.left { num_labels = 2 },
    prepare = labels,
  }),
  family { model = "bert-summarization", name = "bert/extractive_summarization", note = "BertForSummarization",
    classes = { right = zoo.BertForSummarization } },
}
