-- BLOOM: queries, keys and values fused head by head, ALiBi positions, a norm after the embedding, against the Model Zoo's
-- GPT2LMHeadModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.bloom"
local zoo = require "converters.classes.zoo.decoder"

local only = rules.only
local fixed, must, drop = fields.fixed, fields.must, fields.drop
local between, variant = rules.between, rules.variant

-- --- keys

local qkv = actions.qkv.grouped(actions.qkv.heads, { rotary = false })

local layer = rules.keys {
  -- Hugging Face                              Model Zoo                                                where bytes change
  { "self_attention.query_key_value.weight",  actions.qkv.keys "self_attn.proj_%s_dense_layer.weight", qkv },
  { "self_attention.query_key_value.bias",    actions.qkv.keys "self_attn.proj_%s_dense_layer.bias",   qkv },
  { "self_attention.dense.{weight,bias}",     "self_attn.proj_output_dense_layer.{weight,bias}" },
  { "input_layernorm.{weight,bias}",          "norm1.{weight,bias}" },
  { "post_attention_layernorm.{weight,bias}", "norm3.{weight,bias}" },
  { "mlp.dense_h_to_4h.{weight,bias}",        "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "mlp.dense_4h_to_h.{weight,bias}",        "ffn.ffn.1.linear_layer.{weight,bias}" },
}

-- up to 2.0 the slopes stand elsewhere
local old_slopes, slopes = "relative_pe_helper.slopes", "embedding_layer.position_embed_helper.slopes"

local function body(...)
  local out = rules.keys {
    decoder.embedding "word_embeddings",
    { "word_embeddings_layernorm.{weight,bias}", "embedding_ln_f.{weight,bias}" },
    { "h.N",                                     "transformer_decoder.layers.N",    layer },
    decoder.final_norm "ln_f",
  }
  for _, key in ipairs { ... } do out = rules.keys { out, only.right(key, "made from the number of heads") } end
  return out
end

local now, then_ = body(slopes, old_slopes), body(old_slopes)

-- --- config

local config = fields.config {
  fixed.left { model_type = "bloom" },
  fixed.right {
    position_embedding_type = "alibi", embedding_layer_norm = true, attention_type = "scaled_dot_product",
    use_projection_bias_in_attention = true, use_ffn_bias_in_attention = true, use_ffn_bias = true, use_bias_in_output = false,
  },
  must.right { embedding_dropout_rate = 0 },
  { "vocab_size" },
  { "tie_word_embeddings", "share_embedding_weights" },
  decoder.four_times,
  { "n_head",              "num_heads" },
  { "n_layer",             "num_hidden_layers" },
  drop.right { "max_position_embeddings" },
  { "attention_dropout",   "attention_dropout_rate" },
  { "hidden_dropout",      "dropout_rate", {
    forward = function(rate, at) -- without a rate of its own, the Model Zoo's embedding has this one, and BLOOM's has none
      if rate ~= 0 then at:set("embedding_dropout_rate", cbk.float(0)) end
      return rate
    end,
    backward = function(rate) return rate end,
  } },
  { "layer_norm_epsilon" },
  { "initializer_range" },
}

local function warn_of_gelu()
  cbk.warn "Hugging Face computes BLOOM's gelu with the approximation by tanh, the Model Zoo exactly: logits differ slightly"
end

local hf = {
  keys = now, config = config,
  defaults = { right = decoder.dropouts },
  prepare = { left = warn_of_gelu, right = warn_of_gelu },
  fill = { right = { { slopes, actions.buffer.alibi_slopes } } },
}

-- --- earlier releases, as what they lack

local hf_2_0 = variant(hf, {
  keys = then_, tool = "2.0.3",
  fill = { right = { { old_slopes, actions.buffer.alibi_slopes } } },
})

return { decoder.models {
  model = "bloom", note = "%s <-> GPT2LMHeadModel (configured as BLOOM)",
  classes = { with_head = classes.BloomForCausalLM, headless = classes.BloomModel, right = zoo.GPT2LMHeadModel },
  place = "transformer", embedding = "word_embeddings",
  between("cs-1.9", "cs-2.0", decoder.to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf, { mup = "gpt" }),
  between("hf", "cs-1.9, cs-2.0", hf_2_0, { mup = "gpt" }),
} }
