-- Low-rank adaptation (LoRA): folding the A and B matrices of a checkpoint into the weights that they adapt.

local cbk = require "cbk"
local low_rank = require "cbk.low_rank"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local modules = require "converters.modelzoo.modules"
local sparsity = require "converters.modelzoo.sparsity"
local trainer = require "converters.modelzoo.trainer"

local present, is_dict, is_list = kinds.present, kinds.is_dict, kinds.is_list

local lora = {}

local function refuse(message, ...) cbk.fail("config", message:format(...)) end

---@param field string   its path
local function refuse_field(field, message, ...) cbk.fail("config", field .. message:format(...), { field = field }) end

local function is_finite(number) return type(number) == "number" and number == number and math.abs(number) < math.huge end

-- --- settings

local fields = { r = true, alpha = true, dropout = true, fan_in_fan_out = true, merge_weights = true, target_modules = true }

local function targets_of(params, name)
  if not present(params.target_modules) then return nil end
  local list = {}
  if not is_list(params, "target_modules") then refuse_field(name .. ".target_modules", " must be a list of class names") end
  for i, class in cbk.items(params.target_modules) do
    if type(class) ~= "string" then refuse("%s.target_modules: '%s' is not a class name", name, tostring(class)) end
    list[i] = class
  end
  return list
end

---@class LoraGroup
---@field rank number              0: the modules of this group are not adapted
---@field scale number             alpha / rank
---@field dropout number           of the input of A, in training
---@field fan_in_fan_out boolean   weights are stored (in, out)
---@field targets string[]|nil     classes that must all contain a module; nil: all modules
---@field name string              the setting's name, for messages

---@return LoraGroup
local function group_of(params, name)
  if not is_dict(params) then refuse("%s must be a dict of LoRA settings", name) end
  for field in cbk.items(params) do
    if not fields[field] then
      local near = cbk.nearest(tostring(field), naming.sorted(fields), 1)[1]
      refuse_field(("%s.%s"):format(name, tostring(field)), " is not a LoRA setting; %s", naming.question(near)
        or "known: r, alpha, dropout, fan_in_fan_out, merge_weights and target_modules")
    end
  end
  local rank, alpha, fan = params.r, params.alpha, params.fan_in_fan_out
  if not present(rank) then cbk.fail("config", name .. ".r, the rank, is missing", { field = name }) end
  local is_rank = is_finite(rank) and rank % 1 == 0 and rank >= 0
  if not is_rank then refuse_field(name .. ".r", "=%s: the rank must be a whole number", tostring(rank)) end
  if alpha == nil then alpha = 1 end
  if not is_finite(alpha) then refuse_field(name .. ".alpha", "=%s: it must be a finite number", tostring(alpha)) end
  if fan ~= nil and type(fan) ~= "boolean" then
    refuse_field(name .. ".fan_in_fan_out", "=%s: it must be true or false", tostring(fan))
  end
  local dropout = present(params.dropout) and params.dropout or 0
  local is_rate = type(dropout) == "number" and dropout >= 0 and dropout <= 1
  if not is_rate then refuse_field(name .. ".dropout", "=%s: it must be a number from 0 to 1", tostring(dropout)) end
  return { rank = rank, scale = alpha / rank, dropout = dropout, fan_in_fan_out = fan == true, targets = targets_of(params, name),
    name = name }
end

---The section with LoRA settings: of the model, or in the trainer's layout of the callback Lora.
---@param config Dict   the whole file
---@return Dict parent, string place   whose field `lora_params` it is
local function parent_of(config)
  local model = trainer.model(config)
  local callbacks = trainer.is(config) and is_list(config.trainer.init, "callbacks") and config.trainer.init.callbacks or cbk.list()
  if not present(model.lora_params) then
    for i, entry in cbk.items(callbacks) do
      if is_dict(entry) and is_dict(entry, "Lora") then return entry.Lora, ("trainer.init.callbacks.%d.Lora"):format(i - 1) end
    end
  end
  return model, trainer.place_of_model(config)
end

---Whether a config has LoRA settings.
---@param config Dict   the whole file
function lora.is_in(config) return present((parent_of(config)).lora_params) end

---The LoRA settings of a config.
---@param config Dict   the whole file
---@param path? string   its name, for messages
---@return LoraGroup[]
function lora.groups(config, path)
  local parent, place = parent_of(config)
  local params = parent.lora_params
  place = place .. ".lora_params"
  if not present(params) then
    refuse("%s has no %s: there is nothing to fold", path and cbk.quote(path) or "the config", place)
  end
  if not is_list(parent, "lora_params") then return { group_of(params, place) } end
  local out = {}
  for i, one in cbk.items(params) do out[i] = group_of(one, ("%s[%d]"):format(place, i - 1)) end
  if #out == 0 then refuse("%s is an empty list", place) end
  return out
