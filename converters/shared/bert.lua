-- What all BERT models have in common: the encoder, its config, and the changes of each release. The heads are in bert.lua and
-- bert_heads.lua.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"

local fixed, must, drop = fields.fixed, fields.must, fields.drop
local variant = rules.variant

local bert = {}

-- --- keys

---A norm. Old Hugging Face files name its tensors gamma and beta.
function bert.norm(left, right)
  return rules.keys {
    { left .. ".{weight,bias}", right .. ".{weight,bias}" },
    { left .. ".{gamma,beta}",  right .. ".{weight,bias}", read_only = "its names in old files" },
  }
end
local norm = bert.norm

---A layer without its norms.
bert.linears = rules.keys {
  -- Hugging Face                              Model Zoo
  { "attention.self.query.{weight,bias}",      "self_attn.proj_q_dense_layer.{weight,bias}" },
  { "attention.self.key.{weight,bias}",        "self_attn.proj_k_dense_layer.{weight,bias}" },
  { "attention.self.value.{weight,bias}",      "self_attn.proj_v_dense_layer.{weight,bias}" },
  { "attention.output.dense.{weight,bias}",    "self_attn.proj_output_dense_layer.{weight,bias}" },
  { "intermediate.dense.{weight,bias}",        "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "output.dense.{weight,bias}",              "ffn.ffn.1.linear_layer.{weight,bias}" },
}

local layer = rules.keys {
  bert.linears,
  norm("attention.output.LayerNorm",           "norm1"),
  norm("output.LayerNorm",                     "norm2"),
}

---For `also_left` of position embeddings.
bert.position_ids = { "embeddings.position_ids", actions.buffer.positions "max_position_embeddings" }
local position_ids = bert.position_ids

---@param position string      where the position embeddings are in this release
---@param has_no_pooler? boolean
function bert.encoder(position, has_no_pooler)
  return rules.keys {
    { "embeddings.position_embeddings.weight", "embedding_layer." .. position .. ".weight",   also_left = { position_ids } },
    { "embeddings.word_embeddings.weight",     "embedding_layer.word_embeddings.weight" },
    position ~= "position_embeddings" and
    { "embeddings.position_embeddings.weight", "embedding_layer.position_embeddings.weight",  also_left = { position_ids },
      read_only = "its name up to 2.0" },
    { "embedding_layer.position_embeddings" },
    { "embeddings.token_type_embeddings.weight", "embedding_layer.segment_embeddings.weight" },
    norm("embeddings.LayerNorm",               "embed_ln_f"),
    { "encoder.layer.N",                       "transformer_encoder.layers.N",                layer },
    not has_no_pooler and
    { "pooler.dense.{weight,bias}",            "pooler.pooler.ffn.0.linear_layer.{weight,bias}" },
  }
end

-- --- config

---Checks the masked-language head's activation: the Model Zoo has a field for it, Hugging Face uses the encoder's.
local function as_encoder(field)
  return function(value, at)
    local encoder = at.from[field]
    if value ~= cbk.null and value ~= encoder then at:refuse(value, encoder) end
  end
end

---Converts the number of positions. They begin after the padding token's index, and Hugging Face also counts the rows before them.
---@param sign integer
local function beyond_padding(sign)
  return function(count, at)
    local pad = at.from.pad_token_id
    local is_whole = type(pad) == "number" and pad % 1 == 0 and pad >= 0
    if not is_whole then fields.refuse("pad_token_id", pad, "a whole number of at least 0") end
    if count + sign * (pad + 1) < 1 then at:refuse(count, ("more than pad_token_id + 1 (%d)"):format(pad + 1)) end
    return count + sign * (pad + 1)
  end
end
bert.behind_padding = { forward = beyond_padding(-1), backward = beyond_padding(1) }

bert.config = fields.config {
  fixed.left { model_type = "bert" },
  { "vocab_size" },
  { "position_embedding_type", nil, values.choice { absolute = "learned" } },
  { "max_position_embeddings" },
  { "tie_word_embeddings",          "share_embedding_weights" },
  { "hidden_size" },
  { "num_attention_heads",          "num_heads" },
  { "num_hidden_layers" },
  { "intermediate_size",            "filter_size" },
  { "hidden_act",                   "encoder_nonlinearity",            values.activation },
  { "mlm_nonlinearity", false, { forward = as_encoder "hidden_act" } },
  { false, "mlm_nonlinearity", { backward = as_encoder "encoder_nonlinearity" } },
  must.right { pooler_nonlinearity = fields.any_of("tanh", cbk.null) }, -- null: check_pooler
  { "hidden_dropout_prob",          "dropout_rate" },
  { "attention_probs_dropout_prob", "attention_dropout_rate" },
  { "layer_norm_eps",               "layer_norm_epsilon" },
  { "initializer_range" },
  must.right { num_segments = fields.any_of(2, cbk.null) },
  must.right { disable_nsp = false, use_ffn_bias_in_mlm = true, use_output_bias_in_mlm = true }, -- also of models without these parts
  drop.right { enable_vts = false, freeze_ffn_bias_in_glu = false },
}

local defaults = {
  left = { initializer_range = fields.none, position_embedding_type = fields.none },
  right = {
    initializer_range = fields.none, position_embedding_type = fields.none, attention_dropout_rate = fields.same_as "dropout_rate",
  },
}

---Since 1.8 the pooler has its own activation. If the config does not have it, it is the encoder's.
local function check_pooler(from)
  if values.absent(from.pooler_nonlinearity) and from.encoder_nonlinearity ~= "tanh" then
    fields.refuse("pooler_nonlinearity", nil, "'tanh'", ("without it the pooler uses encoder_nonlinearity, which is %s; add "
      .. "pooler_nonlinearity: tanh if that is meant"):format(fields.shown(from.encoder_nonlinearity)))
  end
end

---A model without a pooler may still have the pooler's field, as 1.7 -> 1.8 writes it. The field must have the required value, but
---changing it has no effect.
local function check_unused_pooler(from)
  local value = from.pooler_nonlinearity
  if not values.absent(value) and value ~= "tanh" then
    fields.refuse("pooler_nonlinearity", value, "'tanh'", "this model has no pooler, so the value has no effect: write "
      .. "pooler_nonlinearity: tanh to convert it")
  end
end

local function name_activations(to)
  to.pooler_nonlinearity = "tanh"
  if to.mlm_nonlinearity == nil then to.mlm_nonlinearity = cbk.raw(to, "encoder_nonlinearity") end
end

---Release 1.7 has the encoder's activation in the pooler, where Hugging Face has tanh, and always gelu in the masked-language head.
---@param zoo Dict       the model section of the Model Zoo
---@param has { pooler?: boolean, mlm?: boolean }
---@param field string   the activation's name in the config that is read
local function tell_of_activations(zoo, has, field)
  local own = zoo.encoder_nonlinearity
  if has.pooler and own ~= "tanh" then
    cbk.warn(("the pooler of release 1.7 uses %s=%s, that of Hugging Face tanh: its output differs"):format(field, fields.shown(own)))
  end
  if has.mlm and own ~= "gelu" then
    cbk.warn(("the masked-language head of release 1.7 always uses gelu, not %s=%s as releases since 1.8 do"):format(field,
      fields.shown(own)))
  end
end

local function fix_activation(to)
  if to.encoder_nonlinearity ~= "gelu" then to.mlm_nonlinearity = "gelu" end
end

-- --- Hugging Face against each release

---@class BertModel
---@field keys fun(position: string): Rule[]
---@field has { pooler?: boolean, mlm?: boolean }   the heads with an activation of their own
---@field config? table                 fields of the head
---@field base? table                   of the encoder, default: bert.config
---@field freezes? boolean              since 2.1 its configs get freeze_ffn_bias_in_glu
---@field taken? string[]              the activations that its Model Zoo class takes, if not all
---@field prepare? fun(from: Dict)      over a Hugging Face config
---@field defaults? table               defaults of its Model Zoo class, if they differ from the encoder's
---@field fill? table<Side, table[]>

local function config_of(model, more) return fields.config { model.config or false, model.base or bert.config, more } end

---@param model BertModel
---@return Converter since_2_1, Converter up_to_2_0, Converter up_to_1_7
function bert.hugging_face(model)
  local since_2_1 = {
    keys = model.keys "position_embeddings.embed",
    config = config_of(model, model.freezes and fields.written.right { freeze_ffn_bias_in_glu = false }),
    defaults = { left = defaults.left, right = fields.with(defaults.right, model.defaults or {}) },
    prepare = { left = model.prepare, right = function(from)
      if not model.has.pooler then check_unused_pooler(from) end
      check_pooler(from)
    end },
    finish = { right = function(to)
      name_activations(to)
      if model.taken then values.warn_unless_taken("encoder_nonlinearity", to.encoder_nonlinearity, model.taken) end
    end },
    fill = model.fill,
  }
  local up_to_2_0 = variant(since_2_1, {
    keys = model.keys "position_embeddings", tool = "2.0.3",
    config = config_of(model, fields.written.right { enable_vts = false }),
  })
  local up_to_1_7 = variant(up_to_2_0, {
    prepare = { left = model.prepare, right = function(from)
      if not model.has.pooler then check_unused_pooler(from) end
      tell_of_activations(from, model.has, "encoder_nonlinearity")
    end },
    finish = { right = function(to)
      tell_of_activations(to, model.has, "hidden_act")
      if model.has.mlm then fix_activation(to) end
    end },
  })
  return since_2_1, up_to_2_0, up_to_1_7
end

-- --- steps between releases

bert.fine_tuned_classes = {
  note = "BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering, and BertForSummarization classes",
}
bert.all_classes = {
  note = "BertForPreTraining, BertForSequenceClassification, BertForQuestionAnswering, and BertForSummarization classes",
}

---1.7 -> 1.8: pooler and masked-language head get activations of their own.
bert.to_1_8 = {
  prepare = { right = function(from)
    local encoder = from.encoder_nonlinearity == nil and "gelu" or from.encoder_nonlinearity
    if from.pooler_nonlinearity ~= nil and from.pooler_nonlinearity ~= encoder then
      local supported = ("encoder_nonlinearity (%s), before release 1.8,"):format(fields.shown(encoder))
      fields.refuse("pooler_nonlinearity", from.pooler_nonlinearity, supported, ("write pooler_nonlinearity: %s to convert it all "
        .. "the same, with another output of the pooler"):format(tostring(encoder)))
    end
    local field = from.mlm_nonlinearity ~= nil and "mlm_nonlinearity" or "encoder_nonlinearity"
    if (from[field] or encoder) ~= "gelu" then
      fields.refuse(field, from[field], "'gelu' in the masked-language head, before release 1.8,")
    end
  end },
  finish = { right = function(to)
    to.pooler_nonlinearity = to.encoder_nonlinearity == nil and "gelu" or cbk.raw(to, "encoder_nonlinearity")
    to.mlm_nonlinearity = "gelu"
  end },
}

---2.0 -> 2.1: position embeddings become a module of their own.
bert.to_2_1 = {
  keys = rules.keys {
    { "[model.]{bert_encoder,bert}.embedding_layer.position_embeddings.weight",
      "[model.]{bert_encoder,bert}.embedding_layer.position_embeddings.embed.weight" },
    { "[model.]{bert_encoder,bert}.embedding_layer.position_embeddings",
      "[model.]{bert_encoder,bert}.embedding_layer.position_embeddings.fpe" },
    { "*" },
  },
}

return bert
