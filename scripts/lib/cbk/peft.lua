-- LoRA adapters as Hugging Face's PEFT saves them (adapter_config.json, adapter_model.safetensors or .bin), folded into their base model.
-- Format: peft/tuners/lora/config.py, layer.py and peft/utils/save_and_load.py of PEFT 0.17.

local cbk = require "cbk"
local extents = require "cbk.extents"
local low_rank = require "cbk.low_rank"
local ties = require "cbk.ties"

local peft = {}

local function is_set(value) return value ~= nil and value ~= cbk.null and value ~= false end

local function refuse(message, ...) cbk.fail("config", ("adapter_config.json: " .. message):format(...)) end

-- --- settings

-- Fields that do not change what the saved matrices mean.
local PASSIVE = {}
for name in ([[alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules fan_in_fan_out
  inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout megatron_core modules_to_save
  peft_type peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type use_rslora]]):gmatch "%S+" do
  PASSIVE[name] = true
end

local function is_empty(value)
  local kind = cbk.kind(value)
  return (kind == "dict" or kind == "list") and #value == 0
end

-- Other ways to begin leave another base model than the one that was given.
local INITS = { gaussian = true, eva = true, orthogonal = true, ["true"] = true, ["false"] = true }

---@class PeftSettings
---@field rank number
---@field alpha number
---@field ranks table<string, number>    by patterns of module names
---@field alphas table<string, number>
---@field is_rank_stabilized boolean      the scale is alpha / sqrt(rank)
---@field fan_in_fan_out boolean

---@param config Dict
---@param field string
---@param usual number
local function number_of(config, field, usual)
  local value = config[field]
  if value == nil then return usual end
  if type(value) ~= "number" or value ~= value or value <= 0 then refuse("%s=%s: expected a number above 0", field, tostring(value)) end
  return value
end

---A module pattern of PEFT, a regular expression, as a Lua pattern; nil if it has more than names, `.*`, digits and `^`.
local function lua_pattern(text)
  text = text:gsub("^%^", ""):gsub("%$$", "")
  local out = text:gsub("\\d%+", "\1"):gsub("%[0%-9%]%+", "\1"):gsub("%.%*", "\2"):gsub("\\%.", ".")
  if out:find "[^%w_.%-\1\2]" then return nil end
  return (out:gsub("[.%-]", "%%%0"):gsub("\1", "%%d+"):gsub("\2", ".*"))
end

