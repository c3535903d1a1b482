-- SantaCoder: GPT-2 with one key head for all queries, against the Model Zoo's GPT2LMHeadModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local decoder = require "converters.shared.decoder"
local gpt2 = require "converters.shared.gpt2"
local classes = require "converters.classes.hf.gpt2"
local zoo = require "converters.classes.zoo.decoder"

local fixed, written = fields.fixed, fields.written
local transpose, buffer, halves = actions.transpose, actions.buffer, actions.split(2)
local between = rules.between

-- --- keys

local key_and_value = actions.pair("key and value", function(t, at) return halves.forward(transpose.forward(t, at), at) end,
  function(parts, at) return transpose.backward(halves.backward(parts, at), at) end, { parts = 2 })

local function names(part) return { "self_attn.proj_k_dense_layer." .. part, "self_attn.proj_v_dense_layer." .. part } end

local keys = gpt2.body(gpt2.layer(rules.keys {
  { "attn.q_attn.{weight,bias}",  "self_attn.proj_q_dense_layer.{weight,bias}", transpose },
  { "attn.kv_attn.weight",        names "weight",                               key_and_value },
  { "attn.kv_attn.bias",          names "bias",                                 key_and_value,
    also_left = {
      { "attn.bias",              buffer.causal_mask "max_position_embeddings" },
      { "attn.masked_bias",       buffer.scalar(-1e4) },
    } },
}, transpose))

-- --- config

local config = fields.config {
  fixed.left { model_type = "gpt2", attention_head_type = "multiquery" },
  written.left {
    architectures = { "GPT2LMHeadCustomModel" }, scale_attn_weight = true, summary_activation = cbk.null,
    summary_first_dropout = cbk.float(0.1), summary_proj_to_labels = true, summary_type = "cls_index", summary_use_proj = true,
    torch_dtype = "float32", transformers_version = "4.24.0", use_cache = true, reorder_and_upcast_attn = false,
    auto_map = {
      AutoConfig = "configuration_gpt2_mq.GPT2CustomConfig", AutoModelForCausalLM = "modeling_gpt2_mq.GPT2LMHeadCustomModel",
    },
  },
  fixed.right {
    attention_module = "multiquery_attention", extra_attention_params = cbk.dict { num_kv_groups = 1 },
    position_embedding_type = "learned", use_projection_bias_in_attention = true, use_ffn_bias_in_attention = true, use_ffn_bias = true,
  },
  written.right { loss_scaling = "num_tokens", scale_by_layer_index = false, softmax_dtype_fp32 = false },
  { "scale_attn_by_inverse_layer_idx", "scale_qk_dot_by_layer_idx" },
  gpt2.config,
}

local hf = {
  keys = keys, config = config, defaults = { right = decoder.dropouts }, prepare = { left = decoder.inner_size }, mup = "gpt",
}

return { decoder.models {
  model = "santacoder", note = "%s <-> GPT2LMHeadModel (configured as SantaCoder)",
  classes = { with_head = classes.GPT2LMHeadCustomModel, headless = classes.GPT2CustomModel, right = zoo.GPT2LMHeadModel },
  place = "transformer", embedding = "wte",
  between("hf", "cs-2.1 .. cs-2.9", hf),
} }
