-- T5: encoder and decoder with relative positions, tensors named the same way on both sides but for their places.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local classes = require "converters.classes.hf.t5"
local zoo = require "converters.classes.zoo.t5"
local between, variant = rules.between, rules.variant

local only = rules.only
local fixed, must, used, written = fields.fixed, fields.must, fields.used, fields.written

local HEAD, DECODER = "lm_head.weight", "decoder_embeddings.word_embeddings.weight"

local function has_decoder_embedding(at)
  if not (at:is_stored(DECODER) or at:is_stored("model." .. DECODER)) then
    cbk.fail("key", ("unable to find '%s' in the checkpoint"):format(DECODER))
  end
end

---Where the config ties all three embeddings, release 2.0 has the head's tensor under every name.
local function of_head(value, at)
  has_decoder_embedding(at)
  local is_one = at.right.share_embedding_weights ~= false and at.right.share_encoder_decoder_embedding ~= false
  return is_one and at:source((at.key:match "^model%." or "") .. HEAD) or value
end
local one_embedding = actions.pair("tied to the head", of_head, of_head, { takes_null = true })

-- --- keys of one layer

local function named_gated(name) return type(name) == "string" and name:find "^gated%-" ~= nil end

-- Towards Hugging Face, its own config says how the matrices are named.
local function is_gated(at) return at.side == "left" or named_gated(at.left.feed_forward_proj) end
local function is_plain(at) return at.side == "left" or not named_gated(at.left.feed_forward_proj) end

---@param part integer   which part of a layer the feed-forward part is
local function layer(part)
  local feed_forward = ("layer.%d.DenseReluDense."):format(part)
  return rules.keys {
    -- Hugging Face                                    Model Zoo
    { "layer.0.SelfAttention.{q,k,v,o}.{weight,bias}", "self_attn.proj_{q,k,v,output}_dense_layer.{weight,bias}" },
    { "layer.0.layer_norm.{weight,bias}",              "norm1.{weight,bias}" },
    { "layer.1.layer_norm.{weight,bias}",              "norm2.{weight,bias}" },
    { "layer.2.layer_norm.{weight,bias}",              "norm3.{weight,bias}" },
    { feed_forward .. "wi.{weight,bias}",              "ffn.ffn.0.linear_layer.{weight,bias}", when = is_plain },
    { feed_forward .. "wi_0.{weight,bias}",            "ffn.ffn.0.linear_layer_for_glu.{weight,bias}" },
    { feed_forward .. "wi_1.{weight,bias}",            "ffn.ffn.0.linear_layer.{weight,bias}", when = is_gated },
    { feed_forward .. "wo.{weight,bias}",              "ffn.ffn.1.linear_layer.{weight,bias}" },
  }
end

local cross_attention = rules.keys {
  { "layer.1.EncDecAttention.{q,k,v,o}.{weight,bias}", "multihead_attn.proj_{q,k,v,output}_dense_layer.{weight,bias}" },
}

-- --- keys of the model

local block_bias = "{encoder,decoder}.block.%s.layer.0.SelfAttention.relative_attention_bias.{weight,bias}"
local old_bias = "relative_position_{encoder,decoder}.relative_attention_bias.{weight,bias}"
local new_bias = "{encoder,decoder}_embeddings.position_embed_helper.relative_attention_bias.{weight,bias}"

---Relative positions are learned once; Hugging Face keeps them in the first block.
local function first_bias(right, action)
  return { block_bias:format "0", right, action, read_only = right == old_bias and "its name up to 2.0" or nil }
end
local other_biases = only.left(block_bias:format "N", "all blocks use the positions of the first", block_bias:format "0")
local cross_bias = rules.drop.left("decoder.block.N.layer.1.EncDecAttention.relative_attention_bias.{weight,bias}", "not used by T5")

local stacks = rules.keys {
  { "{encoder,decoder}_token_embedding.weight",                 "{encoder,decoder}_embeddings.word_embeddings.weight",
    read_only = "its name in release 1.6" },
  { "{encoder,decoder}.absolute_position_embedding[.weight]",   "{encoder,decoder}_embeddings.position_embeddings[.weight]" },
  { "encoder.block.N", "encoder.layers.N", layer(1) },
  { "decoder.block.N", "decoder.layers.N", rules.keys { cross_attention, layer(2) } },
  { "{encoder,decoder}.final_layer_norm.{weight,bias}",         "{encoder,decoder}.norm.{weight,bias}" },
  { "lm_head.bias" },
}

local function hf_keys(...)
  return rules.keys {
    { HEAD },
    { "{encoder,decoder}.embed_tokens.weight", "{encoder,decoder}_embeddings.word_embeddings.weight", also_left = "shared.weight" },
    rules.keys { ... },
    other_biases,
    stacks,
  }
end

-- 1.6 had the first block's positions in every block: as many as the encoder has, in the decoder too
local bias_of_all_blocks = actions.pair("in every block", function(value) return value end, function(value, at)
  local stack, kind = at.key:match "^relative_position_(%a+)%.relative_attention_bias%.(%a+)$"
  local count = at.left.encoder_num_hidden_layers
  if type(count) ~= "number" then cbk.fail("config", "the config does not say 'encoder_num_hidden_layers'") end
  for block = 1, count - 1 do
    at:emit(("%s.block.%d.layer.0.SelfAttention.relative_attention_bias.%s"):format(stack, block, kind), value)
  end
  return value
end)

