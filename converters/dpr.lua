-- DPR and DRAGON+: an encoder of questions and one of texts, whose outputs are compared. Two folders of Hugging Face files, one Model Zoo
-- checkpoint. Poolers are left out: the outputs are those of the first token.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local bert = require "converters.shared.bert"
local classes = require "converters.classes.hf.dpr"
local zoo = require "converters.classes.zoo.dpr"

local between, variant = rules.between, rules.variant
local written = fields.written

-- --- one encoder

---The Model Zoo's pooler is as wide as the model.
local projection = {
  forward = function(width, at)
    if width ~= 0 and width ~= at.from.hidden_size then
      at:refuse(width, ("0 or the hidden_size (%s), because the Model Zoo's pooler is as wide as the model,"):format(at.from.hidden_size))
    end
    return width ~= 0
  end,
  backward = function(has_pooler, at) return has_pooler and at.from.hidden_size or 0 end,
}

local no_pooler = "the output is that of the first token, without a pooler"

---@param folder string   of the encoder, and its section of the Model Zoo's config
---@param prefix string   of its keys in the Model Zoo
---@param model { type: string, prefix: string, class: Class }   on the left
---@param name? table     config rules of the section's name
---@return Component
local function encoder(folder, prefix, model, name)
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
    has = { mlm = true }, freezes = true,
    config = fields.config {
      fields.fixed.left { model_type = model.type }, { "projection_dim", "add_pooling_layer", projection }, name or false,
    },
    defaults = { add_pooling_layer = fields.none, share_embedding_weights = true },
  }
  return variant(converter, {
    left = folder, right = folder, classes = { left = model.class, right = zoo[prefix] },
    defaults = { left = fields.with(converter.defaults.left, { projection_dim = fields.none }), right = converter.defaults.right },
  })
end

---Since 2.4 the original converter names each section after the whole, which the Model Zoo refuses.
local section_name = fields.config {
  fields.must.right { name = fields.any_of("dpr", "bert_model", "BertModel") }, written.right { name = "dpr" },
}

local function warn_of_name()
  cbk.warn("q_encoder.name and ctx_encoder.name are 'dpr', as in the original converter's files; the Model Zoo's class accepts only "
    .. "'bert_model' there, so change both before training")
end

---@param questions table   of `encoder`
---@param texts table
---@param name? table
local function encoders(questions, texts, name)
  return { encoder("q_encoder", "question_encoder", questions, name), encoder("ctx_encoder", "ctx_encoder", texts, name) }
end

-- --- the whole

local usual = {
  compute_eval_metrics = false, mutual_information = false, pooler_type = "cls", softmax_temperature = 1, use_biencoder = true,
}
local whole = fields.config { fields.must.right { use_biencoder = true }, written.right(usual) }

---@param questions table
---@param texts table
---@return Converter since_2_4, Converter of_2_3
local function hugging_face(questions, texts)
  local of_2_3 = { components = encoders(questions, texts), config = whole }
  return variant(of_2_3, { components = encoders(questions, texts, section_name), finish = { right = warn_of_name } }), of_2_3
end

local bert_model = { type = "bert", prefix = "", class = classes.BertModel }
local dragon, dragon_2_3 = hugging_face(bert_model, bert_model)

local questions = { type = "dpr", prefix = "question_encoder.bert_model", class = classes.DPRQuestionEncoder }
local texts = { type = "dpr", prefix = "ctx_encoder.bert_model", class = classes.DPRContextEncoder }
local dpr, dpr_2_3 = hugging_face(questions, texts)

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
local to_2_3 = {
  config = fields.config { { "scale_similarity", "softmax_temperature", temperature }, { "*" } },
  finish = {
    left = function(to) fields.fill(to, { scale_similarity = false }) end,
    right = function(to) fields.fill(to, usual) end,
  },
}

return {
  {
    model = "dragon", name = "dpr", note = "BertModel (folders q_encoder and ctx_encoder) <-> DPRModel",
    aliases = { ["dragon+"] = "dpr", ["dragon-plus"] = "dpr" }, classes = { right = zoo.DPRModel },
    between("hf", "cs-2.4 .. cs-2.9", dragon),
    between("hf", "cs-2.3", dragon_2_3),
  },
  {
    model = "dpr", name = "dpr", note = "DPRQuestionEncoder (folder q_encoder) and DPRContextEncoder (folder ctx_encoder) <-> DPRModel",
    classes = { right = zoo.DPRModel },
    between("cs-2.2", "cs-2.3 .. cs-2.9", to_2_3),
    between("hf", "cs-2.4 .. cs-2.9", dpr),
    between("hf", "cs-2.3", dpr_2_3),
    between("hf", "cs-2.2", variant(dpr_2_3, { config = written.right { scale_similarity = false } })),
  },
}
