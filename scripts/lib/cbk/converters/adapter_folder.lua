-- An adapter that PEFT saved in a folder, folded into a Hugging Face model.

local cbk = require "cbk"
local adapter_settings = require "cbk.peft.settings"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local fold = require "cbk.peft.fold"
local numbers = require "cbk.numbers"
local quantised = require "cbk.quantised"
local tied = require "cbk.peft.tied"
local ties = require "converters.engine.ties"
local warnings = require "cbk.warnings"

local adapter_folder = {}

---The option of the adapter's folder.
---@param parser table
---@param text string
function adapter_folder.option(parser, text)
  parser:option("--adapter", text .. ": the folder of adapter_config.json and adapter_model.safetensors (or .bin)"):argname "DIR"
end

---The adapter's tensors.
---@param args table
---@return Checkpoint
local function open_adapter(args)
  for _, name in ipairs { "adapter_model.safetensors", "adapter_model.bin" } do
    local path = cbk.fs.beside(args.adapter, name, args.allow_external)
    if path then return cli.open(path, args) end
  end
  cbk.fail("io", ("'%s' has no adapter_model.safetensors and no adapter_model.bin"):format(args.adapter))
end

---@param args table
---@return Dict
local function settings_of(args)
  local path = cbk.fs.beside(args.adapter, "adapter_config.json", args.allow_external)
    or cbk.fs.join(args.adapter, "adapter_config.json")
  cli.depend_on(path, args)
  return cbk.config.load(path)
end

---The class of the model that a config is of; nil of a model that is not known.
---@param config Dict
---@return Class|nil
local function class_of(config)
  converters.load()
  local name = converters.stated_models(true, config)[1]
  return name and converters.catalogue.class_of(converters.catalogue.find(name), {}, "hf")
end

---Whether programs tie head and embeddings where the config does not say: as the model's class has it, else as transformers does.
---@param config Dict|nil
---@return boolean
local function is_tied_by_default(config)
  if not config or config.tie_word_embeddings ~= nil then return false end
  local class = class_of(config)
  local field = class and class.fields.tie_word_embeddings
  return not field or field.default == nil or field.default
end

---Warns of weights that the config ties, and that differ in the base model.
---@param config Dict|nil
---@param root Dict
local function warn_of_ties(config, root)
  local class = config and class_of(config)
  local is_known, known = warnings.quietly(function() return class and class:tensors(config) end)
  for _, difference in ipairs(is_known and known and ties.differences(known, root) or {}) do
    cbk.warn(difference .. "; the values are not changed")
  end
end

---@class FoldedAdapter
---@field root Dict            the model with the adapter
---@field config Dict|nil      that of the model; another than the base model's if head or vocabulary changed
---@field count integer        adapted weights
---@field untied? HeadTie      (fold.into)
---@field words? integer       the size of the vocabulary, if it is another one

---Folds the adapter that `--adapter` names.
---@param args table
---@param root Dict         the base model; its weights are numbers
---@param config Dict|nil   config.json of the base model
---@return FoldedAdapter
function adapter_folder.fold(args, root, config)
  local settings = adapter_settings.of(settings_of(args))
  local adapter = open_adapter(args)
  quantised.refuse(adapter:raw_root(), nil, ("cannot fold the adapter into '%s'"):format(args.base or args.checkpoint_file))
  warn_of_ties(config, root)
  local model, count, untied, words = fold.into(root, adapter.root, settings, config, is_tied_by_default(config))
  if config and untied then config = tied.untied_config(config) end
  if config and words then config = fold.resized_config(config, words) end
  return { root = model, config = config, count = count, untied = untied, words = words }
end

---"7 weights were folded into OUT"
---@param folded FoldedAdapter
---@param where string
---@param is_done boolean
---@return string
function adapter_folder.text(folded, where, is_done)
  local verb = not is_done and "would be" or folded.count == 1 and "was" or "were"
  return ("%s %s folded into %s"):format(numbers.counted(folded.count, "weight"), verb, where)
end

return adapter_folder
