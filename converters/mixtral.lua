-- Mixtral: Mistral with a mixture of experts in place of the feed-forward part.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local kinds = require "converters.engine.kinds"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.mixtral"
local zoo = require "converters.classes.zoo.decoder"

---By the config of Hugging Face, or between releases by that of the Model Zoo.
local function count(at)
  local moe = at.left.moe or at.left.moe_params
  return values.size_of(kinds.is_dict(moe) and moe or at.left, moe and "num_experts" or "num_local_experts")
end

---All experts' matrices in one tensor: (rows, experts, columns).
local stacked = actions.pair("stacked experts", function(parts)
  return cbk.stack(parts, 1)
end, function(value)
  local out = {}
  for i = 1, value:shape()[2] do out[i] = value:slice(1, i - 1, i):reshape { value:shape()[1], value:shape()[3] } end
  return out
end)

local function experts(name) return rules.each(("block_sparse_moe.experts.E.%s.weight"):format(name), "E", count) end

local gate = rules.keys { { "block_sparse_moe.gate.{weight,bias}", "ffn.gate.{weight,bias}" } }

---Up to 2.8 all experts' matrices are in one tensor.
---@param why? string   where they are read only
local function fused(why)
  return rules.keys {
    { experts "w1", "ffn.experts.fused_ffns.0.linear_layer_for_glu.expert_weights", stacked, read_only = why },
    { experts "w3", "ffn.experts.fused_ffns.0.linear_layer.expert_weights",         stacked, read_only = why },
    { experts "w2", "ffn.experts.fused_ffns.1.linear_layer.expert_weights",         stacked, read_only = why },
  }
end

local single = rules.keys {
  { "block_sparse_moe.experts.E.w1.weight", "ffn.experts.experts.E.0.linear_layer_for_glu.weight" },
  { "block_sparse_moe.experts.E.w3.weight", "ffn.experts.experts.E.0.linear_layer.weight" },
  { "block_sparse_moe.experts.E.w2.weight", "ffn.experts.experts.E.1.linear_layer.weight" },
  fused "of checkpoints that others converted",
}

local function step(name)
  return { ("[model.]transformer_decoder.layers.N.ffn.experts.fused_ffns.%s.expert_weights"):format(name),
    rules.each(("[model.]transformer_decoder.layers.N.ffn.experts.experts.E.%s.weight"):format(name), "E", count),
    actions.pair("single experts", stacked.backward, stacked.forward) }
end

local to_2_9 = {
  keys = rules.keys { step "0.linear_layer_for_glu", step "0.linear_layer", step "1.linear_layer", { "*" } },
  config = fields.config { { "*" } },
}

---The Model Zoo has one map for what Hugging Face says in three fields.
local moe = {
  forward = function(number, at)
    return cbk.dict {
      { "num_experts", number }, { "top_k", at.from.num_experts_per_tok },
      { "load_balancing_loss_coef", cbk.raw(at.from, "router_aux_loss_coef") },
    }
  end,
  backward = function(map, at)
    if not kinds.is_dict(map) then at:refuse(map, "a map with num_experts, top_k and load_balancing_loss_coef") end
    at:leave_out_others(map, { num_experts = true, top_k = true, load_balancing_loss_coef = true })
    for name, own in pairs { top_k = "num_experts_per_tok", load_balancing_loss_coef = "router_aux_loss_coef" } do
      if values.absent(map[name]) then cbk.fail("config", ("the config has no moe.%s"):format(name)) end
      at:set(own, cbk.raw(map, name))
    end
    return values.size_of(map, "num_experts")
  end,
}

local config = fields.config {
  { "sliding_window", "attention_sliding_window_length" },
  { "num_local_experts", "moe", moe },
  fields.used.left { "num_experts_per_tok", "router_aux_loss_coef" },
}

---@param feed_forward Rule[]
local function hf(feed_forward)
  local out = llama.converter("mixtral", config, llama.body(llama.attention(), llama.head_norms, llama.norms, gate, feed_forward), 8)
  local check_dim = out.prepare.right
  function out.prepare.right(from, ...)
    if values.absent(from.moe) then cbk.fail("config", "the config has no 'moe', which says how many experts there are") end
    return check_dim(from, ...)
  end
  return out
end

return { decoder.models {
  model = "mixtral", note = "%s <-> GPT2LMHeadModel (configured as Mixtral)",
  classes = { with_head = classes.MixtralForCausalLM, headless = classes.MixtralModel, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens",
  rules.between("cs-2.8", "cs-2.9", to_2_9),
  rules.between("hf", "cs-2.3 .. cs-2.8", hf(fused())),
  rules.between("hf", "cs-2.9", hf(single)),
} }
