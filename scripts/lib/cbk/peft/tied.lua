-- The tie of a base model's head to its input embeddings, if an adapter changes either of the two.

local cbk = require "cbk"
local naming = require "cbk.naming"
local tensor_kinds = require "cbk.tensor_kinds"
local ties = require "cbk.ties"
local token_weights = require "cbk.token_weights"

local tied = {}

local is_tensor = tensor_kinds.is_array
local EMBEDDINGS, HEADS, is_weight_of = token_weights.EMBEDDINGS, token_weights.HEADS, token_weights.is_weight_of

---The key of the only weight of such a module, which may have several names; nil if there is none, or more than one.
---@param tensors Dict
---@param modules table<string, boolean>
---@return string|nil
function tied.weight_of(tensors, modules)
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
function tied.of(model, config, trained, is_tied_by_default)
  local embedding, head = tied.weight_of(model, EMBEDDINGS), tied.weight_of(model, HEADS)
  local stated, is_stored = token_weights.stated_tie(config), head ~= nil
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
  local embedding = tied.weight_of(model, EMBEDDINGS)
  local stated = text and text.vocab_size or config and config.vocab_size
  return type(stated) == "number" and stated or embedding and model[embedding]:shape()[1] or nil
end

---Fails if there is no config, and the adapter trains embeddings to which it may tie a head that is not in the file. An adapter with a new
---head, such as a classifier's, needs no other.
---@param model Dict
---@param config Dict|nil
---@param trained table<string, any>
---@param saved table<string, SavedWhole>
function tied.check_headless(model, config, trained, saved)
  local embedding = tied.weight_of(model, EMBEDDINGS)
  if config or not (embedding and trained[embedding]) or tied.weight_of(model, HEADS) then return end
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
function tied.check_unknown(model, config, trained, saved, tie, is_tied_by_default)
  local stated, words = token_weights.stated_tie(config), words_of(model, config)
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
function tied.sharers(groups, model, key, trained)
  local out = {}
  for _, other in ipairs(model[key] ~= nil and groups[ties.view_id(model[key])] or {}) do
    if other ~= key and not trained[other] then out[#out + 1] = other end
  end
  return out
end

---The config of a model with a head that is no longer tied to the embeddings.
---@param config Dict   config.json
---@return Dict
function tied.untied_config(config)
  config = cbk.deep_copy(config)
  local text = cbk.kind(config.text_config) == "dict" and config.text_config
  if text and text.tie_word_embeddings ~= nil then text.tie_word_embeddings = false end
  config.tie_word_embeddings = false
  return config
end

return tied
