-- Advice about LoRA matrices. They are not weights of a model: they are folded into weights.

local catalogue = require "converters.engine.catalogue"

local adapters = {}

---The first key of a LoRA matrix, or nil.
---@param keys string[]
---@return string|nil
function adapters.matrix_in(keys)
  for _, key in ipairs(keys) do
    if key:find "%.lora_[AB]%f[.%z]" or key:find "%.lora_embedding_[AB]%f[.%z]" then return key end
  end
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

return adapters
