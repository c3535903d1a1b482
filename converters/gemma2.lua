-- Gemma 2: LLaMA with a norm behind each part of a layer as well, scaled embeddings, capped logits, and a window in every other layer.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local narrow = require "converters.engine.narrow"
local actions = require "converters.vocabulary.actions"
local heads = require "converters.vocabulary.heads"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.gemma2"
local zoo = require "converters.classes.zoo.decoder"

local null, float, absent = cbk.null, cbk.float, values.absent

---A tensor with a number added: of a narrow dtype if all sums are exact there, else of float32. The tensor, a small one, is read for that.
---@param t Tensor
---@param term number
---@param dtype string
local function plus(t, term, dtype)
  local sum = t:to "float32" + term
  local short = sum:to(dtype)
  return kinds.differ(sum, short:to "float32") and sum or short
end

---The dtype in which a norm is on the left: its own, or that of the model's other weights if only the norms became float32.
local function dtype_on_left(t, at)
  local words = t.dtype == "float32" and at:source "embedding_layer.word_embeddings.weight"
  return kinds.is_tensor(words) and words.dtype or t.dtype
end

---Hugging Face's norms multiply by 1 + weight, computed in float32 whatever the dtype: bfloat16 would round that by up to 0.4 %.
local plus_one = actions.pair("plus one", function(t)
  return narrow.is(t.dtype) and plus(t, 1, t.dtype) or t + 1
end, function(t, at)
  local dtype = dtype_on_left(t, at)
  return narrow.is(dtype) and plus(t, -1, dtype) or t - 1
end)

local norms = rules.keys {
  { "input_layernorm.weight",            "norm1.weight",      plus_one },
  { "post_attention_layernorm.weight",   "norm1_post.weight", plus_one },
  { "pre_feedforward_layernorm.weight",  "norm3.weight",      plus_one },
  { "post_feedforward_layernorm.weight", "norm3_post.weight", plus_one },
}

local keys = rules.keys {
  decoder.embedding "embed_tokens",
  { "norm.weight", "transformer_decoder.norm.weight", plus_one, also_right = "ln_f.weight" },
  { "layers.N", "transformer_decoder.layers.N", rules.keys { llama.attention(), llama.head_norms, norms, llama.feed_forward } },
}

-- --- config

local activation = {
  forward = function(name, at)
    if name ~= "gelu" and not tostring(name):find "^gelu_" then at:refuse(name, fields.any_of("gelu", "gelu_pytorch_tanh")) end
    if name ~= "gelu" then
      cbk.warn(("hidden_activation=%s: the Model Zoo computes gelu exactly, so logits differ slightly"):format(name))
    end
    return "geglu"
  end,
  backward = values.choice({ gelu = "geglu" }).backward,
  further_names = { gelu_pytorch_tanh = "geglu", gelu_new = "geglu", gelu_fast = "geglu", gelu_python = "geglu", gelu_accurate = "geglu" },
}

---Embeddings are multiplied by the root of their width: always on the left, as the field says on the right.
local embeddings_scale = {
  backward = function(scale, at)
    local root = math.sqrt(values.size_of(at.from, "hidden_size"))
    if type(scale) ~= "number" or math.abs(scale - root) > 1e-6 + 2e-7 * root then
      at:refuse(scale, ("the square root of hidden_size (%.9g)"):format(root))
    end
  end,
}

---The left divides the products of queries and keys by the root of its field; the right by that of the head size, times its field.
local query_scale = {
  forward = function(scalar, at)
    local size = values.size_of(at.from, "head_dim")
    if scalar ~= size then at:set("attention_logits_alpha", float(math.sqrt(size / scalar))) end
  end,
  backward = function(alpha, at)
    if type(alpha) ~= "number" or alpha <= 0 then at:refuse(alpha, "a number above 0") end
    local scalar = heads.size(at.from) / alpha ^ 2
    local whole = math.floor(scalar + 0.5) -- which the root of the other side has rounded
    at:set("query_pre_attn_scalar", float(math.abs(scalar - whole) < 1e-9 * whole and whole or scalar))
  end,
}

