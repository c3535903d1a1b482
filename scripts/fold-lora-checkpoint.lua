-- cbk fold-lora-checkpoint: fold LoRA matrices into the weights

local adapter_folder = require "cbk.converters.adapter_folder"
local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local dequantised = require "cbk.dequantised"
local converter_list = require "cbk.converters.list"
local hf_config = require "converters.modelzoo.hf_config"
local hugging_face_files = require "cbk.hugging_face_files"
local kinds = require "converters.engine.kinds"
local lora = require "converters.modelzoo.lora"
local modules = require "converters.modelzoo.modules"
local quantised = require "cbk.quantised"
local weights = require "converters.conversion.weights"

local parser = cli.parser("fold-lora-checkpoint", [[
Fold LoRA matrices into the weights that they adapt, streamed.

With --adapter, BASE is a Hugging Face model and DIR an adapter that PEFT saved. OUT is a folder of
shards with the config and the tokenizer's files, or one file if its name ends in .safetensors,
.bin or .pt.

Without it, the matrices are in a Cerebras checkpoint. Write NAME_folded beside each of its two
inputs: a Cerebras H5 checkpoint with the model alone, whatever the extension of its input is, and
the config without lora_params.]], [[
A folded weight that contains NaN is an error, and nothing is written.

Where the base model ties its head to the embeddings and the adapter trained one of them, both are
written, with a warning, and the new config.json says tie_word_embeddings: false.

examples:
  cbk fold-lora-checkpoint --adapter adapter-folder llama-folder -o merged
  cbk fold-lora-checkpoint --adapter adapter-folder model.safetensors -o merged.safetensors
  cbk fold-lora-checkpoint --model gpt2 -p params.yaml --checkpoint_path model.mdl
  cbk fold-lora-checkpoint --model llama -p params.yaml --checkpoint_path model.mdl --dry-run]])
parser:argument("base", "with --adapter: the base model, a folder or a file"):argname("BASE"):args "?"
adapter_folder.option(parser, "an adapter of PEFT")
parser:option("-o --output", "with --adapter: what to write"):argname "OUT"
parser:option("--shard-size", "with --adapter: the largest size of a shard in a folder (default: 10GB)"):argname("SIZE")
  :convert(cli.size "--shard-size")
parser:option("--model", "the model, such as gpt2 or llama"):argname "NAME"
parser:option("-p --params --config", "its YAML config, with lora_params in the model section"):argname "FILE"
parser:option("--checkpoint_path", "the checkpoint"):argname "FILE"
parser:option("--h5-version", "0.4 or 0.5 (default: the checkpoint's version, else 0.5)"):argname("VERSION"):choices { "0.4", "0.5" }
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

---Refuses options of the other form, and names those that are missing.
---@param needed table<string, string>   names in args, with how they are written
---@param foreign table<string, string>
local function check_options(needed, foreign, form)
  for name, text in pairs(needed) do
    if args[name] == nil then cli.usage_error("fold-lora-checkpoint", ("missing option '%s', which %s needs"):format(text, form)) end
  end
  for name, text in pairs(foreign) do
    if args[name] ~= nil then cli.usage_error("fold-lora-checkpoint", ("%s is not for %s"):format(text, form)) end
  end
end

local PEFT, ZOO = { base = "BASE", output = "-o" }, { model = "--model", params = "--params", checkpoint_path = "--checkpoint_path" }

-- --- an adapter of PEFT

---The path of the base model's config.json; nil if it has none.
local function base_config()
  local folder = cbk.fs.folder_of(args.base)
  return cbk.fs.beside(folder, "config.json", args.allow_external)
end

---The files beside the base model that go along: config, tokenizer. The adapter's own tokenizer files replace the base model's.
---@param config_text string|nil
local function companions(config_text)
  if not cbk.fs.is_dir(args.base) then return nil end
  local allowed = args.allow_external
  local files = hugging_face_files.read(args.base, allowed)
  files["config.json"] = config_text
  files = hugging_face_files.read(args.adapter, allowed, files)
  return next(files) ~= nil and files or nil
end

---The text of the config for the output. The base model's may say that the weights are quantised, although those that are written
---are not, and that the head is tied.
---@param path string|nil      the base model's config
---@param folded FoldedAdapter
---@param is_dequantised boolean   the base model's weights were quantised
---@return string|nil
local function config_text(path, folded, is_dequantised)
  local stated = path and quantised.stated(cbk.config.load(path))
  if stated and not is_dequantised then
    cbk.warn(("'%s' says that the weights are quantised (%s), but none are: '%s' is left out of the new config"):format(path, stated.method,
      stated.field))
  end
  local untied, words = folded.untied, folded.words
  if untied then
    local is_written = path and cbk.fs.is_dir(args.base) and not cbk.format_of_name(args.output)
    cbk.warn(("the adapter's weights untie '%s' from '%s': both are written, %s"):format(untied.head, untied.embedding,
      is_written and "with tie_word_embeddings: false in the config" or "and the output's config.json needs tie_word_embeddings: false"))
  end
  if words then
    cbk.warn(("the adapter's embeddings have %d words: the config's vocab_size has to be %d, and the tokenizer the adapter's"):format(words,
      words))
  end
  if not (stated or untied or words) then return path and cbk.fs.read(path) end
  local config = folded.config and quantised.without_fields(folded.config)
  return config and cbk.config.dump(config, "json", { indent = 2 })
end

---Whether a checkpoint has more than tensors, as that of a trainer, in which the weights are looked for.
local function has_dicts(root)
  for _, value in cbk.items(kinds.is_dict(root) and root or cbk.dict()) do
    if kinds.is_dict(value) then return true end
  end
  return false
