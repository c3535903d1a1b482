-- cbk convert-config: a model's config between Hugging Face and the releases of the Cerebras Model Zoo.

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"

local parser = cli.parser("convert-config", "Converts a model's config file.")
parser:argument("config_file", "config.json or params.yaml"):argname "CONFIG"
parser:option("--model", "the model, as `cbk list` names it"):count(1)
parser:option("--src-fmt", "its format: hf or cs-X.Y"):count(1)
parser:option("--tgt-fmt", "the format wanted: hf, cs-X.Y or cs-current"):count(1)
parser:option("-o --output-dir", "where to write (default: beside the input)")
parser:option("--converter", "a converter file of your own")
cli.options(parser, "overwrite")
parser:flag("--debug", "accepted for old command lines; see --traceback")
local args = parser:parse()

converters.load(args.converter)
local job = converters.job(args.model, args.src_fmt, args.tgt_fmt)
local name = cbk.fs.basename(args.config_file):gsub("(.)%.[^.]*$", "%1")
local target = cbk.fs.join(args.output_dir or cbk.fs.dirname(args.config_file),
  ("%s_to_%s.%s"):format(name, job.tgt, job.tgt == "hf" and "json" or "yaml"))
converters.refuse_existing(target, args.overwrite)

local config = converters.convert.config(job, cbk.config.load(args.config_file))
if args.output_dir then cbk.fs.mkdir(args.output_dir) end
cbk.config.save(config, target, { overwrite = args.overwrite, indent = 4, sort = job.tgt ~= "hf" })
print("Config saved to " .. target)
