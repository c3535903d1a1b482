-- DINOv2, with its classifier (over the class token and the mean of the patches) and without it.

local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local vision = require "converters.shared.vision"
local classes = require "converters.classes.hf.vit"

-- --- keys

local mask_token = actions.pair("row", function(t) return t:reshape { -1 } end, function(t) return t:reshape { 1, t:shape()[1] } end)

local function is_gated(at) return at.right.nonlinearity == "swiglu" end
local function is_plain(at) return not is_gated(at) end

local gated = { "ffn.ffn.0.linear_layer_for_glu.{weight,bias}", "ffn.ffn.0.linear_layer.{weight,bias}" }

local keys = rules.keys {
  { "embeddings.mask_token",              "embedding_layer.mask_token",             mask_token },
  vision.body(rules.keys {
    -- Hugging Face                      Model Zoo
    { "mlp.weights_in.{weight,bias}",     gated,                                    actions.split(2), when = is_gated },
    { "mlp.weights_out.{weight,bias}",    "ffn.ffn.1.linear_layer.{weight,bias}",   when = is_gated },
    { "mlp.fc1.{weight,bias}",            "ffn.ffn.0.linear_layer.{weight,bias}",   when = is_plain },
    { "mlp.fc2.{weight,bias}",            "ffn.ffn.1.linear_layer.{weight,bias}",   when = is_plain },
    { "norm1.{weight,bias}",              "norm1.{weight,bias}" },
    { "norm2.{weight,bias}",              "norm2.{weight,bias}" },
    { "layer_scale1.lambda1",             "layer_scale1" },
    { "layer_scale2.lambda1",             "layer_scale2" },
  }),
}

---Hugging Face's model has the token of masked patches in any case.
local function no_mask_token(at)
  return not at.right.use_masked_patches and at:invent { 1, at.left.hidden_size } or nil
end

-- --- config

local act = {
  forward = function(name, at)
    if at.from.use_swiglu_ffn then return "swiglu" end
    return values.activation.forward(name, at)
  end,
  backward = function(name, at)
    at:set("use_swiglu_ffn", name == "swiglu")
    if name == "swiglu" then return "gelu" end -- which is not used then
    return values.activation.backward(name, at)
  end,
  further_names = values.activation.further_names,
}

---Hugging Face has the share of the hidden size.
local ratio = {
  forward = function(value, at)
    if values.absent(value) then at:refuse(value, "a number above 0") end
    return classes.inner_size(values.size_of(at.from, "hidden_size"), value, at.from.use_swiglu_ffn == true)
  end,
  backward = function(inner, at)
    local hidden, has_gate = values.size_of(at.from, "hidden_size"), at.from.nonlinearity == "swiglu"
    local value = inner / hidden * (has_gate and 1.5 or 1)
    if classes.inner_size(hidden, value, has_gate) ~= inner then value = value * (1 + 2 ^ -50) end -- it is rounded down
    if classes.inner_size(hidden, value, has_gate) ~= inner then at:refuse(inner, "a multiple of 8 with swiglu") end
    return value
  end,
}

---Hugging Face's model scales its layers in any case.
local scale = { forward = function(value) return value end, backward = function(value, at)
  if values.absent(value) then at:refuse(value, "a number") end
  return value
end }

local config = fields.config {
  { "drop_path_rate",  "stochastic_depth_drop_prob" },
  { "hidden_act",      "nonlinearity",  act },
  { "mlp_ratio",       "filter_size",   ratio },
  { "layerscale_value", nil, scale },
  fields.used.left { "use_swiglu_ffn" },
  fields.fixed.right { use_dinov2_classifier = true },
  fields.written.right { use_masked_patches = true },
}

return { vision.models {
  model = "dinov2", classes = { with_head = classes.Dinov2ForImageClassification, headless = classes.Dinov2Model },
  formats = "cs-2.4 .. cs-2.9", keys = keys, inputs = 2, config = config, fill = { "embeddings.mask_token", no_mask_token },
} }
