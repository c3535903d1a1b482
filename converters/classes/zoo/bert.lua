-- The Model Zoo's BERT models: bert_model.py, bert_pretrain_models.py and bert_finetune_models.py. Fields and defaults: Model Zoo 2.9.

local cbk = require "cbk"
local class = require "converters.engine.class"
local hf = require "converters.classes.hf.bert"
local parts = require "converters.classes.zoo.parts"
local history = require "converters.classes.zoo.history"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, length, depth, number, positive, rate, boolean, bias, text, choice, any, free =
  class.makers "size length depth number positive rate boolean bias text choice any free"

local bert = {}

bert.encoder_fields = {
  vocab_size = size(30522), hidden_size = size(768), num_hidden_layers = depth(12), num_heads = size(12), filter_size = size(3072),
  max_position_embeddings = length(1024), num_segments = class.deciding(number(2), 0), add_pooling_layer = boolean(true),
  -- positions
  position_embedding_type = parts.position_kinds "learned", num_relative_attention_buckets = class.free(size(32)),
  alibi_trainable_slopes = class.free(boolean(false)), rotary_dim = class.free(size()), rope_theta = class.free(positive(10000)),
  mask_padding_in_positional_embed = boolean(false), pad_token_id = class.free(number(0)), use_position_embedding = boolean(true),
  -- attention
  attention_type = text "scaled_dot_product", attention_module = class.unused(text "aiayn_attention", parts.is_plain_attention),
  extra_attention_params = class.unused(any(), parts.has_no_groups), attention_sliding_window_length = any(),
  use_projection_bias_in_attention = bias(true), use_ffn_bias_in_attention = bias(true),
  -- norms and feed-forward parts
  layer_norm_epsilon = positive(1e-5), norm_first = boolean(false), embedding_layer_norm = boolean(true),
  use_final_layer_norm = boolean(false), encoder_nonlinearity = class.deciding(choice "gelu", "swiglu"), pooler_nonlinearity = text(),
  use_ffn_bias = bias(true),
  freeze_ffn_bias_in_glu = boolean(false), dropout_rate = rate(0.1), attention_dropout_rate = rate(0.1),
  embedding_dropout_rate = rate(), initializer_range = number(0.02),
  -- muP (modelzoo/mup.lua)
  mup_base_hidden_size = free(), mup_base_filter_size = free(), attention_logits_alpha = free(1), scale_qk_dot_by_d = free(false),
  embeddings_scale = free(1), output_logits_alpha = free(), scale_output_logits_by_d = free(true),
  attention_softmax_fp32 = free(true), attention_kernel = free(),
}

function bert.body(c, since)
  local sizes = { width = "hidden_size", inner = "hidden_size" }
  local pooler = linear("pooler.pooler.ffn.0.linear_layer", "hidden_size", "hidden_size", true)
  return {
    { "embedding_layer.word_embeddings.weight", { "vocab_size", "hidden_size" } },
    parts.positions(c, since, "hidden_size", "num_heads") or false,
    c.num_segments and c.num_segments ~= 0 and { "embedding_layer.segment_embeddings.weight", { "num_segments", "hidden_size" } },
    c.embedding_layer_norm and norm("embed_ln_f", "hidden_size"),
    each("transformer_encoder.layers", "num_hidden_layers", {
      parts.attention("self_attn", sizes, c.use_projection_bias_in_attention, c.use_ffn_bias_in_attention),
      parts.feed_forward("ffn", "hidden_size", "filter_size", c.encoder_nonlinearity, c.use_ffn_bias),
      norm("norm1", "hidden_size"),
      norm("norm2", "hidden_size"),
    }),
    c.use_final_layer_norm and norm("transformer_encoder.norm", "hidden_size"),
    c.add_pooling_layer and class.may_lack("the pooler", pooler) or class.optional(pooler),
  }
end

---@param prefix string   "bert", or "bert_encoder" before the masked-language head
function bert.encoder(c, since, prefix) return below(prefix, bert.body(c, since)) end

---Positions are counted from behind the padding token's number, where padding has a position of its own.
function bert.derived(c)
  local offset = c.mask_padding_in_positional_embed and "pad_token_id + 1" or 0
  return { head_dim = "hidden_size / num_heads", position_embedding_offset = offset }
end

