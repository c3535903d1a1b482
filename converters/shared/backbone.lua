-- The nested config of the Model Zoo's backbone models (2.4): the same fields as in the flat one, in sections.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"

local embedding = [[vocab_size max_position_embeddings embd_pdrop position_embedding_type constant_pos_embedding
  position_embedding_offset share_embedding_weights embedding_layer_norm num_relative_attention_buckets rotary_dim rope_theta
  fold_rope_consts alibi_trainable_slopes pos_scaling_factor pos_scaling_type pos_scaling_extra_args rel_distance_mode
  rel_distance_extra_args embedding_initializer]]

local attention = [[num_heads attention_type attention_module attention_sliding_window_length scale_qk_dot_by_layer_idx
  attention_sink_tokens attention_vertical_column_spacing attention_vertical_column_width attention_chunk_size
  attention_qk_norm_layer attention_qk_norm_eps extra_attention_params extra_ffn_params attention_inner_dim
  use_projection_bias_in_attention use_ffn_bias_in_attention attention_dropout_rate attention_kernel
  attention_logit_softcapping fixed_sparse_attention num_memory_tokens_per_chunk attn_memory_chunk_size]]

local layer = "filter_size nonlinearity use_ffn_bias norm_first norm_first_sandwich use_ff_layer1_dropout"

local decoder = "num_hidden_layers dropout_rate norm_type layer_norm_epsilon"

local model = [[hidden_size attention_softmax_fp32 use_bias_in_output initializer_range initializer output_layer_initializer
  ffn_initializer ffn_output_layer_initializer lr_adjustment_groups mup_base_hidden_size mup_base_filter_size embeddings_scale
  scale_qk_dot_by_d attention_logits_alpha scale_output_logits_by_d output_logits_alpha mup_verification output_logits_scale
  final_logit_softcapping moe_params dtype boundary_casting loss_scaling loss_weight label_smoothing z_loss_eps]]

local function at(place, names)
  local out = {}
  for name in names:gmatch "%S+" do out[#out + 1] = { name, place .. name } end
  return fields.config(out)
end

local config = fields.config {
  { "name", "name", { forward = function() return "gpt_backbone" end, backward = function() return "gpt2" end } },
  at("", model),
  at("embedding_layer.", embedding),
  at("transformer_decoder.layers.self_attn.", attention),
  at("transformer_decoder.layers.", layer),
  at("transformer_decoder.", decoder),
}

---Turns dotted names into nested dicts.
local function nest(flat)
  local out = cbk.dict()
  for name in cbk.items(flat) do
    local inner, place, leaf = out, name:match "^(.-)%.?([^.]+)$"
    for part in place:gmatch "[^.]+" do
      if inner[part] == nil then inner[part] = cbk.dict() end
      inner = inner[part]
    end
    inner[leaf] = cbk.raw(flat, name)
  end
  return out
end

---The nested values that the table has, under dotted names.
local function flatten(nested)
  local out = cbk.dict()
  for _, rule in ipairs(config) do
    local place, leaf = rule.right:match "^(.-)%.?([^.]+)$"
    local parent = place == "" and nested or cbk.find(nested, place)
    if kinds.is_dict(parent) and parent[leaf] ~= nil then out[rule.right] = cbk.raw(parent, leaf) end
  end
  return out
end

---A list of layers instead of one for all, in which every other layer lacks the sliding window.
local function alternate(out, from)
  out = nest(out)
  if from.sliding_window_every_other_decoder_layer == true then
    local every, layers = out.transformer_decoder.layers, cbk.list()
    for i = 1, from.num_hidden_layers do
      layers[i] = cbk.deep_copy(every)
      if i % 2 == 1 then layers[i].self_attn.attention_sliding_window_length = cbk.null end
    end
    out.transformer_decoder.layers = layers
  end
  return out
end

---Replaces a list of layers by one for all: the last, which has the window.
local function unify(nested)
  local stack = nested.transformer_decoder
  if stack == nil or not kinds.is_list(stack, "layers") then return flatten(nested) end
  nested = cbk.deep_copy(nested)
  local layers = nested.transformer_decoder.layers
  nested.transformer_decoder.layers = layers[#layers]
  return flatten(nested)
end

return {
  config = config,
  prepare = { right = unify },
  finish = { right = alternate },
}
