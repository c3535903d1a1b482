-- Hugging Face's MPT: configuration_mpt.py and modeling_mpt.py of transformers 4.48, and MosaicML's own, whose model may have biases
-- and learned positions.

local class = require "converters.engine.class"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm
local size, depth, number, positive, rate, boolean, text, any = class.makers "size depth number positive rate boolean text any"

local mpt = {}

local fields = {
  is_causal = boolean(true),
  vocab_size = size(50368), d_model = size(2048, "hidden_size"), n_heads = size(16, "num_attention_heads"),
  n_layers = depth(24, "num_hidden_layers"), expansion_ratio = positive(4), max_seq_len = size(2048),
  ["attn_config.alibi"] = boolean(true), learned_pos_emb = boolean(true), no_bias = boolean(true),
  norm_type = text "low_precision_layernorm", layer_norm_epsilon = positive(1e-5), initializer_range = number(0.02),
  tie_word_embeddings = boolean(true), embedding_fraction = positive(1), logit_scale = any(), emb_pdrop = rate(0), resid_pdrop = rate(0),
  ["attn_config.attn_pdrop"] = rate(0), ["attn_config.alibi_bias_max"] = positive(8), ["attn_config.rope"] = boolean(false),
  ["attn_config.prefix_lm"] = boolean(false), ["ffn_config.ffn_type"] = text "mptmlp",
}

local function derived() return { head_dim = "d_model / n_heads" } end

local function body(c)
  local bias = not c.no_bias
  return {
    { "wte.weight", { "vocab_size", "d_model" } },
    not c["attn_config.alibi"] and c.learned_pos_emb and { "wpe.weight", { "max_seq_len", "d_model" } },
    each("blocks", "n_layers", {
      norm("norm_1", "d_model", bias),
      linear("attn.Wqkv", "d_model", "3 * d_model", bias),
      linear("attn.out_proj", "d_model", "d_model", bias),
      norm("norm_2", "d_model", bias),
      linear("ffn.up_proj", "d_model", "expansion_ratio * d_model", bias),
      linear("ffn.down_proj", "expansion_ratio * d_model", "d_model", bias),
    }),
    norm("norm_f", "d_model", bias),
  }
end

mpt.MptModel = class.new "MptModel" { fields = fields, derived = derived, tensors = body }

mpt.MptForCausalLM = class.new "MptForCausalLM" {
  fields = fields, derived = derived,
  tensors = function(c)
    return {
      below("transformer", body(c)),
      { "lm_head.weight", { "vocab_size", "d_model" }, tied = c.tie_word_embeddings and "transformer.wte.weight", optional = true },
    }
  end,
}

return class.module(mpt)
