-- The Model Zoo's T5 and Transformer: t5_model.py. Fields and defaults: Model Zoo 2.9.

local cbk = require "cbk"
local class = require "converters.engine.class"
local hf = require "converters.classes.hf.t5"
local parts = require "converters.classes.zoo.parts"
local history = require "converters.classes.zoo.history"

local each, linear = class.each, class.linear
local size, depth, number, positive, rate, boolean, bias, text, choice, any, free =
  class.makers "size depth number positive rate boolean bias text choice any free"

local t5 = {}

local fields = {
  src_vocab_size = size(32128), tgt_vocab_size = size(), d_model = size(512), d_kv = size(64), d_ff = size(2048), num_heads = size(8),
  encoder_num_hidden_layers = depth(6), decoder_num_hidden_layers = depth(), encoder_nonlinearity = class.deciding(choice "relu", "swiglu"),
  decoder_nonlinearity = text(), position_embedding_type = class.deciding(choice "relative", "learned_absolute", "fixed", "rotary"),
  relative_attention_num_buckets = size(32),
  src_max_position_embeddings = size(), tgt_max_position_embeddings = size(),
  norm_type = class.deciding(text "rmsnorm", "layernorm"), use_t5_layer_norm = boolean(), layer_norm_epsilon = positive(1e-5),
  use_projection_bias_in_attention = bias(false), use_ffn_bias = bias(false), share_embedding_weights = boolean(true),
  share_encoder_decoder_embedding = boolean(true), use_pre_encoder_decoder_layer_norm = boolean(true), dropout_rate = rate(0.1),
  relu_dropout_rate = rate(), extra_ids = number(0), initializer_factor = free(1),
  attention_module = class.unused(text "aiayn_attention", parts.is_plain_attention),
  extra_attention_params = class.unused(any(), parts.has_no_groups),
  tie_encoder_decoder = boolean(false), use_transformer_initialization = boolean(false), attention_type = text "dot_product",
  use_dropout_outside_residual_path = boolean(true), use_pre_encoder_decoder_dropout = boolean(false), norm_first = boolean(true),
  use_bias_in_output = boolean(false), moe_params = class.unused(any(nil, "moe"), parts.is_one_expert),
  -- muP (modelzoo/mup.lua)
  mup_base_d_model = free(), mup_base_d_ff = free(), mup_base_d_kv = free(), embeddings_alpha = free(1),
  encoder_attention_logits_alpha = free(1), decoder_attention_logits_alpha = free(1), scale_encoder_qk_dot_by_d = free(false),
  scale_decoder_qk_dot_by_d = free(false), output_logits_alpha = free(), scale_output_logits_by_d = free(false),
  attention_softmax_fp32 = free(true), attention_kernel = free(), use_cache = free(false), decoder_start_token_id = free(),
  pad_token_id = free(0),
}

local function derived(c)
  local more = c.extra_ids and c.extra_ids ~= 0 and " + extra_ids" or "" -- the sentinels are ids of their own
  return {
    source_words = "src_vocab_size" .. more, target_words = (c.tgt_vocab_size and "tgt_vocab_size" or "src_vocab_size") .. more,
    decoder_layers = c.decoder_num_hidden_layers and "decoder_num_hidden_layers" or "encoder_num_hidden_layers",
  }
end

---@param name string     of the embedding: "encoder_embeddings"
---@param words string    rows
---@param rows string     of learned positions
---@param shared? string  the key of the same embedding
local function embedding(c, since, name, words, rows, shared)
  local kind, side = c.position_embedding_type, name:match "^(%l+)"
  local helper = since "2.1" and name .. ".position_embed_helper" or "relative_position_" .. side
  return {
    { name .. ".word_embeddings.weight", { words, "d_model" }, tied = shared },
    kind == "learned_absolute"
      and { name .. ".position_embeddings" .. (since "2.1" and ".embed" or "") .. ".weight", { rows, "d_model" } },
    kind == "fixed"
      and { name .. ".position_embeddings" .. (since "2.1" and ".fpe" or ""), { rows, "d_model" }, buffer = true },
    kind == "relative" and { helper .. ".relative_attention_bias.weight", { "relative_attention_num_buckets", "num_heads" } },
  }