end

-- --- the settings of each module

local function all_in(targets, classes)
  local has = {}
  for _, class in ipairs(classes) do has[class] = true end
  for _, class in ipairs(targets) do
    if not has[class] then return false end
  end
  return true
end

---The settings of a module of a new model, and its class; nil if it is not adapted.
---@param path string
---@param groups LoraGroup[]
---@param model string      as the Model Zoo names it
---@param section Dict      of the model
---@return LoraGroup|nil, "Linear"|"Embedding"|nil
function lora.of_module(path, groups, model, section)
  local classes = modules.classes(path, model, section)
  local class = classes[#classes]
  if class ~= "Linear" and class ~= "Embedding" then return nil end
  for _, group in ipairs(groups) do
    if not group.targets or all_in(group.targets, classes) then return group.rank > 0 and group or nil, class end
  end
end

---Whether the known classes are enough to decide that a group does not include a module.
local function is_decidable(group, complete)
  for _, class in ipairs(group.targets) do
    if not modules.known[class] then return false end
  end
  return complete
end

---The first group whose classes all contain the module.
local function group_for(path, groups, model, config)
  local classes, complete = modules.classes(path, model, config)
  for _, group in ipairs(groups) do
    if not group.targets or all_in(group.targets, classes) then return group end
    if not is_decidable(group, complete) then
      if #groups == 1 then return group end
      refuse("%s.target_modules: cannot tell whether they include %s (%s%s)", group.name, path, table.concat(classes, " > "),
        complete and "" or " > …")
    end
  end
  refuse("%s (%s) has LoRA weights, but no target_modules of model.lora_params include it", path, table.concat(classes, " > "))
end

local function is_embedding(path, model, config)
  local classes, complete = modules.classes(path, model, config)
  if complete then return classes[#classes] == "Embedding" end
  return naming.last(path):find "embed" ~= nil
end

-- --- folding

---The modules with both LoRA matrices; half of a pair is an error.
local function adapted(model)
  local out, halves = {}, {}
  for key in cbk.items(model) do
    local path = tostring(key):match "^(.*)%.lora_[AB]$"
    if path and not out[path] then
      for _, other in ipairs { "weight", "lora_A", "lora_B" } do
        if not present(model[path .. "." .. other]) then halves[#halves + 1] = ("%s.%s"):format(path, other) end
      end
      out[path] = true
    elseif not path and tostring(key):find("lora_", 1, true) then
      cbk.fail("unmatched", ("'%s' is a LoRA tensor, but neither lora_A nor lora_B"):format(key))
    end
  end
  if #halves > 0 then cbk.fail("checkpoint", "cannot fold LoRA: the checkpoint lacks " .. naming.listed(halves)) end
  if next(out) == nil then cbk.fail("checkpoint", "the checkpoint has no LoRA weights (keys that end in .lora_A and .lora_B)") end
  return out
end

---Fails if weights have masks in the optimizer's state, as up to release 2.1: the folded checkpoint has the model alone, without them, and
---the sum of a weight and its matrices is not sparse. A mask beside a weight is kept, or refused by `low_rank.check_alone`.
---@param root Dict   the whole checkpoint
function lora.refuse_masks(root)
  local first = sparsity.in_optimizer(root)[1]
  if not first then return end
  cbk.fail("checkpoint", ("cannot fold LoRA: the folded checkpoint has the model alone, and '%s' is the mask of a sparse weight; multiply "
    .. "the weights by their masks, and leave out the optimizer"):format(first.path), { key = first.path })
end

---The new model: folded weights, no LoRA keys.
---@param model Dict           key → tensor
---@param config Dict          the whole file
---@param model_name string    as the Model Zoo names it
---@return Dict
function lora.fold(model, config, model_name)
  local groups, section = lora.groups(config), trainer.model(config)
  local is_adapted, out, turned, weights = adapted(model), cbk.dict(), {}, {}
  for path in pairs(is_adapted) do weights[#weights + 1] = path .. ".weight" end
  low_rank.check_alone(model, weights)
  for key in cbk.items(model) do
    local path = tostring(key):match "^(.*)%.weight$"
    if path and is_adapted[path] then
      local weight, a, b = model[key], model[path .. ".lora_A"], model[path .. ".lora_B"]
      local group = group_for(path, groups, model_name, section)
      local flipped = is_embedding(path, model_name, section) or group.fan_in_fan_out
      local problem = low_rank.mistake(weight, a, b, group.rank, flipped)
      if problem then cbk.fail("shape", ("%s: %s (%s)"):format(path, problem, group.name)) end
      for name, value in pairs { lora_A = a, lora_B = b } do low_rank.check_finite(path .. "." .. name, value) end
      out[key] = low_rank.fold(weight, a, b, group.scale, flipped)
      if group.fan_in_fan_out then turned[#turned + 1] = key end
    elseif not tostring(key):find "%.lora_[AB]$" then
      out[key] = cbk.raw(model, key)
    end
  end
  if #turned > 0 then
    cbk.warn("fan_in_fan_out: these weights stay as (in, out), and a model without LoRA needs (out, in): " .. naming.folded(turned))
  end
  return out
end

---Weights that a model may tie, with the field that says so; the Model Zoo's classes tie where a config does not say.
local ties = {
  { "embedding_layer.word_embeddings", "lm_head", "share_embedding_weights" },
  { "decoder_embeddings.word_embeddings", "lm_head", "share_embedding_weights" },
  { "encoder_embeddings.word_embeddings", "decoder_embeddings.word_embeddings", "share_encoder_decoder_embedding" },
  { "bert_encoder.embedding_layer.word_embeddings", "bert_mlm_head.classifier.ffn.0.linear_layer", "share_embedding_weights" },
}

---The ties of a module with LoRA weights, and what is before its name there: "", "model.", "policy_model.model.". Of modules whose names
---end alike, the longest is meant.
---@param path string   "bert_encoder.embedding_layer.word_embeddings"
---@return { tie: string[], place: string }[]
local function ties_of(path)
  local out, longest = {}, 0
  for _, tie in ipairs(ties) do
    for _, module in ipairs { tie[1], tie[2] } do
      local place = path:sub(-#module) == module and path:sub(1, -#module - 1)
      if place and (place == "" or place:sub(-1) == ".") and #module >= longest then
        if #module > longest then out, longest = {}, #module end
        out[#out + 1] = { tie = tie, place = place }
      end
    end
  end
  return out
end

---Whether two modules have the same LoRA weights, as those of one module with two names have.
local function are_folded_alike(model, one, other)
  for _, name in ipairs { ".lora_A", ".lora_B" } do
    if not present(model[one .. name]) or not present(model[other .. name]) then return false end
    if kinds.differ(model[one .. name], model[other .. name]) then return false end
  end
  return true
end

---The section of a model, or of its part that the keys name, if that has a section of its own.
---@param section Dict   of the whole model
local function section_of(section, place)
  local part = place:match "^([^.]+)%."
  return part and is_dict(section, part) and section[part] or section
end

---Removes the callback Lora.
local function drop_callback(config)
  local callbacks = trainer.is(config) and is_list(config.trainer.init, "callbacks") and config.trainer.init.callbacks
  if not callbacks then return end
  local kept = cbk.list()
  for i, entry in cbk.items(callbacks) do
    if not (is_dict(entry) and entry.Lora ~= nil) then kept[#kept + 1] = cbk.raw(callbacks, i) end
  end
  config.trainer.init.callbacks = #kept > 0 and kept or nil
end

---The new config: without LoRA, and without a tie that folding broke.
---@param config Dict   the whole file
---@param model Dict    the model that was folded
---@return Dict
function lora.config(config, model)
  config = cbk.deep_copy(config)
  local whole = trainer.model(config)
  whole.lora_params = nil
  drop_callback(config)
  local function untie(place, tie)
    local section, field = section_of(whole, place), tie[3]
    local share, other = section[field], place .. tie[2] .. ".weight"
    if share == cbk.null or share == false or share == 0 then return end -- or said already
    if not present(model[place .. tie[1] .. ".weight"]) or are_folded_alike(model, place .. tie[1], place .. tie[2]) then return end
    if not present(model[other]) then
      if field ~= "share_embedding_weights" then return end
      cbk.fail("checkpoint", ("the folded embeddings differ from %s, which the checkpoint lacks"):format(other))
    end
    cbk.warn(("'%s%s' or '%s' has LoRA weights: folded, they are no longer tied (%s: false)"):format(place, tie[1], other, field))
    section[field] = false
  end
  for key in cbk.items(model) do
    local path = present(model[key]) and tostring(key):match "^(.*)%.lora_A$"
    for _, one in ipairs(path and ties_of(path) or {}) do untie(one.place, one.tie) end
  end
  return config
end

return lora