end

local function fold_adapter()
  check_options(PEFT, { model = "--model", params = "--params", checkpoint_path = "--checkpoint_path", h5_version = "--h5-version" },
    "--adapter")
  local format = cbk.format_of_name(args.output)
  if format and args.shard_size then
    cli.usage_error("fold-lora-checkpoint", ("--shard-size: '%s' is one file; name a folder for shards"):format(args.output))
  end
  converters.refuse_existing(args.output, args)
  local base = cli.open(args.base, args)
  local config_path = base_config()
  if config_path then cli.depend_on(config_path, args) end
  local config = config_path and cbk.config.load(config_path)
  config = cbk.kind(config) == "dict" and config or nil
  local cannot = ("cannot fold the adapter into '%s'"):format(args.base)
  local inner = has_dicts(base.root) and weights.of(base.root, args.base) or base.root
  local root, own_config, dequantised_text, found = dequantised.model(inner, config, cannot)
  if #found.narrow > 0 then -- perhaps codes that lost their scales
    cbk.fail("unsupported", quantised.narrow_problem(found.narrow, "the base model"), { context = { cannot } })
  end
  if dequantised_text then cli.say(args, cbk.shown(dequantised_text)) end
  local folded_in = adapter_folder.fold(args, root, own_config)
  if format and format ~= "torch" and format ~= "safetensors" then
    cli.usage_error("fold-lora-checkpoint", ("-o %s: expected a folder, .safetensors, .bin or .pt"):format(args.output))
  end
  local options = { root = folded_in.root, overwrite = args.overwrite, format = format or base.format:match "^safetensors" or "torch" }
  local text = config_text(config_path, folded_in, dequantised_text ~= nil)
  if not format then options.shard_size, options.companions = args.shard_size or "10GB", companions(text) end
  local written, plan = cli.commit(cbk.create(args.output, options), args)
  cli.say(args, adapter_folder.text(folded_in, args.output, written))
  cli.print_result(args, written, { { "checkpoint", args.output } }, plan)
end

-- --- matrices in a Cerebras checkpoint

---The Model Zoo's name of the model; some models have further names for conversions.
local function zoo_model(name)
  if modules.models[name] then return name end
  converters.load()
  local model, zoo_name = converters.catalogue.find(name)
  if not model then
    local names, listed = converters.catalogue.names(), {}
    for _, known in ipairs(names) do listed[known] = true end
    for known in pairs(modules.models) do
      if not listed[known] then names[#names + 1] = known end
    end
    cli.usage_error("fold-lora-checkpoint", ("there is no model '%s'; %s"):format(name, converter_list.advice(name, names)))
  end
  return zoo_name
end

local function folded(path)
  local stem, extension = path:match "^(.*[^/.])(%.[^./]*)$"
  return (stem or path) .. "_folded" .. (extension or "")
end

local function fold_cerebras()
  check_options(ZOO, { base = "BASE", output = "-o", shard_size = "--shard-size" }, "a Cerebras checkpoint")
  local model_name = zoo_model(args.model)
  local target, config_target = folded(args.checkpoint_path), folded(args.params)
  converters.refuse_existing(target, args)
  converters.refuse_existing(config_target, args)

  cli.depend_on(args.params, args)
  local config = cbk.config.load(args.params)
  lora.groups(config, args.params) -- a wrong setting is reported before the checkpoint is opened
  local checkpoint = cli.open(args.checkpoint_path, args)
  local model = converters.convert.model_of(checkpoint.root, args.checkpoint_path)
  local dequantised_text
  model, config, dequantised_text = dequantised.model(model, config, ("cannot fold LoRA in '%s'"):format(args.checkpoint_path))
  if dequantised_text then cli.say(args, cbk.shown(dequantised_text)) end
  local root = cbk.dict()
  lora.refuse_masks(checkpoint.root)
  root.model = lora.fold(model, config, model_name)
  if hf_config.of(checkpoint.root) then root.__metadata__ = checkpoint.root.__metadata__ end -- for the way back

  local own_version = checkpoint.format == "cerebras-h5" and tonumber(checkpoint.version)
  if args.h5_version == "0.5" and own_version and own_version < 0.45 then
    cbk.warn(("releases up to 2.4 cannot read H5 0.5, and '%s' is H5 %s; leave out --h5-version 0.5 to write 0.4"):format(
      args.checkpoint_path, checkpoint.version))
  end
  local written, plan = converters.write(target, {
    root = root, format = "h5", h5_version = args.h5_version or own_version and own_version < 0.45 and "0.4" or "0.5",
  }, {
    path = config_target, tree = lora.config(config, model), style = { indent = 2 },
    format = config_target:find "%.json$" and "json" or "yaml",
  }, args)
  if written then
    if cbk.format_of_name(target) ~= "h5" then
      cbk.warn(("'%s' is a Cerebras H5 checkpoint, despite its name; `cbk copy` converts it to other formats"):format(target))
    end
    cli.say(args, "Saved folded config to: " .. config_target)
    cli.say(args, "Saved folded checkpoint to: " .. target)
  end
  cli.print_result(args, written, { { "checkpoint", target }, { "config", config_target } }, plan)
end

if not args.adapter and not args.checkpoint_path then
  cli.usage_error("fold-lora-checkpoint", args.base and "missing option '--adapter': the folder of the adapter for BASE"
    or "expected BASE and --adapter (Hugging Face), or --model, --params and --checkpoint_path (Cerebras)")
end
if args.adapter then fold_adapter() else fold_cerebras() end
