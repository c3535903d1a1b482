-- BERT: an encoder with heads over its tokens and over its first one, of the Model Zoo and of Hugging Face. Source: bert_model.py,
-- bert_pretrain_models.py and classifier/bert_classifier_model.py of the Model Zoo 2.9, modeling_bert.py of transformers 4.48.

local activations = require "cstorch.models.activations"
local cbk = require "cbk"
local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local kinds = require "converters.engine.kinds"
local parts = require "cstorch.models.parts"
local stack = require "cstorch.models.stack"
local tensors = require "cstorch.tensors"
local zoo_layers = require "cstorch.models.zoo_layers"

---@class cstorch.models.Encoder   A description: what it computes, with the names of its tensors.
---@field place string                what is before the names of the encoder: "bert_encoder."
---@field words string
---@field positions? string           a table of learned ones
---@field first_position integer      the row of the first token's position
---@field segments? string
---@field has_usual_segment? boolean  tokens without a type have the first one
---@field embedding_scale? number
---@field embedding_norm? string
---@field frozen_id? integer          a token whose embedding gets no gradient where it is read
---@field has_padding_position? boolean   padding has the position before the first
---@field norm cstorch.models.Norm
---@field layers cstorch.models.Stack
---@field head fun(w: cstorch.models.Weights, x: cstorch.Tensor, batch: table, pass: cstorch.models.Pass): cstorch.Tensor, any
---@field classes { feature: string, name: string }   the matrix with a row for each class, and which part of a batch they are
---@field dropout cstorch.models.StackDropout
---@field rates? table<string, number>   factors of learning rates by globs, of muP
local Encoder = {}
Encoder.__index = Encoder

---@param w cstorch.models.Weights   of the encoder
---@param batch table
function Encoder:embedded(w, batch)
  local ids = batch.input_ids
  local length = ids:size(1)
  local x = w:embedding(self.words, ids)
  if self.frozen_id then x = tensors.where(ids:eq(self.frozen_id):unsqueeze(-1), x:detach(), x) end
  if self.positions then
    local at, first = tensors.arange(length):to "int64", self.first_position
    local rows = w:stored(self.positions .. ".weight"):shape()[1]
    errors.check(length + first <= tonumber(rows), "value", "the model has %d positions, and the text %d tokens", tonumber(rows) - first,
      length)
    at = at + first
    if self.has_padding_position then at = tensors.where(ids:eq(self.frozen_id), first - 1, at) end
    x = x + w:embedding(self.positions, at)
  end
  local types = batch.token_type_ids or self.has_usual_segment and ids * 0
  if self.segments and types then x = x + w:embedding(self.segments, types) end
  if self.embedding_scale then x = x * self.embedding_scale end
  return self.embedding_norm and w:norm(self.embedding_norm, x, self.norm) or x
end

---@param w cstorch.models.Weights
---@param batch table   input_ids; attention_mask, token_type_ids and masked_lm_positions may be missing
---@param pass cstorch.models.Pass
---@return cstorch.Tensor, cstorch.Tensor|nil   # what the heads give
function Encoder:forward(w, batch, pass)
  local body, seen = w:below(self.place), pass.seen or function() end
  local dropout = pass.training and self.dropout or stack.NO_DROPOUT
  local x = functional.dropout(self:embedded(body, batch), { p = dropout.embedding })
  seen("the embedding", x)
  x = stack.run(self.layers, body, x, { mask = stack.padding(batch.attention_mask), dropout = dropout, seen = seen,
    recomputed = pass.recomputed })
  return self.head(w, x, batch, pass)
end

local function rows(given, name) return tonumber(given[name .. ".weight"]:shape()[1]) end

function Encoder:vocabulary(given) return rows(given, self.place .. self.words) end
function Encoder:longest(given) return self.positions and rows(given, self.place .. self.positions) - self.first_position or math.huge end
function Encoder.has_head() return true end

---@return table<string, integer>   # by features: the numbers are below these
function Encoder:limits(given)
  local out, words = {}, self:vocabulary(given)
  out.input_ids = words
  out.token_type_ids = self.segments and rows(given, self.place .. self.segments) or nil
  out.labels = words
  local classes = self.classes
  if given[classes.name .. ".weight"] then out[classes.feature] = rows(given, classes.name) end
  return out
end

