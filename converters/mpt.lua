-- MPT: fused queries, keys and values, ALiBi or learned positions, no head of its own, against the Model Zoo's GPT2LMHeadModel.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.mpt"
local zoo = require "converters.classes.zoo.decoder"

local only, qkv = rules.only, actions.qkv
local fixed, must, used, written = fields.fixed, fields.must, fields.used, fields.written
local null, float = cbk.null, cbk.float
local between = rules.between

-- --- keys

local layer = rules.keys {
  -- Hugging Face                    Model Zoo                                            where bytes change
  { "attn.Wqkv.weight",             qkv.keys "self_attn.proj_%s_dense_layer.weight",      qkv.stacked },
  { "attn.Wqkv.bias",               qkv.keys "self_attn.proj_%s_dense_layer.bias",        qkv.stacked },
  { "attn.out_proj.{weight,bias}",  "self_attn.proj_output_dense_layer.{weight,bias}" },
  { "norm_1.{weight,bias}",         "norm1.{weight,bias}" },
  { "norm_2.{weight,bias}",         "norm3.{weight,bias}" },
  { "ffn.up_proj.{weight,bias}",    "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "ffn.down_proj.{weight,bias}",  "ffn.ffn.1.linear_layer.{weight,bias}" },
}

local slopes = "embedding_layer.position_embed_helper.slopes"

local body = rules.keys {
  { "wpe.{weight,bias}",  "embedding_layer.position_embeddings.embed.{weight,bias}" },
  { "wte.{weight,bias}",  "embedding_layer.word_embeddings.{weight,bias}",  also_right = "lm_head.{weight,bias}" },
  { "wpe.{weight,bias}",  "embedding_layer.position_embeddings.{weight,bias}", read_only = "its name up to 2.0" },
  { "blocks.N",           "transformer_decoder.layers.N",                   layer },
  decoder.final_norm "norm_f",
  only.right(slopes, "made from the number of heads"),
  only.right("relative_pe_helper.slopes", "made from the number of heads"),
}

-- --- config

---Learned, where the model has no other positions: MPT may have rotary ones, or none.
local positions = {
  forward = function(alibi, at)
    if alibi == true then return "alibi" end
    if alibi ~= false then at:refuse(alibi, fields.any_of(true, false)) end
    if at.from.learned_pos_emb ~= true then
      fields.refuse("learned_pos_emb", at.from.learned_pos_emb, "true, where attn_config.alibi is false,")
    end
    return "learned"
  end,
  backward = function(kind, at)
    if kind ~= "alibi" and kind ~= "learned" then at:refuse(kind, fields.any_of("alibi", "learned")) end
    return kind == "alibi"
  end,
}

---Null means 1/sqrt(head size).
local attention_type = {
  forward = function(scale, at)
    if values.absent(scale) then return "scaled_dot_product" end
    return scale == 1 and "dot_product" or at:refuse(scale, fields.any_of(null, 1.0))
  end,
  backward = function(kind, at)
    if kind == "scaled_dot_product" then return null end
    return kind == "dot_product" and float(1) or at:refuse(kind, fields.any_of("scaled_dot_product", "dot_product"))
  end,
}

local expansion = {
  forward = function(ratio, at)
    if type(ratio) ~= "number" then at:refuse(ratio, "a number") end
    if ratio % 1 ~= 0 then
      cbk.warn(("expansion_ratio=%s: only whole ratios can be converted back, so the new config cannot"):format(ratio))
    end
    return ratio * at.from.d_model
  end,
  backward = function(inner, at)
    local ratio = type(inner) == "number" and inner / values.size_of(at.from, "hidden_size") or 0.5
    if ratio % 1 ~= 0 then at:refuse(inner, "a whole multiple of hidden_size (the expansion_ratio)") end
    return ratio
  end,
}

---Without biases the norms have none either.
local norm_type = {
  forward = function(kind, at)
    local plain = tostring(kind):gsub("^low_precision_", "")
    if plain ~= "layernorm" and plain ~= "rmsnorm" then
      at:refuse(kind, fields.any_of("layernorm", "low_precision_layernorm", "low_precision_rmsnorm", "rmsnorm"))
    end
    if plain ~= kind then cbk.warn(("norm_type=%s becomes %s: its lower precision is left out"):format(kind, plain)) end
    return plain == "layernorm" and at.from.no_bias == true and "biasless-layernorm" or plain
  end,
  backward = function(kind, at)
    if kind == "layernorm" or kind == "rmsnorm" then return kind end
    if kind ~= "biasless-layernorm" then at:refuse(kind, fields.any_of("biasless-layernorm", "layernorm", "rmsnorm")) end
    if decoder.common_bias(at.from) ~= false then
      at:refuse(kind, "layernorm, or no biases at all (" .. table.concat(decoder.biases, ", ") .. "),")
    end
    return "layernorm"
  end,
}

local config = fields.config {
  fixed.left { model_type = "mpt" },
  fixed.left { ["attn_config.alibi_bias_max"] = 8, ["attn_config.prefix_lm"] = false },
  written.left { ["attn_config.attn_impl"] = "torch", ["attn_config.attn_uses_sequence_id"] = false },
  fixed.right {
    use_bias_in_output = false, nonlinearity = "gelu", norm_first = true, embedding_layer_norm = false, use_ff_layer1_dropout = false,
  },
  must.right { layer_norm_epsilon = 1e-5 },
  { "vocab_size" },
  { "emb_pdrop",           "embedding_dropout_rate" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "d_model",             "hidden_size" },
  { "n_heads",             "num_heads" },
  { "n_layers",            "num_hidden_layers" },
  { "max_seq_len",         "max_position_embeddings" },
  { "attn_config.attn_type",     "attention_module",        values.choice { multihead_attention = "aiayn_attention" } },
  { "attn_config.softmax_scale", "attention_type",          attention_type },
  { "attn_config.attn_pdrop",    "attention_dropout_rate" },
  { "attn_config.alibi",         "position_embedding_type", positions },
  -- no error, as the Model Zoo's converter lets these two through
  { "attn_config.clip_qkv",  false, values.lost(null, "the Model Zoo clips no queries, keys and values, so logits change") },
  { "attn_config.qk_ln",     false, values.lost(false, "the Model Zoo's model has no norms of queries and keys, so logits change") },
  written.left { ["attn_config.clip_qkv"] = null, ["attn_config.qk_ln"] = false },
  used.left { "learned_pos_emb" }, -- of positions
  { "no_bias", false, { forward = function(without, at)
    for _, name in ipairs(decoder.biases) do at:set(name, not without) end
  end } },
  used.right(decoder.biases),
  { "expansion_ratio",     "filter_size",                   expansion },
  { "resid_pdrop",         "dropout_rate" },
  { "initializer_range" },
  { "norm_type",           "norm_type",                     norm_type },
}

local function has_bias(source)
  for key in cbk.items(source) do
    if type(key) == "string" and key:find "%.bias$" then return true end
  end
  return false
end

---What a config does not say that the weights show: transformers leaves out `alibi`, which its class takes for true, and the default of
---the Model Zoo's converter is false.
---@param read Read
local function as_weights_show(from, given, read)
  local function has(key) return read.source["transformer." .. key] ~= nil or read.source[key] ~= nil end
  if given["attn_config.alibi"] == nil and read.source then
    from["attn_config.alibi"] = not has "wpe.weight"
  elseif given["attn_config.alibi"] == nil then
    cbk.warn "attn_config.alibi is not given: false is assumed, Hugging Face's default is true; add it, or convert the checkpoint too"
  end
  if given.no_bias == nil and read.source then from.no_bias = not has_bias(read.source) end
end

local hf = {
  keys = rules.keys { { "transformer", "", body } },
  config = fields.config { written.left { architectures = { "MPTForCausalLM" } }, config },
  nested = { left = { "attn_config", "ffn_config" } },
  prepare = { left = as_weights_show },
  defaults = {
    left = {
      initializer_range = fields.none, no_bias = false, ["attn_config.alibi"] = false, ["attn_config.softmax_scale"] = null,
      ["attn_config.attn_type"] = "multihead_attention",
    },
    right = { initializer_range = fields.none },
  },
  finish = { left = function(to, from)
    to.no_bias = not decoder.common_bias(from)
    if from.share_embedding_weights == false then
      cbk.warn "share_embedding_weights=false: MPT has no head of its own, so 'lm_head' is left out"
    end
  end },
  fill = { right = { { slopes, actions.buffer.alibi_slopes } } },
}

return {
  {
    model = "mpt", name = "mpt", note = "MPTForCausalLM <-> GPT2LMHeadModel (configured as MPT)",
    classes = { left = classes.MptForCausalLM, right = zoo.GPT2LMHeadModel },
    between("hf", "cs-2.1 .. cs-2.3", hf),
  },
  {
    model = "mpt-headless", name = "mpt", note = "MPTModel <-> GPT2LMHeadModel (configured as MPT)",
    classes = { left = classes.MptModel, right = zoo.GPT2LMHeadModel },
    between("hf", "cs-2.1 .. cs-2.3", hf, {
      keys = rules.keys { body, rules.drop.left("lm_head.{weight,bias}", "a copy of the embedding is written") },
      config = fields.config { written.left { architectures = { "MPTModel" } }, config },
    }),
  },
}
