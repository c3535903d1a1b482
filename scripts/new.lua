-- cbk new: make a checkpoint of a model, with random weights

local cbk = require "cbk"
local classes = require "cbk.classes"
local cli = require "cbk.cli"
local config_file = require "cbk.cli.config_file"
local config_beside = require "cbk.recognise.config_beside"
local converters = require "cbk.converters"
local configs = require "cbk.recognise.configs"

local parser = cli.parser("new", [[
Make a checkpoint with the tensors of a model, from its config alone: a tiny model for a test, or a
prototype.]], [[
Weights are random and the same for the same seed; norms are ones, biases zeros, tied weights one
tensor. The suffix of the output decides its format, as for `cbk copy`.

examples:
  cbk new config.json -o model.safetensors
  cbk new params.yaml --model llama --from cs-2.4 -o model.mdl --init zeros]])
parser:argument("config", "config.json or params.yaml, or a YAML file with the section 'model' alone"):argname "CONFIG"
parser:option("-o --output", "the checkpoint to write"):argname("FILE"):count(1)
converters.model_option(parser)
cli.format_options(parser, { from = "the config's format (default: hf for config.json, else the newest release)" }):hidden_name "--format"
parser:option("--seed", "random seed", "0"):argname("N"):convert(cli.whole_number "--seed")
parser:option("--init", "normal: random weights; zeros: all zeros", "normal"):choices { "normal", "zeros" }
cli.converter_options(parser)
cli.output_options(parser)
local args = parser:parse()

cli.confine(args, cbk.fs.dirname(args.output))
local only = converters.load(args.converter, args.sandbox)
converters.refuse_existing(args.output, args)
config_file.check_model(args.config)
local config = config_beside.load(args.config)
local model, format = configs.model_of(config, args.model or only, args.src_fmt)
converters.refuse_foreign(model, args)
local root = classes.new(config, model, format, { seed = args.seed, init = args.init })
local options = { root = root, overwrite = args.overwrite or args.dry_run }
format = converters.catalogue.resolve(format, converters.catalogue.find(model))
local release = converters.catalogue.release(format)
if release and cbk.format_of_name(args.output) == "h5" then
  options.h5_version, options.framework_version = converters.h5_version(release), release .. ".0"
end
local has_model = converters.catalogue.is_own_layout(format) and cbk.format_of_name(args.output) == "h5" and args.output:find "%.mdl$"
if has_model then options.root = cbk.dict { model = root } end -- as `cbk convert` writes it
local out = cbk.create(args.output, options)
local saved, forecast = cli.commit({ out }, args)
cli.print_result(args, saved, { { "checkpoint", args.output }, { "model", model }, { "format", format } }, forecast)
local remark = release and not args.src_fmt and ", the newest release; --from names another" or ""
cli.say(args, ("Checkpoint of %s (%s%s) %s to %s"):format(model, format, remark, saved and "saved" or "would be saved", args.output))
