-- cbk fold-lora-checkpoint: fold LoRA matrices into the weights

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local hf_config = require "converters.modelzoo.hf_config"
local lora = require "converters.modelzoo.lora"
local modules = require "converters.modelzoo.modules"

local parser = cli.parser("fold-lora-checkpoint", [[
Fold the LoRA matrices of a Cerebras checkpoint into the weights that they adapt, streamed. Write
NAME_folded beside each of its two inputs: a Cerebras H5 checkpoint with the model alone, whatever
the extension of its input is, and the config without lora_params.]], [[
A folded weight that contains NaN is an error, and nothing is written.

examples:
  cbk fold-lora-checkpoint --model gpt2 -p params.yaml --checkpoint_path model.mdl
  cbk fold-lora-checkpoint --model llama -p params.yaml --checkpoint_path model.mdl --dry-run]])
parser:option("--model", "the model, such as gpt2 or llama"):argname("NAME"):count(1)
parser:option("-p --params", "its YAML config, with model.lora_params"):argname("FILE"):count(1)
parser:option("--checkpoint_path", "the checkpoint"):argname("FILE"):count(1)
parser:option("--h5-version", "0.4 or 0.5 (default: the checkpoint's version, else 0.5)"):argname("VERSION"):choices { "0.4", "0.5" }
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

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
    local near = converter_list.nearest(name, names)
    cli.usage_error("fold-lora-checkpoint", ("there is no model '%s'"):format(name)
      .. (#near > 0 and ("; did you mean %s?"):format(table.concat(near, " or ")) or ""))
  end
  return zoo_name
end

local function folded(path)
  local stem, extension = path:match "^(.*[^/.])(%.[^./]*)$"
  return (stem or path) .. "_folded" .. (extension or "")
end

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
