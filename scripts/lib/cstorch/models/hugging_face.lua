-- Hugging Face's decoders, from the fields of their config.json. Source: the modeling files of transformers 4.48 to 4.53, and the code
-- beside the checkpoints of BTLM, JAIS, SantaCoder and MPT.

local activations = require "cstorch.models.activations"
local bloom_classes = require "converters.classes.hf.bloom"
local falcon_classes = require "converters.classes.hf.falcon"
local gemma2_classes = require "converters.classes.hf.gemma2"
local gpt2_classes = require "converters.classes.hf.gpt2"
local gptj_classes = require "converters.classes.hf.gptj"
local llama_classes = require "converters.classes.hf.llama"
local mistral_classes = require "converters.classes.hf.mistral"
local mixtral_classes = require "converters.classes.hf.mixtral"
local mpt_classes = require "converters.classes.hf.mpt"
local neox_classes = require "converters.classes.hf.gpt_neox"
local phi3_classes = require "converters.classes.hf.phi3"
local qwen2_classes = require "converters.classes.hf.qwen2"
local qwen3_classes = require "converters.classes.hf.qwen3"
local kinds = require "converters.engine.kinds"
local parts = require "cstorch.models.parts"
local positions = require "cstorch.nn.positions"
local rotary = require "cstorch.models.rotary"
local rotary_fields = require "converters.vocabulary.rotary"

---Rotary positions, by what the config says of them in maps and beside them.
---@param c table         fields of the config
---@param whole Dict      the config
---@param width integer   rotated elements of a head
---@param theta number
---@return cstorch.models.Rotary
local function rotary_of(c, whole, width, theta)
  local said, _ = rotary_fields.said(whole), c.rope_scaling
  if said.rope_type == "longrope" then
    local most, original = c.max_position_embeddings, whole.original_max_position_embeddings
    said.original_max_position_embeddings = kinds.present(original) and original or most
    said.factor = kinds.present(original) and most / original or said.factor or 1
  end
  return rotary.new(said.rope_theta or theta, width, true, said)
end

local function linear(name) return function(w, x) return w:linear(name, x) end end

-- --- LLaMA and its relatives

---@param c table
---@param whole Dict
---@param activation? string   default: hidden_act
---@return cstorch.models.Decoder   without a head and the place of its tensors
local function llama(c, whole, activation)
  local window, scale = c.sliding_window, c.head_dim ^ -0.5
  return {
    depth = c.num_hidden_layers, head_width = c.head_dim, embedding = "embed_tokens", layer = "layers.%d.",
    rotary = rotary_of(c, whole, c.head_dim * (c.partial_rotary_factor or 1), c.rope_theta),
    norm = { kind = "rmsnorm", eps = c.rms_norm_eps },
    norms = { attention = "input_layernorm", feed_forward = "post_attention_layernorm" },
    project = parts.apart("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", c.head_dim),
    scale = function() return scale end, output = linear "self_attn.o_proj", window = window and function() return window end or nil,
    feed_forward = parts.gated("linear", { up = "mlp.up_proj", gate = "mlp.gate_proj", down = "mlp.down_proj" },
      activations.plain(activation or c.hidden_act)),
    final_norm = "norm",
  }
end

---A mixture of experts as Mixtral has it.
---@param c table
---@param place string
---@param names { up: string, gate: string, down: string }
---@param count integer
---@param is_normed boolean
local function experts(c, place, names, count, is_normed)
  local act = activations.plain(c.hidden_act)
  local own = { gate = place .. ".gate", count = count, chosen = c.num_experts_per_tok, is_normed = is_normed }
  local function expert(i)
    local one = {}
    for part, name in pairs(names) do one[part] = ("%s.experts.%d.%s"):format(place, i, name) end
    return parts.gated("linear", one, act)
  end
  return function(w, x) return parts.experts(w, x, own, expert) end
end

local function mixtral(c, whole)
  local out = llama(c, whole)
  out.feed_forward = experts(c, "block_sparse_moe", { up = "w3", gate = "w1", down = "w2" }, c.num_local_experts, true)
  return out
