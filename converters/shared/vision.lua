-- What Hugging Face's image towers (CLIP, ViT, DINOv2) have in common, against the Model Zoo's ViT.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local actions = require "converters.vocabulary.actions"
local values = require "converters.vocabulary.values"
local labels = require "converters.shared.labels"
local zoo = require "converters.classes.zoo.vision"

local vision = {}

-- --- keys

---Moves the class token's position: it is Hugging Face's first row and the Model Zoo's last.
vision.token_first = actions.pair("class token", function(t)
  local rows = t:shape()[1]
  return cbk.cat({ t:slice(0, 1, rows), t:slice(0, 0, 1) }, 0)
end, function(t)
  local rows = t:shape()[1]
  return cbk.cat({ t:slice(0, rows - 1, rows), t:slice(0, 0, rows - 1) }, 0)
end)

---The same for a left that also has the batch dimension.
vision.token_first_of_batch = actions.pair("class token", function(t, at)
  return vision.token_first.forward(t:reshape { t:shape()[2], t:shape()[3] }, at)
end, function(t, at)
  return vision.token_first.backward(t, at):reshape { 1, t:shape()[1], t:shape()[2] }
end)

---A vector. On the left it has two leading dimensions of 1.
vision.vector = actions.pair("vector", function(t) return t:reshape { -1 } end, function(t) return t:reshape { 1, 1, t:shape()[1] } end)

---The embeddings of ViT and DINOv2.
vision.embeddings = rules.keys {
  -- Hugging Face                                   Model Zoo
  { "cls_token",                                     "cls_embedding",               vision.vector },
  { "position_embeddings",                           "position_embeddings.weight",  vision.token_first_of_batch },
  { "patch_embeddings.projection.{weight,bias}",     "linear_proj.{weight,bias}" },
}

vision.attention = rules.keys {
  { "attention.attention.query.{weight,bias}",       "self_attn.proj_q_dense_layer.{weight,bias}" },
  { "attention.attention.key.{weight,bias}",         "self_attn.proj_k_dense_layer.{weight,bias}" },
  { "attention.attention.value.{weight,bias}",       "self_attn.proj_v_dense_layer.{weight,bias}" },
  { "attention.output.dense.{weight,bias}",          "self_attn.proj_output_dense_layer.{weight,bias}" },
}

---The rest of the body, below `encoder` on the right.
---@param layer Rule[]
function vision.body(layer)
  return rules.keys {
    { "embeddings",               "embedding_layer",                                  vision.embeddings },
    { "encoder.layer.N",          "encoder.transformer_encoder.layers.N",             rules.keys { vision.attention, layer } },
    { "layernorm.{weight,bias}",  "encoder.transformer_encoder.norm.{weight,bias}" },
  }
end

-- --- config

---The side of a square. The Model Zoo has its height and width.
local function side_of(sides)
  local is_pair = type(sides) == "userdata" and (cbk.kind(sides) == "list" or cbk.kind(sides) == "tuple") and #sides == 2
  return is_pair and sides[1] == sides[2] and type(sides[1]) == "number" and sides[1] or nil
end

---Converts a number in Hugging Face to the height and width in the Model Zoo.
vision.square = {
  forward = function(size) return cbk.list { size, size } end,
  backward = function(sides, at)
    if not side_of(sides) then at:refuse(sides, "a list of two equal numbers") end
    return cbk.raw(sides, 1)
  end,
}

---Fails if an image is not a whole number of patches: the Model Zoo's model requires it.
local function check_patches(size, patch, at)
  if type(patch) == "number" and patch > 0 and size % patch ~= 0 then
    at:refuse(at.from[at.field], ("a multiple of patch_size (%s)"):format(patch))
  end
end
local image = {
  forward = function(size, at)
    check_patches(size, at.from.patch_size, at)
    return vision.square.forward(size)
  end,
  backward = function(sides, at)
    local out = vision.square.backward(sides, at)
    check_patches(side_of(sides), side_of(at.from.patch_size), at)
    return out
  end,
}

-- The Model Zoo's converter makes silu swiglu, which has a gate that these models lack.
local activation = values.activations { gelu_pytorch_tanh = "gelu_new" }

---Checks the left's field for masked images: it must be the side of a patch.
local function check_stride(stride, at)
  if stride ~= at.from.patch_size then at:refuse(stride, ("the patch_size (%s)"):format(fields.shown(at.from.patch_size))) end
end

---The activation and the inner size.
vision.feed_forward = fields.config {
  { "hidden_act",          "nonlinearity", activation },
  { "intermediate_size",   "filter_size" },
  { "encoder_stride", false, { forward = check_stride } },
}

---Further sizes.
vision.config = fields.config {
  { "hidden_size" },
  { "num_hidden_layers" },
  { "num_attention_heads", "num_heads" },
  { "initializer_range" },
  { "image_size", nil, image },
  { "num_channels" },
  { "patch_size", nil, vision.square },
}

-- --- ViT and DINOv2 with and without a classifier, which are two classes of Hugging Face

---@class Classifiers
---@field model string              "vit", which the left's keys begin with; without its classifier it is "vit-headless"
---@field classes { with_head: Class, headless: Class }
---@field formats string            "cs-2.1 .. cs-2.9"
---@field keys Rule[]               of the left without its classifier
---@field inputs integer            the classifier's width, in multiples of the hidden size
---@field config Rule[]             the family's other config rules
---@field finish? table<Side, function>
---@field fill? table               a key of the left, below `model`, and a function that makes its tensor

---The config rules of all these models.
local classifier_config = fields.config {
  fields.fixed.right {
    position_embedding_type = "learned", prepend_cls_token = true, use_bias_in_output = true, use_conv_patchified_embedding = true,
    use_encoder_pooler_layer = false,
  },
  { "num_labels",                   "num_classes" },
  { "hidden_dropout_prob",          "dropout_rate" },
  { "attention_probs_dropout_prob", "attention_dropout_rate" },
  { "layer_norm_eps",               "layer_norm_epsilon" },
  vision.config,
}

local classifier = "classifier.classifier.ffn.0.linear_layer"

---Both models of a family: with a classifier, and without one. In the latter the right's classifier is random.
---@param family Classifiers
---@return Model, Model
function vision.models(family)
  local config = fields.config { fields.fixed.left { model_type = family.model }, classifier_config, family.config }
  local function model(class, suffix, place, head, random)
    local fill = { left = family.fill and { { place .. family.fill[1], family.fill[2] } }, right = random }
    local keys = rules.keys { { place:match "^(.-)%.?$", "vit_model", family.keys }, head }
    return {
      model = family.model .. suffix, name = "vision_transformer", note = class.name .. " <-> ViTClassificationModel",
      classes = { left = class, right = zoo.ViTClassificationModel },
      rules.between("hf", family.formats, {
        keys = keys, config = config, fill = fill, prepare = { left = labels }, finish = family.finish,
      }),
    }
  end
  return model(family.classes.with_head, "", family.model .. ".", { "classifier.{weight,bias}", classifier .. ".{weight,bias}" }),
    model(family.classes.headless, "-headless", "", rules.drop.right(classifier .. ".{weight,bias}", "the left has no classifier"), {
      { classifier .. ".weight", function(at) return at:invent({ at.right.num_classes, family.inputs * at.right.hidden_size }, 0.02) end },
      { classifier .. ".bias", function(at) return at:invent { at.right.num_classes } end },
    })
end

return vision
