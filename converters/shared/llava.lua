-- LLaVA: CLIP's image tower and a LLaMA, joined by a small feed-forward part (the projector). Two folders of Hugging Face
-- files, the projector in the LLaMA's; one Model Zoo checkpoint.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local values = require "converters.vocabulary.values"
local clip = require "converters.shared.clip"
local decoder = require "converters.shared.decoder"
local llama_family = require "converters.shared.llama"
local classes = require "converters.classes.hf.llava"
local zoo = require "converters.classes.zoo.llava"

local llava = {}

local llama = llama_family.converter { model_type = "llama" }
local fixed, must, drop, used, written = fields.fixed, fields.must, fields.drop, fields.used, fields.written
local absent, float = values.absent, cbk.float

-- --- the projector

---The number of Linears in the left config.
local function depth(config)
  local kind = config.mm_projector_type
  return type(kind) == "string" and tonumber(kind:match "^mlp(%d+)x_gelu$") or nil
end

---Converts indices: a Sequential has activations between its Linears.
local counted_by_two = {
  forward = function(n) return math.floor(n / 2) end,
  backward = function(n) return 2 * n end,
}

---A LLaMA that was not trained on images has no projector: makes random numbers, as PyTorch initialises it.
---@param linear fun(i: integer, part: string): string   the right's keys
local function invented_projector(at, linear)
  local count, width = depth(at.left), at.left.hidden_size
  for i = 0, count - 1 do
    if at:source(("model.mm_projector.%d.weight"):format(2 * i)) ~= nil then return nil end
  end
  local first
  for i = 0, count - 1 do
    local inputs = i == 0 and at.left.mm_hidden_size or width
    local spread = { uniform = inputs ^ -0.5 }
    local weight = at:invent({ width, inputs }, spread, linear(i, "weight"))
    if i == 0 then first = weight else at:emit(linear(i, "weight"), weight) end
    at:emit(linear(i, "bias"), at:invent({ width }, spread, linear(i, "bias")))
  end
  return first
end

local function feed_forward(count, width, last)
  local out = cbk.list()
  for i = 1, count do out[i] = i == count and last or width end
  return out
end

---Converts the projector's name on the left to its layers on the right.
local projector = {
  forward = function(kind, at)
    local from, count = at.from, depth(at.from)
    if not count or count < 1 or count > 1000 then at:refuse(kind, "mlp<number>x_gelu") end
    return cbk.dict { image_model = cbk.dict {
      name = "FeedForwardNetwork", input_unit = cbk.raw(from, "mm_hidden_size"), use_bias = true,
      layers_units = feed_forward(count, from.hidden_size, from.hidden_size), layers_activation = feed_forward(count, "gelu", cbk.null),
    } }
  end,
  backward = function(parts, at)
    local layers = cbk.find(parts, "image_model")
    if not kinds.is_dict(layers) then cbk.fail("config", "the config has no map projector.image_model") end
    if parts.text_model ~= nil then cbk.warn "projector.text_model is left out: LLaVA's LLaMA has no projector" end
    at:leave_out_others(parts, { image_model = true, text_model = true })
    local known = { name = true, input_unit = true, use_bias = true, layers_units = true, layers_activation = true }
    for name in cbk.items(layers) do
      if not known[name] and not absent(layers[name]) then at:leave_out("projector.image_model." .. tostring(name)) end
    end
    local function check(name, want)
      if layers[name] == nil or not cbk.equal(layers[name], want) then
        fields.refuse("projector.image_model." .. name, layers[name], want)
      end
    end
    check("name", "FeedForwardNetwork")
    check("use_bias", true)
    local count = (cbk.kind(layers, "layers_activation") or "") == "list" and #layers.layers_activation or 0
    check("layers_activation", feed_forward(count, "gelu", cbk.null))
    check("layers_units", feed_forward(count, at.from.hidden_size, at.from.hidden_size))
    at:set("mm_hidden_size", cbk.raw(layers, "input_unit"))
    return ("mlp%dx_gelu"):format(count)
  end,
}

-- --- the layer whose features are used, and the parts that are trained

local function is_whole(value) return type(value) == "number" and value % 1 == 0 end

---Converts the index of a layer: the left counts the embedding as layer 0.
local feature_layer = {
  forward = function(layer, at)
    if not is_whole(layer) or layer == 0 then at:refuse(layer, "the number of a layer (0 would be the embedding)") end
    return layer < 0 and layer or layer - 1
  end,
  backward = function(layer, at)
    if not is_whole(layer) then at:refuse(layer, "the number of a layer") end
    return layer < 0 and layer or layer + 1
  end,
}

---Fails if the image tower does not have that layer. The left counts layers from 1.
---@param from Dict    the config that is read
---@param left Dict    the config of the left
---@param field string its name in `from`
local function check_feature_layer(from, left, field)
  local layer, count = left.text_model.mm_vision_select_layer, left.image_model.num_hidden_layers
  if absent(layer) or math.abs(layer) <= count then return end
  local first = field == "mm_vision_select_layer" and 1 or 0
  fields.refuse(field, from.text_model[field], ("%d to %d, or -%d to -1, by the num_hidden_layers of the image_model,"):format(first,
    first + count - 1, count))
