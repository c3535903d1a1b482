-- BTLM and JAIS: GPT-2 with muP, ALiBi positions and a gate in the feed-forward part, on both sides.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local decoder = require "converters.shared.decoder"
local gpt2 = require "converters.shared.gpt2"
local classes = require "converters.classes.hf.gpt2"
local zoo = require "converters.classes.zoo.decoder"

local fixed, used, written = fields.fixed, fields.used, fields.written
local qkv, buffer, transpose = actions.qkv, actions.buffer, actions.transpose
local between, variant = rules.between, rules.variant
local float, absent = cbk.float, values.absent

-- --- keys

local masks_of_2_0 = {
  { "attn.bias",        buffer.causal_mask "max_position_embeddings" },
  { "attn.masked_bias", buffer.scalar(-1e4) },
}

---@param is_2_0? boolean   whether the way back writes the causal mask into the Hugging Face file
local function layer(is_2_0)
  return rules.keys {
    gpt2.layer(rules.keys {
      { "attn.c_attn.weight",       qkv.keys "self_attn.proj_%s_dense_layer.weight",     qkv.conv1d },
      { "attn.c_attn.bias",         qkv.keys "self_attn.proj_%s_dense_layer.bias",       qkv.conv1d, also_left = is_2_0 and masks_of_2_0 },
      { "mlp.c_fc2.{weight,bias}",  "ffn.ffn.0.linear_layer_for_glu.{weight,bias}",      transpose },
    }, transpose),
    not is_2_0 and rules.only.left("attn.{masked_bias,bias}", "made from the config"),
  }
end

local slopes, old_slopes = "embedding_layer.position_embed_helper.slopes", "relative_pe_helper.slopes"

local now = rules.keys {
  { "relative_pe.slopes", slopes },
  { "relative_pe.slopes", old_slopes, read_only = "its name up to 2.0" },
  gpt2.body(layer()),
}
local then_ = rules.keys { { "relative_pe.slopes", old_slopes }, gpt2.body(layer(true), true) }

-- --- muP

local KERNEL = "optimizer.adjust_learning_rate.decoder_kernel"

---By what the Model Zoo multiplies the learning rate of the layers; nil if the config does not say it.
local function kernel_of(from)
  local kernel = kinds.is_dict(from, "optimizer") and cbk.find(from, KERNEL) or nil
  if absent(kernel) then return nil end
  if type(kernel) ~= "number" or kernel <= 0 then fields.refuse(KERNEL, kernel, "a number above 0") end
  return kernel
end

local width_scale = {
  forward = function(scale)
    return cbk.dict { adjust_learning_rate = cbk.dict { decoder_kernel = float(scale) } }
  end,
  backward = function(optimizer, at)
    if not kinds.is_dict(optimizer) then return nil end
    at:leave_out_others(optimizer, { adjust_learning_rate = true })
    local adjusted = optimizer.adjust_learning_rate
    if not kinds.is_dict(adjusted) then return nil end
    for name in cbk.items(adjusted) do
      if name ~= "decoder_kernel" then at:leave_out("optimizer.adjust_learning_rate." .. tostring(name)) end
    end
    local kernel = kernel_of(at.from)
    return kernel and float(kernel)
  end,
}

---The left's logits are multiplied by the product of both fields.
local output_alpha = {
  forward = function(alpha, at)
    local width = at.from.mup_width_scale
    return not absent(alpha) and float(alpha * (absent(width) and 1 or width)) or nil
  end,
  backward = function(scale, at)
    if absent(scale) then return nil end
    if type(scale) ~= "number" then at:refuse(scale, "a number") end
    return float(scale / (kernel_of(at.from) or 1))
  end,
}

---A number that a muP config has, or its default.
local function number_of(from, name, default)
  local value = from[name]
  if absent(value) then return default end
  if type(value) ~= "number" or value <= 0 then fields.refuse(name, value, "a number above 0") end
  return value
end

---muP of 2.3 and later, as the fields of 2.2 say it, which the left has too.
local function in_old_form(from, given)
  local base = number_of(from, "mup_base_hidden_size")
  if not base then return end
  local width, alpha = values.size_of(from, "hidden_size") / base, number_of(from, "output_logits_alpha", 1)
  from.output_logits_scale = float(alpha / (from.scale_output_logits_by_d == false and width ^ 0.5 or width))
  from.optimizer = width_scale.forward(1 / width)
  if absent(given.scale_qk_dot_by_d) then from.scale_qk_dot_by_d = true end
end

---The width is not known without the learning rate's adjustment; the logits are the same.
local function add_width_scale(to, from)
  if to.mup_width_scale ~= nil then return end
  to.mup_width_scale = float(1)
  if absent(from.output_logits_scale) or fields.same(from.output_logits_scale, 1) then return end
  cbk.warn(("the config has no %s: mup_width_scale becomes 1.0, and mup_output_alpha is output_logits_scale. Logits are the same; "
    .. "training would need the width"):format(KERNEL))
end

-- --- config