---What a sample costs: the tokens that go through a matrix, and the operations of scores and their sums.
---@param lengths table<string, integer>   of the parts of a sample
---@return fun(name: string): integer, number
function Encoder:work(lengths)
  local length, s = lengths.input_ids, self.layers
  local chosen = lengths.masked_lm_positions or length
  return function(name)
    if name:sub(1, #self.place) ~= self.place then return name:find "mlm" and chosen or 1 end
    return name:find("pooler", 1, true) and 1 or length
  end, 4 * s.depth * length * length * s.inner
end

-- --- heads

---The hidden states at positions of each sample.
---@param x cstorch.Tensor    [batch, length, width]
---@param at cstorch.Tensor   [batch, count]
---@return cstorch.Tensor     # [batch, count, width]
local function at_positions(x, at)
  local first = (tensors.arange(x:size(0)) * x:size(1)):to(at.dtype):unsqueeze(1)
  return functional.embedding(at + first, x:reshape { -1, x:size(2) })
end

---@param w cstorch.models.Weights
---@param name string
---@param x cstorch.Tensor
---@param activation fun(x: cstorch.Tensor): cstorch.Tensor
local function pooled(w, name, x, activation) return activation(w:linear(name, x:select(1, 0))) end

---@class cstorch.models.PretrainingHeads
---@field transform string
---@field norm string
---@field words string
---@field pooler string
---@field next_sentence string   which the model may lack, and then the pooler
---@field act fun(x: cstorch.Tensor): cstorch.Tensor         of the masked-language head
---@field pooler_act fun(x: cstorch.Tensor): cstorch.Tensor
---@field how cstorch.models.Norm
---@field scale? number        of logits

---@param own cstorch.models.PretrainingHeads
local function pretraining(own)
  local function scaled(x) return own.scale and x * own.scale or x end
  return function(w, x, batch)
    local focused = batch.masked_lm_positions and at_positions(x, batch.masked_lm_positions) or x
    local hidden = w:norm(own.norm, own.act(w:linear(own.transform, focused)), own.how)
    local words = scaled(w:linear(own.words, hidden))
    if not w:has(own.next_sentence .. ".weight") then return words end
    return words, scaled(w:linear(own.next_sentence, pooled(w, own.pooler, x, own.pooler_act)))
  end
end

---@param pooler string
---@param act fun(x: cstorch.Tensor): cstorch.Tensor
---@param p number   dropout of what is pooled
local function classification(pooler, act, p)
  return function(w, x, _, pass)
    return w:linear("classifier", functional.dropout(pooled(w, pooler, x, act), { p = pass.training and p or 0 }))
  end
end

-- --- the Model Zoo's

---@param c table
---@param whole Dict
---@param place string
---@return cstorch.models.Encoder
local function of_zoo(c, whole, place)
  local kind = c.position_embedding_type
  errors.check(kind == "learned" or kind == nil, "value", "position_embedding_type=%s is not emulated for BERT; learned is", tostring(kind))
  zoo_layers.check_groups(c, false)
  zoo_layers.check_base(whole, { "mup_base_hidden_size", "mup_base_filter_size" })
  local norm, masks = zoo_layers.norm("layernorm", c.layer_norm_epsilon), c.mask_padding_in_positional_embed
  local p = c.dropout_rate
  local attention = kinds.present(whole.attention_dropout_rate) and c.attention_dropout_rate or p
  local embedding = kinds.present(whole.embedding_dropout_rate) and c.embedding_dropout_rate or p
  local filter, width = zoo_layers.wider(whole, "filter_size", "mup_base_filter_size"),
    zoo_layers.wider(whole, "hidden_size", "mup_base_hidden_size")
  return setmetatable({
    place = place, words = "embedding_layer.word_embeddings", positions = kind and "embedding_layer.position_embeddings.embed",
    first_position = masks and c.pad_token_id + 1 or 0, has_padding_position = masks,
    segments = c.num_segments and c.num_segments ~= 0 and "embedding_layer.segment_embeddings" or nil, frozen_id = c.pad_token_id,
    embedding_scale = c.embeddings_scale, embedding_norm = c.embedding_layer_norm and "embed_ln_f" or nil, norm = norm,
    layers = {
      layer = "transformer_encoder.layers.%d.", inner = c.head_dim * c.num_heads,
      depth = c.num_hidden_layers, norm = norm, is_norm_first = c.norm_first,
      norms = { attention = "norm1", feed_forward = "norm2" },
      attention = { project = zoo_layers.project("self_attn", c.head_dim), scale = zoo_layers.scale(c, whole),
        output = zoo_layers.output "self_attn" },
      feed_forward = zoo_layers.feed_forward(c.encoder_nonlinearity, "ffn.ffn.0", "ffn.ffn.1"),
      final_norm = c.use_final_layer_norm and "transformer_encoder.norm" or nil,
    },
    dropout = { embedding = embedding, attention = attention, residual = p, inner = p },
    rates = (width ~= 1 or filter ~= 1) and {
      ["*transformer_encoder*attn*dense*weight"] = 1 / width, ["*transformer_encoder*ffn.ffn.0*weight"] = 1 / width,
      ["*pooler*weight"] = 1 / width, ["*transformer_encoder*ffn.ffn.1*weight"] = 1 / filter,
    } or nil,
  }, Encoder)
end

local POOLER = "pooler.pooler.ffn.0.linear_layer"

---@param c table
local function pooler_act(c) return activations.plain(c.pooler_nonlinearity or c.encoder_nonlinearity) end

local zoo, hugging_face = {}, {}

---@param c table
---@param whole Dict
---@return cstorch.models.Encoder
function zoo.BertForPreTraining(c, whole)
  local out = of_zoo(c, whole, "bert_encoder.")
  -- The class has no dropout of its own for embeddings, and a rate of attention only where the config says it.
  out.dropout.embedding = c.dropout_rate
  local head, next_sentence, _ = "bert_mlm_head.", "bert_cls_head.classifier.ffn.0.linear_layer", c.disable_nsp
  out.head = pretraining {
    transform = head .. "mlm_transform.ffn.ffn.0.linear_layer", norm = head .. "mlm_transform.ln", how = out.norm,
    words = head .. "classifier.ffn.0.linear_layer", pooler = "bert_encoder." .. POOLER, next_sentence = next_sentence,
    act = activations.plain(c.mlm_nonlinearity or c.encoder_nonlinearity), pooler_act = pooler_act(c), scale = zoo_layers.logits_scale(c),
  }
  out.classes = { feature = "next_sentence_label", name = next_sentence }
  return out
end

---@param c table
---@param whole Dict
---@return cstorch.models.Encoder
function zoo.BertForSequenceClassification(c, whole)
  local out, _ = of_zoo(c, whole, "bert."), c.problem_type
  -- Its class has a default of its own, which null does not have.
  if whole.attention_dropout_rate ~= cbk.null then out.dropout.attention = c.attention_dropout_rate end
  errors.check(c.add_pooling_layer, "value", "add_pooling_layer=false leaves the classifier nothing to read")
  out.head = classification("bert." .. POOLER, pooler_act(c), c.task_dropout or 0)
  out.classes = { feature = "labels", name = "classifier" }
  return out
end

-- --- Hugging Face's

local function of_hugging_face(c)
  errors.check(c.position_embedding_type == "absolute", "value", "position_embedding_type=%s is not computed here",
    tostring(c.position_embedding_type))
  local norm, p = { kind = "layernorm", eps = c.layer_norm_eps }, c.hidden_dropout_prob
  local function linear(name) return function(w, x) return w:linear(name, x) end end
  return setmetatable({
    place = "bert.", words = "embeddings.word_embeddings", positions = "embeddings.position_embeddings", first_position = 0,
    segments = "embeddings.token_type_embeddings", has_usual_segment = true,
    embedding_norm = "embeddings.LayerNorm", norm = norm, frozen_id = 0,
    layers = {
      layer = "encoder.layer.%d.", depth = c.num_hidden_layers, norm = norm, is_norm_first = false,
      norms = { attention = "attention.output.LayerNorm", feed_forward = "output.LayerNorm" },
      attention = { project = parts.apart("attention.self.query", "attention.self.key", "attention.self.value", c.head_dim),
        scale = c.head_dim ^ -0.5, output = linear "attention.output.dense" },
      feed_forward = parts.plain("linear", "intermediate.dense", "output.dense", c.hidden_act),
    },
    dropout = { embedding = p, attention = c.attention_probs_dropout_prob, residual = p, inner = 0 },
  }, Encoder)
end

function hugging_face.BertForPreTraining(c)
  local out, head = of_hugging_face(c), "cls.predictions."
  out.head = pretraining {
    transform = head .. "transform.dense", norm = head .. "transform.LayerNorm", how = out.norm, words = head .. "decoder",
    pooler = "bert.pooler.dense", next_sentence = "cls.seq_relationship", act = activations.plain(c.hidden_act),
    pooler_act = activations.plain "tanh",
  }
  out.classes = { feature = "next_sentence_label", name = "cls.seq_relationship" }
  return out
end

function hugging_face.BertForSequenceClassification(c)
  local out = of_hugging_face(c)
  out.head = classification("bert.pooler.dense", activations.plain "tanh", c.classifier_dropout or c.hidden_dropout_prob)
  out.classes = { feature = "labels", name = "classifier" }
  return out
end

return { zoo = zoo, hugging_face = hugging_face }
