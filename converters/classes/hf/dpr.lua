-- Hugging Face's encoders of questions and of texts: DPR (configuration_dpr.py and modeling_dpr.py of transformers 4.48), and DRAGON+,
-- which are two BertModels.

local class = require "converters.engine.class"
local bert = require "converters.classes.hf.bert"

local dpr = {}

local fields = class.extend(bert.fields, { projection_dim = class.deciding(class.kinds.number(0), 1) })

---@param name string
---@param tensors fun(c: table): TensorNode
local function new(name, tensors)
  return class.new(name) { fields = fields, derived = bert.derived, renamed = bert.renamed, tensors = tensors }
end

dpr.BertModel = new("BertModel", function(c) return bert.body(c) end)

local function encoder(name, prefix)
  return new(name, function(c)
    local has_projection = c.projection_dim and c.projection_dim > 0
    return class.below(prefix, {
      class.below("bert_model", bert.body(c)),
      has_projection and class.linear("encode_proj", "hidden_size", "projection_dim", true),
    })
  end)
end

dpr.DPRQuestionEncoder = encoder("DPRQuestionEncoder", "question_encoder")
dpr.DPRContextEncoder = encoder("DPRContextEncoder", "ctx_encoder")

return class.module(dpr)
