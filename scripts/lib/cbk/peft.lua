-- LoRA adapters as Hugging Face's PEFT saves them (adapter_config.json, adapter_model.safetensors or .bin), folded into their base model.
-- Format: peft/tuners/lora/config.py, layer.py and peft/utils/save_and_load.py of PEFT 0.17.

local cbk = require "cbk"
local extents = require "cbk.extents"
local low_rank = require "cbk.low_rank"
local naming = require "cbk.naming"
local quantised = require "cbk.quantised"
local tensor_kinds = require "cbk.tensor_kinds"
local ties = require "cbk.ties"
local token_weights = require "cbk.token_weights"

local peft = {}

local is_tensor = tensor_kinds.is_array

local function is_set(value) return value ~= nil and value ~= cbk.null and value ~= false end

local function refuse(message, ...) cbk.fail("config", ("adapter_config.json: " .. message):format(...)) end

-- --- settings

-- Fields that do not change the meaning of the saved matrices.
local PASSIVE = {}
for name in ([[alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules fan_in_fan_out
  inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout megatron_core modules_to_save
  peft_type peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type use_rslora]]):gmatch "%S+" do
  PASSIVE[name] = true
end

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
function peft.fits(pattern, module)
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
    alphas = patterns_of(config, "alpha_pattern"), is_rank_stabilized = flag(config, "use_rslora"),
    fan_in_fan_out = flag(config, "fan_in_fan_out"), keeps_ties = flag(config, "ensure_weight_tying"),
  }
end

---The value of the first pattern that fits a module.
local function by_pattern(patterns, module, usual)
  for _, one in ipairs(patterns) do
    if peft.fits(one, module) then return one.value end
  end
  return usual
end

local MOST_TRIALS = 5e6 -- of patterns with modules: some 10 s

