-- cbk convert: a checkpoint and its config between Hugging Face and the releases of the Cerebras Model Zoo.

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local explain = require "converters.bench.explain"
local plan = require "converters.bench.plan"

local default_shard_size = "10GB"

local parser = cli.parser("convert", "Converts a checkpoint together with its config, streamed: memory stays small whatever the size.")
parser:argument("checkpoint_file", "a checkpoint, an index.json of shards, or a folder of shards"):argname "CHECKPOINT"
parser:option("--model", "the model, as `cbk list` names it"):count(1)
parser:option("--src-fmt", "its format: hf, cs-X.Y, or cs-auto (from the checkpoint)"):count(1)
parser:option("--tgt-fmt", "the format wanted: hf, cs-X.Y or cs-current"):count(1)
parser:option("--config", "its config: config.json or params.yaml"):count(1)
parser:option("-o --output-dir", "where to write (default: beside the inputs)")
parser:option("--hf-shard-size", "largest size of a Hugging Face shard", default_shard_size)
parser:flag("--export-safetensors", "write Hugging Face shards as safetensors")
parser:flag("--drop-unmatched-keys", "leave out keys that no rule matches, instead of failing")
parser:flag("--debug", "print what becomes of each key")
parser:option("--seed", "of values that a checkpoint lacks and that are invented", "0"):convert(cli.whole_number)
parser:option("--h5-version", "version of a Cerebras H5 output (default: what the target release reads)")
parser:option("--converter", "a converter file of your own")
parser:option("--explain", "tell of these keys (of either side; globs) which rule takes them, and why no other; writes nothing")
  :argname "KEY"
cli.output_options(parser)
cli.options(parser, "json")
local args = parser:parse()

-- --- what to do

if args.json and not args.dry_run then cli.usage_error("convert", "--json tells the plan: give it with --dry-run") end
if args.explain then args.dry_run = true end
if args.quiet then cbk.warn = function() end end

local sizes = { B = true, KB = true, KiB = true, MB = true, MiB = true, GB = true, GiB = true }
local unit = args.hf_shard_size:match "^%d+(%a+)$"
if not sizes[unit or ""] then
  cbk.fail("usage", ("--hf-shard-size %s: digits and one of B, KB, KiB, MB, MiB, GB, GiB are expected"):format(args.hf_shard_size))
end

args.checkpoint_file = args.checkpoint_file:gsub("([^/])/+$", "%1") -- a folder is named by its own name
args.config = args.config:gsub("([^/])/+$", "%1")

converters.load(args.converter)
local checkpoint
if args.src_fmt == "cs-auto" then
  checkpoint = cli.open(args.checkpoint_file, args)
  args.src_fmt = converters.convert.format_of(checkpoint.root)
end
local job = converters.job(args.model, args.src_fmt, args.tgt_fmt)
job.seed, job.drop_unmatched = args.seed, args.drop_unmatched_keys

local to_hf = job.tgt == "hf"
local function beside(path) return args.output_dir or cbk.fs.dirname(path) end
local target = cbk.fs.join(beside(args.checkpoint_file),
  ("%s_to_%s%s"):format(converters.stem(args.checkpoint_file, job), job.tgt, to_hf and "" or ".mdl"))
local config_target = to_hf and cbk.fs.join(target, "config.json")
  or cbk.fs.join(beside(args.config), ("%s_to_%s.yaml"):format(converters.stem(args.config, job), job.tgt))
if not args.dry_run then
  converters.refuse_existing(target, args.overwrite)
  converters.refuse_existing(config_target, args.overwrite)
end
if args.export_safetensors and not to_hf then cbk.warn "--export-safetensors says nothing about a CS output" end

-- --- the plan

local config = converters.convert.config(job, cbk.config.load(args.config))
checkpoint = checkpoint or cli.open(args.checkpoint_file, args)
local watch = (args.debug or args.dry_run or args.explain) and plan.watch(job)
local planned, root = pcall(converters.convert.checkpoint, job, checkpoint.root)
if not planned and watch and #watch.steps[1] == 0 then error(root, 0) end
if args.explain then
  local lines, count = explain.lines(watch, args.explain)
  for _, line in ipairs(lines) do print(line) end
  if not planned then error(root, 0) end
  os.exit(count > 0 and 0 or 1)
end
local rows = watch and plan.rows(watch) or {}
if not args.json then
  local stream = args.dry_run and io.stdout or io.stderr
  for _, row in ipairs(rows) do stream:write(plan.line(row), "\n") end
  if watch then stream:write(plan.summary(rows), "\n") end
end
if not planned then error(root, 0) end

local options, written = { root = root }, { path = config_target, tree = config }
if to_hf then
  options.format = args.export_safetensors and "safetensors" or "torch"
  options.shard_size = args.hf_shard_size
  if job.path[#job.path].converter.one_file then
    if args.hf_shard_size ~= default_shard_size then cbk.warn(("--hf-shard-size: from %s one file is written"):format(job.src)) end
    options.shard_size = "1000000GB"
  end
  options.shard_stem = args.export_safetensors and "model" or "pytorch_model"
  if args.export_safetensors then options.metadata = { format = "pt" } end
  written.format, written.style = "json", { indent = 4 }
else
  local release = converters.catalogue.release(job.tgt)
  options.format = "h5"
  options.h5_version = args.h5_version or converters.h5_version(release)
  options.framework_version = release .. ".0"
  written.format, written.style = "yaml", { indent = 4, sort = true }
end

-- --- the output

local saved, forecast = converters.write(target, options, written, args)
if args.json and not saved then
  cli.print_json(plan.tree(rows, forecast, target, config_target))
  return
elseif not saved then
  print("Checkpoint would be saved to " .. target)
  print("Config would be saved to " .. config_target)
  return
end
print("Checkpoint saved to " .. target)
print("Config saved to " .. config_target)
