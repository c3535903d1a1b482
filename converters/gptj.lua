-- GPT-J: separate projections and parallel attention under one norm, the same on both sides, against the Model Zoo's GPTJModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.gptj"
local zoo = require "converters.classes.zoo.decoder"

local only, refuse = rules.only, rules.refuse
local fixed = fields.fixed
local buffer = actions.buffer
local between, variant = rules.between, rules.variant
local null = cbk.null

-- --- keys

---@param output table   the rule of the output projection's weight
local function body(output)
  local layer = rules.keys {
    -- Hugging Face                    Model Zoo
    { "attn.q_proj.{weight,bias}",    "self_attn.proj_q_dense_layer.{weight,bias}" },
    { "attn.k_proj.{weight,bias}",    "self_attn.proj_k_dense_layer.{weight,bias}" },
    { "attn.v_proj.{weight,bias}",    "self_attn.proj_v_dense_layer.{weight,bias}" },
    output,
    { "attn.out_proj.bias",           "self_attn.proj_output_dense_layer.bias" },
    { "ln_1.{weight,bias}",           "norm1.{weight,bias}" },
    { "mlp.fc_in.{weight,bias}",      "ffn.ffn.0.linear_layer.{weight,bias}" },
    { "mlp.fc_out.{weight,bias}",     "ffn.ffn.1.linear_layer.{weight,bias}" },
  }
  return rules.keys {
    decoder.embedding "wte",
    decoder.final_norm "ln_f",
    { "h.N", "transformer_decoder.layers.N", layer },
    refuse.right("transformer_decoder.layers.N.norm3.{weight,bias}", "a layer of GPT-J has one norm"),
    only.left("h.N.attn.{masked_bias,bias}", "made from the config"),
    only.right("h.N.attn.{masked_bias,bias}", "made from the config"),
  }
end

local now = body { "attn.out_proj.weight", "self_attn.proj_output_dense_layer.weight" }

-- releases up to 1.9 wrote the causal mask into the Hugging Face file
local then_ = body { "attn.out_proj.weight", "self_attn.proj_output_dense_layer.weight",
  also_left = {
    { "attn.bias",        buffer.causal_mask "max_position_embeddings" },
    { "attn.masked_bias", buffer.scalar(-1e9) },
  } }

---Hugging Face's head always has a bias.
local function zero_bias(at)
  return at.right.use_bias_in_output ~= true and at:invent { values.size_of(at.right, "vocab_size") } or nil
end

-- --- config

local config = fields.config {
  fixed.left { model_type = "gptj" },
  fixed.right {
    attention_type = "scaled_dot_product", use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false,
    use_ffn_bias = true, use_untied_layer_norm = false,
  },
  { "vocab_size" },
  { "rotary_dim",          "rotary_dim",              rotary.dim("n_embd", "n_head") },
  rotary.unscaled(),
  { "rotary",              "position_embedding_type", values.choice { [true] = "rotary" } },
  { "embd_pdrop",          "embedding_dropout_rate" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "n_embd",              "hidden_size" },
  { "n_head",              "num_heads" },
  { "n_layer",             "num_hidden_layers" },
  { "n_positions",         "max_position_embeddings" },
  { "n_inner",             "filter_size" },
  { "activation_function", "nonlinearity",            values.activation },
  { "attn_pdrop",          "attention_dropout_rate" },
  { "resid_pdrop",         "residual_dropout_rate" },
  { "layer_norm_epsilon" },
  { "use_bias_in_output", nil, { forward = function(has) return has end, backward = function() return true end } },
  { "initializer_range" },
}

local in_one_form = rotary.in_one_form { rope_type = "default", rope_theta = 10000 }

---Null says that whole heads are turned; to the Model Zoo it says a quarter of each (defaults.right).
local function name_whole_heads(from)
  if from.rotary_dim ~= null then return end
  from.rotary_dim = math.floor(values.size_of(from, "n_embd") / values.size_of(from, "n_head"))
  cbk.warn(("rotary_dim=null becomes %d, the head size: Hugging Face rotates whole heads then, the Model Zoo a quarter of each"):format(
    from.rotary_dim))
end

local function prepare_left(from, given)
  decoder.inner_size(from)
  name_whole_heads(from)
  return in_one_form(from, given)
end

local hf = {
  keys = now, config = config,
  defaults = { left = { rotary = fields.none }, right = { position_embedding_type = fields.none, rotary_dim = decoder.quarter_of_head } },
  prepare = { left = prepare_left },
  head_fill = { left = { { "lm_head.bias", zero_bias } } },
}

local hf_1_9 = variant(hf, {
  keys = then_, tool = "2.0.3",
})

return { decoder.models {
  model = "gptj", note = "%s <-> GPTJModel",
  classes = { with_head = classes.GPTJForCausalLM, headless = classes.GPTJModel, right = zoo.GPTJModel },
  place = "transformer", embedding = "wte",
  between("cs-1.7", "cs-1.8", decoder.to_1_8),
  between("cs-1.8, cs-1.9", "cs-2.0", decoder.gptj_to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.3 .. cs-2.9", hf, { mup = "gpt" }),
  between("hf", "cs-2.0 .. cs-2.2", hf),
  between("hf", "cs-1.8, cs-1.9", hf_1_9),
  between("hf", "cs-1.7", hf_1_9),
} }
