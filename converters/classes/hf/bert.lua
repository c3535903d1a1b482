-- Hugging Face's BERT: configuration_bert.py and modeling_bert.py of transformers 4.48.

local cbk = require "cbk"
local class = require "converters.engine.class"
local kinds = require "converters.engine.kinds"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, text, free = class.makers "size depth number positive rate boolean text free"

local bert = {}

bert.fields = {
  vocab_size = size(30522), hidden_size = size(768), num_hidden_layers = depth(12), num_attention_heads = size(12),
  intermediate_size = size(3072), hidden_act = text "gelu", hidden_dropout_prob = rate(0.1), attention_probs_dropout_prob = rate(0.1),
  max_position_embeddings = size(512), type_vocab_size = size(2), initializer_range = number(0.02), layer_norm_eps = positive(1e-12),
  position_embedding_type = class.deciding(text "absolute", "relative_key"), use_cache = free(true), classifier_dropout = rate(),
  tie_word_embeddings = boolean(true),
  id2label = free(), num_labels = class.free(size()), is_decoder = boolean(false), add_cross_attention = boolean(false),
}

local DEFAULT_LABELS = 2 -- of transformers' PretrainedConfig

function bert.derived(c)
  local labels = c.num_labels and "num_labels" or kinds.is_dict(c.id2label) and { cbk.count(c.id2label), "id2label" } or DEFAULT_LABELS
  return { labels = labels, head_dim = "hidden_size / num_attention_heads" }
end

---@param has_pooler? boolean   else only files of older versions have one
function bert.body(c, has_pooler)
  return {
    { "embeddings.position_ids", { 1, "max_position_embeddings" }, buffer = true },
    { "embeddings.word_embeddings.weight", { "vocab_size", "hidden_size" } },
    { "embeddings.position_embeddings.weight", { "max_position_embeddings", "hidden_size" } },
    { "embeddings.token_type_embeddings.weight", { "type_vocab_size", "hidden_size" } },
    norm("embeddings.LayerNorm", "hidden_size"),
    each("encoder.layer", "num_hidden_layers", {
      linear("attention.self.query", "hidden_size", "hidden_size", true),
      linear("attention.self.key", "hidden_size", "hidden_size", true),
      linear("attention.self.value", "hidden_size", "hidden_size", true),
      c.position_embedding_type and c.position_embedding_type:find "^relative"
        and { "attention.self.distance_embedding.weight", { "2 * max_position_embeddings - 1", "head_dim" } },
      linear("attention.output.dense", "hidden_size", "hidden_size", true),
      norm("attention.output.LayerNorm", "hidden_size"),
      linear("intermediate.dense", "hidden_size", "intermediate_size", true),
      linear("output.dense", "intermediate_size", "hidden_size", true),
      norm("output.LayerNorm", "hidden_size"),
    }),
    has_pooler and class.may_lack("the pooler", linear("pooler.dense", "hidden_size", "hidden_size", true))
      or class.optional(linear("pooler.dense", "hidden_size", "hidden_size", true)),
  }
end

---@param prefix? string        default: "bert"
function bert.encoder(c, has_pooler, prefix) return below(prefix or "bert", bert.body(c, has_pooler)) end

---The masked-language head. Its output is the embedding, unless the config unties them.
local function predictions(c)
  return below("cls.predictions", {
    { "bias", { "vocab_size" } },
    linear("transform.dense", "hidden_size", "hidden_size", true),
    norm("transform.LayerNorm", "hidden_size"),
    { "decoder.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "bert.embeddings.word_embeddings.weight" },
    { "decoder.bias", { "vocab_size" }, tied = "cls.predictions.bias" },
  })
end

bert.renamed = { { "%.gamma$", ".weight" }, { "%.beta$", ".bias" } }

local function new(name, tensors)
  return class.new(name) { fields = bert.fields, derived = bert.derived, renamed = bert.renamed, tensors = tensors }
end

bert.BertForPreTraining = new("BertForPreTraining", function(c)
  local next_sentence = class.may_lack("the next-sentence head", linear("cls.seq_relationship", "hidden_size", 2, true))
  return { bert.encoder(c, true), predictions(c), next_sentence }
end)

bert.BertForSequenceClassification = new("BertForSequenceClassification", function(c)
  return { bert.encoder(c, true), linear("classifier", "hidden_size", "labels", true) }
end)

bert.BertForTokenClassification = new("BertForTokenClassification", function(c)
  return { bert.encoder(c), linear("classifier", "hidden_size", "labels", true) }
end)

bert.BertForQuestionAnswering = new("BertForQuestionAnswering", function(c)
  return { bert.encoder(c), linear("qa_outputs", "hidden_size", "labels", true) }
end)

return class.module(bert)
