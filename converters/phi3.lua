-- Phi-3: LLaMA with queries, keys and values in one projection, and gate and inner projection in one.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local decoder = require "converters.shared.decoder"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.phi3"
local zoo = require "converters.classes.zoo.decoder"

local stacked, rows = actions.qkv.stacked, actions.rotary

local qkv = actions.pair("stacked qkv + rotary", function(t, at)
  local parts = stacked.forward(t, at)
  return { rows.queries.forward(parts[1], at), rows.keys.forward(parts[2], at), parts[3] }
end, function(parts, at)
  return stacked.backward({ rows.queries.backward(parts[1], at), rows.keys.backward(parts[2], at), parts[3] }, at)
end, { parts = 3 })

local layer = rules.keys {
  { "self_attn.qkv_proj.weight", actions.qkv.keys "self_attn.proj_%s_dense_layer.weight", qkv },
  { "self_attn.o_proj.weight",   "self_attn.proj_output_dense_layer.weight" },
  { "mlp.gate_up_proj.weight",   { "ffn.ffn.0.linear_layer_for_glu.weight", "ffn.ffn.0.linear_layer.weight" }, actions.split(2) },
  { "mlp.down_proj.weight",      "ffn.ffn.1.linear_layer.weight" },
}

local config = fields.config {
  { "sliding_window",    "attention_sliding_window_length" },
  { "resid_pdrop",       "dropout_rate" },
  { "embd_pdrop",        "embedding_dropout_rate" },
  { "attention_dropout", "attention_dropout_rate" },
  fields.used.left { "original_max_position_embeddings" },
}

---The class has the length of the context before longrope beside rope_scaling, where it accepts the type and the two lists only; it
---computes the factor.
local function say_original(to)
  local scaling = to.rope_scaling
  if not kinds.is_dict(scaling) then return end
  local original, most, factor = scaling.original_max_position_embeddings, to.max_position_embeddings, scaling.factor
  to.original_max_position_embeddings = cbk.raw(scaling, "original_max_position_embeddings")
  local is_computed = type(original) == "number" and type(most) == "number" and type(factor) == "number"
    and math.abs(factor - most / original) <= 1e-6 * factor
  if scaling.type == "longrope" and is_computed then scaling.factor, scaling.original_max_position_embeddings = nil, nil end
end

return { decoder.models {
  model = "phi3", note = "%s <-> GPT2LMHeadModel (configured as Phi-3)",
  classes = { with_head = classes.Phi3ForCausalLM, headless = classes.Phi3Model, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens",
  rules.between("hf", "cs-2.3 .. cs-2.9", llama.converter {
    model_type = "phi3", config = config, keys = llama.body(layer, llama.norms),
    without = { "dropout_rate", "embedding_dropout_rate", "attention_dropout_rate" }, finish = say_original,
  }),
} }
