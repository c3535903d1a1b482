-- BERT with its two heads of pre-training: masked words and the next sentence.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local bert = require "converters.shared.bert"
local decoder = require "converters.shared.decoder"
local since = require "converters.modelzoo.since"
local classes = require "converters.classes.hf.bert"
local zoo = require "converters.classes.zoo.bert"

local tie, between = actions.tie, rules.between

local words, classifier = "bert_encoder.embedding_layer.word_embeddings.weight", "bert_mlm_head.classifier.ffn.0.linear_layer.weight"

-- --- keys

local hf_words, hf_decoder = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"

---Files that have each tensor once, and old ones, know the decoder's bias by its other name alone.
local function is_bias_of_decoder(at) return at.deduplicated or at:source(hf_decoder) ~= nil end

---Without pooler and next-sentence head (BertForMaskedLM) the other weights are as they were.
local function pretraining(position)
  return rules.keys {
    -- Hugging Face                                      Model Zoo
    { "bert",                                            "bert_encoder",                               bert.encoder(position) },
    { "cls.predictions.transform.dense.{weight,bias}",   "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer.{weight,bias}" },
    bert.norm("cls.predictions.transform.LayerNorm",     "bert_mlm_head.mlm_transform.ln"),
    { hf_decoder,                                        classifier, tied_left = { hf_words, decoder.is_tied } },
    { "cls.predictions.decoder.bias",                    "bert_mlm_head.classifier.ffn.0.linear_layer.bias",
      also_left = "cls.predictions.bias", tied_left = { "cls.predictions.bias", is_bias_of_decoder } },
    { "cls.seq_relationship.{weight,bias}",              "bert_cls_head.classifier.ffn.0.linear_layer.{weight,bias}" },
  }
end

---Old checkpoints hold one of the two names of a tied tensor as null, which Hugging Face does not know.
local function untied(position)
  return rules.override(pretraining(position), rules.keys {
    { hf_words,   words,      tie.or_from(classifier) },
    { hf_decoder, classifier, decoder.head(hf_words, words), tied_left = { hf_words, decoder.is_tied } },
  })
end

---The Model Zoo's model does without pooler and next-sentence head where its config says so.
local tell_of_nsp = { "bert_cls_head.classifier.ffn.0.linear_layer.weight", function()
  cbk.warn("the checkpoint has no next-sentence head (BertForMaskedLM): to train with it, add disable_nsp: true to the config that is "
    .. "written, and to convert it back to Hugging Face, take that out again")
end }

local since_2_1, up_to_2_0, up_to_1_7 = bert.hugging_face {
  keys = untied, has = { pooler = true, mlm = true },
  fill = { right = { tell_of_nsp } },
  after = { right = { freeze_ffn_bias_in_glu = false } },
}

-- --- steps between releases

local from_1_6 = pretraining "position_embeddings"

---1.8, 1.9 -> 2.0: tied tensors get both their names.
local to_2_0 = {
  keys = rules.keys {
    { "[model.]" .. words,      nil, tie.if_shared(classifier) },
    { "[model.]" .. classifier, nil, tie.if_shared(words) },
    { "*" },
  },
  config = fields.config { { "*" } },
}

local notes = {
  first = { note = "BertPretrainModel class" },
  pretraining = { note = "BertForPreTraining class" },
}

return { {
  model = "bert", name = "bert", note = "BertForPreTraining", since = { right = since.bert },
  classes = { left = classes.BertForPreTraining, right = zoo.BertForPreTraining },
  between("cs-1.6", "cs-1.7 .. cs-2.0", bert.from_1_6(from_1_6), notes.first),
  between("cs-1.7", "cs-1.8, cs-1.9, cs-2.0", bert.to_1_8, bert.all_classes),
  between("cs-1.8, cs-1.9", "cs-2.0", to_2_0, notes.pretraining),
  between("cs-2.0", "cs-2.1", bert.to_2_1, bert.all_classes),
  between("hf", "cs-2.3 .. cs-2.9", since_2_1, { mup = "bert" }),
  between("hf", "cs-2.1, cs-2.2", since_2_1),
  between("hf", "cs-1.8, cs-1.9, cs-2.0", up_to_2_0),
  between("hf", "cs-1.7", up_to_1_7),
} }