end

---The window counts in the layers from max_window_layers on, if it is used at all.
local function qwen2(c, whole)
  local out = llama(c, whole)
  local window, first = c.sliding_window, c.max_window_layers
  out.window = c.use_sliding_window and window and function(layer) return layer >= first and window or nil end or nil
  return out
end

local function qwen3(c, whole)
  local out = qwen2(c, whole)
  out.head_norms = { q = "self_attn.q_norm", k = "self_attn.k_norm", how = out.norm }
  return out
end

local function qwen3_moe(c, whole)
  local out = qwen3(c, whole)
  local names = { up = "up_proj", gate = "gate_proj", down = "down_proj" }
  out.feed_forward = experts(c, "mlp", names, c.num_experts, c.norm_topk_prob)
  return out
end

local function phi3(c, whole)
  local out = llama(c, whole)
  out.project = parts.stacked("linear", "self_attn.qkv_proj", c.num_attention_heads, c.num_key_value_heads, c.head_dim)
  out.feed_forward = parts.gate_and_up("mlp.gate_up_proj", "mlp.down_proj", activations.plain(c.hidden_act))
  return out
end

---Windows are in layers 0, 2, ….
local function gemma2(c, whole)
  local out = llama(c, whole, c.hidden_activation)
  local window, scale = c.sliding_window, c.query_pre_attn_scalar ^ -0.5
  out.norm.plus_one, out.embedding_scale = true, c.hidden_size ^ 0.5
  out.norms = { attention = "input_layernorm", after_attention = "post_attention_layernorm", feed_forward = "pre_feedforward_layernorm",
    after_feed_forward = "post_feedforward_layernorm" }
  out.scale, out.cap = function() return scale end, c.attn_logit_softcapping
  out.window = window and function(layer) return layer % 2 == 0 and window or nil end or nil
  return out
end

-- --- GPT-2 and its relatives

---The scale of scores in each layer.
---@param c table
---@param factor? number
local function scale_of(c, factor)
  local scale = (c.scale_attn_weights ~= false and c.head_dim ^ -0.5 or 1) * (factor or 1)
  local by_layer = c.scale_attn_by_inverse_layer_idx
  return function(layer) return by_layer and scale / (layer + 1) or scale end
end

---@param c table
---@param matrix "linear"|"conv1d"
---@param project cstorch.models.Project
local function gpt2_like(c, matrix, project)
  local gate = activations.gate(c.activation_function) -- of BTLM
  local feed_forward = gate and parts.gated(matrix, { up = "mlp.c_fc", gate = "mlp.c_fc2", down = "mlp.c_proj" }, gate)
    or parts.plain(matrix, "mlp.c_fc", "mlp.c_proj", c.activation_function)
  return {
    depth = c.n_layer, head_width = c.head_dim, embedding = "wte", learned = { name = "wpe", offset = 0 }, layer = "h.%d.",
    norm = { kind = "layernorm", eps = c.layer_norm_epsilon }, norms = { attention = "ln_1", feed_forward = "ln_2" }, project = project,
    scale = scale_of(c), output = function(w, x) return w[matrix](w, "attn.c_proj", x) end,
    feed_forward = feed_forward, final_norm = "ln_f",
  }
end

local function gpt2(c) return gpt2_like(c, "conv1d", parts.stacked("conv1d", "attn.c_attn", c.n_head, c.n_head, c.head_dim)) end

local function btlm(c)
  local out = gpt2(c)
  if c.position_embedding_type == "alibi" then
    out.learned, out.slopes = nil, parts.slopes(c.n_head, 1 / (c.alibi_scaling and c.alibi_scaling.factor or 1), "relative_pe.slopes")
  end
  if c.scale_attn_weights ~= false and c.mup_scale_qk_dot_by_d then out.scale = scale_of(c, c.head_dim ^ -0.5) end
  out.embedding_scale, out.head_scale = c.mup_embeddings_scale, c.mup_output_alpha * c.mup_width_scale
  return out
end

