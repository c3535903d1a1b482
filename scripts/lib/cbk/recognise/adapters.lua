-- Adapters of PEFT, and LoRA matrices. They are not weights of a model: they are folded into weights.

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local kinds = require "converters.engine.kinds"

local adapters = {}

---The first key of a LoRA matrix, or nil.
---@param keys string[]
---@return string|nil
function adapters.matrix_in(keys)
  for _, key in ipairs(keys) do
    if key:find "%.lora_[AB]%f[.%z]" or key:find "%.lora_embedding_[AB]%f[.%z]" then return key end
  end
end

---Fails if a checkpoint has LoRA matrices beside its weights, for models without them.
---@param path string
---@param keys string[]
function adapters.check_folded(path, keys)
  local key = adapters.matrix_in(keys)
  if not key then return end
  cbk.fail("value", ("%s has LoRA matrices beside its weights ('%s'); `cbk fold-lora-checkpoint` adds them"):format(cbk.quote(path), key),
    { file = path })
end

local PARTNERS = { A = "B", B = "A" }

---The matrices whose partner is missing.
---@param keys string[]
---@return { key: string, partner: string }[]
function adapters.halves(keys)
  local has, out = {}, {}
  for _, key in ipairs(keys) do has[key] = true end
  for _, key in ipairs(keys) do
    local partner = adapters.matrix_in { key } and key:gsub("(%.lora_[%l_]*)([AB])%f[.%z]", function(before, letter)
      return before .. PARTNERS[letter]
    end)
    if partner and not has[partner] then out[#out + 1] = { key = key, partner = partner } end
  end
  return out
end

---What to do with the matrices.
---@param format string     of the checkpoint
---@param folder? string    of the adapter that PEFT saved
---@return string
function adapters.advice(format, folder)
  if catalogue.release(format) then return "fold them into the weights first with `cbk fold-lora-checkpoint`" end
  if folder and folder:find "^[%w_./@+=-]+$" then -- needs no quotes in a command line
    return ("fold it into its base model first: `cbk fold-lora-checkpoint --adapter %s BASE -o NEW`"):format(folder)
  end
  return "fold an adapter that PEFT saved into its base model with `cbk fold-lora-checkpoint --adapter DIR BASE -o NEW`, or merge the "
    .. "matrices with PEFT (merge_and_unload)"
end

---A message about keys that a model does not have, if they are LoRA matrices.
---@param keys string[]
---@param format string   of the checkpoint
---@return string|nil
function adapters.text(keys, format)
  if not adapters.matrix_in(keys) then return nil end
  local only = catalogue.release(format) and ", which only the Model Zoo has" or ""
  return ("these are LoRA weights%s: %s"):format(only, adapters.advice(format))
end

---A message about a PEFT adapter beside a whole model. Hugging Face's programs load it together with the model.
---@param path string     of the checkpoint: a file or a folder
---@return string|nil reason, string|nil advice
function adapters.beside(path)
  local folder = cbk.fs.folder_of(path)
  local file = cbk.fs.join(folder, "adapter_config.json")
  if not cbk.fs.exists(file) then return nil end
  return ("'%s' says that there is an adapter of PEFT beside the model: it is not part of the checkpoint"):format(file),
    adapters.advice("hf", folder)
end

---The PEFT adapter that a checkpoint is, or has beside it.
---@param path string     of the checkpoint: a file or a folder
---@param keys string[]
---@return string|nil reason, string|nil advice   nil where it has none
function adapters.of(path, keys)
  local folder = cbk.fs.folder_of(path)
  local fine, config = pcall(function() return cbk.config.load(cbk.fs.beside(folder, "adapter_config.json")) end)
  local kind = fine and kinds.is_dict(config) and type(config.peft_type) == "string" and config.peft_type or nil
  local matrix = adapters.matrix_in(keys)
  if kind and kind ~= "LORA" then
    return ("this is an adapter of PEFT (peft_type=%s), not a model"):format(kind), "merge it into its base model with PEFT"
  elseif kind then
    return "this is a LoRA adapter of PEFT, not a model", adapters.advice("hf", folder)
  elseif matrix then
    return ("it has LoRA matrices such as '%s'"):format(matrix), adapters.advice "hf"
  end
end

return adapters
