-- The Model Zoo's decoders: GPT2LMHeadModel (gpt2_model.py), which most families are, and GPTJModel (gptj_model.py), whose attention
-- and feed-forward part run side by side. Fields and defaults: Model Zoo 2.9.

local cbk = require "cbk"
local class = require "converters.engine.class"
local kinds_of = require "converters.engine.kinds"
local parts = require "converters.classes.zoo.parts"
local history = require "converters.classes.zoo.history"
local experts = require "converters.vocabulary.experts"
local rules = require "converters.engine.rules"

local each = class.each
local size, length, depth, number, positive, rate, boolean, bias, norm_kind, text, choice, any, free =
  class.makers "size length depth number positive rate boolean bias norm text choice any free"
local unused, deciding = class.unused, class.deciding

local decoder = {}

local gptj = {
  vocab_size = size(50257), hidden_size = size(768), num_hidden_layers = depth(12), num_heads = size(12), filter_size = size(3072),
  max_position_embeddings = length(1024), share_embedding_weights = boolean(true),
  -- positions
  position_embedding_type = parts.position_kinds "rotary", num_relative_attention_buckets = class.free(size()),
  alibi_trainable_slopes = boolean(false),
  rotary_dim = class.free(size()), rope_theta = unused(positive(10000), parts.is_not_rotary "rotary"), pos_scaling_factor = positive(1),
  pos_scaling_type = unused(text "linear", parts.is_unscaled), pos_scaling_extra_args = unused(any(), parts.is_unscaled),
  fold_rope_consts = free(),
  -- attention
  attention_type = text "scaled_dot_product", attention_module = unused(text "aiayn_attention", parts.is_plain_attention),
  extra_attention_params = unused(any(), parts.has_no_groups), attention_sink_tokens = any(), attention_sliding_window_length = any(),
  use_projection_bias_in_attention = bias(true), use_ffn_bias_in_attention = bias(true), attention_kernel = free(),
  attention_softmax_fp32 = free(true),
  -- norms and feed-forward parts
  norm_type = norm_kind "layernorm", layer_norm_epsilon = positive(1e-5), use_untied_layer_norm = boolean(false),
  nonlinearity = deciding(choice "gelu", "swiglu", "geglu"), use_ffn_bias = bias(false), use_bias_in_output = boolean(false),
  moe_params = deciding(unused(any(nil, "moe"), parts.is_one_expert), unpack(parts.mixtures)),
  -- training
  dropout_rate = rate(0.1, "residual_dropout_rate"), attention_dropout_rate = rate(0.1),
  embedding_dropout_rate = rate(0.1, "embd_pdrop"), initializer_range = number(0.02),
  -- muP (modelzoo/mup.lua)
  mup_base_hidden_size = free(), mup_base_filter_size = free(), attention_logits_alpha = free(1), scale_qk_dot_by_d = free(false),
  embeddings_scale = free(1), output_logits_alpha = free(), scale_output_logits_by_d = free(true),
  -- of older releases
  norm_first = boolean(true), use_ff_layer1_dropout = boolean(false), use_position_embedding = boolean(true),
  use_rms_norm = unused(boolean(), parts.is_false), use_biasless_norm = boolean(false), fixed_sparse_attention = any(),
  embedding_layer_norm = boolean(false),
}

local gpt2 = class.extend(gptj, {
  position_embedding_type = parts.position_kinds "learned", rope_theta = unused(positive(10000), parts.is_not_rotary "learned"),
  use_ffn_bias = bias(true), attention_inner_dim = unused(size(), parts.is_hidden_size),
  attention_qk_norm_layer = deciding(text(), "rmsnorm", "layernorm"),
  attention_qk_norm_eps = class.free(positive(1e-5)), num_relative_attention_buckets = class.free(size(32)),
  position_embedding_offset = number(0), num_extra_input_vocab_tokens = number(0), norm_first_sandwich = boolean(false),
  attention_chunk_size = any(), attention_logit_softcapping = number(), final_logit_softcapping = number(),
  attention_vertical_column_spacing = any(), attention_vertical_column_width = any(), constant_pos_embedding = any(),
  output_logits_scale = free(), rel_distance_mode = text "default", scale_qk_dot_by_layer_idx = boolean(false),
  sliding_window_every_other_decoder_layer = boolean(false),
  cross_attention_layers = deciding(unused(any(), parts.is_empty_list), cbk.list { 0 }),
})
gpt2.use_untied_layer_norm = nil

local steps = { rules.between("cs-2.5", "cs-2.6", experts.to_2_6) }

local function part_of(section, name)
  local value = section and kinds_of.is_dict(section) and section[name]
  return type(value) == "number" and value or nil
end

