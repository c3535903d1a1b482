-- The nested config of the Model Zoo's backbone models (2.4): the same fields as in the flat one, in sections.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"

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

local EVERY_OTHER = "sliding_window_every_other_decoder_layer" -- in the nested config, the list of layers says it

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
  at("transformer_decoder.", EVERY_OTHER),
}

local is_known = {}
for _, rule in ipairs(config) do is_known[rule.right] = true end

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

---The nested values under dotted names.
---@param nested Dict
---@param of_layer? boolean   it is the section of one layer
---@return Dict
---@return string[] strange   names that no rule has, with their values
local function flatten(nested, of_layer)
  local out, strange = cbk.dict(), {}
  local function look(map, place)
    for name in cbk.items(map) do
      local path = place .. tostring(name)
      local is_one = is_known[of_layer and "transformer_decoder.layers." .. path or path]
      if kinds.is_dict(map, name) and not is_one then
        look(map[name], path .. ".")
      else
        out[path] = cbk.raw(map, name)
        if not is_one then strange[#strange + 1] = ("%s=%s"):format(path, fields.shown(map[name])) end
      end
    end
  end
  look(nested, "")
  return out, strange
end

---@param nested Dict   with one section for all layers
local function flat(nested)
  local out, strange = flatten(nested)
  if #strange > 0 then cbk.warn("config fields without a counterpart are left out: " .. naming.listed(strange)) end
  return out
end

---A list of layers instead of one for all, in which every other layer lacks the sliding window.
local function alternate(out, from)
  out = nest(out)
  local stack = out.transformer_decoder
  if stack then stack[EVERY_OTHER] = nil end
  if from[EVERY_OTHER] == true then
    local every, layers = stack.layers, cbk.list()
    for i = 1, from.num_hidden_layers do
      layers[i] = cbk.deep_copy(every)
      if i % 2 == 1 then layers[i].self_attn.attention_sliding_window_length = cbk.null end
    end
    stack.layers = layers
  end
  return out
end

---Fails if the layers of a list differ, but for their windows.
---@param layers Dict[]
local function check_alike(layers)
  local first = flatten(layers[1], true)
  for i, one in ipairs(layers) do
    local own = flatten(one, true)
    for _, pair in ipairs { { first, own }, { own, first } } do
      for name in cbk.items(pair[1]) do
        local is_same = pair[2][name] ~= nil and cbk.equal(pair[1][name], pair[2][name])
        if name ~= "self_attn.attention_sliding_window_length" and not is_same then
          fields.refuse(("transformer_decoder.layers[%d].%s"):format(i - 1, name), own[name] ~= nil and own[name] or cbk.null,
            "one value for all layers")
        end
      end
    end
  end
end

---The window of all layers, or of every other one.
---@param layers Dict[]
---@return any window, boolean is_every_other
local function window_of(layers)
  local function window(i)
    local value = kinds.is_dict(layers[i], "self_attn") and layers[i].self_attn.attention_sliding_window_length
    return value ~= nil and value ~= cbk.null and value or nil
  end
  local usual, is_same, is_alternate = window(2), true, window(2) ~= nil
  for i = 1, #layers do
    is_same = is_same and window(i) == window(1)
    is_alternate = is_alternate and window(i) == (i % 2 == 0 and usual or nil)
  end
  if not (is_same or is_alternate) then
    cbk.fail("config", "cannot convert the config: transformer_decoder.layers has windows that are neither the same in all layers nor in "
      .. "every second one alone")
  end
  return is_same and window(1) or usual, not is_same
end

---Replaces a list of layers by one for all.
local function unify(nested)
  local stack = nested.transformer_decoder
  if stack == nil or not kinds.is_list(stack, "layers") then return flat(nested) end
  nested = cbk.deep_copy(nested)
  stack = nested.transformer_decoder
  local layers = {}
  for i, one in cbk.items(stack.layers) do
    if not kinds.is_dict(one) then fields.refuse(("transformer_decoder.layers[%d]"):format(i - 1), one, "a section") end
    layers[i] = one
  end
  if #layers == 0 then cbk.fail("config", "cannot convert the config: transformer_decoder.layers has no layer") end
  check_alike(layers)
  local window, is_every_other = window_of(layers)
  stack.layers = layers[1]
  if kinds.is_dict(layers[1], "self_attn") then
    layers[1].self_attn.attention_sliding_window_length = window or layers[1].self_attn.attention_sliding_window_length
  end
  stack[EVERY_OTHER] = is_every_other or nil
  return flat(nested)
end

return {
  config = config,
  prepare = { right = unify },
  finish = { right = alternate },
}
