-- The settings of a LoRA adapter: adapter_config.json of Hugging Face's PEFT.
-- Format: peft/tuners/lora/config.py, layer.py and peft/utils/save_and_load.py of PEFT 0.17.

local cbk = require "cbk"
local naming = require "cbk.naming"

local settings = {}

local function is_set(value) return value ~= nil and value ~= cbk.null and value ~= false end

local function refuse(message, ...) cbk.fail("config", ("adapter_config.json: " .. message):format(...)) end

-- Fields that do not change the meaning of the saved matrices.
local PASSIVE = naming.set [[alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules
  fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout megatron_core
  modules_to_save peft_type peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type use_rslora]]

local function is_empty(value)
  local kind = cbk.kind(value)
  return (kind == "dict" or kind == "list") and cbk.count(value) == 0
end

-- Initialisations that keep the base model; others change it.
local INITS = { gaussian = true, eva = true, orthogonal = true, ["true"] = true, ["false"] = true }

---@class PeftSettings
---@field rank number
---@field alpha number
---@field ranks table<string, number>    by pattern of module names
---@field alphas table<string, number>
---@field is_rank_stabilized boolean      the scale is alpha / sqrt(rank)
---@field fan_in_fan_out boolean
---@field keeps_ties boolean              a change to one of two tied weights also applies to the other

local function is_positive(value) return type(value) == "number" and value > 0 and value < math.huge end

---@param config Dict
---@param field string
---@param usual number
local function number_of(config, field, usual)
  local value = config[field]
  if value == nil then return usual end
  if not is_positive(value) then refuse("%s=%s: expected a number above 0", field, tostring(value)) end
  return value
end

---@class ModulePattern   A PEFT pattern of module names: a regular expression of names, `.`, `.*`, digits and `^` only.
---@field pieces string[]     Lua patterns of fixed text and digits, with any text between them
---@field is_whole boolean    the pattern must match from the beginning
---@field value number

local MOST_DIGITS = 3 -- `\\d+` in one pattern

---@param text string
---@return ModulePattern|nil   nil: it has other parts
local function module_pattern(text)
  local is_whole = text:sub(1, 1) == "^"
  text = text:gsub("^%^", ""):gsub("%$$", "")
  local marked = text:gsub("\\d%+", "\1"):gsub("%[0%-9%]%+", "\1"):gsub("%.%*", "\2"):gsub("\\%.", "\3")
  if marked:find "[^%w_.%-\1\2\3]" or select(2, marked:gsub("\1", "")) > MOST_DIGITS then return nil end
  local pieces, last = {}, select(2, marked:gsub("\2", "")) + 1
  for piece in (marked .. "\2"):gmatch "([^\2]*)\2" do
    piece = piece:gsub("\1\1+", function(all) return ("\4"):rep(#all - 1) .. "\1" end) -- at least that many digits
    if #pieces > 0 then piece = piece:gsub("^\1", "\4") end -- `.*` matches the other digits
    if #pieces + 1 < last then piece = piece:gsub("\1$", "\4") end
    pieces[#pieces + 1] = piece:gsub("%-", "%%-"):gsub("\1", "%%d+"):gsub("\4", "%%d"):gsub("\3", "%%.")
  end
  return { pieces = pieces, is_whole = is_whole }
end

---Whether a name fits a pattern from a position on. Each piece is matched at its first occurrence, so that no name takes long.
---@param pattern ModulePattern
---@param name string
---@param at integer
local function fits_at(pattern, name, at)
  local pieces = pattern.pieces
  if #pieces == 1 then return name:find("^" .. pieces[1] .. "$", at) ~= nil end
  for i, piece in ipairs(pieces) do
    if i == #pieces then
      while at <= #name + 1 do
        local from, to = name:find(piece, at)
        if not from then return false end
        if to == #name then return true end
        at = from + 1
      end
      return false
    end
    local from, to = name:find((i == 1 and "^" or "") .. piece, at)
    if not from then return false end
    at = to + 1
  end
end

---Whether a module fits a pattern: with its whole name, or with the part after a dot.
---@param pattern ModulePattern
---@param module string
---@return boolean
function settings.fits(pattern, module)
  if fits_at(pattern, module, 1) then return true end
  for dot in (pattern.is_whole and "" or module):gmatch "()%." do
    if fits_at(pattern, module, dot + 1) then return true end
  end
  return false
end

---@return ModulePattern[]
local function patterns_of(config, field)
  local out = {}
  local map = config[field]
  if not is_set(map) then return out end
  if cbk.kind(map) ~= "dict" then refuse("%s: expected a map of module names to numbers", field) end
  for name, value in cbk.items(map) do
    local pattern = module_pattern(tostring(name))
    if not pattern then refuse("%s has the regular expression '%s', which is not supported; write the names of modules", field, name) end
    if not is_positive(value) then refuse("%s.%s=%s: expected a number above 0", field, name, tostring(value)) end
    pattern.value = value
    out[#out + 1] = pattern
  end
  return out
end

---A flag of the settings.
---@param config Dict
---@param field string
---@return boolean
local function flag(config, field)
  local value = config[field]
  if is_set(value) and value ~= true then refuse("%s=%s: expected true or false", field, cbk.json(value)) end
  return value == true
end

---@param config Dict   adapter_config.json
---@return PeftSettings
function settings.of(config)
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
    alphas = patterns_of(config, "alpha_pattern"), is_rank_stabilized = flag(config, "use_rslora"),
    fan_in_fan_out = flag(config, "fan_in_fan_out"), keeps_ties = flag(config, "ensure_weight_tying"),
  }
end

---The value of the first pattern that fits a module.
---@param patterns ModulePattern[]
---@param module string
---@param usual number
---@return number
function settings.by_pattern(patterns, module, usual)
  for _, one in ipairs(patterns) do
    if settings.fits(one, module) then return one.value end
  end
  return usual
end

local MOST_TRIALS = 5e6 -- of patterns with modules: some 10 s

---Refuses more patterns than can be tried with every module.
---@param given PeftSettings
---@param modules table<string, Adapted>
function settings.check_patterns(given, modules)
  local count = #naming.sorted(modules)
  for field, list in pairs { rank_pattern = given.ranks, alpha_pattern = given.alphas } do
    if #list * count > MOST_TRIALS then
      refuse("%s has %d patterns for %d modules, too many to try; merge the adapter with PEFT", field, #list, count)
    end
  end
end

return settings