local function derived(c)
  local is_grouped = c.attention_module == "multiquery_attention"
  local inner = c.attention_inner_dim and "attention_inner_dim" or "hidden_size"
  return {
    inner = inner, head_dim = inner .. " / num_heads",
    groups = is_grouped and (part_of(c.extra_attention_params, "num_kv_groups") and "extra_attention_params.num_kv_groups" or 1)
      or "num_heads",
  }
end

local function feed_forward(c, since)
  local routed, shared = part_of(c.moe_params, "num_experts") or 1, part_of(c.moe_params, "num_shared_experts") or 0
  if routed + shared <= 1 then return parts.feed_forward("ffn", "hidden_size", "filter_size", c.nonlinearity, c.use_ffn_bias) end
  local layout = experts.layout(c.moe_params.moe_implementation, since)
  return parts.experts("ffn", "hidden_size", "filter_size", c.nonlinearity, c.use_ffn_bias, {
    routed = "moe_params.num_experts", shared = shared > 0 and "moe_params.num_shared_experts" or nil, layout = layout,
    may_be_fused = layout == "single" and kinds_of.absent(c.moe_params.moe_implementation),
    has_router_bias = c.moe_params.router_use_bias == true,
  })
end

---Attention of a layer over the text; in its place over the image, with gates.
local function attentions(c, sizes)
  local is_cross, list = {}, c.cross_attention_layers
  for i = 1, kinds_of.is_list(list) and #list or 0 do is_cross[list[i]] = true end
  local function attention(name, norms)
    return parts.attention(name, sizes, c.use_projection_bias_in_attention, c.use_ffn_bias_in_attention, norms)
  end
  return function(i)
    if not is_cross[i] then return attention("self_attn", c.attention_qk_norm_layer) end
    return { attention("multihead_attn", "rmsnorm"), { "cross_attn_attn_gate", { 1 } }, { "cross_attn_mlp_gate", { 1 } } }
  end
end

local function model(c, since, layer_norms)
  local sizes = { width = "hidden_size", inner = "inner", keys = "groups * head_dim", norm_size = "head_dim" }
  local attention_of = attentions(c, sizes)
  local more = c.num_extra_input_vocab_tokens
  local rows = more and more ~= 0 and "vocab_size + num_extra_input_vocab_tokens" or "vocab_size"
  local final = parts.norm("", "hidden_size", c.norm_type) or {}
  local norm_copy = {} -- the decoder's own name of the last norm
  for i, one in ipairs(final) do
    norm_copy[i] = one and { "transformer_decoder.norm" .. one[1], one[2], tied = "ln_f" .. one[1] }
  end
  return {
    { "embedding_layer.word_embeddings.weight", { rows, "hidden_size" } },
    parts.positions(c, since, "hidden_size", "num_heads") or false,
    c.embedding_layer_norm and parts.norm("embedding_ln_f", "hidden_size", c.norm_type),
    parts.norm("ln_f", "hidden_size", c.norm_type),
    each("transformer_decoder.layers", "num_hidden_layers", function(i)
      return { attention_of(i), layer_norms, feed_forward(c, since) }
    end),
    norm_copy,
    { "lm_head.weight", { c.share_embedding_weights and rows or "vocab_size", "hidden_size" },
      tied = c.share_embedding_weights and "embedding_layer.word_embeddings.weight" },
    c.use_bias_in_output and { "lm_head.bias", { "vocab_size" } },
  }
end

decoder.GPT2LMHeadModel = class.new "GPT2LMHeadModel" {
  fields = gpt2, history = history.gpt2, steps = steps, derived = derived, renamed = parts.renamed,
  removed = { norm_first = "2.4", use_ff_layer1_dropout = "2.4" }, -- written as the reference does, which its own 2.4 refuses
  refused = { scale_by_layer_index = "2.4", softmax_dtype_fp32 = "2.4" },
  tensors = function(c, since)
    c.norm_type = parts.norm_type(c, since, c.use_rms_norm)
    local names = c.norm_first_sandwich and { "norm1", "norm3", "norm1_post", "norm3_post" } or { "norm1", "norm3" }
    for i, name in ipairs(names) do names[i] = parts.norm(name, "hidden_size", c.norm_type) end
    return model(c, since, names)
  end,
}

decoder.GPTJModel = class.new "GPTJModel" {
  fields = gptj, history = history.gptj, steps = steps, derived = derived, renamed = parts.renamed,
  tensors = function(c, since)
    c.norm_type = parts.norm_type(c, since, c.use_rms_norm)
    return model(c, since, {
      parts.norm("norm1", "hidden_size", c.norm_type),
      c.use_untied_layer_norm and parts.norm("norm3", "hidden_size", c.norm_type),
    })
  end,
}

return class.module(decoder)
