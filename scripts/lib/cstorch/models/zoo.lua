-- The Model Zoo's decoders, GPT2LMHeadModel and GPTJModel, from the fields of their model section. Source: gpt2_model.py, gptj_model.py,
-- AttentionLayer.py, SparseMoEBlock.py and RotaryPositionEmbeddingHelper.py of the Model Zoo 2.9.

local activations = require "cstorch.models.activations"
local cbk = require "cbk"
local errors = require "cstorch.errors"
local functional = require "cstorch.nn.functional"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local parts = require "cstorch.models.parts"
local rotary = require "cstorch.models.rotary"
local zoo_layers = require "cstorch.models.zoo_layers"

local zoo = {}

local QUARTER = 0.25 -- of a head, which is rotated where the config does not say how much

---Fails if a map of the config has a part that is not known, or one that is not computed with.
---@param map Dict|nil
---@param place string
---@param known table<string, any>   true: any value; else the value that changes nothing
local function check_parts(map, place, known)
  zoo_layers.check_names(map, place, known)
  for name, value in cbk.items(kinds.present(map) and map or cbk.dict()) do
    local is_fine = known[name] == true or kinds.absent(value) or value == known[name]
    errors.check_field(is_fine, place .. "." .. name, "%s=%s is not emulated", name, errors.show(value))
  end
end

local SCALINGS = {
  linear = {}, llama3 = { low_freq_factor = true, high_freq_factor = true, original_max_position_embeddings = true, factor = true },
  yarn = { original_max_position_embeddings = true, beta_fast = true, beta_slow = true, extrapolation_factor = 1, mscale_a = 0.1,
    mscale_b = 1, truncate = true, factor = true },
  longrope = { short_factor = true, long_factor = true, original_max_position_embeddings = true, attention_factor = true, factor = true },
}

local LLAMA3 = { low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192 }

---@param c table
local function rotary_of(c)
  local kind, said = (c.pos_scaling_type or "linear"):lower(), { factor = c.pos_scaling_factor or 1 }
  zoo_layers.check_choice("pos_scaling_type", kind, naming.sorted(SCALINGS))
  local extra = c.pos_scaling_extra_args
  check_parts(extra, "pos_scaling_extra_args", SCALINGS[kind])
  for name, value in pairs(kind == "llama3" and LLAMA3 or {}) do said[name] = value end
  for name, value in cbk.items(kinds.present(extra) and extra or cbk.dict()) do said[name] = value end
  said.rope_type = kind
  local needed = kind ~= "linear" and "original_max_position_embeddings"
  errors.check_field(not needed or type(said[needed]) == "number", "pos_scaling_extra_args", "%s needs '%s', a number", kind, needed)
  if kind == "longrope" then
    local original, most = said.original_max_position_embeddings, c.max_position_embeddings
    said.factor, said.long_from = most / original, most > original and 0 or most
  end
  local width = c.rotary_dim or math.floor(c.head_dim * QUARTER)
  errors.check_field(width <= c.head_dim and width % 2 == 0, "rotary_dim",
    "expected an even number up to the %d elements of a head, found %d", c.head_dim, width)
  return rotary.new(c.rope_theta, width, false, said)
end

--- What there is to know of positions, by their kind.
local POSITIONS = {
  learned = function(c)
    return { learned = { name = "embedding_layer.position_embeddings.embed", offset = c.position_embedding_offset or 0 } }
  end,
  rotary = function(c) return { rotary = rotary_of(c) } end,
  alibi = function(c)
    return { slopes = parts.slopes(c.num_heads, 1 / (c.pos_scaling_factor or 1), "embedding_layer.position_embed_helper.slopes") }
  end,
  none = function() return {} end,
}

---@param c table
local function positions_of(c)
  local kind = c.position_embedding_type or "none"
  if not POSITIONS[kind] then
    errors.refuse({ field = "position_embedding_type" }, ("position_embedding_type=%s is not emulated%s; learned, rotary and alibi are")
      :format(tostring(kind), errors.suggestion(kind, naming.sorted(POSITIONS))))
  end
  return POSITIONS[kind](c)
