-- cbk fold-lora-checkpoint: fold LoRA matrices into the weights

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local hf_config = require "converters.modelzoo.hf_config"
local hugging_face_files = require "cbk.hugging_face_files"
local lora = require "converters.modelzoo.lora"
local modules = require "converters.modelzoo.modules"
local peft = require "cbk.peft"

local parser = cli.parser("fold-lora-checkpoint", [[
Fold LoRA matrices into the weights that they adapt, streamed.

With --adapter, BASE is a Hugging Face model and DIR an adapter that PEFT saved. OUT is a folder of
shards with the config and the tokenizer's files, or one file if its name ends in .safetensors,
.bin or .pt.

Without it, the matrices are in a Cerebras checkpoint. Write NAME_folded beside each of its two
inputs: a Cerebras H5 checkpoint with the model alone, whatever the extension of its input is, and
the config without lora_params.]], [[
A folded weight that contains NaN is an error, and nothing is written.

examples:
  cbk fold-lora-checkpoint --adapter adapter-folder llama-folder -o merged
  cbk fold-lora-checkpoint --adapter adapter-folder model.safetensors -o merged.safetensors
  cbk fold-lora-checkpoint --model gpt2 -p params.yaml --checkpoint_path model.mdl
  cbk fold-lora-checkpoint --model llama -p params.yaml --checkpoint_path model.mdl --dry-run]])
parser:argument("base", "with --adapter: the base model, a folder or a file"):argname("BASE"):args "?"
parser:option("--adapter", "the folder of adapter_config.json and adapter_model.safetensors (or .bin)"):argname "DIR"
parser:option("-o --output", "with --adapter: what to write"):argname "OUT"
parser:option("--shard-size", "with --adapter: the largest size of a shard in a folder (default: 10GB)"):argname("SIZE")
  :convert(cli.size "--shard-size")
parser:option("--model", "the model, such as gpt2 or llama"):argname "NAME"
parser:option("-p --params", "its YAML config, with model.lora_params"):argname "FILE"
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
    if args[name] == nil then cli.usage_error("fold-lora-checkpoint", ("%s is missing, which %s needs"):format(text, form)) end
  end
  for name, text in pairs(foreign) do
    if args[name] ~= nil then cli.usage_error("fold-lora-checkpoint", ("%s is not for %s"):format(text, form)) end
  end
end

local PEFT, ZOO = { base = "BASE", output = "-o" }, { model = "--model", params = "--params", checkpoint_path = "--checkpoint_path" }

-- --- an adapter of PEFT

---The adapter's tensors.
---@return Checkpoint
local function open_adapter()
  for _, name in ipairs { "adapter_model.safetensors", "adapter_model.bin" } do
    local path = cbk.fs.join(args.adapter, name)
    if cbk.fs.exists(path) then return cli.open(path, args) end
  end
  cbk.fail("io", ("'%s' has no adapter_model.safetensors and no adapter_model.bin"):format(args.adapter))
end

---The files beside the base model that go along: config, tokenizer. The adapter's own tokenizer files replace the base model's.
local function companions()
  if not cbk.fs.is_dir(args.base) then return nil end
  local files, config = hugging_face_files.read(args.base), cbk.fs.join(args.base, "config.json")
  if cbk.fs.exists(config) then files["config.json"] = cbk.fs.read(config) end
  return hugging_face_files.read(args.adapter, files)
end

local function fold_adapter()
  check_options(PEFT, { model = "--model", params = "--params", checkpoint_path = "--checkpoint_path", h5_version = "--h5-version" },
    "--adapter")
  local settings_path = cbk.fs.join(args.adapter, "adapter_config.json")
  cli.depend_on(settings_path, args)
  local settings = peft.settings(cbk.config.load(settings_path))
  converters.refuse_existing(args.output, args)
  local base = cli.open(args.base, args)
  local model, count = peft.fold(base.root, open_adapter().root, settings)
  local format = cbk.format_of_name(args.output)
  if format and format ~= "torch" and format ~= "safetensors" then
    cli.usage_error("fold-lora-checkpoint", ("-o %s: expected a folder, .safetensors, .bin or .pt"):format(args.output))
  end
  local options = { root = model, overwrite = args.overwrite, format = format or base.format:match "^safetensors" or "torch" }
  if not format then options.shard_size, options.companions = args.shard_size or "10GB", companions() end
  local written, plan = cli.commit(cbk.create(args.output, options), args)
  cli.say(args, ("%d weights %s folded into %s"):format(count, written and "were" or "would be", args.output))
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
  lora.groups(config) -- a wrong setting is reported before the checkpoint is opened
  local checkpoint = cli.open(args.checkpoint_path, args)
  local model = converters.convert.model_of(checkpoint.root)
  local root = cbk.dict()
  root.model = lora.fold(model, config, model_name)
  if hf_config.of(checkpoint.root) then root.__metadata__ = checkpoint.root.__metadata__ end -- for the way back

  local own_version = checkpoint.format == "cerebras-h5" and tonumber(checkpoint.version)
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
  cli.usage_error("fold-lora-checkpoint", args.base and "--adapter is missing: the folder of the adapter for BASE"
    or "expected BASE and --adapter (Hugging Face), or --model, --params and --checkpoint_path (Cerebras)")
end
if args.adapter then fold_adapter() else fold_cerebras() end
