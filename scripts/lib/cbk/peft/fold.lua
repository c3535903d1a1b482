-- LoRA adapters as Hugging Face's PEFT saves them (adapter_config.json, adapter_model.safetensors or .bin), folded into their base model.
-- Format: peft/tuners/lora/layer.py and peft/utils/save_and_load.py of PEFT 0.17.

local cbk = require "cbk"
local adapter_settings = require "cbk.peft.settings"
local adapter_tensors = require "cbk.peft.tensors"
local conv1d = require "cbk.peft.conv1d"
local extents = require "cbk.extents"
local low_rank = require "cbk.low_rank"
local numbers = require "cbk.numbers"
local quantised = require "cbk.quantised"
local tensor_kinds = require "cbk.tensor_kinds"
local tied = require "cbk.peft.tied"
local ties = require "cbk.ties"
local token_weights = require "cbk.token_weights"

local fold = {}

local is_tensor = tensor_kinds.is_array
local EMBEDDINGS, HEADS, is_weight_of = token_weights.EMBEDDINGS, token_weights.HEADS, token_weights.is_weight_of

---@param settings PeftSettings
---@param is_conv1d boolean   the model's layers with Conv1D names are Conv1D
---@param module string
---@param one Adapted
---@param weight Tensor
local function folded_weight(settings, is_conv1d, module, one, weight)
  if not (one.a and one.b) then
    cbk.fail("checkpoint", ("the adapter has lora_%s of %s, but not lora_%s"):format(one.a and "A" or "B", module, one.a and "B" or "A"))
  end
  local rank = adapter_settings.by_pattern(settings.ranks, module, settings.rank)
  local alpha = adapter_settings.by_pattern(settings.alphas, module, settings.alpha)
  local flipped = one.is_embedding or is_conv1d and conv1d.is_name(module)
  local problem = low_rank.mistake(weight, one.a, one.b, rank, flipped)
  if problem then cbk.fail("shape", ("%s: %s"):format(module, problem)) end
  for name, value in pairs { lora_A = one.a, lora_B = one.b } do low_rank.check_finite(module .. "." .. name, value) end
  return low_rank.fold(weight, one.a, one.b, alpha / (settings.is_rank_stabilized and math.sqrt(rank) or rank), flipped)
end

---Whether a tensor replaces the embeddings or the head after words were added to the vocabulary, or taken from it.
---@param key string
---@param old Tensor
---@param new Tensor
local function is_resized(key, old, new)
  local own, other = old:shape(), new:shape()
  return #own == 2 and #other == 2 and own[2] == other[2] and (is_weight_of(EMBEDDINGS, key) or is_weight_of(HEADS, key))
end

---The number of words after the adapter was folded in, if it is another one. Fails if embeddings and head differ in it.
---@param model Dict   the base model
---@param out Dict     with the adapter
---@return integer|nil
local function new_words(model, out)
  local changed, words = nil, nil
  for key in cbk.items(out) do
    if (is_weight_of(EMBEDDINGS, key) or is_weight_of(HEADS, key)) and is_tensor(out[key]) and #out[key]:shape() == 2 then
      local rows, old = out[key]:shape()[1], model[key] ~= nil and is_tensor(model[key]) and model[key]:shape()[1]
      words = words or { key = tostring(key), rows = rows }
      if old and old ~= rows then changed = rows end
      if changed and rows ~= words.rows then
        cbk.fail("shape", ("'%s' has %d words after the adapter is folded in, and '%s' has %d: the adapter was trained after the "
          .. "vocabulary was resized, and has only one of them"):format(key, rows, words.key, words.rows),
          { advice = ("give the base model %d words with transformers (model.resize_token_embeddings(%d), then save_pretrained), and fold "
            .. "the adapter into that"):format(changed, changed) })
      end
    end
  end
  return changed
end

---Records that a name of the adapter changes a weight. Fails if another name does so already.
---@param names table<string, string>   the adapter's name for each of the base model's keys; changed
local function claim(names, key, name)
  local both = { names[key], name }
  if both[1] and both[1] ~= name then
    table.sort(both)
    cbk.fail("unmatched", ("the adapter's '%s' would both change '%s' of the base model"):format(table.concat(both, "' and '"), key))
  end
  names[key] = name
end

