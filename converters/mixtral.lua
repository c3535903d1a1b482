-- Mixtral: Mistral with a mixture of experts in place of the feed-forward part.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local decoder = require "converters.shared.decoder"
local experts = require "converters.vocabulary.experts"
local llama = require "converters.shared.llama"
local classes = require "converters.classes.hf.mixtral"
local zoo = require "converters.classes.zoo.decoder"

local names = { place = "block_sparse_moe", gate = "w1", up = "w3", down = "w2" }

local config = fields.config {
  { "sliding_window", "attention_sliding_window_length" },
  { "num_local_experts", "moe", experts.count { top_k = "num_experts_per_tok", load_balancing_loss_coef = "router_aux_loss_coef" } },
  fields.used.left { "num_experts_per_tok", "router_aux_loss_coef" },
}

---@param layout "fused"|"single"   of the experts
local function hf(layout)
  return llama.converter { model_type = "mixtral", config = config, key_heads = 8, prepare = experts.check_there,
    needed = { "num_local_experts" },
    keys = llama.body(llama.attention(), llama.head_norms, llama.norms, experts.keys(names, layout)) }
end

return { decoder.models {
  model = "mixtral", note = "%s <-> GPT2LMHeadModel (configured as Mixtral)",
  classes = { with_head = classes.MixtralForCausalLM, headless = classes.MixtralModel, right = zoo.GPT2LMHeadModel },
  place = "model", embedding = "embed_tokens",
  rules.between("hf", "cs-2.6 .. cs-2.9", hf "single"),
  rules.between("hf", "cs-2.3 .. cs-2.5", hf "fused"),
} }
