-- Hugging Face's T5: configuration_t5.py and modeling_t5.py of transformers 4.48.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, positive, rate, boolean, text, free = class.makers "size depth positive rate boolean text free"

local t5 = {}

local fields = {
  vocab_size = size(32128), d_model = size(512, "hidden_size"), d_kv = size(64, "head_dim"), d_ff = size(2048),
  num_layers = depth(6, "num_hidden_layers"), num_decoder_layers = depth(), num_heads = size(8, "num_attention_heads"),
  relative_attention_num_buckets = size(32), relative_attention_max_distance = size(128), dropout_rate = rate(0.1),
  layer_norm_epsilon = positive(1e-6), initializer_factor = free(1), feed_forward_proj = class.deciding(text "relu", "gated-gelu"),
  use_cache = free(true),
  classifier_dropout = rate(0), is_encoder_decoder = boolean(true), tie_word_embeddings = boolean(true),
  is_gated_act = boolean(), dense_act_fn = text(),
  scale_decoder_outputs = boolean(), -- since transformers 5; before, tie_word_embeddings said it
  tie_encoder_decoder = boolean(false),
}

local function derived(c) return { decoder_layers = c.num_decoder_layers and "num_decoder_layers" or "num_layers" } end

local function attention(name, is_first)
  return below(name, {
    linear("q", "d_model", "num_heads * d_kv"),
    linear("k", "d_model", "num_heads * d_kv"),
    linear("v", "d_model", "num_heads * d_kv"),
    linear("o", "num_heads * d_kv", "d_model"),
    is_first and { "relative_attention_bias.weight", { "relative_attention_num_buckets", "num_heads" } },
  })
end

---@param inputs? TensorNode   in place of those that the config says
local function feed_forward(c, inputs)
  local is_gated = c.is_gated_act -- wins over what feed_forward_proj says
  if is_gated == nil then is_gated = (c.feed_forward_proj or ""):find "^gated" end
  return below("DenseReluDense", {
    inputs or is_gated and { linear("wi_0", "d_model", "d_ff"), linear("wi_1", "d_model", "d_ff") } or linear("wi", "d_model", "d_ff"),
    linear("wo", "d_ff", "d_model"),
  })
end

local function encoder_block(c, inputs)
  return function(n)
    return {
      attention("layer.0.SelfAttention", n == 0), norm("layer.0.layer_norm", "d_model", false),
      below("layer.1", { feed_forward(c, inputs), norm("layer_norm", "d_model", false) }),
    }
  end
end

local function decoder_block(c, inputs)
  return function(n)
    return {
      attention("layer.0.SelfAttention", n == 0), norm("layer.0.layer_norm", "d_model", false),
      attention("layer.1.EncDecAttention"), norm("layer.1.layer_norm", "d_model", false),
      n == 0 and { "layer.1.EncDecAttention.relative_attention_bias.weight", { "relative_attention_num_buckets", "num_heads" },
        optional = true },
      below("layer.2", { feed_forward(c, inputs), norm("layer_norm", "d_model", false) }),
    }
  end
end

---Encoder and decoder without their embeddings.
---@param inputs? TensorNode   of the feed-forward parts, in place of those that the config says
function t5.stacks(c, inputs)
  return {
    each("encoder.block", "num_layers", encoder_block(c, inputs)), norm("encoder.final_layer_norm", "d_model", false),
    each("decoder.block", "decoder_layers", decoder_block(c, inputs)), norm("decoder.final_layer_norm", "d_model", false),
  }
end

t5.T5ForConditionalGeneration = class.new "T5ForConditionalGeneration" {
  fields = fields, derived = derived,
  tensors = function(c)
    local words = { "vocab_size", "d_model" }
    return {
      { "shared.weight", words },
      { "encoder.embed_tokens.weight", words, tied = "shared.weight" },
      { "decoder.embed_tokens.weight", words, tied = "shared.weight" },
      t5.stacks(c),
      { "lm_head.weight", words, tied = c.tie_word_embeddings and "shared.weight" },
    }
  end,
}

return class.module(t5)
