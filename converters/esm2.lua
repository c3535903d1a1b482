-- ESM-2, the language model of proteins: BERT with norms before each part, and rotary positions or those of RoBERTa.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local bert = require "converters.shared.bert"
local classes = require "converters.classes.hf.esm"
local zoo = require "converters.classes.zoo.bert"

local fixed, must = fields.fixed, fields.must
local norm, interleaved = bert.norm, actions.rotary.queries

-- --- keys

local function is_rotary(at) return at.right.position_embedding_type == "rotary" end
local function is_learned(at) return not is_rotary(at) end

local layer = rules.keys {
  { "attention.self.query.{weight,bias}", "self_attn.proj_q_dense_layer.{weight,bias}", interleaved, when = is_rotary },
  { "attention.self.key.{weight,bias}",   "self_attn.proj_k_dense_layer.{weight,bias}", interleaved, when = is_rotary },
  rules.only.left("attention.self.rotary_embeddings.inv_freq", "it is computed from the config"),
  bert.linears,
  norm("attention.LayerNorm",             "norm1"),
  norm("LayerNorm",                       "norm2"),
}

local encoder = rules.keys {
  { "embeddings.word_embeddings.weight",     "embedding_layer.word_embeddings.weight" },
  { "embeddings.position_embeddings.weight", "embedding_layer.position_embeddings.embed.weight",
    also_left = { bert.position_ids }, when = is_learned },
  rules.drop.left("embeddings.position_embeddings.weight", "rotary positions do not use them", is_rotary),
  norm("embeddings.layer_norm",              "embed_ln_f"),
  { "encoder.layer.N",                       "transformer_encoder.layers.N", layer },
  norm("encoder.emb_layer_norm_after",       "transformer_encoder.norm"),
  rules.drop.left("contact_head.regression.{weight,bias}", "the Model Zoo's model predicts no contacts"),
}

local keys = rules.keys {
  -- Hugging Face                      Model Zoo
  { "esm",                             "bert_encoder", encoder },
  { "lm_head.dense.{weight,bias}",     "bert_mlm_head.mlm_transform.ffn.ffn.0.linear_layer.{weight,bias}" },
  norm("lm_head.layer_norm",           "bert_mlm_head.mlm_transform.ln"),
  { "lm_head.decoder.weight",          "bert_mlm_head.classifier.ffn.0.linear_layer.weight" },
  { "lm_head.bias",                    "bert_mlm_head.classifier.ffn.0.linear_layer.bias" },
}

-- --- config

---Learned positions begin behind the padding token's number.
local positions = {
  forward = function(kind, at)
    if kind == "absolute" then at:set("mask_padding_in_positional_embed", true) end
    return values.choice({ absolute = "learned", rotary = "rotary" }).forward(kind, at)
  end,
  backward = values.choice({ absolute = "learned", rotary = "rotary" }).backward,
}
local function check_padding(is_masked, at)
  if at.from.position_embedding_type == "learned" and not is_masked then at:refuse(is_masked, true) end
end

local max_positions = {
  forward = function(count, at)
    return at.from.position_embedding_type == "absolute" and bert.behind_padding.forward(count, at) or count
  end,
  backward = function(count, at)
    return at.from.position_embedding_type == "learned" and bert.behind_padding.backward(count, at) or count
  end,
}

local function check_mask(has_dropout, at)
  if has_dropout and values.absent(at.from.mask_token_id) then
    fields.refuse("mask_token_id", at.from.mask_token_id, "a number, with token_dropout,")
  end
  return has_dropout
end

---Null is false.
local function is_true(value) return value == true end

local function known(value) return not values.absent(value) and value or nil end

local config = fields.config {
  must.left { model_type = fields.any_of("esm", "bert") }, -- which the original converter writes
  fixed.left { hidden_act = "gelu", is_folding_model = false },
  fields.written.left { model_type = "esm", esmfold_config = cbk.null },
  fixed.right { encoder_nonlinearity = "gelu", use_final_layer_norm = true, disable_nsp = true },
  must.right { mlm_nonlinearity = fields.any_of("gelu", cbk.null), num_segments = fields.any_of(0, cbk.null) },
  { "position_embedding_type", nil, positions },
  { false, "mask_padding_in_positional_embed", { backward = check_padding } },
  { "max_position_embeddings", nil, max_positions },
  { "pad_token_id", nil, { forward = known, backward = known } },
  { "mask_token_id" },
  { "token_dropout", nil, { forward = check_mask, backward = check_mask } },
  { "emb_layer_norm_before", "embedding_layer_norm", { forward = is_true, backward = is_true } },
  { "vocab_size" },
  { "tie_word_embeddings",          "share_embedding_weights" },
  { "hidden_size" },
  { "num_attention_heads",          "num_heads" },
  { "num_hidden_layers" },
  { "intermediate_size",            "filter_size" },
  { "hidden_dropout_prob",          "dropout_rate" },
  { "attention_probs_dropout_prob", "attention_dropout_rate" },
  { "layer_norm_eps",               "layer_norm_epsilon" },
  { "initializer_range" },
  rotary.unscaled(),
  fields.used.right { "rotary_dim" },
  fields.drop.right { pooler_nonlinearity = "tanh", freeze_ffn_bias_in_glu = false },
}

---Calls `f` on a config of the right with rotary positions.
local function if_rotary(f)
  return function(of_right)
    if of_right.position_embedding_type == "rotary" then f(of_right) end
  end
end

return { {
  model = "esm-2", name = "esm2", note = "EsmForMaskedLM <-> Esm2ForPreTraining",
  classes = { left = classes.EsmForMaskedLM, right = zoo.Esm2ForPreTraining },
  {
    "hf", "cs-2.1 .. cs-2.9", keys = keys, config = config,
    defaults = { right = { attention_dropout_rate = fields.same_as "dropout_rate" } },
    prepare = { right = if_rotary(rotary.check_dim) }, finish = { right = if_rotary(rotary.set_dim) },
  },
} }
