-- GPT-J: separate projections and parallel attention under one norm, the same on both sides, against the Model Zoo's GPTJModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local gptj = require "converters.shared.gptj"
local classes = require "converters.classes.hf.gptj"
local zoo = require "converters.classes.zoo.decoder"

local buffer = actions.buffer
local between, variant = rules.between, rules.variant
local null = cbk.null

-- --- keys

local attention = rules.keys {
  { "attn.{q,k,v}_proj.{weight,bias}", "self_attn.proj_{q,k,v}_dense_layer.{weight,bias}" },
}

---@param made? table   buffers that the way back makes from the config
local function body(made)
  return rules.keys {
    gptj.body(attention, made),
    rules.refuse.right("transformer_decoder.layers.N.norm3.{weight,bias}", "a layer of GPT-J has one norm"),
    rules.only.right("h.N.attn.{masked_bias,bias}", "made from the config"),
  }
end

-- releases up to 1.9 wrote the causal mask into the Hugging Face file
local now, then_ = body(), body {
  { "attn.bias",        buffer.causal_mask "max_position_embeddings" },
  { "attn.masked_bias", buffer.scalar(-1e9) },
}

---Hugging Face's head always has a bias.
local function zero_bias(at)
  return at.right.use_bias_in_output ~= true and at:invent { values.size_of(at.right, "vocab_size") } or nil
end

-- --- config

local config = fields.config {
  fields.fixed.left { model_type = "gptj" },
  gptj.config,
  { "rotary",             "position_embedding_type", values.choice { [true] = "rotary" } },
  { "use_bias_in_output", nil, { forward = function(has) return has end, backward = function() return true end } },
}

---Null says that whole heads are turned; to the Model Zoo it says a quarter of each (defaults.right).
local function name_whole_heads(from)
  if from.rotary_dim ~= null then return end
  from.rotary_dim = math.floor(values.size_of(from, "n_embd") / values.size_of(from, "n_head"))
  cbk.warn(("rotary_dim=null becomes %d, the head size: Hugging Face rotates whole heads then, the Model Zoo a quarter of each"):format(
    from.rotary_dim))
end

local function prepare_left(from, given)
  name_whole_heads(from)
  return gptj.prepare(from, given)
end

local hf = {
  keys = now, config = config,
  defaults = { left = { rotary = fields.none }, right = { position_embedding_type = fields.none, rotary_dim = decoder.quarter_of_head } },
  prepare = { left = prepare_left },
  head_fill = { left = { { "lm_head.bias", zero_bias } } },
}

local hf_1_9 = variant(hf, { keys = then_, tool = "2.0.3" })

return { decoder.models {
  model = "gptj", note = "%s <-> GPTJModel",
  classes = { with_head = classes.GPTJForCausalLM, headless = classes.GPTJModel, right = zoo.GPTJModel },
  place = "transformer", embedding = "wte",
  between("cs-1.7", "cs-1.8", decoder.to_1_8),
  between("cs-1.8, cs-1.9", "cs-2.0", decoder.gptj_to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.3 .. cs-2.9", hf, { mup = "gpt" }),
  between("hf", "cs-2.0 .. cs-2.2", hf),
  between("hf", "cs-1.8, cs-1.9", hf_1_9),
  between("hf", "cs-1.7", hf_1_9),
} }
