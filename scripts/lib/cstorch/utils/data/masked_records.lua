-- Samples for BERT whose masked words are in CSV files: those of the Model Zoo's BertCSVDataProcessor. Source: BertCSVDataProcessor.py of
-- the Model Zoo 2.9.

local python_lists = require "cstorch.utils.data.python_lists"
local record_files = require "cstorch.utils.data.record_files"

local masked_records = {}

--- Columns, and the parts of a sample that they are.
local PARTS = { input_ids = "input_ids", attention_mask = "attention_mask", labels = "labels", masked_lm_weights = "masked_lm_mask",
  masked_lm_positions = "masked_lm_positions" }
local OF_NEXT_SENTENCE = { token_type_ids = "token_type_ids", next_sentence_label = "next_sentence_label" }

---@param record Record
---@param names table<string, string>
---@param parts table
local function add_parts(record, names, parts)
  for name, part in pairs(names) do
    local text = record.fields[name]
    local numbers = text and python_lists.numbers(text)
    if text and not numbers then record_files.refuse(record, ("'%s' is not a list of whole numbers"):format(name)) end
    parts[part] = numbers
  end
end

---@param own { has_next_sentence: boolean }
---@return RecordSource
function masked_records.source(own)
  local columns = { "input_ids", "attention_mask", "labels", own.has_next_sentence and "next_sentence_label" or nil }
  return {
    format = { field = "data_dir", columns = columns },
    make = function(record)
      local parts = {}
      add_parts(record, PARTS, parts)
      if own.has_next_sentence then
        add_parts(record, OF_NEXT_SENTENCE, parts)
        local label = parts.next_sentence_label
        if #label ~= 1 then record_files.refuse(record, "'next_sentence_label' is not one number") end
        parts.next_sentence_label = label[1]
      end
      return parts
    end,
  }
end

return masked_records