---Refuses more patterns than can be tried with every module.
---@param settings PeftSettings
---@param modules table<string, Adapted>
local function check_patterns(settings, modules)
  local count = #naming.sorted(modules)
  for field, list in pairs { rank_pattern = settings.ranks, alpha_pattern = settings.alphas } do
    if #list * count > MOST_TRIALS then
      refuse("%s has %d patterns for %d modules, too many to try; merge the adapter with PEFT", field, #list, count)
    end
  end
end

-- --- tensors

---@class Adapted   The matrices of a module.
---@field a? Tensor
---@field b? Tensor
---@field is_embedding boolean

---@class SavedWhole   A tensor of the adapter that replaces the base model's.
---@field value Tensor
---@field is_below? boolean   the module's matrices are added to it, as for embeddings and heads that PEFT adapts

-- Names of modules in memory, with the name of the adapter, as `model.state_dict()` has them; PEFT saves them without it.
local IN_MEMORY = { "^(.*%.lora_[AB])%.([^.]+)(%.weight)$", "^(.*%.lora_embedding_[AB])%.([^.]+)()$",
  "^(.*%.modules_to_save)%.([^.]+)(%..*)$" }

---The adapter's tensors by the names with which PEFT saves them, without `base_model.model.`
---@param adapter Dict
---@return Dict
local function as_saved(adapter)
  local out, called = cbk.dict(), nil
  for key, value in cbk.items(adapter) do
    local full = tostring(key)
    local name = full:gsub("^base_model%.model%.", "")
    if not is_tensor(value) then cbk.fail("checkpoint", ("the adapter's '%s' is not a tensor"):format(full)) end
    for _, pattern in ipairs(IN_MEMORY) do
      local before, own, after = name:match(pattern)
      if before and called and called ~= own then
        cbk.fail("unmatched", ("the file has two adapters, '%s' and '%s'"):format(called, own),
          { advice = "save one with PEFT (save_pretrained)" })
      end
      if before then name, called = before .. (type(after) == "string" and after or ""), own end
    end
    if out[name] ~= nil then cbk.fail("unmatched", ("the adapter has two tensors for '%s'"):format(name)) end
    if not name:find "%.original_module%." then out[name] = cbk.raw(adapter, key) end -- the base model's
  end
  return out
end

---@param adapter Dict   the adapter's tensors
---@return table<string, Adapted> modules, table<string, SavedWhole> others   without `base_model.model.`
local function sorted_out(adapter)
  local modules, others = {}, {}
  for key, value in cbk.items(as_saved(adapter)) do
    local name = tostring(key)
    if value:numel() == 0 then
      cbk.fail("checkpoint", ("the adapter's '%s' has no elements: a rank of DeepSpeed's ZeRO 3 saved it, which had none of them")
        :format(name), { advice = "make an adapter of the run's folder: `cbk copy RUN adapter_model.safetensors --weights`" })
    end
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
      local own, count = name:gsub("%.base_layer%.", ".")
      own = own:gsub("%.modules_to_save%.", ".")
      if others[own] then cbk.fail("unmatched", ("the adapter has two tensors for '%s'"):format(own)) end
      others[own] = { value = value, is_below = count > 0 }
    end
  end
  if next(modules) == nil then
    cbk.fail("checkpoint", "the adapter has no LoRA matrices (keys that end in .lora_A.weight and .lora_B.weight)")
  end
  return modules, others
end

-- Prefixes of names in memory from transformers 4.52 on, and those in files of models with images.
local RENAMED = { { "model.language_model.", "language_model.model." }, { "model.vision_tower.", "vision_tower." },
  { "model.multi_modal_projector.", "multi_modal_projector." }, { "lm_head.", "language_model.lm_head." } }

---@class PrefixChange   How names of an adapter become those of the base model.
---@field from string
---@field to string

local MOST_PARTS = 16 -- of a name before the layers; a hostile name has 100,000

---The changes that make a key of the base model of a name.
---@param model Dict
---@param by_end table<string, string[]>   keys by their last parts
---@param name string
---@return PrefixChange[]
local function changes_of(model, by_end, name)
  local out, parts = {}, 0
  for _, pair in ipairs(RENAMED) do
    if name:sub(1, #pair[1]) == pair[1] then out[#out + 1] = { from = pair[1], to = pair[2] } end
  end
  for at in name:gmatch "%.()" do
    parts = parts + 1
    if parts > MOST_PARTS then break end
    out[#out + 1] = { from = name:sub(1, at - 1), to = "" }
  end
  for _, key in ipairs(by_end[naming.ending(name)] or {}) do
    if #key > #name and key:sub(-#name - 1) == "." .. name then out[#out + 1] = { from = "", to = key:sub(1, #key - #name) } end
  end
  local fitting = {}
  for _, one in ipairs(out) do
    if is_tensor(model[one.to .. name:sub(#one.from + 1)]) then fitting[#fitting + 1] = one end
  end
  return fitting
end

---The base model's keys by their last two parts, as far as names need them.
local function keys_by_end(model, names)
  local out = {}
  for _, name in ipairs(names) do out[naming.ending(name)] = {} end
  for key in cbk.items(model) do
    local list = out[naming.ending(tostring(key))]
    if list then list[#list + 1] = tostring(key) end
  end
  return out
end

---The change that fits the most names; nil if there is none, or if others fit as many of the same names.
---@param model Dict
---@param names string[]
---@return PrefixChange|nil
local function best_change(model, names)
  local by_end, counts, list = keys_by_end(model, names), {}, {}
  for _, name in ipairs(names) do
    for _, one in ipairs(changes_of(model, by_end, name)) do
      local id = one.from .. "=" .. one.to
      if not counts[id] then counts[id], list[#list + 1] = 0, { id = id, change = one, names = {} } end
      counts[id], list[id] = counts[id] + 1, list[id] or list[#list]
      list[id].names[name] = true
    end
  end
  table.sort(list, function(a, b)
    if counts[a.id] ~= counts[b.id] then return counts[a.id] > counts[b.id] end
    return a.id < b.id
  end)
  local best = list[1]
  for i = 2, #list do
    for name in pairs(counts[list[i].id] == counts[best.id] and list[i].names or {}) do
      if best.names[name] then return nil end
    end
  end
  return best and best.change
end

---The base model's keys for the names of an adapter. Files of a model without its head leave out the first part of a name; other programs
---put one more before it, and transformers renamed the parts of models with images. Warns of prefixes that differ.
---@param model Dict
---@param names string[]
---@return table<string, string> keys   by name; names without a key are not in it
local function find_keys(model, names)
  local keys, left = {}, {}
  table.sort(names)
  for _, name in ipairs(names) do
    if is_tensor(model[name]) then keys[name] = name else left[#left + 1] = name end
  end
  local change = #left > 0 and best_change(model, left)
  while change do
    local rest = {}
    for _, name in ipairs(left) do
      local key = name:sub(1, #change.from) == change.from and change.to .. name:sub(#change.from + 1)
      if key and is_tensor(model[key]) then keys[name] = key else rest[#rest + 1] = name end
    end
    if change.to ~= "" or change.from:find("%..") then
      cbk.warn(("the adapter's names differ from the base model's: '%s…' there is '%s…' here"):format(change.from, change.to))
    end
    left = rest
    change = #left > 0 and best_change(model, left)
  end
  return keys
end

-- Names of transformers' Conv1D layers, which have a transposed weight. Some models have linear layers with these names.
local CONV1D = { c_attn = true, c_proj = true, c_fc = true, c_fc2 = true, q_attn = true, kv_attn = true }

---Whether a model's layers with Conv1D names are really Conv1D: then their biases are as long as their weights are wide. PEFT decides by
---the module's type, and saves as `fan_in_fan_out` only the value for the last module that it adapted.
---@param model Dict
---@return boolean|nil   nil: there are none, or they do not show it
function peft.has_conv1d(model)
  for key, bias in cbk.items(model) do
    local module = tostring(key):match "^(.*)%.bias$"
    local weight = module and CONV1D[naming.last(module)] and model[module .. ".weight"]
    local shape = is_tensor(weight) and is_tensor(bias) and weight:shape()
    if shape and #shape == 2 and shape[1] ~= shape[2] then return bias:shape()[1] == shape[2] end
  end
end

---Whether a module of a model with Conv1D layers has the name of one.
---@param module string
---@return boolean
function peft.is_conv1d_name(module) return CONV1D[naming.last(module)] == true end

---@param settings PeftSettings
---@param is_conv1d boolean   the model's layers with Conv1D names are Conv1D
---@param module string
---@param one Adapted
---@param weight Tensor
local function folded_weight(settings, is_conv1d, module, one, weight)
  if not (one.a and one.b) then
    cbk.fail("checkpoint", ("the adapter has lora_%s of %s, but not lora_%s"):format(one.a and "A" or "B", module, one.a and "B" or "A"))
  end
  local rank = by_pattern(settings.ranks, module, settings.rank)
  local alpha = by_pattern(settings.alphas, module, settings.alpha)
  local flipped = one.is_embedding or is_conv1d and peft.is_conv1d_name(module)
  local problem = low_rank.mistake(weight, one.a, one.b, rank, flipped)
  if problem then cbk.fail("shape", ("%s: %s"):format(module, problem)) end
  for name, value in pairs { lora_A = one.a, lora_B = one.b } do low_rank.check_finite(module .. "." .. name, value) end
  return low_rank.fold(weight, one.a, one.b, alpha / (settings.is_rank_stabilized and math.sqrt(rank) or rank), flipped)
end

-- --- tied weights

local EMBEDDINGS, HEADS, is_weight_of = token_weights.EMBEDDINGS, token_weights.HEADS, token_weights.is_weight_of

---The key of the weight of such a module; nil if there is none, or if there are several different tensors.
---@param tensors Dict
---@param modules table<string, boolean>
---@return string|nil
local function weight_of(tensors, modules)
  local first
  for key in cbk.items(tensors) do
    if is_weight_of(modules, key) and is_tensor(tensors[key]) then
      if first and ties.view_id(tensors[key]) ~= ties.view_id(tensors[first]) then return nil end
      first = first or tostring(key)
    end
  end
  return first
end

---The key of a trained head weight that the base model's files lack.
---@param trained table<string, any>
---@return string|nil
local function trained_head(trained)
  local keys = {}
  for key in pairs(trained) do
    if is_weight_of(HEADS, key) then keys[#keys + 1] = key end
  end
  return #keys == 1 and keys[1] or nil
end

---Whether the config ties embeddings and head; nil if it does not say.
---@param config Dict|nil   config.json
---@return boolean|nil
local function stated_tie(config)
  local text = config and cbk.kind(config.text_config) == "dict" and config.text_config or nil
  for _, section in ipairs { config or false, text or false } do
    if section and type(section.tie_word_embeddings) == "boolean" then return section.tie_word_embeddings end
  end
end

---The class that a config names; empty if it names none.
local function class_in(config)
  local list = config and config.architectures
  local class = cbk.kind(list) == "list" and list[1] or ""
  return type(class) == "string" and class or ""
end

---Whether a model with this config has a head, even if its files lack it.
local function has_head(config)
  local class = class_in(config)
  for _, ending in ipairs { "ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "ForPreTraining" } do
    if class:sub(-#ending) == ending then return true end
  end
  return false
end

-- Embeddings of decoders with a head named `lm_head`, or GPT-NeoX's.
local USUAL = { ["model.embed_tokens.weight"] = true, ["transformer.wte.weight"] = true, ["transformer.word_embeddings.weight"] = true,
  ["gpt_neox.embed_in.weight"] = true, ["model.language_model.embed_tokens.weight"] = true, ["embed_tokens.weight"] = true,
  ["wte.weight"] = true, ["word_embeddings.weight"] = true }

---The name of the head that is tied to the embeddings, if the model's files lack it; nil if the class may use another name.
---@param embedding string   the key of the embeddings
---@param class string       of `architectures`
---@return string|nil
local function usual_head(embedding, class)
  if embedding:find "^bert%.embeddings%." then return "cls.predictions.decoder.weight" end
  if embedding:find "^roberta%.embeddings%." or embedding:find "^esm%.embeddings%." then return "lm_head.decoder.weight" end
  local is_decoder = (class:find "ForCausalLM$" or class:find "LMHeadModel$") and USUAL[embedding]
  if is_decoder and embedding == "gpt_neox.embed_in.weight" then return "embed_out.weight" end
  local before = ("." .. embedding):match "^%.?(.-)%.model%.embed_tokens%.weight$" -- the text model among several
  if not (is_decoder or before or embedding == "model.language_model.embed_tokens.weight") then return nil end
  return (before or ""):gsub("(.)$", "%1.") .. "lm_head.weight"
end

---@class HeadTie      A head that is tied to the input embeddings.
---@field embedding string
---@field head string

---The tie of the base model's head, if the adapter changes either of the two.
---@param model Dict
---@param config Dict|nil
---@param trained table<string, any>   by the base model's keys
---@param is_tied_by_default boolean   the default if the config does not say
---@return HeadTie|nil
local function tie_of(model, config, trained, is_tied_by_default)
  local embedding, head = weight_of(model, EMBEDDINGS), weight_of(model, HEADS)
  local stated, is_stored = stated_tie(config), head ~= nil
  if not embedding then return nil end
  head = head or trained_head(trained) or has_head(config) and usual_head(embedding, class_in(config)) or nil
  if not head or not (trained[embedding] or trained[head]) then return nil end
  local id = is_stored and ties.view_id(model[head])
  local is_shared = id and id == ties.view_id(model[embedding]) or false
  local is_tied = is_shared or stated or stated == nil and (not is_stored or is_tied_by_default)
  return is_tied and { embedding = embedding, head = head } or nil
end

---The vocabulary size: the number of rows of the model's embeddings and head.
---@param model Dict
---@param config Dict|nil
---@return number|nil
local function words_of(model, config)
  local text = config and cbk.kind(config.text_config) == "dict" and config.text_config or nil
  local embedding = weight_of(model, EMBEDDINGS)
  local stated = text and text.vocab_size or config and config.vocab_size
  return type(stated) == "number" and stated or embedding and model[embedding]:shape()[1] or nil
end

---Fails if there is no config, and the adapter trains embeddings to which it may tie a head that is not in the file. An adapter with a new
---head, such as a classifier's, needs no other.
---@param model Dict
---@param config Dict|nil
---@param trained table<string, any>
---@param saved table<string, SavedWhole>
local function check_headless(model, config, trained, saved)
  local embedding = weight_of(model, EMBEDDINGS)
  if config or not (embedding and trained[embedding]) or weight_of(model, HEADS) then return end
  for key in pairs(saved) do
    if model[key] == nil then return end
  end
  cbk.fail("config", ("the adapter changes the embeddings '%s', the base model's file has no head, and no config says whether one is tied "
    .. "to them"):format(embedding), { advice = "put the base model's config.json beside it" })
end

---Fails if the adapter trains one of two tied tensors and the name of the other is not known.
---@param model Dict
---@param config Dict|nil
---@param trained table<string, any>
---@param saved table<string, SavedWhole>
---@param tie HeadTie|nil
---@param is_tied_by_default boolean
local function check_unknown_tie(model, config, trained, saved, tie, is_tied_by_default)
  local stated, words = stated_tie(config), words_of(model, config)
  if not has_head(config) or not words or not (stated or stated == nil and is_tied_by_default) then return end
  for _, key in ipairs(naming.sorted(trained)) do
    local value = model[key] or saved[key] and saved[key].value
    local shape = value and value:shape()
    if shape and #shape == 2 and shape[1] == words and not (tie and (key == tie.head or key == tie.embedding)) then
      cbk.fail("unsupported", ("the adapter changes '%s', which has a row for each word, and the config ties the head to the embeddings: "
        .. "which of the two it is in a %s is not known"):format(key, class_in(config)), { advice = "merge the adapter with PEFT" })
    end
  end
end

---Names that share a tensor of the base model with a key, and are not trained themselves.
---@param groups table<string, string[]>   of the base model (ties.groups)
local function sharers(groups, model, key, trained)
  local out = {}
  for _, other in ipairs(model[key] ~= nil and groups[ties.view_id(model[key])] or {}) do
    if other ~= key and not trained[other] then out[#out + 1] = other end
  end
  return out
end

-- --- folding

---Whether a tensor replaces the embeddings or the head after words were added to the vocabulary, or taken from it.
---@param key string
---@param old Tensor
---@param new Tensor
local function is_resized(key, old, new)
  local own, other = old:shape(), new:shape()
  return #own == 2 and #other == 2 and own[2] == other[2] and (is_weight_of(EMBEDDINGS, key) or is_weight_of(HEADS, key))
end

---The number of words after the adapter was folded in, if it is another one. Fails if embeddings and head differ in it.
---@param model Dict   the base model
---@param out Dict     with the adapter
---@return integer|nil
local function new_words(model, out)
  local changed, words = nil, nil
  for key in cbk.items(out) do
    if (is_weight_of(EMBEDDINGS, key) or is_weight_of(HEADS, key)) and is_tensor(out[key]) and #out[key]:shape() == 2 then
      local rows, old = out[key]:shape()[1], model[key] ~= nil and is_tensor(model[key]) and model[key]:shape()[1]
      words = words or { key = tostring(key), rows = rows }
      if old and old ~= rows then changed = rows end
      if changed and rows ~= words.rows then
        cbk.fail("shape", ("'%s' has %d words after the adapter is folded in, and '%s' has %d: the adapter was trained after the "
          .. "vocabulary was resized, and has only one of them"):format(key, rows, words.key, words.rows),
          { advice = ("give the base model %d words with transformers (model.resize_token_embeddings(%d), then save_pretrained), and fold "
            .. "the adapter into that"):format(changed, changed) })
      end
    end
  end
  return changed
end

---Records that a name of the adapter changes a weight. Fails if another name does so already.
---@param names table<string, string>   the adapter's name for each of the base model's keys; changed
local function claim(names, key, name)
  local both = { names[key], name }
  if both[1] and both[1] ~= name then
    table.sort(both)
    cbk.fail("unmatched", ("the adapter's '%s' would both change '%s' of the base model"):format(table.concat(both, "' and '"), key))
  end
  names[key] = name
end

---The adapter's changes by the base model's keys: functions of the old weight.
---@param model Dict
---@param modules table<string, Adapted>
---@param others table<string, SavedWhole>
---@param settings PeftSettings
---@param embedding string|nil   the weight of a head that the base model's files lack
---@return table<string, fun(old: Tensor|nil): Tensor> trained, integer count
---@return table<string, fun(old: Tensor|nil): Tensor> below   weights that are saved whole and have matrices besides, without these
local function trained_weights(model, modules, others, settings, embedding)
  local trained, names, count, missing, below = {}, {}, 0, {}, {}
  local all = {}
  for module in pairs(modules) do all[#all + 1] = module .. ".weight" end
  for name in pairs(others) do all[#all + 1] = name end
  local keys = find_keys(model, all)
  check_patterns(settings, modules)
  local is_conv1d = peft.has_conv1d(model)
  if is_conv1d == nil then is_conv1d = settings.fan_in_fan_out end
  for module, one in pairs(modules) do
    local name = module .. ".weight"
    local key = keys[name] or embedding and is_weight_of(HEADS, name) and name
    if key then
      claim(names, key, name)
      trained[key], count = function(old) return folded_weight(settings, is_conv1d, module, one, old) end, count + 1
    else
      missing[#missing + 1] = name
    end
  end
  table.sort(missing)
  if #missing > 0 then
    cbk.fail("key", ("the base model lacks %d weights that the adapter adapts: %s%s; is it the model of base_model_name_or_path?"):format(
      #missing, table.concat(missing, ", ", 1, math.min(#missing, 5)), #missing > 5 and ", …" or ""))
  end
  for name, saved in pairs(others) do -- modules_to_save, trained biases, and weights to which matrices are added
    local key, value = keys[name] or name, saved.value
    if model[key] ~= nil and not is_tensor(model[key]) then
      cbk.fail("checkpoint", ("the base model's '%s' is not a tensor, but the adapter's is"):format(key))
    end
    local fold = trained[key]
    claim(names, key, name)
    if fold and not saved.is_below then
      cbk.fail("unmatched", ("the adapter has both a whole '%s' and matrices for it"):format(name))
    end
    local function put(old)
      local own, new = old and extents.shape(old:shape()), extents.shape(value:shape())
      if own and own ~= new and not is_resized(key, old, value) then
        cbk.fail("shape", ("'%s' is %s in the adapter, but %s in the base model; is it the model of base_model_name_or_path?"):format(name,
          new, own))
      end
      low_rank.check_finite(name, value)
      if old and quantised.is_narrow(old.dtype) then
        cbk.fail("dtype", ("the adapter replaces '%s', which is %s in the base model: as such it would be rounded; use a base model "
          .. "of 16 or 32 bits"):format(name, old.dtype))
      end
      return old and value:to(old.dtype) or value
    end
    trained[key] = fold and function(old) return fold(put(old)) end or put
    below[key] = fold and put
  end
  return trained, count, below
end

---Warns about tensors that the base model does not have, such as the head of a classifier: the config is still the base model's.
---@param keys string[]
---@param source Dict
---@param config Dict|nil
local function warn_of_new(keys, source, config)
  local new = {}
  for _, key in ipairs(keys) do
    if source[key] == nil then new[#new + 1] = key end
  end
  if #new == 0 then return end
  local stated = config and cbk.kind(config.architectures) == "list" and config.architectures[1]
  cbk.warn(("the adapter adds %d tensor%s that the base model does not have: %s; %s"):format(#new, #new == 1 and "" or "s",
    table.concat(new, ", ", 1, math.min(#new, 5)), stated and ("the config still says architectures=%s"):format(tostring(stated))
    or "its config may need another architecture"))
end

---Fails if the adapter trains one of the tied embeddings and head of an encoder-decoder, which has four of these tensors. T5 scales a tied
---head, so that the trained tensor needs the tie.
---@param model Dict
---@param trained table<string, any>
---@param config Dict|nil
local function check_shared(model, trained, config)
  if stated_tie(config) == false or not (model["shared.weight"] ~= nil or model["model.shared.weight"] ~= nil) then return end
  for key in pairs(trained) do
    if is_weight_of(EMBEDDINGS, key) or is_weight_of(HEADS, key) then
      cbk.fail("unsupported", ("the adapter's weights untie '%s' from the embeddings that encoder, decoder and head share: what was "
        .. "trained needs the tie; merge it with PEFT"):format(key))
    end
  end
end

-- The prefix of a bare model's keys in files of the model with a head, by the key of the embeddings without it.
local PREFIXES = { ["wte.weight"] = "transformer.", ["word_embeddings.weight"] = "transformer.", ["embed_tokens.weight"] = "model." }

---A tree to which a head was added. Files of a bare model have no prefix, and no program reads a head beside such keys.
---@param out Dict
---@param model Dict      the base model
---@param tie HeadTie
---@return Dict
local function with_prefix(out, model, tie)
  local prefix = PREFIXES[tie.embedding]
  if not prefix or model[tie.head] ~= nil then return out end
  cbk.warn(("the base model's files have the keys of the bare model; beside '%s', the others get the prefix '%s', as in files of a model "
    .. "with a head"):format(tie.head, prefix))
  local renamed = cbk.dict()
  for key in cbk.items(out) do
    renamed[key ~= tie.head and is_tensor(out[key]) and prefix .. tostring(key) or key] = cbk.raw(out, key)
  end
  return renamed
end

---The base model with the adapter folded in. Only the adapter's small matrices are read before the result is written.
---Weights are those of the adapted model during training: if one of two tied weights was trained, it changes, and they are no longer
---tied.
---@param model Dict         the base model: key to tensor
---@param adapter Dict       the adapter's tensors
---@param settings PeftSettings
---@param config Dict|nil    the base model's config.json
---@param is_tied_by_default boolean   whether programs tie the head of such a model if its config does not say
---@return Dict model, integer count   the number of adapted weights
---@return HeadTie|nil untied          a head that is no longer tied to the embeddings
---@return integer|nil words            the size of the vocabulary, if it is another one
function peft.fold(model, adapter, settings, config, is_tied_by_default)
  for what, tree in pairs { ["base model"] = model, adapter = adapter } do
    if not (cbk.kind(tree) or ""):find "dict" then cbk.fail("checkpoint", ("the %s is no dict of tensors"):format(what)) end
  end
  local modules, others = sorted_out(adapter)
  local may_lack_head = stated_tie(config) ~= false and not weight_of(model, HEADS)
  local trained, count, below = trained_weights(model, modules, others, settings, may_lack_head and weight_of(model, EMBEDDINGS) or nil)
  local out, tie = cbk.copy(model), tie_of(model, config, trained, is_tied_by_default)
  check_shared(model, trained, config)
  check_unknown_tie(model, config, trained, others, tie, is_tied_by_default)
  if tie then out[tie.head] = out[tie.head] or model[tie.embedding] end
  local source = tie and cbk.copy(out) or model
  for _, key in ipairs(tie and { tie.embedding, tie.head } or {}) do -- loading one of two tied weights changes both
    local other = key == tie.head and tie.embedding or tie.head
    if below[key] and not below[other] then source[other], out[other] = below[key](source[other]), below[key](source[other]) end
  end
  local keys = {}
  for key in pairs(trained) do keys[#keys + 1] = key end
  table.sort(keys)
  low_rank.check_alone(model, keys)
  warn_of_new(keys, source, config)
  local groups = ties.groups(source)
  for _, key in ipairs(keys) do
    out[key] = trained[key](source[key])
    for _, other in ipairs(sharers(groups, source, key, trained)) do
      local is_parted = tie and (other == tie.head or key == tie.head) and not settings.keeps_ties
      if not is_parted then out[other] = out[key] end
    end
  end
  if not tie then
    check_headless(model, config, trained, others)
    return out, count, nil, new_words(model, out)
  end
  local words = new_words(model, out)
  if settings.keeps_ties and not (trained[tie.head] and trained[tie.embedding]) then -- the base model may store both as copies
    local from = trained[tie.head] and tie.head or tie.embedding
    for _, key in ipairs { tie.head, tie.embedding } do
      if out[key] ~= nil then out[key] = out[from] end
    end
    return with_prefix(out, model, tie), count, nil, words
  end
  return with_prefix(out, model, tie), count, tie, words
end

---The config of a model with another size of the vocabulary.
---@param config Dict   config.json
---@param words integer
---@return Dict
function peft.resized_config(config, words)
  config = cbk.deep_copy(config)
  local text = cbk.kind(config.text_config) == "dict" and config.text_config
  for _, section in ipairs { config, text or nil } do
    if section.vocab_size ~= nil then section.vocab_size = words end
  end
  return config
end

---The config of a model with a head that is no longer tied to the embeddings.
---@param config Dict   config.json
---@return Dict
function peft.untied_config(config)
  config = cbk.deep_copy(config)
  local text = cbk.kind(config.text_config) == "dict" and config.text_config
  if text and text.tie_word_embeddings ~= nil then text.tie_word_embeddings = false end
  config.tie_word_embeddings = false
  return config
end

return peft
