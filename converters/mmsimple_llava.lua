-- LLaVA as the Model Zoo's MultimodalSimple, which may have any number of image models; LLaVA has one.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"
local llava = require "converters.shared.llava"
local zoo = require "converters.classes.zoo.llava"

local between, variant = rules.between, rules.variant
local places = { image = "image_model.image_model_list.0.0", projector = "image_model.projection" }

-- --- layouts of the config: rules see the sections that the Model Zoo's LLaVA has

local known = { image_models = true, image_feature_select_mode = true, global_image_projection = true }

local function check_list(list)
  if not kinds.is_dict(list) then cbk.fail("config", "the config has no section 'image_model_list'") end
  if not kinds.is_list(list, "image_models") or not zoo.only_encoder(list) or kinds.present(list.image_models[1].projection_layer) then
    cbk.fail("config", "image_model_list.image_models must have one image model, without a projection of its own: LLaVA has one")
  end
  if not kinds.is_dict(list, "global_image_projection") then
    cbk.fail("config", "the config has no map image_model_list.global_image_projection")
  end
  for name in cbk.items(list) do
    if not known[name] then cbk.warn(("image_model_list.%s is left out: LLaVA has no counterpart"):format(tostring(name))) end
  end
end

local function read(section)
  local list = section.image_model_list
  check_list(list)
  local image = cbk.copy(zoo.only_encoder(list))
  section.image_feature_select_layer_idx, section.image_feature_select_mode = cbk.raw(image, "image_layer_idx"), "patch"
  if kinds.absent(section.image_feature_select_layer_idx) then
    fields.refuse("image_layer_idx", image.image_layer_idx, "a number (LLaVA uses no norm behind the last layer)")
  end
  if kinds.present(list.image_feature_select_mode) then section.image_feature_select_mode = list.image_feature_select_mode end
  image.image_layer_idx = nil
  section.image_model, section.image_model_list = image, nil
  section.projector = cbk.dict { image_model = list.global_image_projection }
  return section
end

---@param place fun(image: Dict): Dict   one of image_models
local function layout(place)
  return { right = { read = read, write = function(section)
    local image = cbk.copy(section.image_model)
    image.image_layer_idx = cbk.raw(section, "image_feature_select_layer_idx")
    section.image_model_list = cbk.dict {
      global_image_projection = section.projector.image_model, image_feature_select_mode = section.image_feature_select_mode,
      image_models = cbk.list { place(image) },
    }
    for _, name in ipairs { "image_model", "projector", "image_feature_select_mode", "image_feature_select_layer_idx" } do
      section[name] = nil
    end
    return section
  end } }
end

local function as_encoder(image) return cbk.dict { image_encoder = image } end
local function as_list(image) return cbk.dict { image_model = cbk.list { image } } end

-- The original converter writes fields of training here that it leaves out of a LLaVA's config since 2.4.
local since_2_4 = variant(llava.hugging_face(places, llava.usual), { layout = layout(as_encoder) })

-- --- 2.3 -> 2.4: an image model and its projection have names, where a list had them

---@param place fun(image: Dict): Dict
local function in_place(place)
  return function(to)
    local list = to.image_model_list
    local image = zoo.only_encoder(list)
    if not image then return end
    list = cbk.copy(list)
    list.image_models = cbk.list { place(image) }
    to.image_model_list = list
  end
end
local to_2_4 = { finish = { left = in_place(as_list), right = in_place(as_encoder) } }

return { {
  model = "mmsimple-llava", name = "multimodal_simple", classes = { right = zoo.MultimodalSimple },
  note = "CLIPVisionModel (folder image_model) and LlavaLlamaForCausalLM (folder text_model) <-> SimpleMultimodal",
  between("cs-2.3", "cs-2.4", to_2_4),
  between("hf", "cs-2.4 .. cs-2.9", since_2_4),
  between("hf", "cs-2.3", variant(since_2_4, { layout = layout(as_list) })),
} }
