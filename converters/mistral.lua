-- Mistral: LLaMA with a sliding window.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local decoder = require "converters.shared.decoder"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.mistral"
local zoo = require "converters.classes.zoo.decoder"

local window = fields.config {
  { "sliding_window", "attention_sliding_window_length" },
  fields.written.left { architectures = { "MistralForCausalLM" } }, -- also of models without a head
}

return { decoder.models {
  model = "mistral", note = "%s <-> GPT2LMHeadModel (configured as Mistral)",
  classes = { with_head = classes.MistralForCausalLM, headless = classes.MistralModel, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens",
  rules.between("hf", "cs-2.1 .. cs-2.9", llama.converter {
    model_type = "mistral", config = window, key_heads = 8, defaults = { attention_sliding_window_length = cbk.null },
  }, { mup = "gpt" }),
} }
