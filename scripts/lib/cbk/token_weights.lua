-- Names of the weights with a row for each token: input embeddings, and the head; and whether a config ties the two.

local cbk = require "cbk"
local naming = require "cbk.naming"

local token_weights = {}

-- The last parts of the names of modules, in classes of Hugging Face.
token_weights.EMBEDDINGS = {
  embed_tokens = true, wte = true, word_embeddings = true, embed_in = true, tok_embeddings = true, shared = true,
}
token_weights.HEADS = { lm_head = true, embed_out = true, decoder = true }

---Whether a key is the weight of a module with one of these names.
---@param modules table<string, boolean>   EMBEDDINGS or HEADS
---@param key any
---@return boolean
function token_weights.is_weight_of(modules, key)
  local module = tostring(key):match "^(.*)%.weight$"
  return module ~= nil and modules[naming.last(module)] == true
end

---The first head and the first embeddings of a state dict.
---@param tensors Dict
---@return string|nil head, string|nil embedding
function token_weights.pair_in(tensors)
  local head, embedding
  for key in cbk.items(tensors) do
    if not head and token_weights.is_weight_of(token_weights.HEADS, key) then head = key end
    if not embedding and token_weights.is_weight_of(token_weights.EMBEDDINGS, key) then embedding = key end
  end
  return head, embedding
end

---Whether the config ties embeddings and head; nil if it does not say.
---@param config Dict|nil   config.json
---@return boolean|nil
function token_weights.stated_tie(config)
  local text = config and cbk.kind(config.text_config) == "dict" and config.text_config or nil
  for _, section in ipairs { config or false, text or false } do
    if section and type(section.tie_word_embeddings) == "boolean" then return section.tie_word_embeddings end
  end
end

return token_weights
