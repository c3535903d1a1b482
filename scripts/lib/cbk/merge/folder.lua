-- What is beside the weights of a merged model: its config.json, the tokenizer's files, and the config of the merge.

local cbk = require "cbk"
local hugging_face_files = require "cbk.hugging_face_files"
local tied = require "cbk.peft.tied"

local folder = {}

-- Fields for the number of layers, in configs of Hugging Face.
local DEPTHS = { "num_hidden_layers", "n_layer", "num_layers", "n_layers" }
-- Files of a tokenizer that say which token has which number.
local VOCABULARIES = { "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
  "added_tokens.json" }

---The sections of a config that may hold a field: all of it, and the language model's.
local function sections_of(config)
  local text = config.text_config
  return { config, cbk.kind(text) == "dict" and text or nil }
end

---Sets the number of layers, and what has an entry for each layer.
---@param config Dict          changed
---@param merge MergeConfig
---@param depth integer
local function set_depth(config, merge, depth)
  local is_set = false
  for _, section in ipairs(sections_of(config)) do
    for _, name in ipairs(DEPTHS) do
      if type(section[name]) == "number" then section[name], is_set = depth, true end
    end
    local kinds = section.layer_types
    if cbk.kind(kinds) == "list" then
      local list = {}
      for _, slice in ipairs(merge.slices) do
        local range = slice.sources[1].range
        for layer = range[1] + 1, range[2] do list[#list + 1] = kinds[layer] end
      end
      section.layer_types = cbk.list(list)
    end
  end
  if not is_set then
    cbk.fail("config", ("the base model's config.json has no number of layers (%s), which becomes %d"):format(
      table.concat(DEPTHS, ", "), depth))
  end
end

---The text of the output's config.json; nil if the base model has none.
---@param base MergeModel
---@param merge MergeConfig
---@param plan MergePlan
---@return string|nil
function folder.config_text(base, merge, plan)
  local dtype = merge.out_dtype or merge.dtype
  if not base.config then return nil end
  local config = cbk.deep_copy(base.config)
  if plan.depth then set_depth(config, merge, plan.depth) end
  for _, section in ipairs(sections_of(config)) do
    if dtype and (section.dtype ~= nil or section.torch_dtype ~= nil or section == config) then
      section[section.dtype ~= nil and "dtype" or "torch_dtype"] = dtype
    end
    if plan.words and section.vocab_size ~= nil then section.vocab_size = plan.words end
  end
  if plan.is_untied then
    cbk.warn "the head and the embeddings are no longer tied: both are written, with tie_word_embeddings: false in the config"
    config = tied.untied_config(config)
  end
  if cbk.equal(config, base.config) then return cbk.fs.read(base.config_path) end
  return cbk.config.dump(config, "json", { indent = 2 })
end

---Fails if a model has another vocabulary than the base model.
---@param base MergeModel
---@param models MergeModel[]
---@param allowed string[]
function folder.check_vocabularies(base, models, allowed)
  local own = cbk.fs.is_dir(base.path) and hugging_face_files.read(base.path, allowed) or {}
  for _, one in ipairs(models) do
    local files = cbk.fs.is_dir(one.path) and hugging_face_files.read(one.path, allowed) or {}
    local is_compared, has_some = false, false
    for _, name in ipairs(VOCABULARIES) do
      is_compared = is_compared or own[name] ~= nil and files[name] ~= nil
      has_some = has_some or own[name] ~= nil or files[name] ~= nil
      if own[name] and files[name] and own[name] ~= files[name] then
        cbk.fail("unsupported", ("tokenizer_source: base: '%s' of '%s' differs from that of the base model, and rows of embeddings are "
          .. "not put in another order; leave tokenizer_source out if the tokens have the same numbers"):format(name, one.path))
      end
    end
    if has_some and not is_compared then
      cbk.fail("unsupported", ("tokenizer_source: base: '%s' and the base model have no file of the tokenizer in common, so that their "
        .. "vocabularies cannot be compared; leave tokenizer_source out if the tokens have the same numbers"):format(one.path))
    end
  end
end

---The files beside the weights: name to content.
---@param base MergeModel
---@param config_text string|nil
---@param merge_text string     the YAML
---@param allowed string[]
---@return table<string, string>
function folder.companions(base, config_text, merge_text, allowed)
  local files = cbk.fs.is_dir(base.path) and hugging_face_files.read(base.path, allowed) or {}
  files["config.json"] = config_text
  files["mergekit_config.yml"] = merge_text
  return files
end

return folder