---One key head, with a matrix of its own.
local function santacoder(c)
  local width = c.head_dim
  return gpt2_like(c, "conv1d", function(w, x)
    local both = w:conv1d("attn.kv_attn", x)
    return parts.heads(w:conv1d("attn.q_attn", x), width), parts.heads(both:slice(-1, 0, width), width),
      parts.heads(both:slice(-1, width, 2 * width), width)
  end)
end

local function bigcode(c)
  return gpt2_like(c, "linear", c.multi_query and parts.stacked("linear", "attn.c_attn", c.n_head, 1, c.head_dim)
    or parts.per_group("attn.c_attn", c.n_head, c.n_head, c.head_dim))
end

-- --- attention and feed-forward part side by side

local function gptj_like(c, project)
  return {
    depth = c.n_layer, head_width = c.head_dim, embedding = "wte", layer = "h.%d.", is_parallel = true,
    rotary = rotary.new(10000, c.rotary_dim or c.head_dim, false),
    norm = { kind = "layernorm", eps = c.layer_norm_epsilon }, norms = { attention = "ln_1" }, project = project,
    scale = scale_of(c), output = linear "attn.out_proj",
    feed_forward = parts.plain("linear", "mlp.fc_in", "mlp.fc_out", c.activation_function), final_norm = "ln_f",
  }
end

local function gptj(c) return gptj_like(c, parts.apart("attn.q_proj", "attn.k_proj", "attn.v_proj", c.head_dim)) end
local function codegen(c) return gptj_like(c, parts.quarters("attn.qkv_proj", c.n_head, c.head_dim)) end

