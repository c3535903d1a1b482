-- GPT-2: Hugging Face's Conv1D layout against the Model Zoo's GPT2LMHeadModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local decoder = require "converters.shared.decoder"
local gpt2 = require "converters.shared.gpt2"
local classes = require "converters.classes.hf.gpt2"
local zoo = require "converters.classes.zoo.decoder"

local refuse, drop = rules.refuse, fields.drop
local qkv, buffer = actions.qkv, actions.buffer
local between, variant = rules.between, rules.variant

-- --- keys

local layer = gpt2.layer(rules.keys {
  { "attn.c_attn.weight",           qkv.keys "self_attn.proj_%s_dense_layer.weight",     qkv.conv1d },
  { "attn.c_attn.bias",             qkv.keys "self_attn.proj_%s_dense_layer.bias",       qkv.conv1d,
    also_left = {
      { "attn.bias",                buffer.causal_mask "max_position_embeddings" },
      { "attn.masked_bias",         buffer.scalar(-1e4) },
    } },
  refuse.left("attn.q_attn.{weight,bias}", "cross-attention has no counterpart"),
}, actions.transpose)

local now, then_ = gpt2.body(layer), gpt2.body(layer, true)

local config = fields.config { fields.fixed.left { model_type = "gpt2" }, gpt2.config }

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
    cbk.warn("the Hugging Face config has no activation_function (default: gelu_new), so the new config has no model.nonlinearity "
      .. "(default: gelu); add 'nonlinearity: gelu_new' to its section 'model'")
  end
  if from.resid_pdrop == nil then
    cbk.warn("the Hugging Face config has no resid_pdrop, so the new config has no model.dropout_rate, which the Model Zoo's programs of "
      .. "this release need; in its section 'model', " .. decoder.DROPOUT_ADVICE)
  end
end

local unsaid = { -- also on the way back: the classes of both sides have 0.1
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
  model = "gpt2", note = "%s <-> GPT2LMHeadModel (configured as GPT-2)", aliases = { gpt3 = "gpt3" },
  classes = { with_head = classes.GPT2LMHeadModel, headless = classes.GPT2Model, right = zoo.GPT2LMHeadModel },
  place = "transformer", embedding = "wte",
  between("cs-1.7", "cs-1.8", decoder.to_1_8),
  between("cs-1.8, cs-1.9", "cs-2.0", decoder.to_2_0),
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("cs-2.2", "cs-2.3 .. cs-2.9", {
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
