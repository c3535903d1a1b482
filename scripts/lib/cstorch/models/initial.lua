-- The first values of a model of the Model Zoo that is to be trained. Source: gpt2_model.py, gptj_model.py, bert_model.py,
-- bert_pretrain_models.py, bert_classifier_model.py, t5_model.py, EmbeddingLayer.py and mup_utils.py of the Model Zoo 2.9.

local class_tensors = require "converters.engine.class_tensors"
local distributions = require "cstorch.models.distributions"
local errors = require "cstorch.errors"
local keys = require "converters.engine.keys"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local positions = require "cstorch.nn.positions"
local tensors = require "cstorch.tensors"
local zoo_layers = require "cstorch.models.zoo_layers"

local scaled, stated = distributions.scaled, distributions.stated

local initial = {}

---@class cstorch.models.FirstValues   How a class begins.
---@field fields string[]   of a config, with initializers
---@field of fun(list: ClassTensors): table<string, cstorch.models.Initializer>   by places
---@field places { [1]: string, [2]: string }[]   which place a tensor has, by its key; the first that fits

---@param list ClassTensors
local function usual_of(list)
  local std = list.values.initializer_range or 0.02
  errors.check_field(std > 0, "initializer_range", "expected a number above 0, found %s", errors.show(std))
  return { name = "truncated_normal", std = std }
end

-- --- decoders

---That of the router of a mixture; nil if the config has none.
---@param list ClassTensors
local function stated_gate(list)
  local name = kinds.present(list.config.moe_params) and "moe_params" or "moe"
  local moe = list.config[name]
  return kinds.is_dict(moe) and stated(moe, "gate_initializer", name) or nil
end

---Those of GPT2LMHeadModel: embeddings, matrices, their outputs and the router.
---@param list ClassTensors
local function of_decoder(list)
  local config, usual = list.config, usual_of(list)
  local all, by_depth = stated(config, "initializer"), (2 * list.values.num_hidden_layers) ^ -0.5
  local out = { embedding = stated(config, "embedding_initializer") or usual, matrix = all or usual,
    ffn = stated(config, "ffn_initializer") or all or usual, gate = all or stated_gate(list) or usual,
    head = { name = "normal", std = usual.std } }
  local output, ffn_output = stated(config, "output_layer_initializer"), stated(config, "ffn_output_layer_initializer")
  local wider = zoo_layers.wider(config, "hidden_size", "mup_base_hidden_size")
  if kinds.present(config.mup_base_hidden_size) then
    out.matrix, out.ffn = scaled(out.matrix, wider ^ -0.5), scaled(out.ffn, wider ^ -0.5)
    output = scaled(output or usual, wider ^ -0.5 * by_depth)
  end
  if kinds.present(config.mup_base_filter_size) then
    ffn_output = scaled(ffn_output or usual, zoo_layers.wider(config, "filter_size", "mup_base_filter_size") ^ -0.5 * by_depth)
  end
  out.output = output or not all and scaled(usual, by_depth) or all
  out.ffn_output = ffn_output or out.output
  return out
end

---Those of GPTJModel, where outputs are not smaller by depth. With muP, it scales those that it has by default alone.
---@param list ClassTensors
local function of_gptj(list)
  local config, usual = list.config, usual_of(list)
  local matrix = stated(config, "attention_initializer") or stated(config, "initializer")
  local output = stated(config, "output_layer_initializer")
  local ffn, ffn_output = stated(config, "ffn_initializer") or output, stated(config, "ffn_output_layer_initializer") or output
  local width = zoo_layers.wider(config, "hidden_size", "mup_base_hidden_size") ^ -0.5
  local filter = zoo_layers.wider(config, "filter_size", "mup_base_filter_size") ^ -0.5
  local by_depth = kinds.present(config.mup_base_hidden_size) and (2 * list.values.num_hidden_layers) ^ -0.5 or 1
  return { embedding = stated(config, "embedding_initializer") or usual, matrix = matrix or scaled(usual, width),
    ffn = ffn or scaled(usual, width), gate = stated_gate(list) or usual, head = { name = "normal", std = usual.std },
    output = output or scaled(usual, width * by_depth), ffn_output = ffn_output or scaled(usual, filter * by_depth) }
end

local DECODER = {
  fields = { "initializer", "embedding_initializer", "output_layer_initializer", "ffn_initializer", "ffn_output_layer_initializer" },
  of = of_decoder,
  places = {
    { "^embedding_layer%.", "embedding" }, { "^lm_head%.", "head" }, { "%.ffn%.gate%.", "gate" },
    { "%.proj_output_dense_layer%.", "output" }, { "ffn.*%f[%d]1%.linear_layer", "ffn_output" }, { "%.ffn%.", "ffn" }, { "", "matrix" },
  },
}

local GPTJ = { fields = { "attention_initializer", unpack(DECODER.fields) }, of = of_gptj, places = DECODER.places }

-- --- BERT

---Those of embeddings and matrices. With muP they are the same: bert_model.py scales copies of them, which it does not use.
---@param list ClassTensors
local function of_bert(list)
  local config, usual, padding = list.config, usual_of(list), list.values.pad_token_id or 0
  local all = stated(config, "default_initializer") or usual
  local out = { matrix = all, head = usual, classifier = { name = "normal", std = 0.02 } }
  out.words = stated(config, "embeddings_initializer") or all
  -- A padding token above 0 makes its row 0, and with it the whole tables that have no such row.
  if padding ~= 0 then
    out.words, out.positions, out.segments = distributions.copied(out.words), { name = "zeros" }, { name = "zeros" }
    out.words.zero_row = padding
  else
    out.positions = stated(config, "position_embeddings_initializer") or all
    out.segments = stated(config, "segment_embeddings_initializer") or all
  end
  return out
