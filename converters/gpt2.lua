-- GPT-2: Hugging Face's Conv1D layout against the Model Zoo's GPT2LMHeadModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.gpt2"
local zoo = require "converters.classes.zoo.decoder"

local refuse = rules.refuse
local fixed, drop = fields.fixed, fields.drop
local qkv, transpose, buffer = actions.qkv, actions.transpose, actions.buffer
local between, variant = rules.between, rules.variant

-- --- keys

local layer = rules.keys {
  -- Hugging Face                    Model Zoo                                           where bytes change
  { "attn.c_proj.{weight,bias}",    "self_attn.proj_output_dense_layer.{weight,bias}",   transpose },
  { "attn.c_attn.weight",           qkv.keys "self_attn.proj_%s_dense_layer.weight",     qkv.conv1d },
  { "attn.c_attn.bias",             qkv.keys "self_attn.proj_%s_dense_layer.bias",       qkv.conv1d,
    also_left = {
      { "attn.bias",                buffer.causal_mask "max_position_embeddings" },
      { "attn.masked_bias",         buffer.scalar(-1e4) },
    } },
  { "ln_1.{weight,bias}",           "norm1.{weight,bias}" },
  { "ln_2.{weight,bias}",           "norm3.{weight,bias}" },
  { "mlp.c_fc.{weight,bias}",       "ffn.ffn.0.linear_layer.{weight,bias}",              transpose },
  { "mlp.c_proj.{weight,bias}",     "ffn.ffn.1.linear_layer.{weight,bias}",              transpose },
  refuse.left("attn.q_attn.{weight,bias}", "cross-attention has no counterpart"),
}

local before_2_1 = "position_embeddings"

---@param position string   where the position embeddings stand in this release
local function body(position)
  return rules.keys {
    { "wpe.{weight,bias}",          "embedding_layer." .. position .. ".{weight,bias}" },
    decoder.embedding "wte",
    position ~= before_2_1 and
    { "wpe.{weight,bias}",          "embedding_layer.position_embeddings.{weight,bias}", read_only = "its name up to 2.0" },
    { "h.N",                        "transformer_decoder.layers.N",                      layer },
    decoder.final_norm "ln_f",
  }
end

local now, then_ = body "position_embeddings.embed", body(before_2_1)

-- --- config

local config = fields.config {
  fixed.left { model_type = "gpt2" },
  fixed.right { use_bias_in_output = false },
  { "vocab_size" },
  { "embd_pdrop",          "embedding_dropout_rate" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "n_embd",              "hidden_size" },
  { "n_head",              "num_heads" },
  { "n_layer",             "num_hidden_layers" },
  { "n_positions",         "max_position_embeddings" },
  { "scale_attn_weights",  "attention_type", values.choice { [true] = "scaled_dot_product", [false] = "dot_product" } },
  { "n_inner",             "filter_size" },
  { "activation_function", "nonlinearity",            values.activation },
  { "attn_pdrop",          "attention_dropout_rate" },
  { "resid_pdrop",         "dropout_rate" },
  { "rotary_dim" },
  { "layer_norm_epsilon" },
  { "initializer_range" },
}

local hf = {
  keys = now, config = config, defaults = { right = decoder.dropouts },
  prepare = { left = decoder.inner_size },
  mup = "gpt",
}

local one_rate = fields.same_as "dropout_rate"

---Up to 2.0 what a config leaves out is left out, also where the other side's default is another one.
local function prepare_left_2_0(from)
  decoder.inner_size(from)
  if from.activation_function == nil then
    cbk.warn "activation_function is not given: Hugging Face's default is gelu_new, the Model Zoo's gelu; add nonlinearity: gelu_new"
  end
  if from.resid_pdrop == nil then
    cbk.warn "resid_pdrop is not given: the Model Zoo's programs of this release need a dropout_rate; add Hugging Face's default, 0.1"
  end
end

local unsaid = { -- … and on the way back, too: both sides' classes have 0.1
  left = {}, right = { dropout_rate = fields.none, embedding_dropout_rate = one_rate, attention_dropout_rate = one_rate },
}
for _, name in ipairs {
  "activation_function", "attn_pdrop", "embd_pdrop", "initializer_range", "layer_norm_epsilon", "n_positions", "resid_pdrop",
  "scale_attn_weights",
} do unsaid.left[name] = fields.none end

-- since 1.8, also of files that have a tied tensor once
local function tied_head(at) return at.left.tie_word_embeddings == true and at:source "transformer.wte.weight" or nil end

-- up to 2.0 position embeddings are no module of their own
local hf_2_0 = variant(hf, {
  keys = then_, tool = "2.0.3", head_fill = { right = { { "lm_head.weight", tied_head } } },
  defaults = unsaid, prepare = { left = prepare_left_2_0 },
})
local hf_1_9 = variant(hf_2_0, { config = fields.config { config, drop.right { use_rms_norm = false } } })

return { decoder.models {
  model = "gpt2", note = "%s <-> GPT2LMHeadModel (configured as GPT-2)",
  classes = { with_head = classes.GPT2LMHeadModel, headless = classes.GPT2Model, right = zoo.GPT2LMHeadModel },
  place = "transformer", embedding = "wte",
  between("cs-1.7", "cs-1.8", decoder.to_1_8),
  between("cs-1.8, cs-1.9", "cs-2.0", decoder.to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("cs-2.2", "cs-2.3 .. cs-2.9", {
    keys = rules.keys { { "*" } },
    config = fields.config {
      drop.left { use_position_embedding = true, "alibi_implementation", "weight_initialization_seed" },
      drop.right { use_position_embedding = true, "alibi_implementation", "weight_initialization_seed" },
      { "*" },
    },
  }),
  between("cs-2.4", "cs-2.4-backbone", require "converters.shared.backbone"),
  between("hf", "cs-2.1 .. cs-2.9", hf),
  between("hf", "cs-2.0", hf_2_0),
  between("hf", "cs-1.8, cs-1.9", hf_1_9),
  between("hf", "cs-1.7", hf_1_9, { head_fill = false }),
} }
