-- Modules that several classes of the Model Zoo are made of, as lists of tensors.

local cbk = require "cbk"
local class = require "converters.engine.class"
local kinds = require "converters.engine.kinds"

local below, each, linear, norm = class.below, class.each, class.linear, class.norm

local parts = {}

---Names up to release 2.0, which later files may have all the same.
parts.renamed = {
  { "position_embeddings%.weight$", "position_embeddings.embed.weight" }, { "position_embeddings$", "position_embeddings.fpe" },
  { "^relative_pe_helper%.", "embedding_layer.position_embed_helper." },
  { "^relative_position_(%l+)%.", "%1_embeddings.position_embed_helper." },
}

---Values that say no more than the default (class.unused).
function parts.is_false(value) return value == false end
---As many groups of keys as heads are plain attention, whatever the module is called.
---@param extra any   extra_attention_params
function parts.has_no_groups(extra, config)
  if not kinds.is_dict(extra) then return false end
  local count, groups = cbk.count(extra), extra.num_kv_groups
  return count == 0 or count == 1 and groups ~= nil and groups == config.num_heads
end
---@param module any   attention_module
function parts.is_plain_attention(module, config)
  local extra = config.extra_attention_params
  local groups = kinds.is_dict(extra) and extra.num_kv_groups or nil
  return module == "multiquery_attention" and groups ~= nil and groups == config.num_heads
end
function parts.is_empty_list(value) return kinds.is_list(value) and #value == 0 end
function parts.is_hidden_size(value, config) return value == config.hidden_size end
function parts.is_one_expert(experts)
  return kinds.is_dict(experts) and (experts.num_experts == nil or experts.num_experts == 1)
end

---How positions are scaled does not matter where the factor is 1, but for longrope, which has factors of its own.
function parts.is_unscaled(_, config)
  return config.pos_scaling_type ~= "longrope" and (kinds.absent(config.pos_scaling_factor) or config.pos_scaling_factor == 1)
end

---@param usual string   the class's position_embedding_type
function parts.is_not_rotary(usual)
  return function(_, config) return (config.position_embedding_type or usual) ~= "rotary" end
end

---A field `position_embedding_type`.
---@param default string
---@return ClassField
function parts.position_kinds(default)
  return class.deciding(class.kinds.choice(default), "learned", "fixed", "relative", "alibi", "rotary")
end

---Values of `moe_params`, one for each layout of experts that a class may have.
---@type Dict[]
parts.mixtures = {}
for _, implementation in ipairs { cbk.null, "optimized", "functional" } do
  for _, shared in ipairs { 0, 1 } do
    for _, has_bias in ipairs { false, true } do
      table.insert(parts.mixtures, cbk.dict { num_experts = 2, moe_implementation = implementation, num_shared_experts = shared,
        router_use_bias = has_bias })
    end
  end
end

local GATED = { liglu = true, geglu = true, reglu = true, swiglu = true }

local NORMS = { -- layers/norms.py: whether it has a weight, and a bias
  layernorm = { true, true }, rmsnorm = { true, false }, ["biasless-layernorm"] = { true, false },
  ["nonparametric-layernorm"] = { false, false },
}

---A norm of one of the Model Zoo's types.
---@param kind string|nil   norm_type
function parts.norm(name, size, kind)
  local own = NORMS[(kind or "layernorm"):lower()] or NORMS.layernorm
  return own[1] and norm(name, size, own[2])
end

---The type of all norms. Before release 2.0 a flag said whether it is rmsnorm.
---@param c table   values of the config
---@param since fun(release: string): boolean
---@param flag boolean|nil
---@return string|nil
function parts.norm_type(c, since, flag)
  if since "2.0" or flag == nil then return c.norm_type end
  return flag and "rmsnorm" or "layernorm"
end

