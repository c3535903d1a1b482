-- Hugging Face's RoBERTa: configuration_roberta.py and modeling_roberta.py of transformers 4.48.

local class = require "converters.engine.class"
local bert = require "converters.classes.hf.bert"

local linear, norm = class.linear, class.norm

local roberta = {}

roberta.RobertaForMaskedLM = class.new "RobertaForMaskedLM" {
  fields = class.extend(bert.fields, { vocab_size = class.kinds.size(50265), pad_token_id = class.kinds.number(1) }),
  derived = bert.derived, renamed = bert.renamed,
  tensors = function(c)
    return { bert.encoder(c, false, "roberta"), class.below("lm_head", {
      { "bias", { "vocab_size" } },
      linear("dense", "hidden_size", "hidden_size", true),
      norm("layer_norm", "hidden_size"),
      { "decoder.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "roberta.embeddings.word_embeddings.weight" },
      { "decoder.bias", { "vocab_size" }, tied = "lm_head.bias" },
    }) }
  end,
}

return class.module(roberta)
