-- The Model Zoo's processors that make samples of text files while they read: their fields, with defaults.

local kinds = require "converters.engine.kinds"
local masked_records = require "cstorch.utils.data.masked_records"
local masked_texts = require "cstorch.utils.data.masked_texts"
local params = require "cbk.training.params"
local span_texts = require "cstorch.utils.data.span_texts"
local trainer = require "converters.modelzoo.trainer"

local text_data = {}

---@class TextData
---@field folder string       the field with the folders
---@field needed string[]     fields
---@field shuffles boolean    by default
---@field source fun(run: TrainingParams, read: table, options: DataOptions): RecordSource

---@param read table
---@param defaults table
local function with_defaults(read, defaults)
  for name, value in pairs(read) do defaults[name] = value end
  return defaults
end

local function has_next_sentence(options) return options.module:limits().next_sentence_label ~= nil end

---Fails if a field differs from what the model has.
local function check_model(run, read, options, name, of_model)
  local own = trainer.is(run.config or {}) and trainer.model(run.config)[of_model]
  if kinds.present(own) and own ~= read[name] then
    params.refuse(run, ("%s.%s"):format(options.place, name), ("%d, but the model has %s=%s, and the Model Zoo wants both to be equal")
      :format(read[name], of_model, tostring(own)))
  end
end

---The source, if the model has all of its ids.
---@param source RecordSource
---@param field string   of the vocabulary
---@return RecordSource
local function within_model(run, options, source, field)
  local most = options.module:limits().input_ids
  if source.ids > (most or math.huge) then
    params.refuse(run, ("%s.%s"):format(options.place, field), ("the vocabulary has %d ids, more than that of the model, %d")
      :format(source.ids, most))
  end
  return source
end

---@type table<string, TextData>
local OF = {
  BertCSVDynamicMaskDataProcessor = {
    folder = "data_dir", shuffles = true,
    needed = { "data_dir", "batch_size", "vocab_file", "max_sequence_length", "max_predictions_per_seq" },
    source = function(run, read, options)
      local own = with_defaults(read, { masked_lm_prob = 0.15, mask_whole_word = false, do_lower = false, gather_mlm_labels = true,
        oov_token = "[UNK]", mask_token = "[MASK]", exclude_from_masking = { "[CLS]", "[SEP]", "[PAD]", "[MASK]" }, labels_pad_id = 0,
        input_pad_id = 0, attn_mask_pad_id = 0, segment_pad_id = 0, has_next_sentence = has_next_sentence(options) })
      return within_model(run, options, masked_texts.source(own), "vocab_file")
    end,
  },
  BertCSVDataProcessor = {
    folder = "data_dir", shuffles = false, needed = { "data_dir", "batch_size" },
    source = function(_, _, options) return masked_records.source { has_next_sentence = has_next_sentence(options) } end,
  },
  T5DynamicDataProcessor = {
    folder = "src_data_dir", shuffles = true,
    needed = { "src_data_dir", "batch_size", "src_vocab_file", "src_max_sequence_length", "tgt_max_sequence_length" },
    source = function(run, read, options)
      check_model(run, read, options, "src_max_sequence_length", "src_max_position_embeddings")
      check_model(run, read, options, "tgt_max_sequence_length", "tgt_max_position_embeddings")
      local _, targets = span_texts.lengths(read.src_max_sequence_length)
      if targets > read.tgt_max_sequence_length then
        params.refuse(run, options.place .. ".tgt_max_sequence_length", ("%d, but what is in the gaps of texts with "
          .. "src_max_sequence_length: %d has up to %d tokens"):format(read.tgt_max_sequence_length, read.src_max_sequence_length, targets))
      end
      return within_model(run, options, span_texts.source(with_defaults(read, { extra_ids = 0, oov_token = "<unk>", sos_token = "<s>",
        eos_token = "</s>", pad_token = "<pad>" })), "src_vocab_file")
    end,
  },
}

---@param processor string|nil   by its last name
---@return TextData|nil
function text_data.of(processor) return OF[processor] end

return text_data