end

local BERT = {
  fields = { "default_initializer", "embeddings_initializer", "position_embeddings_initializer", "segment_embeddings_initializer" },
  of = of_bert,
  places = {
    { "%.word_embeddings%.", "words" }, { "%.position_embeddings%.", "positions" }, { "%.segment_embeddings%.", "segments" },
    { "^bert_%l+_head%.", "head" }, { "^classifier%.", "classifier" }, { "", "matrix" },
  },
}

-- --- T5

---Those with which the original Transformer began.
---@param d_kv integer
---@param factor number
local function of_transformer(d_kv, factor)
  local matrix = { name = "xavier_uniform", gain = 1 / 3 }
  return { words = { name = "truncated_normal", std = 1 }, query = { name = "xavier_uniform", gain = 1 / 3 / d_kv ^ 0.5 },
    matrix = matrix, encoder_output = matrix, decoder_output = matrix, ffn = { name = "xavier_uniform" },
    encoder_ffn_output = { name = "xavier_uniform" }, decoder_ffn_output = { name = "xavier_uniform" },
    relative = { name = "xavier_uniform" }, head = { name = "normal", std = factor } }
end

---@param list ClassTensors
local function of_t5(list)
  local c, config = list.values, list.config
  local factor, width = c.initializer_factor or 1, c.d_model
  errors.check_field(factor >= 0, "initializer_factor", "expected a number from 0, found %s", errors.show(factor))
  if c.use_transformer_initialization then return of_transformer(c.d_kv, factor) end
  local function normal(std) return { name = "normal", std = factor * std } end
  local has_base, has_filter = kinds.present(config.mup_base_d_model), kinds.present(config.mup_base_d_ff)
  local words = has_base and width ^ -0.5 or 1
  local heads = has_base and kinds.present(config.mup_base_d_kv) and (width / (c.d_kv * c.num_heads)) ^ 0.5 or 1
  local out = { words = normal(words), head = normal(words), query = normal((width * c.d_kv) ^ -0.5), matrix = normal(width ^ -0.5),
    ffn = normal(width ^ -0.5), relative = { name = "xavier_uniform" } }
  local depths = { encoder = c.encoder_num_hidden_layers, decoder = c.decoder_num_hidden_layers or c.encoder_num_hidden_layers }
  for side, depth in pairs(depths) do
    -- t5_model.py multiplies by the depth with muP; it does not divide by it.
    out[side .. "_output"] = normal(width ^ -0.5 * heads * (has_base and 2 * depth or 1))
    out[side .. "_ffn_output"] = normal(c.d_ff ^ -0.5 * (has_filter and 2 * depth or 1))
  end
  return out
end

local T5 = {
  fields = {}, of = of_t5,
  places = {
    { "%.relative_attention_bias%.", "relative" }, { "_embeddings%.", "words" }, { "^lm_head%.", "head" },
    { "%.proj_q_dense_layer%.", "query" }, { "^encoder%..*%.proj_output_dense_layer%.", "encoder_output" },
    { "^decoder%..*%.proj_output_dense_layer%.", "decoder_output" }, { "^encoder%..*%.ffn%.ffn%.1%.", "encoder_ffn_output" },
    { "^decoder%..*%.ffn%.ffn%.1%.", "decoder_ffn_output" }, { "%.ffn%.", "ffn" }, { "", "matrix" },
  },
}

---@type table<string, cstorch.models.FirstValues>
local CLASSES = { BertForPreTraining = BERT, BertForSequenceClassification = BERT, T5ForConditionalGeneration = T5, GPTJModel = GPTJ }

---How models of a class begin.
---@param of Class
---@return cstorch.models.FirstValues
local function rules_of(of) return CLASSES[of.name] or DECODER end

---The fields of a config with initializers.
---@param of Class
---@return string[]
function initial.fields(of) return rules_of(of).fields end

---@param rules cstorch.models.FirstValues
---@param key string
local function place_of(rules, key)
  for _, place in ipairs(rules.places) do
    if key:find(place[1]) then return place[2] end
  end
end

---@param shape integer[]
---@param one cstorch.models.Initializer
local function drawn(shape, one)
  local out = distributions.values(shape, one)
  if one.zero_row then out = tensors.where(tensors.arange(shape[1]):eq(one.zero_row):unsqueeze(1), 0, out) end
  return out
end

---The values of buffers, which follow from the config.
---@type table<string, fun(shape: integer[]): cstorch.Tensor>   by the last part of their keys
local BUFFERS = { slopes = function(shape) return positions.alibi_slopes(shape[1]):reshape(shape) end }

---The first values of all tensors that a new model has. Each has random numbers of its own, so that a tensor is the same in models of
---other depths.
---@param list ClassTensors
---@param seed integer
---@return table<string, cstorch.Tensor>   # by key; tied tensors are one
function initial.values(list, seed)
  local rules, out = rules_of(list.class), {}
  local by_place = rules.of(list)
  for _, one in ipairs(list) do
    local shape, fixed = class_tensors.shape(one), BUFFERS[naming.last(one.key)]
    if fixed then
      out[one.key] = fixed(shape)
    elseif not (one.buffer or one.optional or one.foreign or one.tied_to) then
      local own = by_place[place_of(rules, one.key)]
      tensors.manual_seed(keys.seed_of(one.key, seed))
      out[one.key] = one.init and tensors.full(shape, one.init) or drawn(shape, own)
    end
  end
  for _, one in ipairs(list) do
    if one.tied_to then out[one.key] = out[one.tied_to] end
  end
  return out
end

return initial
