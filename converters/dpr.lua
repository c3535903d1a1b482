-- DPR and DRAGON+: an encoder of questions and one of texts, whose outputs are compared. Two folders of Hugging Face files, one Model Zoo
-- checkpoint. Poolers are left out: the outputs are those of the first token.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local bert = require "converters.shared.bert"
local classes = require "converters.classes.hf.dpr"
local zoo = require "converters.classes.zoo.dpr"

local between, variant = rules.between, rules.variant
local written = fields.written

-- --- one encoder

---DPR's encoders project the output of the first token if this width is not 0. The Model Zoo has no such layer, and with pooler_type: cls
---it does not use its pooler.
local projection = {
  forward = function(width, at)
    if width ~= 0 then at:refuse(width, "0 (the Model Zoo has no encode_proj)") end
    return false
  end,
  backward = function() return 0 end,
}

---BertModel has no such layer: the field is no more than a name of the Model Zoo's pooler, which is as wide as the model.
local unused_projection = {
  forward = function(width, at)
    if width ~= 0 and width ~= at.from.hidden_size then at:refuse(width, ("0 or the hidden_size (%s)"):format(at.from.hidden_size)) end
    return width ~= 0
  end,
  backward = function(has_pooler, at) return has_pooler and at.from.hidden_size or 0 end,
}

---The original converter names each section after the whole, which the Model Zoo refuses.
local section_name = fields.must.right { name = fields.any_of("bert_model", "BertModel", "dpr", cbk.null) }

local no_pooler = "the output is that of the first token, without a pooler"

---@param folder string   of the encoder, and its section of the Model Zoo's config
---@param prefix string   of its keys in the Model Zoo
---@param model { type: string, prefix: string, class: Class, projection: FieldAction }   on the left
---@param freezes boolean   whether the release has freeze_ffn_bias_in_glu
---@return Component
local function encoder(folder, prefix, model, freezes)
  local converter = bert.hugging_face {
    keys = function(position)
      return rules.keys {
        { model.prefix, prefix, rules.keys {
          bert.encoder(position, true),
          rules.drop.left("pooler.dense.{weight,bias}", no_pooler),
          rules.drop.right("pooler.pooler.ffn.0.linear_layer.{weight,bias}", no_pooler),
        } },
      }
    end,
    has = { mlm = true }, freezes = freezes,
    config = fields.config {
      fields.must.left { model_type = fields.any_of(model.type, "bert") }, -- which the original converter writes
      written.left { model_type = model.type }, { "projection_dim", "add_pooling_layer", model.projection }, section_name,
    },
    defaults = { add_pooling_layer = fields.none, share_embedding_weights = true },
  }
  return variant(converter, {
    left = folder, right = folder, named = "bert_model", classes = { left = model.class, right = zoo[prefix] },
    defaults = { left = fields.with(converter.defaults.left, { projection_dim = fields.none }), right = converter.defaults.right },
  })
end

-- --- the whole

local usual = {
  compute_eval_metrics = false, mutual_information = false, pooler_type = "cls", softmax_temperature = 1, use_biencoder = true,
}
local whole = fields.config { fields.must.right { use_biencoder = true }, written.right(usual) }

---@param questions table
---@param texts table
---@param freezes boolean
---@return Component[]
local function encoders(questions, texts, freezes)
  return { encoder("q_encoder", "question_encoder", questions, freezes), encoder("ctx_encoder", "ctx_encoder", texts, freezes) }
end

local bert_model = { type = "bert", prefix = "", class = classes.BertModel, projection = unused_projection }
local dragon = { components = encoders(bert_model, bert_model, true), config = whole }

local questions = { type = "dpr", prefix = "question_encoder.bert_model", class = classes.DPRQuestionEncoder,
  projection = projection }
local texts = { type = "dpr", prefix = "ctx_encoder.bert_model", class = classes.DPRContextEncoder, projection = projection }
local dpr = { components = encoders(questions, texts, true), config = whole }
local dpr_2_2 = { components = encoders(questions, texts, false), config = written.right { scale_similarity = false } }

-- --- 2.2 -> 2.3: scores are divided by a number, where a switch divided them by the width's root

local temperature = {
  forward = function(is_scaled, at) return is_scaled and cbk.float(at.from.q_encoder.hidden_size ^ 0.5) or cbk.float(1) end,
  backward = function(divisor, at)
    local root = at.from.q_encoder.hidden_size ^ 0.5
    if type(divisor) ~= "number" then at:refuse(divisor, "a number") end
    if math.abs(divisor - root) <= 1 then return true end
    if divisor ~= 1 then
      cbk.warn(("softmax_temperature=%g becomes scale_similarity=false: release 2.2 divides scores by %g or not at all"):format(divisor,
        root))
    end
    return false
  end,
}
---Release 2.2 does not have the field, which is false there.
---@param to Dict
---@param value boolean|nil   in sections that have the other one
local function set_frozen_biases(to, value)
  for _, name in ipairs { "q_encoder", "ctx_encoder" } do
    local section = to[name]
    if kinds.is_dict(section) and (section.freeze_ffn_bias_in_glu or nil) == nil then
      to[name] = cbk.copy(section)
      to[name].freeze_ffn_bias_in_glu = value
    end
  end
end

local to_2_3 = {
  config = fields.config { { "scale_similarity", "softmax_temperature", temperature }, { "*" } },
  finish = {
    left = function(to)
      fields.fill(to, { scale_similarity = false })
      set_frozen_biases(to, nil)
    end,
    right = function(to)
      fields.fill(to, usual)
      set_frozen_biases(to, false)
    end,
  },
}

return {
  {
    model = "dragon", name = "dpr", note = "BertModel (folders q_encoder and ctx_encoder) <-> DPRModel",
    aliases = { ["dragon+"] = "dpr", ["dragon-plus"] = "dpr" }, classes = { right = zoo.DPRModel },
    between("hf", "cs-2.3 .. cs-2.9", dragon),
  },
  {
    model = "dpr", name = "dpr", note = "DPRQuestionEncoder (folder q_encoder) and DPRContextEncoder (folder ctx_encoder) <-> DPRModel",
    classes = { right = zoo.DPRModel },
    between("cs-2.2", "cs-2.3 .. cs-2.9", to_2_3),
    between("hf", "cs-2.3 .. cs-2.9", dpr),
    between("hf", "cs-2.2", dpr_2_2),
  },
}