end

---What is known of a mixture of experts.
local MIXTURE = {
  num_experts = true, top_k = true, num_shared_experts = true, expert_weighting_normalization = true, moe_implementation = true,
  load_balancing_loss_coef = true, router_fp32 = true, router_use_bias = true, gate_initializer = true, null_expert_bias = 0,
  routing_algorithm = "learned", router_selection_nonlinearity = "softmax", expert_weighting_nonlinearity = "softmax",
  probability_before_ffn = false, sinkhorn_n_iters = true, apply_expert_weighting_normalization = true,
}

---An expert whose weights are a part of tensors of all experts.
local function fused_expert(activation, place, i)
  local act = activations.gate(activation)
  local plain = not act and activations.plain(activation)
  local function layer(w, name, x)
    local biases = w:of_expert(place .. name .. ".expert_biases", i)
    return functional.linear(x, w:of_expert(place .. name .. ".expert_weights", i), biases and biases:reshape { -1 })
  end
  return function(w, x)
    local up = layer(w, "0.linear_layer", x)
    local inner = act and up * act(layer(w, "0.linear_layer_for_glu", x)) or plain(up)
    return layer(w, "1.linear_layer", inner)
  end
end

---The experts of a layout, of which there are several: in tensors of all, one by one, and as functions.
---@param activation string
---@param w cstorch.models.Weights   of a layer
---@param routed integer
---@return fun(i: integer): cstorch.models.Compute expert   those from `routed` on are shared
local function experts_of(activation, w, routed)
  if w:has "ffn.experts.fused_ffns.0.linear_layer.expert_weights" then
    return function(i) return fused_expert(activation, "ffn.experts.fused_ffns.", i) end
  end
  local are_single = w:has "ffn.experts.experts.0.0.linear_layer.weight"
  return function(i)
    local place = are_single and ("experts.%d."):format(i) or ("experts.%d.ffn."):format(i)
    if are_single and i >= routed then place = ("shared_experts.%d.ffn."):format(i - routed) end
    place = "ffn.experts." .. place
    return zoo_layers.feed_forward(activation, place .. "0", place .. "1")
  end
end

---@param c table
---@param moe Dict
---@param place string     of the mixture, in the config
---@param routed integer   experts
---@param shared integer
---@return cstorch.models.Compute
local function mixture(c, moe, place, routed, shared)
  check_parts(moe, place, MIXTURE)
  local activation, normed, top_k = c.nonlinearity, moe.expert_weighting_normalization, kinds.present(moe.top_k) and moe.top_k or 1
  errors.check_field(zoo_layers.is_count(top_k, routed), place .. ".top_k", "expected a whole number from 1 to %d (num_experts), found %s",
    routed, errors.show(top_k))
  local own = { gate = "ffn.gate", count = routed, chosen = top_k, is_normed = kinds.absent(normed) or normed }
  return function(w, x)
    local expert, others = experts_of(activation, w, routed), {}
    for i = 1, shared do others[i] = expert(routed + i - 1) end
    return parts.experts(w, x, own, expert, others)
  end
end

---@param c table
---@param whole Dict
local function feed_forward_of(c, whole)
  local moe, place = c.moe_params, kinds.present(whole.moe_params) and "moe_params" or "moe"
  zoo_layers.check_names(moe, place, MIXTURE)
  local routed, shared = kinds.present(moe) and moe.num_experts or 1, kinds.present(moe) and moe.num_shared_experts or 0
  if kinds.absent(shared) then shared = 0 end
  if routed + shared > 1 then return mixture(c, moe, place, routed, shared) end
  return zoo_layers.feed_forward(c.nonlinearity, "ffn.ffn.0", "ffn.ffn.1")
end

---The scale of scores in each layer.
---@param c table
---@param whole Dict
local function scale_of(c, whole)
  local scale, by_layer = zoo_layers.scale(c, whole), c.scale_qk_dot_by_layer_idx
  return function(layer) return by_layer and scale / (layer + 1) or scale end