local function gpt_neox(c, whole)
  local heads = c.num_attention_heads
  return {
    depth = c.num_hidden_layers, head_width = c.head_dim, embedding = "embed_in", layer = "layers.%d.",
    is_parallel = c.use_parallel_residual, rotary = rotary_of(c, whole, c.rotary_dim, c.rotary_emb_base),
    norm = { kind = "layernorm", eps = c.layer_norm_eps },
    norms = { attention = "input_layernorm", feed_forward = "post_attention_layernorm" },
    project = parts.per_group("attention.query_key_value", heads, heads, c.head_dim),
    scale = scale_of(c), output = linear "attention.dense",
    feed_forward = parts.plain("linear", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", c.hidden_act), final_norm = "final_layer_norm",
  }
end

---RefinedWeb of 40B is the one that counts its key heads.
local function falcon(c, whole)
  local is_new = c.new_decoder_architecture or c.n_head_kv ~= nil
  local groups = is_new and c.kv_heads or c.multi_query and 1 or c.num_attention_heads
  local has_two = is_new and c.num_ln_in_parallel_attn ~= 1
  local norms = has_two and { attention = "ln_attn", feed_forward = "ln_mlp" }
    or { attention = "input_layernorm", feed_forward = not c.parallel_attn and "post_attention_layernorm" or nil }
  return {
    depth = c.num_hidden_layers, head_width = c.head_dim, embedding = "word_embeddings", layer = "h.%d.",
    is_parallel = is_new or c.parallel_attn, rotary = not c.alibi and rotary_of(c, whole, c.head_dim, c.rope_theta) or nil,
    slopes = c.alibi and parts.slopes(c.num_attention_heads, c.head_dim ^ -0.5) or nil, -- added before scores are scaled
    norm = { kind = "layernorm", eps = c.layer_norm_epsilon }, norms = norms,
    project = parts.per_group("self_attention.query_key_value", c.num_attention_heads, groups, c.head_dim),
    scale = scale_of(c), output = linear "self_attention.dense",
    feed_forward = parts.plain("linear", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", c.activation), final_norm = "ln_f",
  }
end

-- --- positions by ALiBi

---Its gelu is the approximation by tanh, whatever a config says.
local function bloom(c)
  return {
    depth = c.n_layer, head_width = c.head_dim, embedding = "word_embeddings", embedding_norm = "word_embeddings_layernorm",
    layer = "h.%d.", slopes = parts.slopes(c.n_head, 1), norm = { kind = "layernorm", eps = c.layer_norm_epsilon },
    norms = { attention = "input_layernorm", feed_forward = "post_attention_layernorm" },
    project = parts.per_group("self_attention.query_key_value", c.n_head, c.n_head, c.head_dim),
    scale = scale_of(c), output = linear "self_attention.dense",
    feed_forward = parts.plain("linear", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "gelu_new"), final_norm = "ln_f",
  }
end

local function mpt(c, whole)
  local has_alibi, attention, heads, most = c["attn_config.alibi"], whole.attn_config, c.n_heads, c["attn_config.alibi_bias_max"]
  local given = kinds.present(attention) and attention.softmax_scale
  local scale = kinds.present(given) and given or c.head_dim ^ -0.5
  return {
    depth = c.n_layers, head_width = c.head_dim, embedding = "wte", layer = "blocks.%d.",
    slopes = has_alibi and function() return positions.alibi_slopes(heads) ^ (most / 8) end or nil,
    learned = not has_alibi and c.learned_pos_emb and { name = "wpe", offset = 0 } or nil,
    norm = { kind = "layernorm", eps = c.layer_norm_epsilon }, norms = { attention = "norm_1", feed_forward = "norm_2" },
    project = parts.stacked("linear", "attn.Wqkv", c.n_heads, c.n_heads, c.head_dim),
    scale = function() return scale end, output = linear "attn.out_proj",
    feed_forward = parts.plain("linear", "ffn.up_proj", "ffn.down_proj", "gelu"), final_norm = "norm_f",
  }
end

-- --- classes: with their head, and without

---@alias cstorch.models.Describe fun(c: table, whole: Dict): cstorch.models.Decoder

---@type table<Class, cstorch.models.Describe>
local by_class = {}

---@param classes table<string, Class>
---@param place string      of the tensors below the head
---@param head string       name
---@param names string[]    of the class without its head, and with it
---@param describe fun(c: table, whole: Dict): cstorch.models.Decoder
local function add(classes, place, head, names, describe)
  by_class[classes[names[1]]] = function(c, whole)
    local out = describe(c, whole)
    out.place = ""
    return out
  end
  by_class[classes[names[2]]] = function(c, whole)
    local out = describe(c, whole)
    out.place, out.head = place, { name = head, scale = out.head_scale, cap = c.final_logit_softcapping }
    return out
  end
end

for _, one in ipairs {
  { llama_classes, "Llama", llama }, { mistral_classes, "Mistral", llama }, { mixtral_classes, "Mixtral", mixtral },
  { qwen2_classes, "Qwen2", qwen2 }, { qwen3_classes, "Qwen3", qwen3 }, { qwen3_classes, "Qwen3Moe", qwen3_moe },
  { phi3_classes, "Phi3", phi3 }, { gemma2_classes, "Gemma2", gemma2 },
} do
  add(one[1], "model.", "lm_head", { one[2] .. "Model", one[2] .. "ForCausalLM" }, one[3])
end
for _, one in ipairs {
  { gptj_classes, "GPTJ", gptj }, { gptj_classes, "CodeGen", codegen }, { falcon_classes, "Falcon", falcon },
  { bloom_classes, "Bloom", bloom }, { mpt_classes, "Mpt", mpt }, { gpt2_classes, "GPTBigCode", bigcode },
} do
  add(one[1], "transformer.", "lm_head", { one[2] .. "Model", one[2] .. "ForCausalLM" }, one[3])
end
for _, one in ipairs { { "GPT2", gpt2 }, { "BTLM", btlm }, { "JAIS", btlm } } do
  add(gpt2_classes, "transformer.", "lm_head", { one[1] .. "Model", one[1] .. "LMHeadModel" }, one[2])
end
add(gpt2_classes, "transformer.", "lm_head", { "GPT2CustomModel", "GPT2LMHeadCustomModel" }, santacoder)
add(neox_classes, "gpt_neox.", "embed_out", { "GPTNeoXModel", "GPTNeoXForCausalLM" }, gpt_neox)

return by_class
