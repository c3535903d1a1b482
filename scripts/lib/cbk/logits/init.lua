-- Do two checkpoints compute the same? Both models run on the same tokens, each in its own layout.

local cbk = require "cbk"
local errors = require "cbk.errors"
local models = require "cstorch.models"
local numbers = require "cbk.numbers"

local logits = { TOLERANCE = 1e-3 } -- of the largest output; exact and approximated gelu differ by less

local TEXTS, LENGTH, SEED = 2, 24, 1
local MOST_TOKENS = 1024 -- of a text, as memory grows with their square

---@class LogitsSide
---@field list ClassTensors                the tensors that the class has for the config
---@field tensors table<string, Tensor>    by their keys

---@class LogitsDifference
---@field what "logits"|"hidden states"   of the last norm, where a side has no head
---@field largest number   difference of two outputs
---@field mean number      difference
---@field scale number     the largest output of A, without its sign
---@field tokens integer
---@field is_same boolean
---@field parted? string   the first place whose hidden states differ

---Random token ids that both models take.
---@param a cstorch.models.Model
---@param b cstorch.models.Model
---@return integer[][]
local function random_ids(a, b)
  local words = math.min(a:vocabulary(), b:vocabulary())
  local length = math.min(LENGTH, a:longest(), b:longest())
  local out = {}
  for i, row in ipairs(cbk.rand({ TEXTS, length }, { seed = SEED, dtype = "float64" }):tolist()) do
    out[i] = {}
    for k, number in ipairs(row) do out[i][k] = math.floor(number * words) end
  end
  return out
end

---@param x cstorch.Tensor
---@return boolean
local function is_nan(x)
  local largest = x:abs():amax():item()
  return largest ~= largest
end

---A text as one row of the token ids that both models take: at most so many as both have positions for.
---@param a cstorch.models.Model
---@param b cstorch.models.Model
---@param ids integer[]
---@return integer[][]
local function row_of(a, b, ids)
  local words = math.min(a:vocabulary(), b:vocabulary())
  local row = { unpack(ids, 1, math.min(#ids, MOST_TOKENS, a:longest(), b:longest())) }
  if not row[1] then cbk.fail("value", "the text is empty: it has no tokens to compare") end
  for _, id in ipairs(row) do
    if id >= words then
      cbk.fail("value", ("the text has the token %d, beyond a vocabulary of %d"):format(id, words),
        { advice = "put the tokenizer.json of the models beside them" })
    end
  end
  return { row }
end

---@param a cstorch.Tensor
---@param b cstorch.Tensor   of the same shape but for the last dim, of which the common part counts
---@param tolerance number
local function difference(a, b, tolerance)
  local width = math.min(a:size(-1), b:size(-1))
  a, b = a:slice(-1, 0, width), b:slice(-1, 0, width)
  local apart = (a - b):abs()
  local largest, scale = apart:amax():item(), a:abs():amax():item()
  return { largest = largest, mean = apart:mean():item(), scale = scale, is_same = largest <= tolerance * scale }
end

---@param first cstorch.models.Model
---@param second cstorch.models.Model
---@param tolerance number
---@param text integer[]|nil   token ids; nil: random ones
---@return LogitsDifference|nil, string|nil why
local function compare(first, second, tolerance, text)
  local ids = text and row_of(first, second, text) or random_ids(first, second)
  local states, parted, last, broken = {}, nil, nil, nil
  local out = first:logits(ids, function(place, x)
    states[place] = x
    if not broken and is_nan(x) then broken = place end
  end)
  if is_nan(out) then return nil, ("those of A are NaN, from %s on; 'cbk check' finds NaN in weights"):format(broken or "the head") end
  local other = second:logits(ids, function(place, x)
    local own = states[place]
    if not own or own:size(-1) ~= x:size(-1) then return end -- of another depth or width
    last = difference(own, x, tolerance)
    if not (last.is_same or parted) then parted = place end
    states[place] = nil
  end)
  local have_heads = first:has_head() and second:has_head()
  local found = have_heads and difference(out, other, tolerance) or last
  if not found then cbk.fail("unsupported", "cannot compare hidden states of different widths") end
  found.what, found.tokens = have_heads and "logits" or "hidden states", #ids * #ids[1]
  if not found.is_same then found.parted = parted or last and "the head" end
  return found
end

---@param side LogitsSide
---@return cstorch.models.Model|nil, string|nil why
local function model_of(side)
  local fine, found = pcall(models.new, side.list, side.tensors)
  if fine then return found end
  if not (type(found) == "table" and found.kind == "value") then error(found, 0) end
  return nil, errors.text(found)
end

---How far the outputs of two models differ; nil and the reason if one of them is not computed.
---@param a LogitsSide
---@param b LogitsSide
---@param tolerance? number   of the largest output; default: logits.TOLERANCE
---@param text? integer[]       token ids to compute with; default: random ones
---@return LogitsDifference|nil, string|nil why
function logits.compare(a, b, tolerance, text)
  local first, why = model_of(a)
  if not first then return nil, why end
  local second, other_why = model_of(b)
  if not second then return nil, other_why end
  return compare(first, second, tolerance or logits.TOLERANCE, text)
end

local function short(number) return ("%.2g"):format(number) end

---@param one LogitsDifference
---@return string
function logits.text(one)
  local text = ("%s of %s differ by at most %s, on average %s; the largest is %s"):format(one.what, numbers.counted(one.tokens, "token"),
    short(one.largest), short(one.mean), short(one.scale))
  return one.parted and ("%s; they part at %s"):format(text, one.parted) or text
end

---For --json.
---@param one LogitsDifference
---@return Dict
function logits.row(one)
  local number = numbers.json_number
  return cbk.dict {
    { "what", one.what }, { "tokens", one.tokens }, { "largest", number(one.largest) }, { "mean", number(one.mean) },
    { "scale", number(one.scale) }, { "same", one.is_same }, { "parted_at", one.parted or cbk.null },
  }
end

return logits