end

---@param c table
local function window_of(c)
  local window, is_in_half = c.attention_sliding_window_length, c.sliding_window_every_other_decoder_layer
  errors.check_field(window or not is_in_half, "sliding_window_every_other_decoder_layer", "true needs attention_sliding_window_length")
  if not window then return nil end
  errors.check_field(zoo_layers.is_count(window), "attention_sliding_window_length", "expected a whole number of at least 1, found %s",
    errors.show(window))
  return function(layer) return (not is_in_half or layer % 2 == 1) and window or nil end
end

---The rates of dropout.
---@param c table
---@param whole Dict
local function dropout_of(c, whole)
  local attention = whole.attention_dropout_rate == cbk.null and c.dropout_rate or c.attention_dropout_rate
  return { embedding = c.embedding_dropout_rate or c.dropout_rate, attention = attention, residual = c.dropout_rate }
end

---The factors of learning rates that muP gives to layers that are wider than its base model's.
---@param whole Dict
---@return table<string, number>|nil
local function rates_of(whole)
  local width, filter = zoo_layers.wider(whole, "hidden_size", "mup_base_hidden_size"),
    zoo_layers.wider(whole, "filter_size", "mup_base_filter_size")
  if width == 1 and filter == 1 then return nil end
  return { ["*decoder*attn*dense*weight"] = 1 / width, ["*decoder*ffn.ffn.0*weight"] = 1 / width,
    ["*decoder*ffn.ffn.1*weight"] = 1 / filter }
end

---@param c table          fields of the model section
---@param whole Dict       the model section
---@return cstorch.models.Decoder
local function described(c, whole)
  zoo_layers.check_groups(c, true)
  zoo_layers.check_base(whole, { "mup_base_hidden_size", "mup_base_filter_size" })
  local out = positions_of(c)
  out.place = ""
  out.depth, out.head_width, out.inner = c.num_hidden_layers, c.head_dim, c.head_dim * c.num_heads
  out.embedding, out.embedding_scale = "embedding_layer.word_embeddings", c.embeddings_scale
  out.embedding_norm = c.embedding_layer_norm and "embedding_ln_f" or nil
  out.layer, out.norm = "transformer_decoder.layers.%d.", zoo_layers.norm(c.norm_type, c.layer_norm_epsilon)
  out.norms = { attention = "norm1", feed_forward = "norm3" }
  out.project, out.output = zoo_layers.project("self_attn", c.head_dim), zoo_layers.output "self_attn"
  out.scale, out.window = scale_of(c, whole), window_of(c)
  out.feed_forward = feed_forward_of(c, whole)
  out.final_norm, out.dropout = "ln_f", dropout_of(c, whole)
  out.head = { name = "lm_head", scale = zoo_layers.logits_scale(c) }
  out.rates = rates_of(whole)
  return out
end

---@param c table
---@return cstorch.models.Decoder
function zoo.GPT2LMHeadModel(c, whole)
  local out = described(c, whole)
  -- This class alone has no rate of its own for embeddings.
  local says_rate = kinds.present(whole.embedding_dropout_rate) or kinds.present(whole.embd_pdrop)
  if not says_rate then out.dropout.embedding = c.dropout_rate end
  if c.norm_first_sandwich then out.norms.after_attention, out.norms.after_feed_forward = "norm1_post", "norm3_post" end
  if kinds.present(c.attention_qk_norm_layer) then
    out.head_norms = { q = "self_attn.q_norm", k = "self_attn.k_norm",
      how = zoo_layers.norm(c.attention_qk_norm_layer, c.attention_qk_norm_eps) }
  end
  out.cap, out.head.cap = c.attention_logit_softcapping, c.final_logit_softcapping
  return out
end

---@param c table
---@return cstorch.models.Decoder
function zoo.GPTJModel(c, whole)
  local out = described(c, whole)
  out.is_parallel = true
  if not c.use_untied_layer_norm then out.norms.feed_forward = nil end
  return out
end

return zoo
