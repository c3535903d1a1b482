-- Hugging Face's ESM: configuration_esm.py and modeling_esm.py of transformers 4.48. Its activation is always gelu.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, text, free =
  class.makers "size depth number positive rate boolean text free"

local esm = {}

local fields = {
  vocab_size = size(), hidden_size = size(768), num_hidden_layers = depth(12), num_attention_heads = size(12),
  intermediate_size = size(3072), hidden_dropout_prob = rate(0.1), attention_probs_dropout_prob = rate(0.1),
  max_position_embeddings = size(1026), initializer_range = number(0.02), layer_norm_eps = positive(1e-12), pad_token_id = number(),
  mask_token_id = number(), position_embedding_type = class.deciding(text "absolute", "rotary"), emb_layer_norm_before = boolean(false),
  token_dropout = boolean(false), tie_word_embeddings = boolean(true), is_folding_model = boolean(false), is_decoder = boolean(false),
  add_cross_attention = boolean(false), use_cache = free(true), esmfold_config = free(), vocab_list = free(),
}

local function embeddings(c)
  local positions = { "embeddings.position_embeddings.weight", { "max_position_embeddings", "hidden_size" } }
  return {
    { "embeddings.word_embeddings.weight", { "vocab_size", "hidden_size" } },
    c.position_embedding_type == "absolute" and positions or class.optional { positions },
    { "embeddings.position_ids", { 1, "max_position_embeddings" }, buffer = true },
    c.emb_layer_norm_before and norm("embeddings.layer_norm", "hidden_size"),
  }
end

local function layer(c)
  return {
    linear("attention.self.query", "hidden_size", "hidden_size", true),
    linear("attention.self.key", "hidden_size", "hidden_size", true),
    linear("attention.self.value", "hidden_size", "hidden_size", true),
    c.position_embedding_type == "rotary" and { "attention.self.rotary_embeddings.inv_freq", { "head_dim / 2" }, buffer = true },
    linear("attention.output.dense", "hidden_size", "hidden_size", true),
    norm("attention.LayerNorm", "hidden_size"),
    linear("intermediate.dense", "hidden_size", "intermediate_size", true),
    linear("output.dense", "intermediate_size", "hidden_size", true),
    norm("LayerNorm", "hidden_size"),
  }
end

esm.EsmForMaskedLM = class.new "EsmForMaskedLM" {
  fields = fields, renamed = { { "%.gamma$", ".weight" }, { "%.beta$", ".bias" } },
  derived = function() return { head_dim = "hidden_size / num_attention_heads" } end,
  tensors = function(c)
    return {
      below("esm", {
        embeddings(c),
        each("encoder.layer", "num_hidden_layers", layer(c)),
        norm("encoder.emb_layer_norm_after", "hidden_size"),
        class.optional(linear("contact_head.regression", "num_hidden_layers * num_attention_heads", 1, true)),
      }),
      below("lm_head", {
        { "bias", { "vocab_size" } },
        linear("dense", "hidden_size", "hidden_size", true),
        norm("layer_norm", "hidden_size"),
        { "decoder.weight", { "vocab_size", "hidden_size" }, tied = c.tie_word_embeddings and "esm.embeddings.word_embeddings.weight" },
      }),
    }
  end,
}

return class.module(esm)