---What a key of the decoder's embedding may be, by position_embedding_type.
---@param c table   values of the config
---@param since fun(release: string): boolean
---@param width string
---@param heads string
function parts.positions(c, since, width, heads)
  local kind = c.position_embedding_type
  local helper = since "2.1" and "embedding_layer.position_embed_helper" or "relative_pe_helper"
  if kind == "learned" then
    local rows = c.position_embedding_offset and c.position_embedding_offset > 0 and "max_position_embeddings + position_embedding_offset"
      or "max_position_embeddings"
    return { since "2.1" and "embedding_layer.position_embeddings.embed.weight" or "embedding_layer.position_embeddings.weight",
      { rows, width } }
  elseif kind == "fixed" then
    return { since "2.1" and "embedding_layer.position_embeddings.fpe" or "embedding_layer.position_embeddings",
      { "max_position_embeddings", width }, buffer = true }
  elseif kind == "relative" then
    return { helper .. ".relative_attention_bias.weight", { "num_relative_attention_buckets", heads } }
  elseif kind == "alibi" then
    return { helper .. ".slopes", { heads, 1 }, buffer = not c.alibi_trainable_slopes or nil }
  end
end

---@class AttentionSizes
---@field width string    of what it reads
---@field inner string    of its queries
---@field keys? string    of its keys and values, default: inner
---@field norm_size? string   of a norm over each head's queries and keys

---@param sizes AttentionSizes
---@param has_bias boolean      of queries, keys and values
---@param output_bias boolean
---@param norm_kind? string     attention_qk_norm_layer
function parts.attention(name, sizes, has_bias, output_bias, norm_kind)
  local keys = sizes.keys or sizes.inner
  return below(name, {
    linear("proj_q_dense_layer", sizes.width, sizes.inner, has_bias),
    linear("proj_k_dense_layer", sizes.width, keys, has_bias),
    linear("proj_v_dense_layer", sizes.width, keys, has_bias),
    norm_kind and { parts.norm("q_norm", sizes.norm_size, norm_kind), parts.norm("k_norm", sizes.norm_size, norm_kind) },
    linear("proj_output_dense_layer", sizes.inner, sizes.width, output_bias),
  })
end

---Whether an activation has a gate.
---@param activation string|nil
function parts.is_gated(activation) return GATED[activation or ""] == true end

---Two Linears. The first has a gate beside it if the activation is gated.
---@param gate? string   the gate's name, where a checkpoint may lack it
local function layers(width, inner, activation, has_bias, gate)
  return function(first, second)
    local gated = GATED[activation or ""] and linear(first .. ".linear_layer_for_glu", width, inner, has_bias)
    return {
      linear(first .. ".linear_layer", width, inner, has_bias),
      gated and gate and class.may_lack(gate, gated) or gated,
      linear(second .. ".linear_layer", inner, width, has_bias),
    }
  end
end

---@param activation string|nil
---@param gate? string   the gate's name, where a checkpoint may lack it
function parts.feed_forward(name, width, inner, activation, has_bias, gate)
  return below(name, layers(width, inner, activation, has_bias, gate)("ffn.0", "ffn.1"))
end

---@class Experts   Feed-forward parts between which a router chooses. Texts are extents.
---@field routed string
---@field shared? string    those that every token goes to
---@field layout "fused"|"single"|"functional"   vocabulary/experts.lua
---@field may_be_fused boolean   instead of single, as converted checkpoints are
---@field has_router_bias boolean

---@param experts Experts
function parts.experts(name, width, inner, activation, has_bias, experts)
  local expert, all = layers(width, inner, activation, has_bias), experts.routed .. (experts.shared and " + " .. experts.shared or "")
  local function fused_layer(layer, rows, columns)
    return { { layer .. ".expert_weights", { rows, all, columns } }, has_bias and { layer .. ".expert_biases", { rows, all, 1 } } }
  end
  local layout, fused, single = experts.layout, nil, nil
  if layout == "fused" or experts.may_be_fused then
    fused = {
      fused_layer("0.linear_layer", inner, width), GATED[activation or ""] and fused_layer("0.linear_layer_for_glu", inner, width),
      fused_layer("1.linear_layer", width, inner),
    }
  end
  if layout == "single" then single = expert("0", "1") end
  if single and fused then fused, single = class.optional(fused), class.may_lack("single experts", single) end
  return below(name, {
    linear("gate", width, experts.routed, experts.has_router_bias),
    single and each("experts.experts", experts.routed, single),
    single and experts.shared and each("experts.shared_experts", experts.shared, expert("ffn.0", "ffn.1")),
    layout == "functional" and each("experts.experts", all, expert("ffn.0", "ffn.1")),
    fused and below("experts.fused_ffns", fused),
  })
end

return parts
