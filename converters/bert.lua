-- BERT with its two heads of pre-training: masked words and the next sentence.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local bert = require "converters.shared.bert"
local classes = require "converters.classes.hf.bert"
local zoo = require "converters.classes.zoo.bert"

local between = rules.between

-- --- keys

local function has_decoder_alone(at)
  return at:source "cls.predictions.decoder.weight" ~= nil and at:source "cls.predictions.decoder.bias" == nil
end

---Without pooler and next-sentence head (BertForMaskedLM) the other weights are as they were.
local function pretraining(position)
  return rules.keys {
    -- Hugging Face                                      Model Zoo
    { "bert",                                            "bert_encoder",                               bert.encoder(position) },
    { "cls.predictions.transform.dense.{weight,bias}",   "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer.{weight,bias}" },
    bert.norm("cls.predictions.transform.LayerNorm",     "bert_mlm_head.mlm_transform.ln"),
    { "cls.predictions.decoder.weight",                  "bert_mlm_head.classifier.ffn.0.linear_layer.weight" },
    { "cls.predictions.decoder.bias",                    "bert_mlm_head.classifier.ffn.0.linear_layer.bias",
      also_left = "cls.predictions.bias" },
    { "cls.predictions.bias",                            "bert_mlm_head.classifier.ffn.0.linear_layer.bias",
      read_only = "its only name in old files", when = has_decoder_alone },
    { "cls.seq_relationship.{weight,bias}",              "bert_cls_head.classifier.ffn.0.linear_layer.{weight,bias}" },
  }
end

---The Model Zoo's model does without pooler and next-sentence head where its config says so.
local tell_of_nsp = { "bert_cls_head.classifier.ffn.0.linear_layer.weight", function()
  cbk.warn("the checkpoint has no next-sentence head (BertForMaskedLM): to train with it, add disable_nsp: true to the config that is "
    .. "written, and to convert it back to Hugging Face, take that out again")
end }

local since_2_1, up_to_2_0, up_to_1_7 = bert.hugging_face {
  keys = pretraining, has = { pooler = true, mlm = true }, freezes = true,
  fill = { right = { tell_of_nsp } },
}

-- 1.6 -> 1.7: the encoder of Hugging Face's names becomes the Model Zoo's own
local to_1_7 = { keys = pretraining "position_embeddings", note = "BertPretrainModel class" }

-- 1.8, 1.9 -> 2.0: tied tensors get both their names
local to_2_0 = { note = "BertForPreTraining class" }

return { {
  model = "bert", name = "bert", note = "BertForPreTraining",
  classes = { left = classes.BertForPreTraining, right = zoo.BertForPreTraining },
  between("cs-1.6", "cs-1.7 .. cs-2.0", to_1_7),
  between("cs-1.7", "cs-1.8, cs-1.9, cs-2.0", bert.to_1_8, bert.all_classes),
  between("cs-1.8, cs-1.9", "cs-2.0", to_2_0),
  between("cs-2.0", "cs-2.1", bert.to_2_1, bert.all_classes),
  between("hf", "cs-2.3 .. cs-2.9", since_2_1, { mup = "bert" }),
  between("hf", "cs-2.1, cs-2.2", since_2_1),
  between("hf", "cs-1.8, cs-1.9, cs-2.0", up_to_2_0),
  between("hf", "cs-1.7", up_to_1_7),
} }
