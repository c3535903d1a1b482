-- LLaMA, of all releases since 1.9.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.llama"
local zoo = require "converters.classes.zoo.decoder"

local fixed, used = fields.fixed, fields.used
local rows = actions.rotary
local between, variant = rules.between, rules.variant

local hf = llama.converter { model_type = "llama" }

-- --- earlier releases, as what they lack

-- up to 2.2 the rotary frequencies were written into the Hugging Face file
local output_with_frequencies = rules.keys {
  { "self_attn.o_proj.weight", "self_attn.proj_output_dense_layer.weight",
    also_left = { { "self_attn.rotary_emb.inv_freq", rows.frequencies(10000) } } },
  { "self_attn.o_proj.bias", "self_attn.proj_output_dense_layer.bias" },
}
local function body(keys) return llama.body(llama.attention(output_with_frequencies, keys), llama.norms, llama.feed_forward) end
local then_2_0, then_1_9 = body(rows.keys_2_0), body(rows.keys_1_9)

local rope_fields = { "rope_scaling", "rope_parameters", "pos_scaling_factor", "pos_scaling_type", "pos_scaling_extra_args", "rope_theta" }

local hf_2_0 = variant(hf, {
  keys = then_2_0, tool = "2.0.3",
  config = fields.config {
    fields.without(hf.config, { "num_key_value_heads", unpack(rope_fields) }),
    { "num_key_value_heads", "extra_attention_params", values.grouped_queries_2_0 },
    used.left { "rope_scaling", "rope_parameters", "rope_theta" },
    fixed.right { use_position_embedding = true },
  },
})

local hf_1_9 = variant(hf_2_0, {
  keys = then_1_9,
  config = fields.config {
    fields.without(hf_2_0.config, { "norm_type", "use_rms_norm", "num_key_value_heads" }),
    used.left { "num_key_value_heads" },
    fixed.right { use_rms_norm = true },
  },
  defaults = { right = { use_rms_norm = false } },
})

-- what Hugging Face's fields can say since then
local history = fields.with(rotary.unscaled_before_2_1(), {
  num_key_value_heads = { "2.0", function(groups, from) return groups == from.num_attention_heads end,
    says = "as many as num_attention_heads" },
  rope_theta = { "2.1", 10000 },
})

return { decoder.models {
  model = "llama", note = "%s <-> GPT2LMHeadModel (configured as LLaMA)",
  classes = { with_head = classes.LlamaForCausalLM, headless = classes.LlamaModel, right = zoo.GPT2LMHeadModel },
  history = history, aliases = { llamaV2 = "llama", ["code-llama"] = "llama", wizardlm = "llama" },
  place = "model", embedding = "embed_tokens",
  between("cs-1.9", "cs-2.0", decoder.to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf, { mup = "gpt" }),
  between("hf", "cs-2.0", hf_2_0, { mup = "gpt" }),
  between("hf", "cs-1.9", hf_1_9, { mup = "gpt" }),
} }
