-- What LLaMA and the models that are built as it have in common: half-split rotary rows and separate projections against the Model
-- Zoo's GPT2LMHeadModel with rotary pairs.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local heads = require "converters.vocabulary.heads"
local kinds = require "converters.engine.kinds"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"

local fixed, used = fields.fixed, fields.used
local rows = actions.rotary
local null, float, absent = cbk.null, cbk.float, values.absent

local llama = {}

-- --- keys

---Rules of attention and norms.
---@param output? Rule[]   of the output projection
---@param keys? Action     of the key heads
function llama.attention(output, keys)
  return rules.keys {
    -- Hugging Face                              Model Zoo                                          where bytes change
    { "self_attn.q_proj.{weight,bias}",          "self_attn.proj_q_dense_layer.{weight,bias}",      rows.queries },
    { "self_attn.k_proj.{weight,bias}",          "self_attn.proj_k_dense_layer.{weight,bias}",      keys or rows.keys },
    { "self_attn.v_proj.{weight,bias}",          "self_attn.proj_v_dense_layer.{weight,bias}" },
    output or
    { "self_attn.o_proj.{weight,bias}",          "self_attn.proj_output_dense_layer.{weight,bias}" },
    rules.only.left("self_attn.rotary_emb.inv_freq", "recomputed from the config"),
  }
end

llama.norms = rules.keys {
  { "input_layernorm.{weight,bias}",             "norm1.{weight,bias}" },
  { "post_attention_layernorm.{weight,bias}",    "norm3.{weight,bias}" },
}

llama.head_norms = rules.keys { { "self_attn.{q,k}_norm.{weight,bias}", "self_attn.{q,k}_norm.{weight,bias}", rows.vector } }

