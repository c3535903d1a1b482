-- Samples for BERT whose words are masked while they are read: those of the Model Zoo's BertCSVDynamicMaskDataProcessor. Each epoch masks
-- other words. Source: BertCSVDynamicMaskDataProcessor.py and bert_utils.py of the Model Zoo 2.9.

local cbk = require "cbk"
local lower_case = require "cbk.tokens.lower_case"
local python_lists = require "cstorch.utils.data.python_lists"
local record_files = require "cstorch.utils.data.record_files"
local record_samples = require "cstorch.utils.data.record_samples"
local vocabulary = require "cstorch.utils.data.vocabulary"

local masked_texts = {}

---@class MaskedTextsOptions
---@field vocab_file string
---@field max_sequence_length integer
---@field max_predictions_per_seq integer
---@field masked_lm_prob number
---@field has_next_sentence boolean
---@field gather_mlm_labels boolean     labels of the masked words alone, with their positions
---@field mask_whole_word boolean
---@field do_lower boolean
---@field oov_token string
---@field mask_token string
---@field exclude_from_masking string[]
---@field labels_pad_id integer
---@field input_pad_id integer
---@field attn_mask_pad_id integer
---@field segment_pad_id integer

local padded = record_samples.padded

--- The tokens of a word, from the first to the last: those after it that begin with ## belong to it.
local function word_of(tokens, at)
  local first, last = at, at
  while tokens[last + 1] and tokens[last + 1]:sub(1, 2) == "##" do last = last + 1 end
  while first > 1 and tokens[first]:sub(1, 2) == "##" do first = first - 1 end
  return first, last
end

---The positions that are predicted, from 1.
---@param tokens string[]
---@param own MaskedTextsOptions
---@param is_excluded table<string, true>
---@param random Draws
---@return integer[]
local function chosen(tokens, own, is_excluded, random)
  local most, order, is_used, out = own.max_predictions_per_seq, {}, {}, {}
  local wanted = math.min(most, math.max(1, record_samples.rounded(#tokens * own.masked_lm_prob)))
  for i = 1, #tokens do order[i] = i end
  for _, at in ipairs(random:shuffle(order)) do
    if #out >= wanted then break end
    if not is_used[at] and not is_excluded[tokens[at]] then
      local first, last = at, at
      if own.mask_whole_word then first, last = word_of(tokens, at) end
      local fits = #out + last - first + 1 <= most
      for i = first, last do
        is_used[i] = true
        if fits then out[#out + 1] = i end
      end
    end
  end
  return out
end

---Masks 80 % of the chosen positions, puts another token at 10 %, and leaves the others.
---@param ids integer[]
---@param places integer[]
---@param words { mask: integer, size: integer, is_excluded: table<integer, true> }
---@param random Draws
local function hide(ids, places, words, random)
  for _, at in ipairs(places) do
    local share = random:unit()
    if share < 0.8 then
      ids[at] = words.mask
    elseif share < 0.9 then
      repeat ids[at] = random:below(words.size) until not words.is_excluded[ids[at]]
    end
  end
end

---@param own MaskedTextsOptions
---@param parts table<string, integer[]>   gets labels, masked_lm_mask and masked_lm_positions
---@param ids integer[]      of all tokens, before they were masked
---@param places integer[]
local function add_labels(own, parts, ids, places)
  table.sort(places)
  local length = own.gather_mlm_labels and own.max_predictions_per_seq or own.max_sequence_length
  if not own.gather_mlm_labels then
    parts.labels, parts.masked_lm_mask = padded({}, length, own.labels_pad_id), padded({}, length, 0)
    for _, at in ipairs(places) do parts.labels[at], parts.masked_lm_mask[at] = ids[at], 1 end
    return
  end
  local labels, positions = {}, {}
  for i, at in ipairs(places) do labels[i], positions[i] = ids[at], at - 1 end
  parts.masked_lm_mask = record_samples.mask(#places, length, 0)
  parts.labels, parts.masked_lm_positions = padded(labels, length, 0), padded(positions, length, 0)
end

---The tokens of a record.
---@param record Record
---@param own MaskedTextsOptions
---@return string[]
local function tokens_of(record, own)
  local tokens = python_lists.texts(record.fields.tokens)
  if not tokens then record_files.refuse(record, "'tokens' is not a list of texts, such as \"['[CLS]', 'a', '[SEP]']\"") end
  if own.do_lower then
    for i, token in ipairs(tokens) do tokens[i] = lower_case.of(token) end
  end
  local most = own.max_sequence_length
  if #tokens > most and own.has_next_sentence then
    record_files.refuse(record, ("it has %d tokens, more than max_sequence_length, %d; texts with a next sentence are not cut")
      :format(#tokens, most))
  end
  for i = #tokens, most + 1, -1 do tokens[i] = nil end
  return tokens
end

---@param record Record
---@param own MaskedTextsOptions
---@param parts table
local function add_next_sentence(record, own, parts)
  local segments = python_lists.numbers(record.fields.segment_ids)
  if not segments or #segments > own.max_sequence_length then
    record_files.refuse(record, ("'segment_ids' is not a list of at most %d numbers"):format(own.max_sequence_length))
  end
  local label = python_lists.numbers(record.fields.is_random_next)
  if not label or #label ~= 1 then record_files.refuse(record, "'is_random_next' is not a number") end
  parts.token_type_ids, parts.next_sentence_label = padded(segments, own.max_sequence_length, own.segment_pad_id), label[1]
end

---@param own MaskedTextsOptions
---@return RecordSource
function masked_texts.source(own)
  local function as_read(token) return own.do_lower and lower_case.of(token) or token end
  local words = vocabulary.open(own.vocab_file, { field = "vocab_file", unknown = as_read(own.oov_token), is_lower = own.do_lower })
  local is_excluded, excluded, left = {}, {}, words.size
  for _, token in ipairs(own.exclude_from_masking) do
    local id = words.ids[as_read(token)]
    if not excluded[id] then left = left - 1 end
    is_excluded[as_read(token)], excluded[id] = true, true
  end
  if left == 0 then
    cbk.fail("value", ("exclude_from_masking has all %d tokens of %s, so that none is left to put in the place of others"):format(
      words.size, cbk.quote(words.path)), { file = words.path })
  end
  local mask = vocabulary.id(words, as_read(own.mask_token), "mask_token")
  local columns = own.has_next_sentence and { "tokens", "segment_ids", "is_random_next" } or { "tokens" }
  return {
    format = { field = "data_dir", columns = columns }, length = own.max_sequence_length, ids = words.size,
    make = function(record, _, random)
      local tokens, ids, shown = tokens_of(record, own), {}, {}
      for i, token in ipairs(tokens) do
        ids[i] = words.ids[token]
        shown[i] = ids[i]
      end
      local places = chosen(tokens, own, is_excluded, random)
      hide(shown, places, { mask = mask, size = words.size, is_excluded = excluded }, random)
      local parts = { input_ids = padded(shown, own.max_sequence_length, own.input_pad_id),
        attention_mask = record_samples.mask(#tokens, own.max_sequence_length, own.attn_mask_pad_id) }
      add_labels(own, parts, ids, places)
      if own.has_next_sentence then add_next_sentence(record, own, parts) end
      return parts
    end,
  }
end

return masked_texts
