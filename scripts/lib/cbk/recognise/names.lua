-- Compares the names in a checkpoint of a release with those of the model's class. If the user named the wrong model, most names are
-- unknown, and may be those of another model or release.

local cbk = require "cbk"
local converters = require "cbk.converters"
local candidates = require "cbk.recognise.candidates"
local guess = require "cbk.recognise.guess"
local kinds = require "converters.engine.kinds"
local own_config = require "converters.conversion.own_config"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue
local names = {}

---The names of a checkpoint's tensors; for the parts of a composite, "part/key".
---@param root Dict   also with the model below "model"
---@return string[]
function names.keys_of(root)
  kinds.check_root(root)
  local out = {}
  local function add(tree, prefix)
    for key, value in cbk.items(tree) do
      if kinds.is_dict(value) then add(value, prefix .. tostring(key) .. "/") else out[#out + 1] = prefix .. tostring(key) end
    end
  end
  add(kinds.is_dict(root, "model") and root.model or root, "")
  return out
end

---@class ModelNames   The tensors of a model in a release.
---@field known ClassTensors
---@field places string[]   possible prefixes of its keys: "policy_model.model.", or nothing

---@param model Model
---@param format string   of a release
---@param config Dict     the whole file
---@return ModelNames|nil   nil: no class describes it
function names.of(model, format, config)
  local section, step = trainer.model(config), catalogue.direct(model, format, "hf")
  local converter = step and step.converter.wrap and catalogue.wrapped(step, section).converter or {}
  local class, release = catalogue.class_of(model, converter, format)
  if not class then return nil end
  local inside = converter.inside
  return { known = class:tensors(own_config.complete(model, format, section), { release = release }),
    places = inside and { inside.place .. ".", inside.copy .. "." } or { "" } }
end

---The weight of a mask or of a LoRA matrix: their names extend the weight's name. Other keys are returned unchanged.
local function weight_of(key) return (key:gsub("_mask$", ""):gsub("%.lora_[AB]$", ".weight")) end

---Whether a model has a name. Names of older releases do not count.
---@param of ModelNames
---@param key string
---@return boolean
function names.has(of, key)
  for _, place in ipairs(of.places) do
    local own = key:sub(1, #place) == place and key:sub(#place + 1)
    if own and (of.known:has(own) or of.known:has(weight_of(own))) then return true end
  end
  return false
end

---The first of some names, for people.
---@param keys string[]
function names.shown(keys) return cbk.shown(naming.listed(keys, 3)) end

---@class StrangeNames
---@field keys string[]     that the model does not have
---@field count integer     of all keys
---@field is_other boolean  most kinds of names are unknown: the checkpoint is of another model or release

---@param of ModelNames
---@param root Dict
---@return StrangeNames
local function strange_names(of, root)
  local keys, strange = names.keys_of(root), {}
  for _, key in ipairs(keys) do
    if not names.has(of, key) then strange[#strange + 1] = key end
  end
  local function kinds_in(list) return cbk.count(cbk.dict(guess.outlines(list))) end
  return { keys = strange, count = #keys, is_other = kinds_in(strange) * 2 > kinds_in(keys) }
end

---A prefix of all keys, if the model has all keys without it, such as `module` after data-parallel training.
---@param of ModelNames
---@param keys string[]
---@return string|nil
local function name_to_remove(of, keys)
  local name = keys[1] and keys[1]:match "^([^.]+)%."
  for _, key in ipairs(name and keys or {}) do
    if key:sub(1, #name + 1) ~= name .. "." or not names.has(of, key:sub(#name + 2)) then return nil end
  end
  return name
end

---The models and formats that the names look like, those of the requested format first: "bert of cs-1.6".
---@param keys string[]
---@param asked string   a format
---@return string|nil
local function resembled(keys, asked)
  local weights, formats = {}, { asked }
  for i, key in ipairs(keys) do weights[i] = weight_of(key) end
  for i = #releases.known, 1, -1 do formats[#formats + 1] = "cs-" .. releases.known[i] end
  formats[#formats + 1] = "hf"
  local list, format = candidates.of_names(formats, weights, function() end)
  local out = {}
  for i = 1, math.min(#list, 3) do out[i] = ("%s of %s"):format(list[i].model.model, format) end
  return #out > 0 and table.concat(out, ", or ") or nil
end

---@param strange StrangeNames
local function text_of(strange, model_name, format)
  return ("%d of %d weight names are unknown in %s %s: %s"):format(#strange.keys, strange.count, model_name, format,
    names.shown(strange.keys))
end

---Fails if most names of a checkpoint are unknown for the model in this format. A few unknown names are a warning.
---@param model_name string
---@param format string    of a release
---@param config Dict      the whole file
---@param root Dict
---@param options string   the options for model and format: "--model and --src-fmt"
---@return string|nil warning
function names.check(model_name, format, config, root, options)
  local model = catalogue.find(model_name)
  local of = model and names.of(model, format, config)
  if not of then return nil end
  local strange = strange_names(of, root)
  local text = text_of(strange, model_name, format)
  if strange.is_other then
    local name = name_to_remove(of, strange.keys)
    local like = not name and resembled(strange.keys, format)
    local advice = name and ("remove the prefix '%s.' with `cbk copy CHECKPOINT NEW --rename 'model.%s.*=model.*'`"):format(name, name)
      or like and ("they look like those of %s; choose with %s"):format(like, options)
      or "no known model has such names"
    cbk.fail("key", text, { advice = advice })
  end
  return #strange.keys > 0 and text .. "; they are kept as they are" or nil
end

return names
