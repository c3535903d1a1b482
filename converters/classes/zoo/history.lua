-- The releases with which config fields of the Model Zoo's classes came, and the values that older releases compute with.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"

---@type table<string, History>
local history = {}

---As many groups as heads is plain attention; with fewer groups, 1.9 gave each to every n-th head, not to neighbours.
local grouped = { "2.0", function(extra, section)
  local groups = kinds.is_dict(extra) and extra.num_kv_groups
  return kinds.absent(groups) or groups == 1 or groups == section.num_heads
end, says = "num_kv_groups=1, or as many as heads,", warn = true }

---With a factor of 1 the kind of scaling does not matter, except for longrope, which has factors of its own.
local function is_unscaled(section)
  return section.pos_scaling_type ~= "longrope" and (kinds.absent(section.pos_scaling_factor) or section.pos_scaling_factor == 1)
end
local function is_linear(kind, section) return kind == "linear" or is_unscaled(section) end
local function is_before_longrope(kind) return kind ~= "longrope" end
local function is_empty(map) return kinds.is_dict(map) and cbk.count(map) == 0 end
local function is_unused(extra, section) return is_empty(extra) or is_unscaled(section) end

local function is_one_expert(experts)
  return kinds.is_dict(experts) and (experts.num_experts == nil or experts.num_experts == 1)
end

---Experts whose implementation is one of those that a release has. (moe.moe_implementation is a field of a map.)
local function experts_of(release, ...)
  local known, names = { [false] = true }, { ... }
  for _, name in ipairs(names) do known[name] = true end
  return { release, function(experts)
    local own = kinds.is_dict(experts) and experts.moe_implementation
    return known[kinds.present(own) and own] == true
  end, says = "moe_implementation: " .. table.concat(names, " or ") }
end

local moe = {
  experts_of("2.8", "optimized", "functional", "experimental", "forge_experimental"),
  experts_of("2.7", "optimized", "functional", "experimental"),
  experts_of("2.5", "optimized", "functional"),
  { "2.3", is_one_expert, says = "one expert (num_experts: 1)" },
}

local positions = {
  rope_theta = { "2.1", 10000, warn = "steps" }, pos_scaling_factor = { "2.1", 1, warn = "steps" },
  pos_scaling_type = {
    { "2.4", is_before_longrope, says = "'linear', 'yarn' or 'llama3'", warn = "steps" },
    { "2.3", is_linear, says = "'linear'", warn = "steps" },
  },
  pos_scaling_extra_args = { "2.3", is_unused, says = "null", warn = "steps" },
}

local mup = {
  mup_base_hidden_size = { "2.3", cbk.null }, mup_base_filter_size = { "2.3", cbk.null }, attention_logits_alpha = { "2.3", 1 },
  output_logits_alpha = { "2.3", 1 }, scale_output_logits_by_d = { "2.3", true },
}

---The mask of 2.2 hides keys that are more than the window behind, that of later releases and Hugging Face's also the one at the window;
---2.1 knows the field in its converters only.
local window = {
  { "2.3", meant = "a window is one token longer: one less there is the same" },
  { "2.2", meant = "attention has no window" },
  { "2.1", cbk.null },
}

local decoders = fields.with(fields.with(positions, mup), {
  attention_module = { "1.9", "aiayn_attention" }, extra_attention_params = grouped, alibi_trainable_slopes = { "2.1", false },
  attention_sliding_window_length = window, attention_sink_tokens = { "2.4", cbk.null },
  moe = moe, moe_params = moe,
})

---GPT2LMHeadModel
history.gpt2 = fields.with(decoders, {
  embedding_layer_norm = { "1.8", false },
  position_embedding_type = { "1.9", fields.any_of("learned", "fixed") }, alibi_trainable_slopes = { "1.9", false },
  use_rms_norm = { "1.9", false, warn = true }, scale_qk_dot_by_d = { "1.9", false }, embeddings_scale = { "1.9", 1 },
  output_logits_scale = { "1.9", 1 },
  position_embedding_offset = { "2.0", 0 }, scale_qk_dot_by_layer_idx = { "2.0", false },
  attention_inner_dim = { "2.3", cbk.null, says = "a value that follows from hidden_size and the number of heads" },
  attention_logit_softcapping = { "2.3", cbk.null },
  final_logit_softcapping = { "2.3", cbk.null }, norm_first_sandwich = { "2.3", false },
  sliding_window_every_other_decoder_layer = { "2.3", false }, constant_pos_embedding = { "2.3", cbk.null },
  attention_chunk_size = { "2.4", cbk.null }, attention_vertical_column_spacing = { "2.4", cbk.null },
  attention_vertical_column_width = { "2.4", cbk.null }, rel_distance_mode = { "2.4", "default" },
  attention_qk_norm_layer = { "2.5", cbk.null }, num_extra_input_vocab_tokens = { "2.5", 0 },
})

---GPTJModel
history.gptj = fields.with(decoders, {
  use_biasless_norm = { "1.9", false }, scale_qk_dot_by_d = { "2.3", false }, embeddings_scale = { "2.3", 1 },
})

---BertModel and the models built on it
history.bert = fields.with(fields.with(positions, mup), {
  use_final_layer_norm = { "1.9", false }, mask_padding_in_positional_embed = { "2.0", false, warn = true },
  position_embedding_type = { "2.1", fields.any_of("learned", "fixed") },
  embedding_layer_norm = { "2.1", true }, norm_first = { "2.1", false }, scale_qk_dot_by_d = { "2.3", false },
  embeddings_scale = { "2.3", 1 }, freeze_ffn_bias_in_glu = { "2.3", false },
})

---T5ForConditionalGeneration
history.t5 = {
  attention_module = { "2.1", "aiayn_attention" }, extra_attention_params = { "2.1", is_empty, says = "null" },
  mup_base_d_model = { "2.3", cbk.null }, mup_base_d_ff = { "2.3", cbk.null }, mup_base_d_kv = { "2.3", cbk.null },
  embeddings_alpha = { "2.3", 1 }, encoder_attention_logits_alpha = { "2.3", 1 }, decoder_attention_logits_alpha = { "2.3", 1 },
  scale_encoder_qk_dot_by_d = { "2.3", false }, scale_decoder_qk_dot_by_d = { "2.3", false }, output_logits_alpha = { "2.3", 1 },
  scale_output_logits_by_d = { "2.3", false },
}

return history