local PATTERN = "sliding_window_every_other_decoder_layer_pattern"

---The windows are in layers 0, 2, … on the left, and in layers 1, 3, … on the right, where only 2.10 has a field for it.
local function warn_of_windows(window)
  if absent(window) then return end
  cbk.warn(("Hugging Face has the window in layers 0, 2, …, the Model Zoo in layers 1, 3, …: logits differ for inputs of more than %s "
    .. "tokens, except in release 2.10 with %s: sliding_window_first"):format(fields.shown(window), PATTERN))
end

local window = {
  forward = function(length)
    warn_of_windows(length)
    return length
  end,
  backward = function(length, at)
    if at.from[PATTERN] ~= "sliding_window_first" then warn_of_windows(length) end
    return length
  end,
}

local config = fields.config {
  fields.fixed.left { model_type = "gemma2" },
  fields.fixed.right {
    norm_type = "rmsnorm", norm_first = true, norm_first_sandwich = true, position_embedding_type = "rotary", use_ffn_bias = false,
    sliding_window_every_other_decoder_layer = true, dropout_rate = float(0),
  },
  fields.must.right { embedding_dropout_rate = fields.any_of(null, 0), use_rms_norm = true },
  { "vocab_size" },
  { "tie_word_embeddings",     "share_embedding_weights" },
  { "hidden_size" },
  { false,                     "embeddings_scale", embeddings_scale },
  { "num_attention_heads",     "num_heads" },
  { "num_key_value_heads",     "extra_attention_params", values.grouped_queries },
  { false,                     "attention_module", llama.attention_module },
  { "head_dim",                "attention_inner_dim", llama.inner_dim },
  { "query_pre_attn_scalar",   false, query_scale },
  { false,                     "attention_logits_alpha", query_scale },
  { "attention_bias",          "use_projection_bias_in_attention", llama.attention_bias },
  fields.used.right { "use_ffn_bias_in_attention", "rotary_dim", PATTERN },
  { "attention_dropout",       "attention_dropout_rate" },
  { "attn_logit_softcapping",  "attention_logit_softcapping" },
  { "final_logit_softcapping" },
  { "sliding_window",          "attention_sliding_window_length", window },
  { "layer_types",             false, llama.layer_types("sliding_attention", "full_attention") },
  { "num_hidden_layers" },
  { "max_position_embeddings" },
  { "intermediate_size",       "filter_size" },
  { "hidden_activation",       "nonlinearity", activation },
  { "rope_theta" },
  fields.without(rotary.unscaled(), { "rope_theta" }),
  { "rms_norm_eps",            "layer_norm_epsilon" },
  fields.drop.left { initializer_range = 0.02 }, fields.drop.right { initializer_range = 0.02 },
}

-- What a Model Zoo config means by leaving a field out; Hugging Face's class has numbers there.
local unlike_hugging_face = {
  attention_inner_dim = null, attention_logit_softcapping = null, final_logit_softcapping = null, attention_sliding_window_length = null,
}

---Key heads are always written: the class of Hugging Face has 4 of them otherwise.
local function name_key_heads(to)
  if to.num_key_value_heads == nil then to.num_key_value_heads = to.num_attention_heads end
end

local function set_sizes(to)
  to.embeddings_scale = float(math.sqrt(to.hidden_size))
  rotary.set_dim(to)
end

return { decoder.models {
  model = "gemma2", note = "%s <-> GPT2LMHeadModel (configured as Gemma 2)",
  classes = { with_head = classes.Gemma2ForCausalLM, headless = classes.Gemma2Model, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens",
  rules.between("hf", "cs-2.3 .. cs-2.9", {
    keys = keys, config = config,
    defaults = { right = fields.with(unlike_hugging_face, {
      dropout_rate = float(0), attention_dropout_rate = function(from) return from.dropout_rate end,
    }) },
    prepare = { left = rotary.in_one_form { partial_rotary_factor = 1 }, right = rotary.check_dim },
    finish = { left = name_key_heads, right = set_sizes },
  }),
} }