-- Release 1.6 had Hugging Face's classes.
local FIELDS_OF_1_6 = { num_attention_heads = "num_heads", intermediate_size = "filter_size", layer_norm_eps = "layer_norm_epsilon",
  tie_word_embeddings = "share_embedding_weights" }

---@param of_1_6 Class
---@return ClassBefore
local function before(of_1_6)
  return { class = of_1_6, config = function(section)
    local out = cbk.dict { num_labels = section.num_labels or section.num_classes }
    for name in pairs(of_1_6.fields) do
      local value = section[FIELDS_OF_1_6[name] or name]
      if value ~= nil and name ~= "num_labels" and name ~= "position_embedding_type" then out[name] = value end
    end
    return out
  end }
end

bert.BertForPreTraining = class.new "BertForPreTraining" {
  since = "1.7", before = before(hf.BertForPreTraining), history = history.bert, renamed = parts.renamed,
  fields = class.extend(bert.encoder_fields, {
    vocab_size = size(50257), max_position_embeddings = size(), num_segments = number(), disable_nsp = boolean(false),
    num_classes = class.free(size(2)), share_embedding_weights = boolean(true),
    use_ffn_bias_in_mlm = boolean(true), use_output_bias_in_mlm = boolean(true),
    mlm_nonlinearity = text(),
  }),
  derived = function(c) return class.extend(bert.derived(c), { num_segments = c.num_segments or (c.disable_nsp and 0 or 2) }) end,
  tensors = function(c, since)
    local words = "bert_encoder.embedding_layer.word_embeddings.weight"
    c.add_pooling_layer = not c.disable_nsp
    return {
      bert.encoder(c, since, "bert_encoder"),
      not c.disable_nsp and class.may_lack("the next-sentence head",
        linear("bert_cls_head.classifier.ffn.0.linear_layer", "hidden_size", "num_classes", true)),
      linear("bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer", "hidden_size", "hidden_size", c.use_ffn_bias_in_mlm),
      norm("bert_mlm_head.mlm_transform.ln", "hidden_size"),
      { "bert_mlm_head.classifier.ffn.0.linear_layer.weight", { "vocab_size", "hidden_size" }, tied = c.share_embedding_weights and words },
      c.use_output_bias_in_mlm and { "bert_mlm_head.classifier.ffn.0.linear_layer.bias", { "vocab_size" }, init = 0 },
    }
  end,
}

local pre_training = bert.BertForPreTraining

bert.Esm2ForPreTraining = class.new "Esm2ForPreTraining" {
  since = "2.1", history = history.bert, renamed = parts.renamed, fields = class.extend(pre_training.fields, {
    norm_first = boolean(true), token_dropout = boolean(false), mask_token_id = number(),
  }),
  derived = pre_training.derived, tensors = pre_training.nodes,
}

---@param head fun(c: table): TensorNode
---@param of_1_6? Class
local function fine_tuned(name, own, head, of_1_6)
  return class.new(name) {
    since = "1.7", before = before(of_1_6 or hf[name]), history = history.bert, renamed = parts.renamed,
    fields = class.extend(bert.encoder_fields, own),
    derived = bert.derived,
    tensors = function(c, since) return { bert.encoder(c, since, "bert"), head(c) } end,
  }
end

bert.BertForSequenceClassification = fine_tuned("BertForSequenceClassification", {
  num_labels = size(), problem_type = text(), task_dropout = rate(),
}, function() return linear("classifier", "hidden_size", "num_labels", true) end)

bert.BertForTokenClassification = fine_tuned("BertForTokenClassification", {
  add_pooling_layer = boolean(false), num_classes = size(), encoder_output_dropout_rate = rate(),
}, function() return linear("classifier", "hidden_size", "num_classes", true) end)

bert.BertForQuestionAnswering = fine_tuned("BertForQuestionAnswering", { add_pooling_layer = boolean(false) },
  function() return linear("classifier", "hidden_size", 2, true) end, hf.BertForTokenClassification)

bert.BertForSummarization = fine_tuned("BertForSummarization", {
  add_pooling_layer = boolean(false), num_labels = size(2), use_cls_bias = boolean(true),
}, function(c) return linear("classifier", "hidden_size", "num_labels", c.use_cls_bias) end, hf.BertForTokenClassification)

return class.module(bert)
