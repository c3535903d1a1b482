-- RoBERTa with its masked-language head: BERT without segments of sentences, whose positions begin behind the padding token's number.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local bert = require "converters.shared.bert"
local classes = require "converters.classes.hf.roberta"
local zoo = require "converters.classes.zoo.bert"

local between, variant = rules.between, rules.variant

-- --- keys

local bias = "bert_mlm_head.classifier.ffn.0.linear_layer.bias"

---The pooler of old files is dropped since release 2.1.
local function from_right(at) return at.side == "right" end
local pooler = rules.keys {
  { "roberta.pooler.dense.{weight,bias}",   "bert_encoder.pooler.pooler.ffn.0.linear_layer.{weight,bias}", when = from_right },
  rules.drop.left("roberta.pooler.dense.{weight,bias}", "the Model Zoo's model has no pooler with disable_nsp"),
}

---roberta-base and others: the decoder of old versions of transformers had no bias of its own.
local function has_one_bias(at) return at:source "lm_head.decoder.bias" == nil end

---@param has_pooler? boolean
local function masked_lm(position, has_pooler)
  return rules.keys {
    -- Hugging Face                         Model Zoo
    { "roberta",                            "bert_encoder",                               bert.encoder(position, not has_pooler) },
    not has_pooler and pooler,
    { "lm_head.dense.{weight,bias}",        "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer.{weight,bias}" },
    bert.norm("lm_head.layer_norm",         "bert_mlm_head.mlm_transform.ln"),
    { "lm_head.decoder.weight",             "bert_mlm_head.classifier.ffn.0.linear_layer.weight" },
    { "lm_head.decoder.bias",               bias,                                         also_left = "lm_head.bias" },
    { "lm_head.bias", bias,                 read_only = "its only name in old files",     when = has_one_bias },
    rules.only.left("lm_head.bias",         "it has the same name in the decoder", "lm_head.decoder.bias"),
  }
end

---Hugging Face has one segment where the Model Zoo has none.
local segments = {
  backward = function(count) return count == 0 and 1 or count end,
  forward = function(count) return count end,
}
local token_types = { "roberta.embeddings.token_type_embeddings.weight", function(at)
  return at.right.num_segments == 0 and at:invent { at.left.type_vocab_size, at.left.hidden_size } or nil
end }

local since_2_1, up_to_2_0 = bert.hugging_face {
  keys = masked_lm, has = { mlm = true },
  config = fields.config {
    fields.fixed.left { model_type = "roberta" },
    fields.fixed.right { mask_padding_in_positional_embed = true, disable_nsp = true, mlm_nonlinearity = "gelu" },
    { "max_position_embeddings", nil, bert.behind_padding },
    { "pad_token_id" },
    { "type_vocab_size",         "num_segments", segments },
    { false, "type_vocab_size", { backward = function(count, at) at:refuse(count, "num_segments") end } },
  },
  base = fields.without(bert.config, { "model_type", "max_position_embeddings", "mlm_nonlinearity", "disable_nsp", "num_segments" }),
  defaults = { num_segments = 0 },
  fill = { left = { token_types } },
}

return { {
  model = "roberta", name = "bert", note = "RobertaForMaskedLM <-> BertForPreTraining (configured as RoBERTa)",
  classes = { left = classes.RobertaForMaskedLM, right = zoo.BertForPreTraining },
  between("cs-2.0", "cs-2.1", bert.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", since_2_1),
  between("hf", "cs-1.8, cs-1.9, cs-2.0", variant(up_to_2_0, {
    keys = masked_lm("position_embeddings", true), fill = { left = { token_types } },
  })),
} }
