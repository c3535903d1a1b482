-- Qwen3: LLaMA with norms of queries and keys, and heads of any size. Qwen3-MoE: experts in place of the feed-forward part.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local decoder = require "converters.shared.decoder"
local experts = require "converters.vocabulary.experts"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.qwen3"
local zoo = require "converters.classes.zoo.decoder"

local names = { place = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj" }

-- --- config

---All norms have one epsilon; the Model Zoo has a field of its own for those of queries and keys.
local epsilon = {
  forward = function(_, at)
    local eps = cbk.raw(at.from, at.field)
    at:set("attention_qk_norm_eps", eps)
    return eps
  end,
  backward = function(eps, at)
    local of_heads = at.from.attention_qk_norm_eps
    if of_heads ~= eps then fields.refuse("attention_qk_norm_eps", of_heads, ("the value of layer_norm_epsilon (%s)"):format(eps)) end
    return cbk.raw(at.from, at.field)
  end,
}

local no_layers = { forward = function(list, at)
  if kinds.is_list(list) and #list > 0 then at:refuse(list, "an empty list") end
end }

local config = fields.config {
  fields.fixed.right { attention_qk_norm_layer = "rmsnorm" },
  fields.must.left { use_sliding_window = false },
  { "layer_types",    false,                             llama.layer_types "full_attention" },
  { "head_dim",       "attention_inner_dim",             llama.inner_dim },
  { "attention_bias", "use_projection_bias_in_attention", llama.attention_bias },
  { "rms_norm_eps",   "layer_norm_epsilon",              epsilon },
  fields.used.right { "use_ffn_bias_in_attention", "attention_qk_norm_eps" },
}

local with_experts = fields.config {
  config,
  { "num_experts", "moe", experts.count {
    top_k = "num_experts_per_tok", load_balancing_loss_coef = "router_aux_loss_coef",
    expert_weighting_normalization = "norm_topk_prob",
  } },
  { "moe_intermediate_size", "filter_size" },
  fields.used.left { "num_experts_per_tok", "router_aux_loss_coef", "norm_topk_prob" },
  fields.must.left { decoder_sparse_step = 1 },
  { "mlp_only_layers", false, no_layers },
}

local without = { "head_dim", "use_projection_bias_in_attention", "use_ffn_bias_in_attention", "rms_norm_eps" }

local defaults = { attention_inner_dim = cbk.null } -- hidden_size, where Hugging Face has 128 x heads

local dense = llama.converter { model_type = "qwen3", config = config, without = without, key_heads = 32, defaults = defaults }

---@param layout "fused"|"single"   of the experts
local function sparse(layout)
  return llama.converter {
    model_type = "qwen3_moe", config = with_experts, without = { "intermediate_size", unpack(without) }, key_heads = 4,
    keys = llama.body(llama.attention(), llama.head_norms, llama.norms, experts.keys(names, layout)),
    prepare = experts.check_there, needed = { "num_experts" }, defaults = defaults,
  }
end

-- --- the models

local function models(name, title, ...)
  return decoder.models {
    model = name, note = "%s <-> GPT2LMHeadModel (configured as " .. title .. ")", place = "model", embedding = "embed_tokens",
    classes = { with_head = classes[title .. "ForCausalLM"], headless = classes[title .. "Model"], right = zoo.GPT2LMHeadModel },
    ...,
  }
end

local qwen3, qwen3_headless = models("qwen3", "Qwen3", rules.between("hf", "cs-2.5 .. cs-2.9", dense))

return {
  qwen3, qwen3_headless,
  models("qwen3-moe", "Qwen3Moe",
    rules.between("hf", "cs-2.6 .. cs-2.9", sparse "single"),
    rules.between("hf", "cs-2.5", sparse "fused")),
}