---Positions of more tokens than in training: their distances are divided by a factor.
local scaling = {
  forward = function(map, at)
    if absent(map) then return float(1) end
    if not kinds.is_dict(map) then at:refuse(map, "null, or a map with type and factor") end
    if not absent(map.train_seq_len) then fields.refuse("alibi_scaling.train_seq_len", map.train_seq_len, "null (a fixed factor)") end
    if map.type ~= "linear" then fields.refuse("alibi_scaling.type", map.type, "'linear'") end
    if type(map.factor) ~= "number" or map.factor <= 0 then fields.refuse("alibi_scaling.factor", map.factor, "a number above 0") end
    at:leave_out_others(map, { type = true, factor = true })
    return float(map.factor)
  end,
  backward = function(factor, at)
    if absent(factor) or factor == 1 then return cbk.null end
    if factor < 1 then at:refuse(factor, "a number of at least 1") end
    return cbk.dict { type = "linear", factor = float(factor) }
  end,
}

---What both releases of the table can express.
local common = fields.config {
  { "activation_function",             "nonlinearity",             values.activations { swiglu = "swiglu" } },
  { "position_embedding_type",         "position_embedding_type",  values.choice { alibi = "alibi", learned = "learned" } },
  { "mup_width_scale",                 "optimizer",                width_scale },
  { "mup_output_alpha",                "output_logits_scale",      output_alpha },
  { "mup_scale_qk_dot_by_d",           "scale_qk_dot_by_d" },
  { "mup_embeddings_scale",            "embeddings_scale" },
  -- of JAIS's first config.json, whose width_scale is mup_output_alpha x mup_width_scale: write it with the names of today
  fields.must.left {
    width_scale = fields.any_of(1, cbk.null), embeddings_scale = fields.any_of(1, cbk.null),
    scale_qk_dot_by_d = fields.any_of(false, cbk.null),
  },
  fields.without(gpt2.config, { "activation_function" }),
  used.right { "mup_base_hidden_size", "mup_base_filter_size", "output_logits_alpha", "scale_output_logits_by_d" },
  fields.must.right { attention_logits_alpha = fields.any_of(1, cbk.null) },
}

local config = fields.config {
  common,
  { "alibi_scaling",                   "pos_scaling_factor",       scaling },
  { "scale_attn_by_inverse_layer_idx", "scale_qk_dot_by_layer_idx" },
}

---muP that a config does not say is not written; but a width counts by itself.
local unsaid = {
  alibi_scaling = cbk.null, mup_embeddings_scale = fields.none, mup_scale_qk_dot_by_d = fields.none,
  mup_output_alpha = function(from) return from.mup_width_scale ~= 1 and float(1) or nil end,
}

local function hf(model_type, keys, own, constants)
  local function fill(key) return { right = { { key, buffer.alibi_slopes } } } end
  return {
    keys = keys, mup = false, beside = { "optimizer" },
    config = fields.config { fixed.left { model_type = model_type }, written.left(constants), own },
    defaults = { left = unsaid, right = decoder.dropouts },
    prepare = { left = decoder.inner_size, right = in_old_form }, finish = { left = add_width_scale },
    fill = fill(keys == now and slopes or old_slopes),
  }
end

-- --- the two families

---@param place string      of the code that Transformers loads
---@param module string     "modeling_btlm.BTLM"
---@param heads string[]
local function auto_map(place, file, name, heads)
  local out = { AutoConfig = ("%s--configuration_%s.%sConfig"):format(place, file, name) }
  for auto, head in pairs(heads) do out["Auto" .. auto] = ("%s--modeling_%s.%s%s"):format(place, file, name, head) end
  return out
end

local btlm = {
  use_cache = true,
  auto_map = auto_map("cerebras/btlm-3b-8k-base", "btlm", "BTLM", { Model = "Model", ModelForCausalLM = "LMHeadModel" }),
}

local jais = {
  use_cache = true, _name_or_path = "inceptionai/jais-30b-v3",
  auto_map = auto_map("inceptionai/jais-30b-v3", "jais", "JAIS", {
    Model = "Model", ModelForCausalLM = "LMHeadModel", ModelForQuestionAnswering = "ForQuestionAnswering",
    ModelForSequenceClassification = "ForSequenceClassification", ModelForTokenClassification = "ForTokenClassification",
  }),
}

local with_head, headless = decoder.models {
  model = "btlm", note = "%s <-> GPT2LMHeadModel (configured as BTLM)",
  classes = { with_head = classes.BTLMLMHeadModel, headless = classes.BTLMModel, right = zoo.GPT2LMHeadModel },
  place = "transformer", embedding = "wte",
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf("btlm", now, config, btlm)),
  between("hf", "cs-2.0", variant(hf("btlm", then_, common, btlm), { tool = "2.0.3" })),
}

local jais_with_head, jais_headless = decoder.models {
  model = "jais", note = "%s <-> GPT2LMHeadModel (configured as JAIS)",
  classes = { with_head = classes.JAISLMHeadModel, headless = classes.JAISModel, right = zoo.GPT2LMHeadModel },
  place = "transformer", embedding = "wte",
  between("cs-2.0", "cs-2.1", decoder.to_2_1),
  between("hf", "cs-2.1 .. cs-2.9", hf("jais", now, config, jais)),
}

return { with_head, headless, jais_with_head, jais_headless }
