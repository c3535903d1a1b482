-- Falcon: fused, grouped queries, keys and values in three generations of Hugging Face code (7B, 40B, and `falcon` of 180B)
-- against the Model Zoo's GPTJModel: parallel attention with one norm or two, rotary pairs over whole heads.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local kinds = require "converters.engine.kinds"
local rotary = require "converters.vocabulary.rotary"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local classes = require "converters.classes.hf.falcon"
local zoo = require "converters.classes.zoo.decoder"

local fixed, used, drop, written, none = fields.fixed, fields.used, fields.drop, fields.written, fields.none
local qkv = actions.qkv
local null, float, absent = cbk.null, cbk.float, values.absent
local between = rules.between

-- --- keys

---The Model Zoo's attention has one group where the config does not say how many.
local function one_group(from)
  local shown = fields.shown(from.attention_module)
  cbk.warn(("extra_attention_params is not given: num_kv_groups=1 is assumed, as for attention_module=%s"):format(shown))
  return cbk.dict { num_kv_groups = 1 }
end

local function groups(config)
  local extra = config.extra_attention_params
  if not kinds.is_dict(extra) or absent(extra.num_kv_groups) then
    fields.lack "extra_attention_params.num_kv_groups"
  end
  return values.size_of(extra, "num_kv_groups")
end

local projections = rules.keys {
  -- Hugging Face                             Model Zoo                                            where bytes change
  { "self_attention.query_key_value.weight",  qkv.keys "self_attn.proj_%s_dense_layer.weight",     qkv.grouped(groups) },
  { "self_attention.query_key_value.bias",    qkv.keys "self_attn.proj_%s_dense_layer.bias",       qkv.grouped(groups) },
  { "self_attention.dense.{weight,bias}",     "self_attn.proj_output_dense_layer.{weight,bias}" },
  { "mlp.dense_h_to_4h.{weight,bias}",        "ffn.ffn.0.linear_layer.{weight,bias}" },
  { "mlp.dense_4h_to_h.{weight,bias}",        "ffn.ffn.1.linear_layer.{weight,bias}" },
}

local function body(norms)
  return rules.keys {
    decoder.embedding "word_embeddings",
    { "h.N", "transformer_decoder.layers.N", rules.keys {
      { "", "", norms },
      projections,
    } },
    decoder.final_norm "ln_f",
  }
end

---Right to left, the Hugging Face config that is being written says what the first norm is called.
local function has_two_norms(at)
  return at.side == "left" or at.left.parallel_attn == true and at.left.num_ln_in_parallel_attn == 2
end

local one_norm = rules.keys { { "input_layernorm.{weight,bias}", "norm1.{weight,bias}" } }
local two_norms = rules.keys { { "ln_attn.{weight,bias}", "norm1.{weight,bias}" }, { "ln_mlp.{weight,bias}", "norm3.{weight,bias}" } }
local any_norms = rules.keys {
  { "ln_attn.{weight,bias}", "norm1.{weight,bias}", when = has_two_norms },
  one_norm,
  { "ln_mlp.{weight,bias}",  "norm3.{weight,bias}" },
  { "post_attention_layernorm.{weight,bias}", "norm3.{weight,bias}",
    read_only = "of models with sequential attention" },
}

local seven, forty = body(one_norm), body(two_norms)
local modern = rules.keys {
  body(any_norms),
  rules.drop.right("embedding_layer.position_embed_helper.slopes", "Falcon is rotary"),
  rules.drop.right("relative_pe_helper.slopes", "Falcon is rotary"),
}

-- --- config: what all generations share

---Position embeddings; ALiBi is refused on the way to the Model Zoo only.
local function no_alibi(alibi)
  if alibi == true then
    cbk.fail("config", "cannot convert the config with alibi=true: the Model Zoo's Falcon has no position_embedding_type=alibi")
  end
  return "rotary"
end