local keys_1_6 = rules.keys {
  only.left("{encoder,decoder}.embed_tokens.weight", "a copy of the token embedding", "{encoder,decoder}_token_embedding.weight"),
  { HEAD },
  first_bias(old_bias, bias_of_all_blocks),
  other_biases,
  stacks,
}

-- --- config

local gates = { ["gated-gelu"] = "geglu", ["gated-silu"] = "swiglu", ["gated-relu"] = "reglu" }
local names = values.activations(gates)
local taken = { "relu", "gelu", "reglu", "geglu", "swiglu" }

---The one pair of names that does not mean quite the same.
local function warn_of_gelu(name)
  if name ~= "geglu" then return end
  cbk.warn "Hugging Face computes gated-gelu with the approximation by tanh, the Model Zoo geglu exactly: logits differ slightly"
end

---One activation on the left, one for each stack on the right.
local activation = {
  forward = function(name, at)
    local out = names.forward(name, at)
    warn_of_gelu(out)
    values.warn_unless_taken("encoder_nonlinearity", out, taken)
    at:set("decoder_nonlinearity", out)
    return out
  end,
  backward = function(name, at)
    warn_of_gelu(name)
    return names.backward(name, at)
  end,
}

---Up to 2.0 a field of its own may say that there is a gate.
local function name_gate(from)
  local name = from.feed_forward_proj
  if from.is_gated_act ~= true or named_gated(name) then return end
  local gated = "gated-" .. tostring(name)
  if not gates[gated] then
    fields.refuse("feed_forward_proj", name, "'gelu', 'relu' or 'silu', where is_gated_act is true,")
  end
  from.feed_forward_proj = gated
end

---A field of the right that may only repeat another one.
---@param usual? any   of the other one, where the config does not say it
local function same_as(other, usual)
  return { backward = function(value, at)
    local want = at.from[other]
    if values.absent(want) then want = usual end
    if not values.absent(value) and value ~= want then at:refuse(value, ("the value of %s (%s)"):format(other, fields.shown(want))) end
  end }
end

---The Model Zoo may count the sentinels of its training task apart from the vocabulary; embeddings have rows for both.
local vocabulary = {
  forward = function(size) return size end,
  backward = function(_, at)
    local size = values.size_of(at.from, "src_vocab_size")
    local sentinels = values.absent(at.from.extra_ids) and 0 or at.from.extra_ids
    if type(sentinels) ~= "number" or sentinels < 0 or sentinels % 1 ~= 0 then fields.refuse("extra_ids", sentinels, "a whole number") end
    return size + sentinels
  end,
}

---What the name of the feed-forward part says already. Of a gated one that name decides, as in the Model Zoo's converter.
---@param implied fun(name: string): any
local function as_named(implied)
  return { forward = function(value, at)
    local name = tostring(at.from.feed_forward_proj or "relu")
    local want = implied(name)
    if values.absent(value) or value == want then return end
    if not named_gated(name) then
      at:refuse(value, ("%s, as feed_forward_proj=%s says,"):format(fields.shown(want), fields.shown(name)))
    end
    cbk.warn(("%s=%s is left out: feed_forward_proj=%s decides, which means %s"):format(at.field, fields.shown(value),
      fields.shown(name), fields.shown(want)))
  end }
end

local function activation_in(name) return name == "gated-gelu" and "gelu_new" or name:match "[^-]*$" end

local config = fields.config {
  fixed.left { model_type = "t5" },
  fixed.right { norm_type = "rmsnorm" },
  { "vocab_size",          "src_vocab_size",             vocabulary },
  used.right { "extra_ids" },
  { false,                 "tgt_vocab_size",             same_as "src_vocab_size" },
  { "d_model" },
  { "d_kv" },
  { "d_ff" },
  { "num_layers",          "encoder_num_hidden_layers" },
  { "num_decoder_layers",  "decoder_num_hidden_layers" },
  { "num_heads" },
  { "relative_attention_num_buckets" },
  { "tie_word_embeddings", "share_embedding_weights" },
  { "dropout_rate" },
  { false,                 "relu_dropout_rate",          same_as("dropout_rate", 0.1) },
  { "layer_norm_epsilon" },
  { "feed_forward_proj",   "encoder_nonlinearity",       activation },
  { false,                 "decoder_nonlinearity",       same_as("encoder_nonlinearity", "relu") },
  { "dense_act_fn",        false,                        as_named(activation_in) },
  { "is_gated_act",        false,                        as_named(named_gated) },
  used.left { "scale_decoder_outputs" },
  written.right { src_max_position_embeddings = 512, tgt_max_position_embeddings = 512 }, -- relative positions have no end
  written.left { decoder_start_token_id = 0 }, -- that of padding
}

