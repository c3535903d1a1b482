-- The tensors of a LoRA adapter, by the names with which Hugging Face's PEFT saves them, and the base model's keys for these names.
-- Format: peft/tuners/lora/config.py, layer.py and peft/utils/save_and_load.py of PEFT 0.17.

local cbk = require "cbk"
local naming = require "cbk.naming"
local tensor_kinds = require "cbk.tensor_kinds"

local tensors = {}

local is_tensor = tensor_kinds.is_array

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
function tensors.sorted_out(adapter)
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
  { "model.multi_modal_projector.", "multi_modal_projector." }, { "lm_head.", "language_model.lm_head." },
  { "model.language_model.", "model." } } -- of the language model alone

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
  for _, pair in ipairs(RENAMED) do -- either may be the older one
    for i = 1, 2 do
      local from, to = pair[i], pair[3 - i]
      if name:sub(1, #from) == from then out[#out + 1] = { from = from, to = to } end
    end
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

---The change that fits the most names; nil if there is none, or if it is not clear which: another fits as many, and the same ones.
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
function tensors.keys_in(model, names)
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

return tensors