---Whether the positions are ALiBi. FalconAttention of transformers scales its biases with the scores, which the Model Zoo does not.
---@param kind any   position_embedding_type
local function is_alibi(kind)
  if kind == "alibi" then
    cbk.warn "Hugging Face's Falcon divides ALiBi's biases by the square root of the head's size, the Model Zoo does not: logits differ"
  end
  return kind == "alibi"
end

local shared = fields.config {
  { "vocab_size" },
  { "tie_word_embeddings", "share_embedding_weights" },
  decoder.four_times,
  used.right { "rotary_dim" },
  fixed.right { embedding_dropout_rate = float(0) },
  { "max_position_embeddings" },
  { "attention_dropout",   "attention_dropout_rate" },
  { "hidden_dropout",      "residual_dropout_rate" },
  { "layer_norm_epsilon" },
  { "initializer_range" },
}

---Right to left: what Falcon does not have.
local function check(from)
  if from.filter_size == nil then fields.lack "filter_size" end
  rotary.check_dim(from)
end

---Right to left: in how many groups the heads are.
local function key_heads(_, at)
  local count = groups(at.from)
  values.check_groups(count, at.from, "num_heads", "extra_attention_params.num_kv_groups")
  return count
end

-- --- config: 7B and 40B, whose code came with the checkpoint

-- Towards Hugging Face these are tables of 1.9 and 2.0 only, and of those the Model Zoo's converter lets two fields through.
local any_positions = {
  forward = no_alibi,
  backward = function(kind)
    if kind ~= "rotary" and kind ~= "alibi" then
      cbk.warn(("position_embedding_type=%s is left out: Falcon's Hugging Face code has rotary positions"):format(fields.shown(kind)))
    end
    return is_alibi(kind)
  end,
}
local let_through = fields.config {
  { "alibi", "position_embedding_type", any_positions },
  { false, "norm_first", values.lost(true, "Falcon's Hugging Face code norms before each part of a layer") },
}

local code = "modelling_RW.RW"

local rw_config = fields.config {
  shared,
  let_through,
  { "n_head",  "num_heads" },
  { "n_layer", "num_hidden_layers" },
  rotary.unscaled(),
  fixed.right {
    use_projection_bias_in_attention = false, use_ffn_bias_in_attention = false, use_ffn_bias = false, use_bias_in_output = false,
    nonlinearity = "gelu",
  },
  written.right { attention_module = "multiquery_attention", attention_type = "scaled_dot_product", loss_scaling = "num_tokens" },
  drop.left { "architectures", "auto_map", "bos_token_id", "eos_token_id", "torch_dtype", "use_cache" },
  fixed.left { bias = false },
  written.left {
    architectures = { "RWForCausalLM" }, bos_token_id = 11, eos_token_id = 11, torch_dtype = "bfloat16", use_cache = true,
    auto_map = {
      AutoConfig = "configuration_RW.RWConfig", AutoModel = code .. "Model", AutoModelForCausalLM = code .. "ForCausalLM",
      AutoModelForQuestionAnswering = code .. "ForQuestionAnswering",
      AutoModelForSequenceClassification = code .. "ForSequenceClassification",
      AutoModelForTokenClassification = code .. "ForTokenClassification",
    },
  },
}

---Releases before 2.1 read the layouts of 7B and 40B only.
local function check_layout(from)
  if from.model_type ~= "falcon" then return end
  fields.refuse("model_type", from.model_type, "'RefinedWebModel' (7B) or 'RefinedWeb' (40B), with their fields, before release 2.1,")
end

---Their code turns whole heads, and by one base.
local turned_plainly = rotary.in_one_form { rope_type = "default", rope_theta = 10000, partial_rotary_factor = 1 }

local function prepare_rw(from, given)
  check_layout(from)
  return turned_plainly(from, given)
end

---@param untied boolean   whether it has two norms
local function generation(keys, config, untied)
  return {
    keys = keys, config = fields.config { config, rw_config },
    defaults = { right = {
      extra_attention_params = { num_kv_groups = 1 }, embedding_dropout_rate = float(0), max_position_embeddings = 2048,
      use_untied_layer_norm = untied, use_projection_bias_in_attention = none, use_ffn_bias_in_attention = none,
    } },
    prepare = { left = prepare_rw, right = check },
    finish = { right = rotary.set_dim },
  }