end

local function norm(c, name) return parts.norm(name, "d_model", c.norm_type) end

local function attention(c, name)
  local has_bias = c.use_projection_bias_in_attention
  return parts.attention(name, { width = "d_model", inner = "num_heads * d_kv" }, has_bias, has_bias)
end

---The converter's reference goes by the activation's name where Hugging Face's flags contradict it, so gates may be missing.
local function feed_forward(c, activation)
  return parts.feed_forward("ffn", "d_model", "d_ff", activation, c.use_ffn_bias, "the gates")
end

local function model(c, since)
  c.norm_type = parts.norm_type(c, since, c.use_t5_layer_norm)
  local shared = c.share_encoder_decoder_embedding and "encoder_embeddings.word_embeddings.weight"
  return {
    embedding(c, since, "encoder_embeddings", "source_words", "src_max_position_embeddings"),
    embedding(c, since, "decoder_embeddings", "target_words", "tgt_max_position_embeddings", shared),
    each("encoder.layers", "encoder_num_hidden_layers", {
      attention(c, "self_attn"),
      feed_forward(c, c.encoder_nonlinearity),
      norm(c, "norm1"), norm(c, "norm2"),
    }),
    norm(c, "encoder.norm"),
    each("decoder.layers", "decoder_layers", {
      attention(c, "self_attn"), norm(c, "norm1"), norm(c, "norm3"),
      attention(c, "multihead_attn"), norm(c, "norm2"),
      feed_forward(c, c.decoder_nonlinearity or c.encoder_nonlinearity),
    }),
    norm(c, "decoder.norm"),
    { "lm_head.weight", { "target_words", "d_model" },
      tied = c.share_embedding_weights and "decoder_embeddings.word_embeddings.weight" },
  }
end

local of_hf = hf.T5ForConditionalGeneration

---Release 1.6 had Hugging Face's names, but for the embeddings, and positions in every block. Beside a gate, `wi_0`, the input is `wi` or
---`wi_1`.
local of_1_6 = class.new "T5ForConditionalGeneration" {
  fields = class.extend(of_hf.fields, { share_encoder_decoder_embedding = boolean(true), encoder_nonlinearity = text "relu" }),
  derived = of_hf.derived, renamed = { { "%.wi_1%.", ".wi." } },
  tensors = function(c)
    local words = { "vocab_size", "d_model" }
    local positions = class.optional { "layer.0.SelfAttention.relative_attention_bias.weight",
      { "relative_attention_num_buckets", "num_heads" } }
    local inputs = { linear("wi", "d_model", "d_ff"),
      parts.is_gated(c.encoder_nonlinearity) and class.may_lack("the gates", linear("wi_0", "d_model", "d_ff")) }
    local function further(i) return i > 0 and positions or {} end
    return {
      { "encoder_token_embedding.weight", words },
      { "decoder_token_embedding.weight", words, tied = c.share_encoder_decoder_embedding and "encoder_token_embedding.weight" },
      { "encoder.embed_tokens.weight", words, optional = true }, { "decoder.embed_tokens.weight", words, optional = true },
      hf.stacks(c, inputs), each("encoder.block", "num_layers", further), each("decoder.block", "decoder_layers", further),
      { "lm_head.weight", words, tied = c.tie_word_embeddings and "decoder_token_embedding.weight" },
    }
  end,
}

local FIELDS_OF_1_6 = { vocab_size = "src_vocab_size", num_layers = "encoder_num_hidden_layers",
  num_decoder_layers = "decoder_num_hidden_layers", tie_word_embeddings = "share_embedding_weights" }

local before = { class = of_1_6, config = function(section)
  local out = cbk.dict()
  for name in pairs(of_1_6.fields) do
    local value = section[FIELDS_OF_1_6[name] or name]
    if value ~= nil then out[name] = value end
  end
  return out
end }

t5.T5ForConditionalGeneration = class.new "T5ForConditionalGeneration" {
  since = "1.7", before = before, fields = fields, history = history.t5, derived = derived, renamed = parts.renamed, tensors = model,
}

return class.module(t5)
