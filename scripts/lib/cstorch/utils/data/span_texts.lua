-- Samples for T5: texts with gaps, and what is in the gaps, as the Model Zoo's T5DynamicDataProcessor makes them while it reads. Each epoch
-- has other gaps. Source: T5DynamicDataProcessor.py and t5_utils.py of the Model Zoo 2.9.

local record_samples = require "cstorch.utils.data.record_samples"
local vocabulary = require "cstorch.utils.data.vocabulary"

local span_texts = {}

local NOISE, SPAN = 0.15, 3 -- the share of tokens in gaps, and the mean length of a gap
local LONGEST = 65536 -- tokens of a document that an epoch has

---@class SpanTextsOptions
---@field src_vocab_file string
---@field extra_ids integer
---@field src_max_sequence_length integer
---@field tgt_max_sequence_length integer
---@field oov_token string
---@field sos_token string
---@field eos_token string
---@field pad_token string
---@field labels_pad_id? integer   default: that of the pad token
---@field input_pad_id? integer

local rounded = record_samples.rounded

---The tokens of a text that has at most so many when its gaps are marks, and of what its gaps have.
---@param most integer
---@return integer, integer
function span_texts.lengths(most)
  local length = most
  while true do
    local noise = rounded(length * NOISE)
    local gaps = rounded(noise / SPAN)
    if length - noise + gaps + 1 >= most then return length, math.max(noise, 1) + math.max(gaps, 1) + 1 end
    length = length + 1
  end
end

-- --- documents

--- White space that is more than one byte, as Python splits at it.
local SPACES = { "\194[\133\160]", "\225\154\128", "\226\128[\128-\138\168\169\175]", "\226\129\159", "\227\128\128" }

--- A line with ASCII spaces between its tokens.
local function spaced(line)
  if line:find "[%z\28-\31]" then line = line:gsub("%z", ""):gsub("[\28-\31]", " ") end
  if line:find "[\194\225-\227]" then
    for _, pattern in ipairs(SPACES) do line = line:gsub(pattern, " ") end
  end
  return line
end

---The pieces of a document that an epoch has.
---@param tokens integer   their number
---@param length integer   of a piece
---@return integer
local function pieces(tokens, length) return math.ceil(math.min(tokens, LONGEST) / length) end

---A piece of a document. Of a long one it is in a part that is drawn; all parts have one length, so that a document always has the same
---number of pieces.
---@param line string
---@param i integer        from 0
---@param length integer
---@param first integer    tokens before the part
---@return string[]
local function piece(line, i, length, first)
  local out, at, begin = {}, 0, first + i * length
  local last = math.min(begin + length, first + LONGEST)
  for token in line:gmatch "%S+" do
    if at >= last then break end
    if at >= begin then out[#out + 1] = token end
    at = at + 1
  end
  return out
end

-- --- gaps

---The lengths of so many parts of a whole, at random; none is 0.
---@param whole integer
---@param parts integer
---@param random Draws
---@return integer[]
local function parted(whole, parts, random)
  local begins, out = {}, {}
  for i = 1, whole - 1 do begins[i] = i < parts end
  random:shuffle(begins)
  local length = 1
  for i = 1, whole - 1 do
    if begins[i] then
      out[#out + 1] = length
      length = 0
    end
    length = length + 1
  end
  out[#out + 1] = length
  return out
end

---Which tokens are in gaps.
---@param count integer
---@param random Draws
---@return boolean[]
local function gaps_of(count, random)
  local length = math.max(count, 2)
  local noise = math.min(math.max(rounded(length * NOISE), 1), length - 1)
  local gaps = math.max(rounded(noise / SPAN), 1)
  local within, between, out = parted(noise, gaps, random), parted(length - noise, gaps, random), {}
  for i = 1, gaps do
    for _ = 1, between[i] do out[#out + 1] = false end
    for _ = 1, within[i] do out[#out + 1] = true end
  end
  return out
end

---The ids without those that are hidden; each run of them is one mark, from the last id of the vocabulary downwards.
---@param ids integer[]
---@param hidden boolean[]
---@param value boolean    which ones are hidden
---@param last integer
---@return integer[]
local function marked(ids, hidden, value, last)
  local out, mark = {}, last
  for i, id in ipairs(ids) do
    local is_hidden = hidden[i] == value
    if not is_hidden then
      out[#out + 1] = id
    elseif i == 1 or hidden[i - 1] ~= value then
      out[#out + 1], mark = mark, mark - 1
    end
  end
  return out
end

---@param own SpanTextsOptions
---@return RecordSource
function span_texts.source(own)
  local words = vocabulary.open(own.src_vocab_file, { field = "src_vocab_file", unknown = own.oov_token })
  local length = span_texts.lengths(own.src_max_sequence_length)
  local last, pad = words.size + own.extra_ids - 1, words.ids[own.pad_token]
  local input_pad, labels_pad = own.input_pad_id or pad, own.labels_pad_id or pad
  local function count(text) return select(2, spaced(text):gsub("%S+", "")) end
  return {
    format = { field = "src_data_dir", count = function(text) return pieces(count(text), length) end },
    length = own.src_max_sequence_length, ids = last + 1,
    make = function(record, i, random)
      local line = spaced(record.text)
      local tokens = count(line)
      local parts = math.ceil(tokens / LONGEST)
      local first = parts > 1 and math.min(random:below(parts) * LONGEST, tokens - LONGEST) or 0
      local ids = piece(line, i, length, first)
      for k, token in ipairs(ids) do ids[k] = words.ids[token] end
      local hidden = gaps_of(#ids, random)
      local input, target = marked(ids, hidden, true, last), marked(ids, hidden, false, last)
      local decoder, labels = { words.ids[own.sos_token] }, target
      for k, id in ipairs(target) do decoder[k + 1] = id end
      labels[#labels + 1] = words.ids[own.eos_token]
      local source_length, target_length = own.src_max_sequence_length, own.tgt_max_sequence_length
      return {
        attention_mask = record_samples.mask(#input, source_length, 0), input_ids = record_samples.padded(input, source_length, input_pad),
        decoder_attention_mask = record_samples.mask(#decoder, target_length, 0),
        decoder_input_ids = record_samples.padded(decoder, target_length, input_pad),
        labels = record_samples.padded(labels, target_length, labels_pad),
      }
    end,
  }
end

return span_texts