end

local rw_7b = generation(seven, fields.config {
  fixed.left { model_type = "RefinedWebModel", multi_query = true },
  fixed.right { extra_attention_params = cbk.dict { num_kv_groups = 1 } },
  { "parallel_attn", "use_untied_layer_norm", {
    forward = function(parallel)
      if parallel ~= true then cbk.warn "parallel_attn=false is left out: the Model Zoo's Falcon has parallel attention" end
      return false
    end,
    backward = function() return true end,
  } },
}, false)

local rw_40b = generation(forty, fields.config {
  fixed.left { model_type = "RefinedWeb" },
  { "n_head_kv",     "extra_attention_params", {
    forward = function(count, at)
      values.check_groups(count, at.from, "n_head", at.field)
      return cbk.dict { num_kv_groups = count }
    end,
    backward = key_heads,
  } },
  { "parallel_attn", "use_untied_layer_norm",  values.choice { [true] = true } },
}, true)

-- --- config: 180B, `falcon` of the transformers library

---Only the new architecture has a free number of key heads.
local free_key_heads = {
  forward = function(count, at)
    local from = at.from
    local all = from.num_attention_heads
    if not absent(count) then values.check_groups(count, from, "num_attention_heads", at.field) end
    if from.new_decoder_architecture ~= true then count = from.multi_query == true and 1 or all end
    return cbk.dict { num_kv_groups = absent(count) and all or count }
  end,
  backward = key_heads,
}

local modern_positions = {
  forward = no_alibi,
  backward = function(kind, at)
    if kind ~= "rotary" and kind ~= "alibi" then at:refuse(kind, fields.any_of("rotary", "alibi")) end
    return is_alibi(kind)
  end,
}

local modern_config = fields.config {
  rotary.scaling { "linear", "yarn", "longrope" },
  fixed.left { model_type = "falcon" },
  fixed.right {
    attention_module = "multiquery_attention", attention_type = "scaled_dot_product", nonlinearity = "gelu", use_bias_in_output = false,
  },
  shared,
  { "alibi",        "position_embedding_type", modern_positions },
  used.left { "partial_rotary_factor", "ffn_hidden_size", "n_head_kv" },
  { "rope_theta" },
  { "num_attention_heads", "num_heads" },
  { "num_kv_heads",        "extra_attention_params",  free_key_heads },
  { "num_hidden_layers" },
  { "bias", false, { forward = function(bias, at)
    for _, name in ipairs(decoder.biases) do at:set(name, bias) end
  end } },
  { "use_projection_bias_in_attention" },
  { "use_ffn_bias_in_attention" },
  { "use_ffn_bias" },
  used.left {
    "new_decoder_architecture", "multi_query", "parallel_attn", "num_ln_in_parallel_attn",
  },
  used.right { "use_untied_layer_norm" },
  written.right { loss_scaling = "num_tokens" },
}

local in_one_form = rotary.in_one_form { partial_rotary_factor = 1 }

local function prepare_left(complete, given)
  local from = in_one_form(complete, given)
  if absent(from.num_kv_heads) then from.num_kv_heads = from.n_head_kv or null end -- its name in the first version of the class
  if from.new_decoder_architecture ~= true and from.parallel_attn ~= true then
    cbk.fail("config", "cannot convert the config with new_decoder_architecture=false and parallel_attn=false: one must be true")
  end
  if from.new_decoder_architecture == true and absent(from.num_ln_in_parallel_attn) then from.num_ln_in_parallel_attn = 2 end
  local inner = from.ffn_hidden_size
  if not absent(inner) and inner ~= 4 * from.hidden_size then
    fields.refuse("ffn_hidden_size", inner, ("4 * hidden_size (%d)"):format(4 * from.hidden_size))
  end
  return from
end

