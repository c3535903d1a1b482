-- The Model Zoo's processors that make samples of text files while they read: their fields, with defaults.

local field_kinds = require "cbk.training.field_kinds"
local fields = require "cbk.training.fields"
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
---@field fields table<string, TrainingField>
---@field defaults table<string, any>   of fields
---@field source fun(run: ParamsReader, own: table, options: DataOptions): RecordSource   `own`: values of all fields

local integer, whole, count, flag = field_kinds.integer, field_kinds.whole, field_kinds.count, field_kinds.flag
local text, texts, only, ignored = field_kinds.text, field_kinds.texts, field_kinds.only, field_kinds.ignored
local share = field_kinds.kind("a number above 0, up to 1", function(value) return type(value) == "number" and value > 0 and value <= 1 end)
local token_list = field_kinds.kind("a list of texts", field_kinds.is_texts)
local nothing = field_kinds.kind("null", function() return false end)

local BUFFER = "mixes samples within a buffer; here all samples of an epoch are mixed"
local STATIC = "was used when the files were made, and is read from them"
local UNUSED = "is not used by the processor"

local function has_next_sentence(options) return options.module:limits().next_sentence_label ~= nil end

---Fails if a field differs from what the model has.
---@param run ParamsReader
---@param own table
---@param options DataOptions
---@param name string
---@param of_model string   the model's field
local function refuse_unlike_model(run, own, options, name, of_model)
  local of_file = run.config and trainer.is(run.config) and trainer.model(run.config)[of_model]
  if of_file and kinds.present(of_file) and of_file ~= own[name] then
    params.refuse(run, ("%s.%s"):format(options.place, name), ("%d, but the model has %s=%s, and the Model Zoo wants both to be equal")
      :format(own[name], of_model, tostring(of_file)))
  end
end

---The source, if the model has all of its ids.
---@param run ParamsReader
---@param options DataOptions
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
    fields = fields.of_loader {
      data_dir = texts, vocab_file = text, max_sequence_length = count, max_predictions_per_seq = count, masked_lm_prob = share,
      mask_whole_word = flag, do_lower = flag, gather_mlm_labels = flag, oov_token = text, mask_token = text,
      document_separator_token = ignored(UNUSED), exclude_from_masking = token_list, labels_pad_id = integer, input_pad_id = whole,
      attn_mask_pad_id = whole, segment_pad_id = whole, dynamic_mlm_scale = only(false), buckets = nothing,
      shuffle_buffer = ignored(BUFFER), disable_nsp = ignored "is that of the model", num_examples = ignored(UNUSED),
      steps = ignored(UNUSED), whole_word_masking = ignored(UNUSED .. "; mask_whole_word is"),
    },
    defaults = {
      masked_lm_prob = 0.15, mask_whole_word = false, do_lower = false, gather_mlm_labels = true, oov_token = "[UNK]",
      mask_token = "[MASK]", exclude_from_masking = { "[CLS]", "[SEP]", "[PAD]", "[MASK]" }, labels_pad_id = 0, input_pad_id = 0,
      attn_mask_pad_id = 0, segment_pad_id = 0,
    },
    source = function(run, own, options)
      own.has_next_sentence = has_next_sentence(options)
      return within_model(run, options, masked_texts.source(own), "vocab_file")
    end,
  },
  BertCSVDataProcessor = {
    folder = "data_dir", shuffles = false, needed = { "data_dir", "batch_size" },
    fields = fields.of_loader {
      data_dir = texts, dynamic_mlm_scale = only(false), buckets = nothing, shuffle_buffer = ignored(BUFFER),
      disable_nsp = ignored "is that of the model", vocab_file = ignored(STATIC), whole_word_masking = ignored(STATIC),
      max_predictions_per_seq = ignored(STATIC), do_lower = ignored(STATIC), masked_lm_prob = ignored(STATIC),
      max_sequence_length = ignored(STATIC), max_position_embeddings = ignored(STATIC),
    },
    defaults = {},
    source = function(_, _, options) return masked_records.source { has_next_sentence = has_next_sentence(options) } end,
  },
  T5DynamicDataProcessor = {
    folder = "src_data_dir", shuffles = true,
    needed = { "src_data_dir", "batch_size", "src_vocab_file", "src_max_sequence_length", "tgt_max_sequence_length" },
    fields = fields.of_loader {
      src_data_dir = texts, src_vocab_file = text, extra_ids = whole, src_max_sequence_length = count, tgt_max_sequence_length = count,
      do_lower = only(false), oov_token = text, sos_token = text, eos_token = text, pad_token = text, labels_pad_id = whole,
      input_pad_id = whole, dynamic_loss_weight = only(false), pack_sequences = only(false), buckets = nothing,
      num_documents_to_concatenate = ignored "belongs to pack_sequences", shuffle_buffer = ignored(BUFFER),
      tgt_vocab_file = ignored(UNUSED), tgt_data_dir = ignored(UNUSED),
    },
    defaults = { extra_ids = 0, oov_token = "<unk>", sos_token = "<s>", eos_token = "</s>", pad_token = "<pad>" },
    source = function(run, own, options)
      refuse_unlike_model(run, own, options, "src_max_sequence_length", "src_max_position_embeddings")
      refuse_unlike_model(run, own, options, "tgt_max_sequence_length", "tgt_max_position_embeddings")
      local _, targets = span_texts.lengths(own.src_max_sequence_length)
      if targets > own.tgt_max_sequence_length then
        params.refuse(run, options.place .. ".tgt_max_sequence_length", ("%d, but what is in the gaps of texts with "
          .. "src_max_sequence_length: %d has up to %d tokens"):format(own.tgt_max_sequence_length, own.src_max_sequence_length, targets))
      end
      return within_model(run, options, span_texts.source(own), "src_vocab_file")
    end,
  },
}

---@param processor string|nil   by its last name
---@return TextData|nil
function text_data.of(processor) return OF[processor] end

---@param run ParamsReader
---@param processor TextData
---@param read table          the fields that the section has
---@param options DataOptions
---@return RecordSource
function text_data.source(run, processor, read, options)
  local own = {}
  for name, value in pairs(processor.defaults) do own[name] = value end
  for name, value in pairs(read) do own[name] = value end
  return processor.source(run, own, options)
end

return text_data
