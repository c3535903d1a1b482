-- Two checkpoints as models that compute: `cbk diff --logits`. Each is read in its own format, by the config that belongs to it.

local cbk = require "cbk"
local computable = require "cbk.recognise.computable"
local converters = require "cbk.converters"
local logits = require "cbk.logits"
local tokens = require "cbk.tokens"

local computed = {}

---@param side DiffSide
---@return LogitsSide, string what   "llama, hf"
local function model_of(side)
  local model, found = computable.of(side.path, side.checkpoint, side.config)
  return model, ("%s, %s"):format(found.model, found.format)
end

---The token ids of a text, by the tokenizer beside one of the checkpoints; else its bytes.
---@param text string   or the name of its file
---@param a DiffSide
---@param b DiffSide
---@return integer[]
local function ids_of(text, a, b)
  local tokenizer = tokens.beside(a.path) or tokens.beside(b.path) or tokens.open "bytes"
  local is_file = text ~= "" and cbk.fs.exists(text) and not cbk.fs.is_dir(text)
  return tokenizer:encode(is_file and cbk.fs.read(text) or text)
end

---How far the logits of two checkpoints differ. Fails if one of them is not a model that is computed.
---@param a DiffSide
---@param b DiffSide
---@param tolerance number|nil   of the largest logit
---@param text string|nil        to compute with, or the name of its file; default: random tokens
---@return LogitsDifference, string what   "llama, hf, and llama, cs-2.4"
function computed.compare(a, b, tolerance, text)
  converters.load()
  local one, first = model_of(a)
  local other, second = model_of(b)
  local found, why = logits.compare(one, other, tolerance, text and ids_of(text, a, b))
  if not found then cbk.fail("unsupported", "cannot compare logits: " .. why) end
  return found, ("%s, and %s"):format(first, second)
end

return computed