---With one norm (Falcon 11B), the way back knows one key head or one for each query, as the Model Zoo's converter; other numbers come
---back with the checkpoint that keeps what Hugging Face's config said.
local function has_way_back(two, count, all) return two or count == 1 or count == all end

local function finish_right(to, from)
  to.use_untied_layer_norm = from.new_decoder_architecture == true and from.num_ln_in_parallel_attn == 2 or from.parallel_attn ~= true
  rotary.set_dim(to)
  local count = groups(to)
  if not has_way_back(to.use_untied_layer_norm, count, to.num_heads) then
    cbk.warn(("num_ln_in_parallel_attn=%s with num_kv_heads=%d: the new config can be converted back to Hugging Face only together with "
      .. "the checkpoint that is written, not with one trained from it"):format(
      fields.shown(from.num_ln_in_parallel_attn), count))
  end
end

---Where one flag is given, the others are the Model Zoo's defaults; where none is, the checkpoint decides (the reference's configs of
---7B and 40B leave them out): it may have no bias then.
local default_biases = { use_projection_bias_in_attention = true, use_ffn_bias_in_attention = true, use_ffn_bias = false }

local function prepare_right(from)
  check(from)
  if decoder.common_bias(from) == nil then
    cbk.warn("the config does not say whether there are biases (" .. table.concat(decoder.biases, ", ")
      .. "): bias is left out, and a checkpoint that has some is refused")
  else
    decoder.common_bias(fields.fill(from, default_biases))
  end
end

---The architecture, from norms and key heads.
---@param read Read
local function finish_left(to, from, read)
  local two, kept = from.use_untied_layer_norm == true, read.hf_config or {}
  local has_one = not two and kept.new_decoder_architecture == true and kept.num_ln_in_parallel_attn == 1
  local count, all = groups(from), from.num_heads
  if not has_one and not has_way_back(two, count, all) then
    cbk.fail("config", ("cannot convert the config with use_untied_layer_norm=false and extra_attention_params.num_kv_groups=%d: with one "
      .. "norm only 1 or %d (num_heads) groups are supported; other numbers need the checkpoint that was converted from Hugging Face, "
      .. "which keeps num_ln_in_parallel_attn=1"):format(count, all))
  end
  to.parallel_attn, to.new_decoder_architecture, to.multi_query = true, two or has_one, count == 1
  to.num_ln_in_parallel_attn = two and 2 or has_one and 1 or null
  if from.use_ffn_bias == true then to.bias = true end
end

local falcon = {
  keys = modern, config = modern_config,
  defaults = { left = { num_kv_heads = null, rope_scaling = null }, right = {
    extra_attention_params = one_group, embedding_dropout_rate = 0.1, use_projection_bias_in_attention = none,
    use_ffn_bias_in_attention = none, use_ffn_bias = none,
  } },
  prepare = { left = prepare_left, right = prepare_right },
  finish = { left = finish_left, right = finish_right },
}

-- --- which of them

local function rw_style(config, side)
  if side == "right" then return groups(config) == 1 and "7B" or "40B" end
  return config.n_head_kv == nil and "7B" or "40B"
end

---The way back always writes today's code.
local function style(config, side)
  if side == "right" or config.model_type == "falcon" then return "180B" end
  return rw_style(config, side)
end

---The original converter's configs of 7B and 40B have no name in 2.4, though the model is looked up by it.
local to_2_5 = between("cs-2.4", "cs-2.5", { named_from = "2.5" })

local generations = { ["7B"] = rw_7b, ["40B"] = rw_40b, ["180B"] = falcon }

return { decoder.models {
  model = "falcon", note = "%s <-> GPTJModel (configured as Falcon)",
  classes = { with_head = classes.FalconForCausalLM, headless = classes.FalconModel, right = zoo.GPTJModel },
  place = "transformer", embedding = "word_embeddings",
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  to_2_5,
  { "hf", "cs-2.1 .. cs-2.9", variants = generations, choose = style },
  { "hf", "cs-1.9, cs-2.0", variants = generations, choose = rw_style, tool = "2.0.3" },
} }