---Transformers 5 always says that embeddings are tied. Whether the head has a weight of its own, and outputs are not scaled, is in another
---field, which decides.
local function tied_as_scaled(from)
  local is_scaled = from.scale_decoder_outputs
  if values.absent(is_scaled) then return end
  if is_scaled and from.tie_word_embeddings == false then
    fields.refuse("scale_decoder_outputs", is_scaled, "false, where tie_word_embeddings is false,")
  end
  from.tie_word_embeddings = is_scaled
end

local hf = {
  keys = hf_keys(cross_bias, first_bias(new_bias), first_bias(old_bias)),
  config = config, prepare = { left = tied_as_scaled },
  defaults = {
    left = { num_decoder_layers = fields.same_as "num_layers" },
    right = { decoder_num_hidden_layers = fields.same_as "encoder_num_hidden_layers" },
  },
}

-- --- earlier releases

---Up to 2.0 a checkpoint had to have relative positions.
local has_positions = { "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", function()
  cbk.fail("checkpoint", "the checkpoint has no key 'relative_position_encoder.relative_attention_bias.weight' (keys of cs-1.7 do not "
    .. "begin with 'model.'), and Hugging Face's T5 supports position_embedding_type=relative only")
end }

local hf_2_0 = variant(hf, {
  keys = hf_keys(cross_bias, first_bias(old_bias)), tool = "2.0.3", mup = false,
  prepare = { left = function(from)
    name_gate(from)
    tied_as_scaled(from)
  end },
  fill = { left = { has_positions } },
})

local hf_1_8 = variant(hf_2_0, {
  config = fields.config { must.right { use_t5_layer_norm = true }, fields.without(hf_2_0.config, { "norm_type" }) },
})

---1.9 copied the name where is_gated_act says that there is no gate.
local function copy_ungated(to, from)
  local name = from.feed_forward_proj
  if from.is_gated_act ~= false or not gates[name] then return end
  cbk.warn(("feed_forward_proj=%s is copied because of is_gated_act=false, but release 1.9 has no such activation; remove is_gated_act to "
    .. "get %s"):format(fields.shown(name), gates[name]))
  to.encoder_nonlinearity, to.decoder_nonlinearity = name, name
end

local hf_1_9 = variant(hf_1_8, {
  keys = hf_keys(first_bias(old_bias)), tool = "1.9.1", finish = { right = copy_ungated },
})

local hf_1_7 = variant(hf_1_8, {
  defaults = {
    left = hf.defaults.left,
    right = fields.with(hf.defaults.right, { use_pre_encoder_decoder_layer_norm = false }), -- it says the opposite up to 1.7
  },
  config = fields.config {
    must.right { use_pre_encoder_decoder_layer_norm = false },
    hf_1_8.config,
  },
})

-- --- steps between releases

local negated_norm = fields.config {
  { "use_pre_encoder_decoder_layer_norm", nil, values.choice { [true] = false, [false] = true } },
  { "*" },
}

local to_1_8 = {
  keys = rules.keys {
    { "*", "model.*", when = function(at) return at.side == "right" end },
    { "model.*", "model.model.*" },
    { "*" },
  },
  config = negated_norm,
}

local to_2_0 = {
  keys = rules.keys { { "[model.]{encoder,decoder}_embeddings.word_embeddings.weight", nil, one_embedding }, { "*" } },
  config = fields.config {
    { "use_t5_layer_norm", "norm_type", values.choice { [true] = "rmsnorm", [false] = "layernorm" } },
    { "*" },
  },
  fill = { left = { { DECODER, has_decoder_embedding } }, right = { { DECODER, has_decoder_embedding } } },
}

local to_2_1 = {
  keys = rules.keys {
    { "[model.]{encoder,decoder}_embeddings.position_embeddings.weight",
      "[model.]{encoder,decoder}_embeddings.position_embeddings.embed.weight" },
    { "[model.]{encoder,decoder}_embeddings.position_embeddings", "[model.]{encoder,decoder}_embeddings.position_embeddings.fpe" },
    { "[model.]" .. old_bias, "[model.]" .. new_bias },
    { "*" },
  },
}

return {
  {
    model = "t5", name = "t5", note = "T5ForConditionalGeneration <-> T5ForConditionalGeneration",
    classes = { left = classes.T5ForConditionalGeneration, right = zoo.T5ForConditionalGeneration },
    aliases = { ul2 = "t5", ["flan-ul2"] = "t5", transformer = "transformer" },
    between("cs-1.6", "cs-1.7 .. cs-1.9", { keys = keys_1_6 }),
    between("cs-1.7", "cs-1.8, cs-1.9", to_1_8),
    between("cs-1.8, cs-1.9", "cs-2.0", to_2_0),
    between("cs-2.0", "cs-2.1", to_2_1),
    between("hf", "cs-2.1, cs-2.2", hf),
    between("hf", "cs-2.3 .. cs-2.9", hf, { mup = "t5" }),
    between("hf", "cs-2.0", hf_2_0),
    between("hf", "cs-1.9", hf_1_9),
    between("hf", "cs-1.8", hf_1_8),
    between("hf", "cs-1.7", hf_1_7),
  },
}
