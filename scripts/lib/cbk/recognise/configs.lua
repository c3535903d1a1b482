-- Configs by themselves: whether they are of Hugging Face or the Model Zoo, and the model that they mean.

local cbk = require "cbk"
local architectures = require "cbk.recognise.architectures"
local candidates = require "cbk.recognise.candidates"
local converters = require "cbk.converters"
local fields = require "converters.engine.fields"
local inexpressible = require "converters.shared.inexpressible"
local kinds = require "converters.engine.kinds"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local configs = {}

---Whether a config is a Hugging Face config.
---@param config Dict
---@return boolean
function configs.says_hugging_face(config) return type(config.model_type) == "string" or architectures.stated(config) ~= nil end

---The error for a model name that is not a string.
---@param field string
function configs.not_a_string(field, value)
  return ("the config says %s=%s: expected a string"):format(field, fields.shown(value))
end

---A Hugging Face config. It is its own model section.
---@param config Dict
---@return Dict
function configs.hugging_face_section(config)
  local section = kinds.is_dict(config, "trainer") and "trainer" or kinds.is_dict(config, "model") and "model"
  if section and not configs.says_hugging_face(config) then
    cbk.fail("config",
      ("expected a config of Hugging Face, as the checkpoint is, found one of the Model Zoo (it has a section '%s')"):format(section))
  end
  return config
end

---Fails if the config contradicts the format.
local function check_format(is_zoo, says_hf, format)
  if format == "hf" and is_zoo then
    cbk.fail("config", "this is a config of the Model Zoo, but --src-fmt is hf; use --src-fmt cs-X.Y")
  elseif catalogue.release(format) and says_hf then
    cbk.fail("config", ("this is a config of Hugging Face, but --src-fmt is %s; use --src-fmt hf"):format(format))
  end
end

---Fails if the config names another class than the model's.
local function check_model(model_name, format, section)
  local is_zoo = catalogue.release(catalogue.resolve(format)) ~= nil
  local stated, field = converters.stated_models(not is_zoo, section)
  local function class_of(name)
    local model = catalogue.find(name)
    return model and (catalogue.class_of(model, {}, catalogue.resolve(format, model)))
  end
  local model = catalogue.find(model_name)
  local own = class_of(model_name)
  local says_type = model and (is_zoo or next(converters.hugging_face_types(model)) ~= nil)
  if not own or not says_type then return end
  for _, name in ipairs(stated) do
    if catalogue.find(name) == model or class_of(name) == own then return end
  end
  if #stated > 0 then cbk.fail("config", converters.other_model(stated, field, model_name)) end
end

---The format of a config whose model has its tensors at the top level: Hugging Face's, or the layout of the user's own whose class has
---most of its fields.
---@param name string
---@param section Dict
---@return string
local function layout_of(name, section)
  local model = catalogue.find(name)
  local best, most
  for _, format in ipairs(model and catalogue.formats_of(model) or {}) do
    local is_top = not catalogue.release(format)
    local class = is_top and catalogue.class_of(model, {}, format) or nil
    local count = class and 0 or -1
    for field in cbk.items(section) do count = count + (class and class:by_name()[field] and 1 or 0) end
    if is_top and (not best or count > most) then best, most = format, count end
  end
  return best or "hf"
end

---The model and format of a config, if the user does not name them. Of several Model Zoo formats, the newest.
---@param config Dict
---@param model? string    as the user says
---@param format? string
---@return string model, string format
---@return string[] others   further models that a config of the Model Zoo may mean as well
function configs.model_of(config, model, format)
  local says_hf = configs.says_hugging_face(config)
  local is_zoo = not says_hf and (config.model ~= nil or config.trainer ~= nil)
  local is_given = format ~= nil
  if format then check_format(is_zoo, says_hf, format) end
  format = format or (is_zoo and "cs-current" or "hf")
  local is_hf, section = not catalogue.release(catalogue.resolve(format)), is_zoo and trainer.model(config) or config
  if model then
    if is_hf and not is_given then format = layout_of(model, section) end
    check_model(model, format, section)
    return model, format, {}
  end
  local field = is_hf and "model_type" or "name"
  local stated = section[field]
  if kinds.absent(stated) then
    cbk.fail("usage", ("the config has no '%s'; name the model with --model"):format(is_hf and field or "model.name"))
  end
  if type(stated) ~= "string" then cbk.fail("config", configs.not_a_string(field, stated)) end
  local wanted = is_hf and architectures.stated(config) or nil
  local accepts, found = is_hf and candidates.of_type(config) or candidates.of_name({ catalogue.resolve(format) }, section), {}
  local distance_of = candidates.distance_of(is_hf and {} or { catalogue.resolve(format) }, section)
  for _, one in ipairs(candidates.described(is_hf and "left" or "right")) do
    if accepts(one) then
      local wrong, lacking = distance_of(one)
      found[#found + 1] = { model = one.model, class = one.class, mistakes = 0, is_named = architectures.is_of(one.model, wanted),
        changes = 0, wrong = wrong, lacking = lacking }
    end
  end
  local list = candidates.ranked(found)
  if list[1] then
    local best, others = list[1].model.model, {}
    for i = 2, is_hf and 0 or #list do
      if candidates.is_tie(list[i], list[1], true) then others[#others + 1] = list[i].model.model end
    end
    return best, is_hf and not is_given and layout_of(best, section) or format, others
  end
  local why = inexpressible.why(stated)
  if why then cbk.fail("unsupported", why) end
  local others = converters.stated_models(is_hf, section)
  local lacking = converters.lacking_class(others[1] or stated, format)
  if lacking then cbk.fail("unsupported", lacking) end
  cbk.fail("unsupported", ("'%s' is not a known model"):format(stated), { advice = "name one with --model ('cbk list' lists them)" })
end

return configs
