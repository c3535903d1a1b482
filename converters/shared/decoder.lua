-- What the Model Zoo's decoder models (gpt2, llama, bloom, btlm, jais, starcoder) have in common: tensors with two
-- names, and the steps between its own releases.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local heads = require "converters.vocabulary.heads"
local values = require "converters.vocabulary.values"

local decoder = {}

-- --- keys

---The key rule of the embedding.
---@param left string   its key without `.weight`
function decoder.embedding(left)
  return rules.keys { { left .. ".{weight,bias}", "embedding_layer.word_embeddings.{weight,bias}" } }
end

---The key rule of the last norm, which the Model Zoo's model has under two names.
---@param left string
function decoder.final_norm(left)
  return rules.keys {
    { left .. ".{weight,bias}", "transformer_decoder.norm.{weight,bias}", also_right = "ln_f.{weight,bias}" },
  }
end

---The head that the Model Zoo's model has and a headless checkpoint lacks (Converter.fill).
---@param embedding string   the embedding's key on the left
local function invented_head(embedding)
  return { { "lm_head.weight", actions.head.weight(embedding) }, { "lm_head.bias", actions.head.bias } }
end

-- --- a decoder with its head and without, which are two classes of Hugging Face

---@class Decoders
---@field model string              "bloom"; without its head it is "bloom-headless"
---@field name? string              of both in the Model Zoo, default: model
---@field note string               with %s for the class of Hugging Face
---@field classes { with_head: Class, headless: Class, right: Class }
---@field aliases? table<string, string>
---@field history? table<Side, History>
---@field place string              what is before all keys but the head's: "transformer"
---@field embedding string          "word_embeddings"
---@field head? string              default: "lm_head"
---@field [integer] Converter       to Hugging Face, with the keys of the model without its head; `head_fill` as `fill`, of the head only

---@param family Decoders
---@param change fun(converter: Converter): Converter
---@return Model
local function model_of(family, class, suffix, change)
  local aliases = {}
  for alias, zoo_name in pairs(family.aliases or {}) do aliases[alias .. suffix] = zoo_name end
  local out = { model = family.model .. suffix, name = family.name or family.model, note = family.note:format(class.name),
    classes = { left = class, right = family.classes.right }, history = family.history, aliases = aliases }
  for i, converter in ipairs(family) do
    local variants = {}
    for name, one in pairs(converter.variants or {}) do variants[name] = change(one) end
    local is_step = converter[1] ~= "hf" -- between releases
    out[i] = is_step and converter or converter.variants and rules.variant(converter, { variants = variants }) or change(converter)
  end
  return out
end

---The keys of a model with its head.
---@param place string   what is before all keys but the head's
---@param keys Rule[]    of the model without its head
---@param head? string   default: "lm_head"
function decoder.with_head(place, keys, head)
  return rules.keys { { (head or "lm_head") .. ".{weight,bias}", "lm_head.{weight,bias}" }, { place, "", keys } }
end

local function without_head_fill(converter, change)
  local out = rules.variant(converter, change)
  out.head_fill = nil
  return out
end

---Both models of a family: with the language-model head, and without it (`bloom`, `bloom-headless`). `Decoders` in this file has the
---fields of the table.
---@param family Decoders
---@return Model, Model
function decoder.models(family)
  local embedding = family.embedding .. ".weight"
  local function with_head(converter)
    return without_head_fill(converter, { fill = converter.head_fill or converter.fill,
      keys = decoder.with_head(family.place, converter.keys, family.head) })
  end
  local function headless(converter)
    local fill = invented_head(embedding)
    for _, one in ipairs(converter.fill and converter.fill.right or {}) do fill[#fill + 1] = one end
    return without_head_fill(converter, { fill = { right = fill },
      keys = rules.keys { converter.keys, rules.drop.right("lm_head.{weight,bias}", "a headless model has no head") } })
  end
  return model_of(family, family.classes.with_head, "", with_head), model_of(family, family.classes.headless, "-headless", headless)
end

-- --- config fields that follow from others

---Config rules of `hidden_size` for a left without the inner size, which is four times that.
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

---For `prepare.left`: sets GPT-2's inner size to 4 times its width, if it is not given.
function decoder.inner_size(from)
  if values.absent(from.n_inner) and not values.absent(from.n_embd) then from.n_inner = 4 * from.n_embd end
end

---@private
decoder.DROPOUT_ADVICE = "add 'dropout_rate' with the rate of the training, such as 0.1, or 0.0 (no dropout)"

local function one_dropout(from)
  return cbk.raw(from, "dropout_rate") or cbk.fail("config", "the config has no 'dropout_rate', nor one for each of its parts", {
    field = "dropout_rate", found = "nothing", advice = decoder.DROPOUT_ADVICE })
end

---GPT-2's one dropout rate, for those that a config of the right leaves out (defaults.right).
decoder.dropouts = { dropout_rate = fields.none, embedding_dropout_rate = one_dropout, attention_dropout_rate = one_dropout }

---Of the right: rotary_dim where a config does not say it (defaults.right).
function decoder.quarter_of_head(from) return math.floor(heads.size(from) * 0.25) end

---The three bias fields of the right for which the left has one.
decoder.biases = { "use_projection_bias_in_attention", "use_ffn_bias_in_attention", "use_ffn_bias" }

---The value of these bias fields in a config, or an error if they differ.
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

---Steps between releases, for `rules.between`. 1.7 to 1.8: keys may begin with `model.` since 1.8.
decoder.to_1_8 = {
  keys = rules.keys {
    { "*", "model.*", when = function(at) return at.side == "right" end, read_only = "release 1.7 had no such prefix" },
    { "*" },
  },
}

---The step from release 1.8 or 1.9 to 2.0: tied tensors get both names, and norms are named by type.
decoder.to_2_0 = {
  config = fields.config {
    { "use_rms_norm", "norm_type", values.choice { [true] = "rmsnorm", [false] = "layernorm" } },
    { "*" },
  },
  defaults = { left = { use_rms_norm = false }, right = { norm_type = "layernorm" } },
}

---The step from release 1.8 or 1.9 to 2.0 for the Model Zoo's GPTJModel (gptj, gpt-neox), whose norms may lack a bias.
decoder.gptj_to_2_0 = {
  config = fields.config {
    { "use_biasless_norm", "norm_type", values.choice { [true] = "biasless-layernorm", [false] = "layernorm" } },
    { "*" },
  },
}

---The step from release 2.0 to 2.1: position embeddings become a module of their own.
decoder.to_2_1 = {
  keys = rules.keys {
    { "[model.]embedding_layer.position_embeddings.weight", "[model.]embedding_layer.position_embeddings.embed.weight" },
    { "[model.]embedding_layer.position_embeddings",        "[model.]embedding_layer.position_embeddings.fpe" },
    { "[model.]relative_pe_helper.relative_attention_bias.{weight,bias}",
      "[model.]embedding_layer.position_embed_helper.relative_attention_bias.{weight,bias}" },
    { "[model.]relative_pe_helper.slopes",                  "[model.]embedding_layer.position_embed_helper.slopes" },
    { "*" },
  },
}

return decoder
