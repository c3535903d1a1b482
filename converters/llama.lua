-- LLaMA: half-split rotary rows and separate projections against the Model Zoo's GPT2LMHeadModel with rotary pairs.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.llama"
local zoo = require "converters.classes.zoo.decoder"

local only = rules.only
local fixed, must, used = fields.fixed, fields.must, fields.used
local rows = actions.rotary
local null, float, absent = cbk.null, cbk.float, values.absent
local between, variant = rules.between, rules.variant

-- --- keys

---@param output table   the rule of the output projection
---@param norms? table    rules of the norms of queries and keys
---@param keys? Action
local function layer(output, norms, keys)
  local weights = rules.keys {
    -- Hugging Face                              Model Zoo                                          where bytes change
    { "self_attn.q_proj.{weight,bias}",          "self_attn.proj_q_dense_layer.{weight,bias}",      rows.queries },
    { "self_attn.k_proj.{weight,bias}",          "self_attn.proj_k_dense_layer.{weight,bias}",      keys or rows.keys },
    { "self_attn.v_proj.{weight,bias}",          "self_attn.proj_v_dense_layer.{weight,bias}" },
    output,
    { "input_layernorm.{weight,bias}",           "norm1.{weight,bias}" },
    { "post_attention_layernorm.{weight,bias}",  "norm3.{weight,bias}" },
    { "mlp.up_proj.{weight,bias}",               "ffn.ffn.0.linear_layer.{weight,bias}" },
    { "mlp.gate_proj.{weight,bias}",             "ffn.ffn.0.linear_layer_for_glu.{weight,bias}" },
    { "mlp.down_proj.{weight,bias}",             "ffn.ffn.1.linear_layer.{weight,bias}" },
  }
  return rules.keys {
    weights,
    norms or rules.keys {},
    only.left("self_attn.rotary_emb.inv_freq", "recomputed from the config"),
  }
end

local function body(layer_keys)
  return rules.keys {
    decoder.embedding "embed_tokens",
    decoder.final_norm "norm",
    { "layers.N", "transformer_decoder.layers.N", layer_keys },
  }
end

local now = body(layer({ "self_attn.o_proj.{weight,bias}", "self_attn.proj_output_dense_layer.{weight,bias}" }, rules.keys {
  { "self_attn.k_norm.{weight,bias}", "self_attn.k_norm.{weight,bias}", rows.vector },
  { "self_attn.q_norm.{weight,bias}", "self_attn.q_norm.{weight,bias}", rows.vector },
}))

-- releases up to 2.2 wrote the rotary frequencies into the Hugging Face file
local output_with_frequencies = rules.keys {
  { "self_attn.o_proj.weight", "self_attn.proj_output_dense_layer.weight",
    also_left = { { "self_attn.rotary_emb.inv_freq", rows.frequencies(10000) } } },
  { "self_attn.o_proj.bias", "self_attn.proj_output_dense_layer.bias" },
}
local then_2_0 = body(layer(output_with_frequencies, nil, rows.keys_2_0))
local then_1_9 = body(layer(output_with_frequencies, nil, rows.keys_1_9))

-- --- config

---Whether keys are grouped; in how many groups, extra_attention_params says.
local attention_module = {
  backward = function(module, at)
    if not absent(module) and module ~= "aiayn_attention" and module ~= "multiquery_attention" then
      at:refuse(module, fields.any_of("aiayn_attention", "multiquery_attention"))
    end
    if module == "multiquery_attention" and absent(at.from.extra_attention_params) then
      cbk.fail("config", "attention_module=multiquery_attention needs extra_attention_params.num_kv_groups")
    end
  end,
}

---The Model Zoo's heads have no other size than the width over their number.
local head_dim = {
  forward = function(size, at)
    local width, heads = values.size_of(at.from, "hidden_size"), values.size_of(at.from, "num_attention_heads")
    if not absent(size) and size * heads ~= width then at:refuse(size, ("hidden_size / num_attention_heads (%g)"):format(width / heads)) end
  end,
}

local config = fields.config {
  fixed.left { model_type = "llama" },
  fixed.right {
    norm_type = "rmsnorm", norm_first = true, embedding_layer_norm = false, position_embedding_type = "rotary",
    attention_type = "scaled_dot_product", use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false,
    use_ffn_bias = false, use_bias_in_output = false, use_ff_layer1_dropout = false, attention_dropout_rate = float(0),
    dropout_rate = float(0), embedding_dropout_rate = float(0),
  },
  must.right { use_rms_norm = true },
  { "vocab_size" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "hidden_size" },
  { "num_attention_heads", "num_heads" },
  { "num_key_value_heads", "extra_attention_params", values.grouped_queries },
  { false,                 "attention_module",       attention_module },
  { "num_hidden_layers" },
  { "max_position_embeddings" },
  { "intermediate_size",   "filter_size" },
  { "hidden_act",          "nonlinearity",           values.glu },
  { "head_dim",            false,                    head_dim },
  used.right { "rotary_dim" },
  { "rope_theta" },
  rotary.scaling { "linear", "yarn", "llama3", "longrope" },
  { "rms_norm_eps",        "layer_norm_epsilon" },
  { "initializer_range" },
}

local hf = {
  keys = now, config = config,
  defaults = { left = { rope_theta = fields.none, rope_scaling = null }, right = { pos_scaling_type = fields.none } },
  prepare = { left = rotary.in_one_form { partial_rotary_factor = 1 }, right = rotary.check_dim },
  finish = { right = rotary.set_dim },
}

-- --- earlier releases, as what they lack

local rope_fields = { "rope_scaling", "rope_parameters", "pos_scaling_factor", "pos_scaling_type", "pos_scaling_extra_args", "rope_theta" }

local hf_2_0 = variant(hf, {
  keys = then_2_0, tool = "2.0.3",
  config = fields.config {
    fields.without(config, { "num_key_value_heads", unpack(rope_fields) }),
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
local since = fields.with(rotary.unscaled_before_2_1(), {
  num_key_value_heads = { "2.0", function(groups, from) return groups == from.num_attention_heads end,
    says = "as many as num_attention_heads" },
  rope_theta = { "2.1", 10000 },
})

return { decoder.models {
  model = "llama", note = "%s <-> GPT2LMHeadModel (configured as LLaMA)",
  classes = { with_head = classes.LlamaForCausalLM, headless = classes.LlamaModel, right = zoo.GPT2LMHeadModel },
  since = since, aliases = { llamaV2 = "llama", ["code-llama"] = "llama", wizardlm = "llama" },
  place = "model", embedding = "embed_tokens",
  between("cs-1.9", "cs-2.0", decoder.to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf, { mup = "gpt" }),
  between("hf", "cs-2.0", hf_2_0, { mup = "gpt" }),
  between("hf", "cs-1.9", hf_1_9, { mup = "gpt" }),
} }
