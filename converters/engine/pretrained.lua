-- Fields that any Hugging Face config may have besides its model's own: how text is generated, what a call returns. Transformers'
-- to_json_file with use_diff=False writes all of them, at their usual values.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local naming = require "cbk.naming"

local pretrained = {}

-- of PretrainedConfig, Transformers 4; null counts as absent
local usual = {
  _name_or_path = "", add_cross_attention = false, chunk_size_feed_forward = 0, diversity_penalty = 0, do_sample = false,
  early_stopping = false, encoder_no_repeat_ngram_size = 0, is_decoder = false, is_encoder_decoder = false, length_penalty = 1,
  max_length = 20, min_length = 0, no_repeat_ngram_size = 0, num_beam_groups = 1, num_beams = 1, num_return_sequences = 1,
  output_attentions = false, output_hidden_states = false, output_scores = false, pruned_heads = cbk.dict(),
  remove_invalid_values = false, repetition_penalty = 1, return_dict = true, return_dict_in_generate = false, temperature = 1,
  tf_legacy_loss = false, tie_encoder_decoder = false, tie_word_embeddings = true, top_k = 50, top_p = 1, torchscript = false,
  typical_p = 1, use_bfloat16 = false, _attn_implementation_autoset = fields.any_of(false, true),
  id2label = cbk.dict { ["0"] = "LABEL_0", ["1"] = "LABEL_1" }, label2id = cbk.dict { LABEL_0 = 0, LABEL_1 = 1 },
}

-- Common fields without a usual value.
local others = naming.set [[
  architectures auto_map bad_words_ids begin_suppress_tokens bos_token_id cross_attention_hidden_size decoder_start_token_id dtype
  eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing
  pad_token_id prefix problem_type sep_token_id suppress_tokens task_specific_params tokenizer_class torch_dtype transformers_version
  use_cache
]]

---Whether every config may have the field, whatever its model.
---@param name string
function pretrained.is_common(name) return others[name] or usual[name] ~= nil end

---Whether the field has its usual value, so that a config means the same without it.
---@param name string
---@param value any
function pretrained.goes_without_saying(name, value) return usual[name] ~= nil and fields.same(value, usual[name]) end

return pretrained