---The adapter's changes by the base model's keys: functions of the old weight.
---@param model Dict
---@param modules table<string, Adapted>
---@param others table<string, SavedWhole>
---@param settings PeftSettings
---@param embedding string|nil   the weight of a head that the base model's files lack
---@return table<string, fun(old: Tensor|nil): Tensor> trained, integer count
---@return table<string, fun(old: Tensor|nil): Tensor> below   weights that are saved whole and have matrices besides, without these
local function trained_weights(model, modules, others, settings, embedding)
  local trained, names, count, missing, below = {}, {}, 0, {}, {}
  local all = {}
  for module in pairs(modules) do all[#all + 1] = module .. ".weight" end
  for name in pairs(others) do all[#all + 1] = name end
  local keys = adapter_tensors.keys_in(model, all)
  adapter_settings.check_patterns(settings, modules)
  local is_conv1d = conv1d.is_in(model)
  if is_conv1d == nil then is_conv1d = settings.fan_in_fan_out end
  for module, one in pairs(modules) do
    local name = module .. ".weight"
    local key = keys[name] or embedding and is_weight_of(HEADS, name) and name
    if key then
      claim(names, key, name)
      trained[key], count = function(old) return folded_weight(settings, is_conv1d, module, one, old) end, count + 1
    else
      missing[#missing + 1] = name
    end
  end
  table.sort(missing)
  if #missing > 0 then
    cbk.fail("key", ("the base model lacks %s that the adapter adapts: %s%s; is it the model of base_model_name_or_path?"):format(
      numbers.counted(#missing, "weight"), table.concat(missing, ", ", 1, math.min(#missing, 5)), #missing > 5 and ", …" or ""))
  end
  for name, saved in pairs(others) do -- modules_to_save, trained biases, and weights to which matrices are added
    local key, value = keys[name] or name, saved.value
    if model[key] ~= nil and not is_tensor(model[key]) then
      cbk.fail("checkpoint", ("the base model's '%s' is not a tensor, but the adapter's is"):format(key))
    end
    local matrices = trained[key]
    claim(names, key, name)
    if matrices and not saved.is_below then
      cbk.fail("unmatched", ("the adapter has both a whole '%s' and matrices for it"):format(name))
    end
    local function put(old)
      local own, new = old and extents.shape(old:shape()), extents.shape(value:shape())
      if own and own ~= new and not is_resized(key, old, value) then
        cbk.fail("shape", ("'%s' is %s in the adapter, but %s in the base model; is it the model of base_model_name_or_path?"):format(name,
          new, own))
      end
      low_rank.check_finite(name, value)
      if old and quantised.is_narrow(old.dtype) then
        cbk.fail("dtype", ("the adapter replaces '%s', which is %s in the base model: as such it would be rounded; use a base model "
          .. "of 16 or 32 bits"):format(name, old.dtype))
      end
      return old and value:to(old.dtype) or value
    end
    trained[key] = matrices and function(old) return matrices(put(old)) end or put
    below[key] = matrices and put
  end
  return trained, count, below
end

---Warns about tensors that the base model does not have, such as the head of a classifier: the config is still the base model's.
---@param keys string[]
---@param source Dict
---@param config Dict|nil
local function warn_of_new(keys, source, config)
  local new = {}
  for _, key in ipairs(keys) do
    if source[key] == nil then new[#new + 1] = key end
  end
  if #new == 0 then return end
  local stated = config and cbk.kind(config.architectures) == "list" and config.architectures[1]
  cbk.warn(("the adapter adds %d tensor%s that the base model does not have: %s; %s"):format(#new, #new == 1 and "" or "s",
    table.concat(new, ", ", 1, math.min(#new, 5)), stated and ("the config still says architectures=%s"):format(tostring(stated))
    or "its config may need another architecture"))
end

---Fails if the adapter trains one of the tied embeddings and head of an encoder-decoder, which has four of these tensors. T5 scales a tied
---head, so that the trained tensor needs the tie.
---@param model Dict
---@param trained table<string, any>
---@param config Dict|nil
local function check_shared(model, trained, config)
  if token_weights.stated_tie(config) == false or not (model["shared.weight"] ~= nil or model["model.shared.weight"] ~= nil) then return end
  for key in pairs(trained) do
    if is_weight_of(EMBEDDINGS, key) or is_weight_of(HEADS, key) then
      cbk.fail("unsupported", ("the adapter's weights untie '%s' from the embeddings that encoder, decoder and head share: what was "
        .. "trained needs the tie; merge it with PEFT"):format(key))
    end
  end
end

-- The prefix of a bare model's keys in files of the model with a head, by the key of the embeddings without it.
local PREFIXES = { ["wte.weight"] = "transformer.", ["word_embeddings.weight"] = "transformer.", ["embed_tokens.weight"] = "model." }

---A tree to which a head was added. Files of a bare model have no prefix, and no program reads a head beside such keys.
---@param out Dict
---@param model Dict      the base model
---@param tie HeadTie
---@return Dict
local function with_prefix(out, model, tie)
  local prefix = PREFIXES[tie.embedding]
  if not prefix or model[tie.head] ~= nil then return out end
  cbk.warn(("the base model's files have the keys of the bare model; beside '%s', the others get the prefix '%s', as in files of a model "
    .. "with a head"):format(tie.head, prefix))
  local renamed = cbk.dict()
  for key in cbk.items(out) do
    renamed[key ~= tie.head and is_tensor(out[key]) and prefix .. tostring(key) or key] = cbk.raw(out, key)
  end
  return renamed
end

---The base model with the adapter folded in. Only the adapter's small matrices are read before the result is written.
---Weights are those of the adapted model during training: if one of two tied weights was trained, it changes, and they are no longer
---tied.
---@param model Dict         the base model: key to tensor
---@param adapter Dict       the adapter's tensors
---@param settings PeftSettings
---@param config Dict|nil    the base model's config.json
---@param is_tied_by_default boolean   whether programs tie the head of such a model if its config does not say
---@return Dict model, integer count   the number of adapted weights
---@return HeadTie|nil untied          a head that is no longer tied to the embeddings
---@return integer|nil words            the size of the vocabulary, if it is another one
function fold.into(model, adapter, settings, config, is_tied_by_default)
  for what, tree in pairs { ["base model"] = model, adapter = adapter } do
    if not (cbk.kind(tree) or ""):find "dict" then cbk.fail("checkpoint", ("the %s is no dict of tensors"):format(what)) end
  end
  local modules, others = adapter_tensors.sorted_out(adapter)
  local may_lack_head = token_weights.stated_tie(config) ~= false and not tied.weight_of(model, HEADS)
  local embedding = may_lack_head and tied.weight_of(model, EMBEDDINGS) or nil
  local trained, count, below = trained_weights(model, modules, others, settings, embedding)
  local out, tie = cbk.copy(model), tied.of(model, config, trained, is_tied_by_default)
  check_shared(model, trained, config)
  tied.check_unknown(model, config, trained, others, tie, is_tied_by_default)
  if tie then out[tie.head] = out[tie.head] or model[tie.embedding] end
  local source = tie and cbk.copy(out) or model
  for _, key in ipairs(tie and { tie.embedding, tie.head } or {}) do -- loading one of two tied weights changes both
    local other = key == tie.head and tie.embedding or tie.head
    if below[key] and not below[other] then source[other], out[other] = below[key](source[other]), below[key](source[other]) end
  end
  local keys = {}
  for key in pairs(trained) do keys[#keys + 1] = key end
  table.sort(keys)
  low_rank.check_alone(model, keys)
  warn_of_new(keys, source, config)
  local groups = ties.groups(source)
  for _, key in ipairs(keys) do
    out[key] = trained[key](source[key])
    for _, other in ipairs(tied.sharers(groups, source, key, trained)) do
      local is_parted = tie and (other == tie.head or key == tie.head) and not settings.keeps_ties
      if not is_parted then out[other] = out[key] end
    end
  end
  if not tie then
    tied.check_headless(model, config, trained, others)
    return out, count, nil, new_words(model, out)
  end
  local words = new_words(model, out)
  if settings.keeps_ties and not (trained[tie.head] and trained[tie.embedding]) then -- the base model may store both as copies
    local from = trained[tie.head] and tie.head or tie.embedding
    for _, key in ipairs { tie.head, tie.embedding } do
      if out[key] ~= nil then out[key] = out[from] end
    end
    return with_prefix(out, model, tie), count, nil, words
  end
  return with_prefix(out, model, tie), count, tie, words
end

---The config of a model with another size of the vocabulary.
---@param config Dict   config.json
---@param words integer
---@return Dict
function fold.resized_config(config, words)
  config = cbk.deep_copy(config)
  local text = cbk.kind(config.text_config) == "dict" and config.text_config
  for _, section in ipairs { config, text or nil } do
    if section.vocab_size ~= nil then section.vocab_size = words end
  end
  return config
end

return fold
