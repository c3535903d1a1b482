-- The Model Zoo's DPR (dpr/model.py and dpr_model.py): two BERT encoders. Fields and defaults: Model Zoo 2.9.

local class = require "converters.engine.class"
local bert = require "converters.classes.zoo.bert"
local history = require "converters.classes.zoo.history"

local number, boolean, text, any, free = class.makers "number boolean text any free"

local dpr = {}

local fields = class.extend(bert.encoder_fields, {
  vocab_size = class.kinds.size(50257), max_position_embeddings = class.kinds.size(), num_segments = number(), disable_nsp = boolean(false),
  add_pooling_layer = boolean(false), mlm_nonlinearity = text(), share_embedding_weights = boolean(),
})

---Whether there is a pooler, DPR's pooler_type says.
---@param prefix? string
local function encoder(prefix)
  return class.new "BertModel" {
    fields = fields, renamed = bert.BertForPreTraining.renamed,
    derived = function(c) return class.extend(bert.derived(c), { num_segments = c.num_segments or (c.disable_nsp and 0 or 2) }) end,
    tensors = function(c, since)
      c.add_pooling_layer = false
      return prefix and bert.encoder(c, since, prefix) or bert.body(c, since)
    end,
  }
end

dpr.question_encoder, dpr.ctx_encoder = encoder "question_encoder", encoder "ctx_encoder"

dpr.DPRModel = class.new "DPRModel" {
  since = "2.2", history = { q_encoder = history.bert, ctx_encoder = history.bert },
  fields = {
    q_encoder = any(), ctx_encoder = any(), encoder = any(), pooler_type = text "cls", use_biencoder = boolean(true),
    softmax_temperature = class.free(number(1)), mutual_information = free(false), compute_eval_metrics = free(false),
    selected_encoder = free(), scale_similarity = free(),
  },
  tensors = function(c)
    return { class.part("question_encoder", encoder(), c.q_encoder), class.part("ctx_encoder", encoder(), c.ctx_encoder) }
  end,
}

return class.module(dpr)