llama.feed_forward = rules.keys {
  { "mlp.up_proj.{weight,bias}",                 "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "mlp.gate_proj.{weight,bias}",               "ffn.ffn.0.linear_layer_for_glu.{weight,bias}" },
  { "mlp.down_proj.{weight,bias}",               "ffn.ffn.1.linear_layer.{weight,bias}" },
}

---The model without its head.
---@param ... Rule[]   of a layer
function llama.body(...)
  return rules.keys {
    decoder.embedding "embed_tokens",
    decoder.final_norm "norm",
    { "layers.N", "transformer_decoder.layers.N", rules.keys { ... } },
  }
end

-- --- config

---Whether key heads are grouped. The number of groups is in extra_attention_params.
llama.attention_module = {
  backward = function(module, at)
    if not absent(module) and module ~= "aiayn_attention" and module ~= "multiquery_attention" then
      at:refuse(module, fields.any_of("aiayn_attention", "multiquery_attention"))
    end
    if module == "multiquery_attention" and absent(at.from.extra_attention_params) then
      cbk.fail("config", "attention_module=multiquery_attention needs extra_attention_params.num_kv_groups")
    end
  end,
}

---For `head_dim` and `attention_inner_dim`, the width of all heads (since 2.3).
llama.inner_dim = {
  forward = function(size, at) return size * values.size_of(at.from, "num_attention_heads") end,
  backward = function(_, at) return (heads.size(at.from)) end,
}

---For `attention_bias` and the two fields of the Model Zoo.
llama.attention_bias = {
  forward = function(has_bias, at)
    at:set("use_ffn_bias_in_attention", has_bias)
    return has_bias
  end,
  backward = function(has_bias, at)
    if at.from.use_ffn_bias_in_attention ~= has_bias then at:refuse(has_bias, "the value of use_ffn_bias_in_attention") end
    return has_bias
  end,
}

---For `layer_types`: Hugging Face's names for each layer's attention (since transformers 4.53). They must be these, in turn.
---@param ... string   "full_attention", "sliding_attention"
function llama.layer_types(...)
  local wanted = { ... }
  return { forward = function(list, at)
    if absent(list) then return end
    for i, one in cbk.items(kinds.is_list(list) and list or { list }) do
      if one ~= wanted[(i - 1) % #wanted + 1] then at:refuse(one, table.concat(wanted, " and ") .. (#wanted > 1 and " in turn" or "")) end
    end
  end }
end

---For `head_dim`: the field is not needed if all heads together are as wide as the model.
local head_dim = {
  forward = function(size, at)
    local inner = not absent(size) and size * values.size_of(at.from, "num_attention_heads")
    return inner ~= values.size_of(at.from, "hidden_size") and inner or nil
  end,
  backward = function(inner, at) return not absent(inner) and heads.size(at.from) or nil end,
}

llama.config = fields.config {
  fixed.right {
    norm_type = "rmsnorm", norm_first = true, embedding_layer_norm = false, position_embedding_type = "rotary",
    attention_type = "scaled_dot_product", use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false,
    use_ffn_bias = false, use_bias_in_output = false, use_ff_layer1_dropout = false, attention_dropout_rate = float(0),
    dropout_rate = float(0), embedding_dropout_rate = float(0),
  },
  fields.must.right { use_rms_norm = true },
  { "vocab_size" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "hidden_size" },
  { "num_attention_heads", "num_heads" },
  { "num_key_value_heads", "extra_attention_params", values.grouped_queries },
  { false,                 "attention_module",       llama.attention_module },
  { "num_hidden_layers" },
  { "max_position_embeddings" },
  { "intermediate_size",   "filter_size" },
  { "hidden_act",          "nonlinearity",           values.glu },
  { "head_dim",            "attention_inner_dim",    head_dim },
  used.right { "rotary_dim" },
  { "rope_theta" },
  rotary.scaling { "linear", "yarn", "llama3", "longrope" },
  { "rms_norm_eps",        "layer_norm_epsilon" },
  { "initializer_range" },
}

-- --- the converter

---Writes the number of key heads if the right does not have it and the default of the left's class differs. If only a config is
---converted, it warns instead, because the original converter does not write the field.
---@param usual integer   the class's default
local function name_key_heads(usual)
  return function(to, _, read)
    if to.num_key_value_heads ~= nil or to.num_attention_heads == usual then return end
    if read.source then
      to.num_key_value_heads = to.num_attention_heads
    else
      cbk.warn(("num_key_value_heads is not written, and %d is Hugging Face's default: add num_key_value_heads: %d"):format(usual,
        to.num_attention_heads))
    end
  end
end

---@class LlamaLikeConverter
---@field model_type string
---@field config? table               config rules before LLaMA's
---@field without? string[]           fields to which LLaMA's rules do not apply
---@field keys? Rule[]                of the model without its head
---@field needed? string[]            fields of the left without a default: the shapes do not determine them
---@field key_heads? integer          the default of the left's class, if it is not one for each head
---@field prepare? fun(from: Dict)    further checks of a config of the right
---@field defaults? table<string, any>   of the right, where the left's class has others
---@field finish? fun(to: Dict)       further fields of a config of the left

---The converter of a model that is built as LLaMA.
---@param own LlamaLikeConverter
---@return Converter
function llama.converter(own)
  local function prepare_right(from)
    if own.prepare then own.prepare(from) end
    rotary.check_dim(from)
  end
  local defaults = { rope_theta = fields.none, rope_scaling = null }
  for _, name in ipairs(own.needed or {}) do defaults[name] = fields.none end
  local usual = own.without and fields.without(llama.config, own.without) or llama.config
  return {
    keys = own.keys or llama.body(llama.attention(), llama.head_norms, llama.norms, llama.feed_forward),
    config = fields.config { fixed.left { model_type = own.model_type }, own.config, usual },
    defaults = { left = defaults, right = fields.with({ pos_scaling_type = fields.none }, own.defaults or {}) },
    prepare = { left = rotary.in_one_form { partial_rotary_factor = 1 }, right = prepare_right },
    finish = { left = own.finish or own.key_heads and name_key_heads(own.key_heads), right = rotary.set_dim },
  }
end

return llama
