-- Models of Hugging Face that no class of the Model Zoo (up to 2.10) can compute, and why. Source: the modeling files of
-- transformers 4.53.

local inexpressible = {}

---@type table<string, string>   by model_type
inexpressible.models = {
  olmo2 = "its layers have norms only behind attention and feed-forward part, and its norms of queries and keys go over all heads together",
  gemma3_text = "its layers with a window have another base of positions (rope_local_base_freq) than the others",
  deepseek_v2 = "its attention compresses keys and values to a latent vector (kv_lora_rank)",
}
inexpressible.models.gemma3 = inexpressible.models.gemma3_text
inexpressible.models.deepseek_v3 = inexpressible.models.deepseek_v2

---The error for a model that the user asks for, or a config names.
---@param name string|nil   a model_type, or as a user writes it: "gemma-3"
---@return string|nil
function inexpressible.why(name)
  local plain = tostring(name):lower():gsub("[^%w]", "")
  for kind, why in pairs(inexpressible.models) do
    if kind:gsub("_", "") == plain then return ("the Model Zoo has no counterpart of %s: %s"):format(name, why) end
  end
end

return inexpressible
