-- What all decoder models of the Model Zoo (gpt2, llama, bloom, btlm, jais, starcoder) have in common: tensors with two
-- names, and the steps between its own releases.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.engine.actions"
local values = require "converters.engine.values"

local decoder = {}

local tie = actions.tie

-- --- tensors with two names; old checkpoints hold one of the two as null

---The head, which may be the embedding.
decoder.head = rules.keys {
  { "lm_head.weight", nil, tie.or_from "embedding_layer.word_embeddings.weight" },
  { "lm_head.bias" },
}

---The embedding, which may be the head.
---@param left string
function decoder.embedding(left)
  return rules.keys {
    { left .. ".weight", "embedding_layer.word_embeddings.weight", tie.or_from "lm_head.weight" },
    { left .. ".bias",   "embedding_layer.word_embeddings.bias" },
  }
end

---The last norm, which the Model Zoo writes twice.
---@param left string
function decoder.final_norm(left)
  return rules.keys {
    { left .. ".weight", "transformer_decoder.norm.weight", tie.or_from "ln_f.weight", also_right = "ln_f.weight" },
    { left .. ".bias",   "transformer_decoder.norm.bias",   tie.or_from "ln_f.bias",   also_right = "ln_f.bias" },
  }
end

---The keys of a model without a head; the Model Zoo's has one all the same.
---@param keys Rule[]
function decoder.without_head(keys)
  return rules.keys { keys, rules.drop.right("lm_head.{weight,bias}", "a headless model has no head") }
end

---The head that the Model Zoo's model has and a headless checkpoint lacks (Converter.fill).
---@param embedding string   the embedding's key on the left
function decoder.invented_head(embedding)
  return { right = { { "lm_head.weight", actions.head.weight(embedding) }, { "lm_head.bias", actions.head.bias } } }
end

-- --- steps between releases

---1.8, 1.9 -> 2.0: tied tensors get both their names; norms are named by type.
decoder.to_2_0 = {
  keys = rules.keys {
    { "[model.]lm_head.weight", nil, tie.if_shared "embedding_layer.word_embeddings.weight" },
    { "[model.]embedding_layer.word_embeddings.weight", nil, tie.if_shared "lm_head.weight" },
    { "[model.]transformer_decoder.norm.weight", nil, tie.to "ln_f.weight" },
    { "[model.]transformer_decoder.norm.bias", nil, tie.to "ln_f.bias" },
    { "[model.]ln_f.weight", nil, tie.to "transformer_decoder.norm.weight" },
    { "[model.]ln_f.bias", nil, tie.to "transformer_decoder.norm.bias" },
    { "*" },
  },
  config = fields.config {
    { "use_rms_norm", "norm_type", values.choice { [true] = "rmsnorm", [false] = "layernorm" } },
    { "*" },
  },
  before = { left = { use_rms_norm = false }, right = { norm_type = "layernorm" } },
}

---2.0 -> 2.1: position embeddings become a module of their own.
decoder.to_2_1 = {
  keys = rules.keys {
    { "[model.]embedding_layer.position_embeddings.weight", "[model.]embedding_layer.position_embeddings.embed.weight" },
    { "[model.]embedding_layer.position_embeddings",        "[model.]embedding_layer.position_embeddings.fpe" },
    { "[model.]relative_pe_helper.relative_attention_bias.{weight,bias}",
      "[model.]embedding_layer.position_embed_helper.relative_attention_bias.{weight,bias}" },
    { "[model.]relative_pe_helper.slopes",                  "[model.]embedding_layer.position_embed_helper.slopes" },
    { "*" },
  },
  config = fields.config { { "*" } },
}

return decoder
