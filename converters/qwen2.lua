-- Qwen2 and Qwen2.5: LLaMA with biases of queries, keys and values.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.qwen2"
local zoo = require "converters.classes.zoo.decoder"

local config = fields.config {
  fields.fixed.right { use_projection_bias_in_attention = true },
  { "use_sliding_window", false, values.lost(false, "the Model Zoo has a window in all layers or in none, so logits change") },
  { "layer_types", false, llama.layer_types "full_attention" },
  rotary.scaling({ "linear", "yarn", "llama3", "longrope" }, true),
}

return { decoder.models {
  model = "qwen2", note = "%s <-> GPT2LMHeadModel (configured as Qwen2)",
  classes = { with_head = classes.Qwen2ForCausalLM, headless = classes.Qwen2Model, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens",
  rules.between("hf", "cs-2.5 .. cs-2.9", llama.converter {
    model_type = "qwen2", config = config, key_heads = 32,
    without = { "use_projection_bias_in_attention", "rope_scaling", "rope_parameters", "pos_scaling_factor", "pos_scaling_type",
      "pos_scaling_extra_args" },
  }, { mup = "gpt" }),
} }