local function patterns_of(config, field)
  local out = {}
  local map = config[field]
  if not is_set(map) then return out end
  if cbk.kind(map) ~= "dict" then refuse("%s: expected a map of module names to numbers", field) end
  for name, value in cbk.items(map) do
    local pattern = lua_pattern(tostring(name))
    if not pattern then refuse("%s has the regular expression '%s', which is not supported; write the names of modules", field, name) end
    if type(value) ~= "number" or value <= 0 then refuse("%s.%s=%s: expected a number above 0", field, name, tostring(value)) end
    out[#out + 1] = { pattern = pattern, value = value }
  end
  return out
end

---@param config Dict   adapter_config.json
---@return PeftSettings
function peft.settings(config)
  if cbk.kind(config) ~= "dict" then refuse "expected a map of settings" end
  if config.peft_type ~= "LORA" then refuse("peft_type=%s: only LORA adapters can be folded", tostring(config.peft_type)) end
  if is_set(config.use_dora) then refuse "use_dora=true: DoRA rescales whole weights, which is not supported; merge it with PEFT" end
  for name, value in cbk.items(config) do
    if not PASSIVE[name] and is_set(value) and not is_empty(value) then
      refuse("%s=%s is not supported; merge the adapter with PEFT", tostring(name), cbk.json(value))
    end
  end
  local init = config.init_lora_weights
  if init ~= nil and not INITS[tostring(init)] then
    refuse("init_lora_weights=%s changes the base model, so that the matrices do not fit the original one; save the adapter with "
      .. "path_initial_model_for_weight_conversion", tostring(init))
  end
  return {
    rank = number_of(config, "r", 8), alpha = number_of(config, "lora_alpha", 8), ranks = patterns_of(config, "rank_pattern"),
    alphas = patterns_of(config, "alpha_pattern"), is_rank_stabilized = config.use_rslora == true,
    fan_in_fan_out = config.fan_in_fan_out == true,
  }
end

---The value of the first pattern that a module fits: the whole name, or what is behind a dot.
local function by_pattern(patterns, module, usual)
  for _, one in ipairs(patterns) do
    if module:find("^" .. one.pattern .. "$") or module:find("%." .. one.pattern .. "$") then return one.value end
  end
  return usual
end

-- --- tensors

---@class Adapted   The matrices of a module.
---@field a? Tensor
---@field b? Tensor
---@field is_embedding boolean

---@param adapter Dict   the adapter's tensors
---@return table<string, Adapted> modules, table<string, Tensor> others   without `base_model.model.`
local function sorted_out(adapter)
  local modules, others = {}, {}
  for key, value in cbk.items(adapter) do
    local name = tostring(key):gsub("^base_model%.model%.", "")
    local module, letter = name:match "^(.*)%.lora_([AB])%.weight$"
    local embedding, which = name:match "^(.*)%.lora_embedding_([AB])$"
    if module or embedding then
      local one = modules[module or embedding] or { is_embedding = embedding ~= nil }
      one[(letter or which):lower()] = value
      modules[module or embedding] = one
    elseif name:find("lora_", 1, true) or name:find("token_adapter", 1, true) then
      cbk.fail("unmatched", ("the adapter's '%s' is not supported: only lora_A, lora_B, lora_embedding_A and lora_embedding_B are")
        :format(key))
    else
      others[name:gsub("%.base_layer%.", "."):gsub("%.modules_to_save%.", ".")] = value
    end
  end
  if next(modules) == nil then
    cbk.fail("checkpoint", "the adapter has no LoRA matrices (keys that end in .lora_A.weight and .lora_B.weight)")
  end
  return modules, others
end

---The base model's own key: files of a model without its head leave out the first part of a name.
---@param model Dict
---@param key string
---@return string|nil
local function key_in(model, key)
  if model[key] ~= nil then return key end
  local short = key:gsub("^[^.]+%.", "")
  return model[short] ~= nil and short or nil
end

---@param settings PeftSettings
---@param module string
---@param one Adapted
---@param weight Tensor
local function folded_weight(settings, module, one, weight)
  if not (one.a and one.b) then
    cbk.fail("checkpoint", ("the adapter has lora_%s of %s, but not lora_%s"):format(one.a and "A" or "B", module, one.a and "B" or "A"))
  end
  local rank = by_pattern(settings.ranks, module, settings.rank)
  local alpha = by_pattern(settings.alphas, module, settings.alpha)
  local flipped = one.is_embedding or settings.fan_in_fan_out
  local problem = low_rank.mistake(weight, one.a, one.b, rank, flipped)
  if problem then cbk.fail("shape", ("%s: %s"):format(module, problem)) end
  for name, value in pairs { lora_A = one.a, lora_B = one.b } do low_rank.check_finite(module .. "." .. name, value) end
  return low_rank.fold(weight, one.a, one.b, alpha / (settings.is_rank_stabilized and math.sqrt(rank) or rank), flipped)
end

---Puts a tensor in place of the base model's, under all names that share it.
---@param out Dict
---@param model Dict
local function replace(out, model, key, value)
  local id = ties.view_id(model[key])
  for other in cbk.items(model) do
    local is_same = id and cbk.kind(model[other]) == cbk.kind(model[key]) and ties.view_id(model[other]) == id
    if other == key or is_same then out[other] = value end
  end
end

---The base model with the adapter folded in. Nothing is read before it is written, but for the adapter's small matrices.
---@param model Dict       the base model: key to tensor
---@param adapter Dict     the adapter's tensors
---@param settings PeftSettings
---@return Dict model, integer count   of weights that were adapted
function peft.fold(model, adapter, settings)
  local modules, others = sorted_out(adapter)
  local out, count, missing = cbk.copy(model), 0, {}
  for module, one in pairs(modules) do
    local key = key_in(model, module .. ".weight")
    if key then
      replace(out, model, key, folded_weight(settings, module, one, model[key]))
      count = count + 1
    else
      missing[#missing + 1] = module .. ".weight"
    end
  end
  table.sort(missing)
  if #missing > 0 then
    cbk.fail("key", ("the base model lacks %d weights that the adapter adapts: %s%s; is it the model of base_model_name_or_path?"):format(
      #missing, table.concat(missing, ", ", 1, math.min(#missing, 5)), #missing > 5 and ", …" or ""))
  end
  for name, value in pairs(others) do -- modules_to_save, and biases that were trained
    local key = key_in(model, name)
    local own, new = key and extents.shape(model[key]:shape()), extents.shape(value:shape())
    if key and own ~= new then
      cbk.fail("shape", ("'%s' is %s in the adapter, but %s in the base model; resize the base model's vocabulary first"):format(name,
        new, own))
    end
    if key then replace(out, model, key, value:to(model[key].dtype)) else out[name] = value end
  end
  return out, count
end

return peft
