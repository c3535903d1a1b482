-- What all decoder models of the Model Zoo (gpt2, llama, bloom, btlm, jais, starcoder) have in common: tensors with two
-- names, and the steps between its own releases.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local kinds = require "converters.engine.kinds"
local heads = require "converters.vocabulary.heads"
local values = require "converters.vocabulary.values"

local decoder = {}

local tie = actions.tie

-- --- tensors with two names; old checkpoints hold one of the two as null

---Whether a head is more than another name of the embedding.
function decoder.is_untied(at) return at.right.share_embedding_weights == false end

---Whether it is one, and the file has only the embedding.
function decoder.is_tied(at) return at.deduplicated and not decoder.is_untied(at) end

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

---The head, which may be another name of the embedding; where the config says that it is, and the two differ, that is told.
---@param left string    the embedding
---@param right string
---@param copy? Action   how it is read where it is null
---@return Action
function decoder.head(left, right, copy)
  copy = copy or tie.or_from(right)
  local function telling(act, name)
    return function(value, at)
      local other = not decoder.is_untied(at) and at:source(name)
      if kinds.is_tensor(value) and kinds.is_tensor(other) and at:differ(value, other) then
        cbk.warn(("'%s' and '%s' differ, though the config ties them; both are written as they are"):format(at.key, name))
      end
      return act(value, at)
    end
  end
  return actions.pair("copy", telling(copy.forward, left), telling(copy.backward, right), { takes_null = true, parts = 1 })
end

---The keys of a model with its head, which may be the embedding.
---@param left string        what stands before all other keys on the left
---@param embedding string   the embedding there
---@param keys Rule[]
function decoder.with_head(left, embedding, keys)
  local words = ("%s.%s.weight"):format(left, embedding)
  return rules.keys {
    { "lm_head.weight", nil, decoder.head(words, "embedding_layer.word_embeddings.weight"),
      tied_left = { words, decoder.is_tied } },
    { "lm_head.bias" },
    { left, "", keys },
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

-- --- config fields that follow from others

---Config rules of the hidden size, where the left has no field for the inner size, which is four times that.
decoder.four_times = fields.config {
  { "hidden_size", "hidden_size", {
    forward = function(size, at)
      at:set("filter_size", 4 * size)
      return size
    end,
    backward = function(size) return size end,
  } },
  { false, "filter_size", { backward = function(inner, at)
    local size = at.from.hidden_size
    if type(size) == "number" and inner ~= 4 * size then at:refuse(inner, ("4 * hidden_size (%d)"):format(4 * size)) end
  end } },
}

---Left to right: GPT-2's inner size is four times the other where it is not given (prepare.left).
function decoder.inner_size(from)
  if values.absent(from.n_inner) and not values.absent(from.n_embd) then from.n_inner = 4 * from.n_embd end
end

---Right to left: GPT-2's one dropout rate stands for those that are not given (prepare.right).
function decoder.dropouts(from)
  for _, name in ipairs { "embedding_dropout_rate", "attention_dropout_rate" } do
    if from[name] == nil then
      if from.dropout_rate == nil then cbk.fail("config", ("the config has neither '%s' nor 'dropout_rate'"):format(name)) end
      from[name] = cbk.raw(from, "dropout_rate")
    end
  end
end

---Of the right: rotary_dim where a config does not say it (before.right).
function decoder.quarter_of_head(from) return math.floor(heads.size(from) * 0.25) end

---Fields of the right that the left says with one.
decoder.biases = { "use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias" }

---Right to left: what they say, or an error where they differ.
function decoder.common_bias(from)
  local said
  for _, name in ipairs(decoder.biases) do
    local value = from[name]
    if value ~= nil and said ~= nil and value ~= said then
      cbk.fail("config", "cannot convert the config: these must be the same: " .. table.concat(decoder.biases, ", "))
    end
    if said == nil then said = value end
  end
  return said
end

-- --- steps between releases

---1.7 -> 1.8: the same names, which may begin with `model.` from then on.
decoder.to_1_8 = {
  keys = rules.keys {
    { "*", "model.*", when = function(here) return here.side == "right" end, read_only = "release 1.7 had no such prefix" },
    { "*" },
  },
  config = fields.config { { "*" } },
}

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

---The same for the Model Zoo's GPTJModel (gptj, gpt-neox, codegen), whose norms may lack a bias instead.
decoder.gptj_to_2_0 = {
  keys = decoder.to_2_0.keys,
  config = fields.config {
    { "use_biasless_norm", "norm_type", values.choice { [true] = "biasless-layernorm", [false] = "layernorm" } },
    { "*" },
  },
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