end

local function is_pattern_of(pattern, part) return pattern == part or pattern == "^" .. part end

---Converts the patterns of the parts that are not trained.
---@param places LlavaPlaces
local function frozen(places)
  return {
    forward = function(only_projector, at)
      local out = cbk.list()
      if at.from.unfreeze_mm_vision_tower ~= true then out[#out + 1] = "^image_model" end
      if only_projector == true then out[#out + 1] = "^text_model" end
      if at.from.freeze_mm_mlp_adapter == true then out[#out + 1] = "^" .. places.projector end
      return out
    end,
    backward = function(patterns, at)
      if absent(patterns) then return false end -- nothing is said of the image model: written.left
      local found, others = {}, {}
      if cbk.kind(at.from, "freeze") ~= "list" then at:refuse(patterns, "a list of patterns") end
      for _, pattern in cbk.items(patterns) do
        local known
        for _, part in ipairs { "image_model", "text_model", places.projector } do
          if is_pattern_of(pattern, part) then found[part], known = true, true end
        end
        if not known then others[#others + 1] = tostring(pattern) end
      end
      if #others > 0 then cbk.warn("freeze: these patterns are left out: " .. table.concat(others, ", ")) end
      at:set("unfreeze_mm_vision_tower", not found.image_model)
      at:set("freeze_mm_mlp_adapter", found[places.projector] == true)
      return found.text_model == true
    end,
  }
end

-- --- the two parts

---The right has no field for how an image is fitted into the tower's square. A grid of patches (LLaVA 1.6) needs another model.
local one_image = { forward = function(way, at)
  if absent(way) or way == "pad" then return end -- as the way back has it
  if way ~= "square" then at:refuse(way, fields.any_of("pad", "square", cbk.null)) end
  at:leave_out(at.field)
end }

---Ignores the model type, because the folder determines the model. Warns about another model's name.
---@param known table<string, true>
---@param class string
local function model_type(known, class)
  return { "model_type", false, { forward = function(name)
    if known[name] then return end
    cbk.warn(("model_type=%s is ignored: the model of this folder is read as a %s"):format(fields.shown(name), class))
  end } }
end

local usual_width = 64

---@param places LlavaPlaces
---@return Component
local function image_part(places)
  return {
    left = "image_model", right = "image_model", classes = { left = classes.image_model, right = zoo.image_part(places.image) },
    keys = rules.keys {
      { "vision_model", places.image, clip.tower },
      rules.drop.left("text_model.*", "of CLIP, the image tower is used"),
      rules.drop.left("logit_scale", "of CLIP, the image tower is used"),
      rules.drop.left("{visual_projection,text_projection}.{weight,bias}", "of CLIP, the image tower is used"),
    },
    config = fields.config {
      model_type({ clip = true, clip_vision_model = true }, "CLIP"),
      written.left { model_type = "clip_vision_model" },
      must.right { name = fields.any_of("ViTModel", "vit_model", "vision_transformer") },
      drop.right { "fp16_type" },
      written.right { name = "ViTModel" },
      clip.config,
    },
    defaults = clip.defaults,
    files = { ["preprocessor_config.json"] = function(config)
      return {
        crop_size = { height = config.image_size, width = config.image_size }, size = config.image_size,
        do_center_crop = true, do_normalize = true, do_resize = true, feature_extractor_type = "CLIPFeatureExtractor",
        image_mean = { 0.48145466, 0.4578275, 0.40821073 }, image_std = { 0.26862954, 0.26130258, 0.27577711 }, resample = 3,
      }
    end },
  }
end

---@param places LlavaPlaces
---@return Component
local function text_part(places)
  local function linear(i, part) return ("%s.ffn.%d.linear_layer.%s"):format(places.projector, i, part) end
  return {
    left = "text_model", right = "text_model",
    classes = { left = classes.text_model, right = zoo.text_part(places.projector, places.removed) },
    keys = rules.keys {
      { "", "text_model", decoder.with_head("model", llama.keys) },
      { "model.mm_projector.N.{weight,bias}", places.projector .. ".ffn.N.linear_layer.{weight,bias}", number = counted_by_two },
      rules.refuse.left("model.vision_tower.*", "the config says that this image tower was trained (unfreeze_mm_vision_tower), and the "
        .. "one in the folder image_model would be written: put its weights there, and take them out here",
        function(at) return at.left.unfreeze_mm_vision_tower == true end),
      rules.drop.left("model.vision_tower.*", "the image tower is a part of its own"),
      rules.drop.right("projector_text_model.*", "LLaVA's LLaMA has no projector"),
    },
    config = fields.config {
      model_type({ llava = true, llava_llama = true, llama = true }, "LLaVA with a LLaMA"),
      used.left { "mm_vision_tower", "mm_hidden_size" },
      must.right { name = fields.any_of("LlamaModel", "llama_model", "llama") },
      fields.without(llama.config, { "model_type" }),
      { "mm_projector_type",        "projector",                      projector },
      { "mm_vision_select_feature", "image_feature_select_mode",      values.choice { patch = "patch", cls_patch = "cls_patch" } },
      { "mm_vision_select_layer",   "image_feature_select_layer_idx", feature_layer },
      fixed.left { mm_use_im_start_end = false, mm_use_im_patch_token = false, tune_mm_vision_resampler = false },
      { "tune_mm_mlp_adapter",      "freeze",                         frozen(places) },
      used.left { "unfreeze_mm_vision_tower", "freeze_mm_mlp_adapter" },
      { "image_aspect_ratio", false, one_image },
      must.left { mm_patch_merge_type = fields.any_of("flat", cbk.null) },
      drop.left {
        "architectures", "bos_token_id", "eos_token_id", "freeze_mm_vision_resampler", "pad_token_id", "use_cache",
      },
      written.left {
        model_type = "llava", bos_token_id = 1, eos_token_id = 2, pad_token_id = 0, use_cache = true, image_aspect_ratio = "pad",
        freeze_mm_mlp_adapter = false, freeze_mm_vision_resampler = false, unfreeze_mm_vision_tower = false, tune_mm_mlp_adapter = false,
      },
      written.right { name = "LlamaModel" },
    },
    beside = { "projector", "image_feature_select_mode", "image_feature_select_layer_idx", "freeze" },
    folders = { mm_vision_tower = "image_model" },
    defaults = {
      left = {
        rope_theta = fields.none, mm_hidden_size = usual_width, mm_projector_type = "mlp2x_gelu", mm_vision_select_feature = "patch",
        mm_vision_select_layer = -2, tune_mm_mlp_adapter = false,
      },
      right = { share_embedding_weights = false, freeze = cbk.null },
    },
    prepare = llama.prepare, finish = llama.finish,
    fill = { right = { { linear(0, "weight"), function(at) return invented_projector(at, linear) end } } },
  }
end

-- --- the whole

---Replaces the config of a whole CLIP by that of its image tower.
local function take_tower(from)
  local whole = from.image_model
  if not kinds.is_dict(whole) or not kinds.is_dict(whole, "vision_config") then return end
  local others = {}
  for name in cbk.items(whole) do
    if name ~= "vision_config" and name ~= "model_type" and not absent(whole[name]) then others[#others + 1] = "image_model." .. name end
  end
  if #others > 0 then cbk.warn("only the image tower of the CLIP model is used; left out: " .. table.concat(others, ", ")) end
  from.image_model = whole.vision_config
end

---Fails if the field is missing: the projector's width would be a guess, and usually differs from the image tower's.
local function check_given(from)
  local text_model, image_model = from.text_model, from.image_model
  if not kinds.is_dict(text_model) or not absent(text_model.mm_hidden_size) or not kinds.is_dict(image_model) then return end
  local width = classes.image_model:values(image_model).hidden_size
  if width == usual_width then return end
  cbk.fail("config", ("the config of text_model has no 'mm_hidden_size': add the hidden_size of the image_model (%s)"):format(
    fields.shown(width)))
end

---Fails if the projector's input is not as wide as the image tower's output.
local function check_widths(field, input, image_width)
  if input ~= image_width then
    fields.refuse(field, input, ("the hidden_size of the image_model (%s)"):format(fields.shown(image_width)))
  end
end

---@class LlavaPlaces   Prefixes of the right's keys.
---@field image string       of the image tower
---@field projector string
---@field removed? table<string, string>   fields of the language model, each with the release since which it is left out

---The converter of a Model Zoo model whose config has the sections image_model, text_model and projector.
---@param places LlavaPlaces
---@param fixed_fields table<string, any>   of the whole, on the right
---@return Converter
function llava.hugging_face(places, fixed_fields)
  return {
    components = { image_part(places), text_part(places) },
    config = fields.config { written.right(fixed_fields) },
    prepare = { left = function(from)
      take_tower(from)
      check_given(from)
    end },
    finish = {
      left = function(to, from)
        check_widths("projector.image_model.input_unit", to.text_model.mm_hidden_size, to.image_model.hidden_size)
        check_feature_layer(from, to, "image_feature_select_layer_idx")
      end,
      right = function(to, from)
        check_widths("mm_hidden_size", to.projector.image_model.input_unit, to.image_model.hidden_size)
        check_feature_layer(from, from, "mm_vision_select_layer")
      end,
    },
  }
end

---The Model Zoo's usual training fields.
llava.usual = { label_smoothing = float(0), loss_scaling = "num_tokens", loss_weight = float(1), z_loss_eps = float(0) }

return llava
