-- cbk convert: a model between Hugging Face and the Model Zoo

local cbk = require "cbk"
local cli = require "cbk.cli"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local identify = require "cbk.identify"
local other_names = require "cbk.converters.other_names"
local release = require "cbk.identify.release"
local explain = require "converters.bench.explain"
local identity = require "converters.diagnosis.identity"
local plan = require "converters.bench.plan"
local advice = require "converters.diagnosis.advice"

local default_shard_size = "10GB"

local parser = cli.parser("convert", "Convert a checkpoint together with its config, streamed: memory stays small whatever the size.", [[
--model, --src-fmt and --config are detected if you leave them out: from config.json or params.yaml
beside the checkpoint, its metadata and its tensors ('cbk identify' prints why).

examples:
  cbk convert llama-folder --to cs-2.4
  cbk convert --model llama --src-fmt hf --tgt-fmt cs-2.4 --config config.json model.safetensors
  cbk convert --model llama --src-fmt cs-auto --tgt-fmt hf --config params.yaml model.mdl -o back
  cbk convert --model gpt2 --src-fmt hf --tgt-fmt cs-2.4 --config config.json gpt2 --dry-run]])
parser:argument("checkpoint_file", "a checkpoint (.bin, .safetensors, .mdl), an index.json of shards, or a folder of shards")
  :argname "CHECKPOINT"
parser:option("--model", "the model, as `cbk list` names it (default: detected)"):argname "NAME"
parser:option("--src-fmt", "its format: hf, cs-X.Y, or cs-auto to detect the release (default: detected)"):argname "FORMAT"
parser:option("--to --tgt-fmt", "the format wanted: hf, cs-X.Y or cs-current"):target("tgt_fmt"):argname("FORMAT"):count(1)
parser:option("--config", "its config: config.json or params.yaml (default: the one beside it)"):argname "FILE"
parser:option("-o --output-dir", "where to write (default: beside each input, or in its folder)"):argname "DIR"
parser:option("--hf-shard-size", "largest size of a Hugging Face shard", default_shard_size):argname "SIZE"
parser:flag("--export-safetensors", "write Hugging Face shards as safetensors")
parser:flag("--drop-unmatched-keys", "leave out keys that no rule matches, instead of failing")
parser:flag("--debug", "print on stderr how each key is converted")
parser:option("--seed", "random seed for weights that the source lacks", "0"):argname("N"):convert(cli.whole_number)
parser:option("--h5-version", "0.4 or 0.5, for Cerebras output (default: the newest that the target release reads)")
  :argname("VERSION"):choices { "0.4", "0.5" }
cli.converter_options(parser)
parser:option("--explain", "print the rule for these source or target keys (globs), and why others do not apply; write nothing")
  :argname("KEY"):count "*"
cli.output_options(parser)
cli.input_options(parser)
local args = parser:parse()

-- --- what to do

for _, key in ipairs(args.explain) do
  if key == "" then cli.usage_error("convert", "--explain: expected a key or a glob, found an empty text") end
  args.dry_run = true
end

local sizes = { B = true, KB = true, KiB = true, MB = true, MiB = true, GB = true, GiB = true }
local unit = args.hf_shard_size:match "^%d+(%a+)$"
if not sizes[unit or ""] then
  cbk.fail("usage", ("--hf-shard-size %s: expected digits and one of B, KB, KiB, MB, MiB, GB, GiB"):format(args.hf_shard_size))
end

args.checkpoint_file = args.checkpoint_file:gsub("([^/])/+$", "%1") -- a folder is named by its own name
args.config = args.config and args.config:gsub("([^/])/+$", "%1")

converters.load(args.converter, args.sandbox)
local checkpoint
local identity_found, found_names = identify.set_options(args, function()
  checkpoint = cli.open(args.checkpoint_file, args)
  return checkpoint
end)
if identity_found then
  local texts = {}
  for i, name in ipairs(found_names) do texts[i] = ("--%s %s"):format(name:gsub("_", "-"), args[name]) end
  cli.say(args, "Found: " .. cbk.shown(table.concat(texts, " ")))
end
if args.src_fmt == "cs-auto" then
  checkpoint = checkpoint or cli.open(args.checkpoint_file, args)
  args.src_fmt = identify.auto_format(checkpoint, args.model, args.tgt_fmt, cbk.config.load(args.config))
end
local route = converters.route(args.model, args.src_fmt, args.tgt_fmt)
local to_hf, parts = route.tgt == "hf", composite.parts(route)
local folders = parts and not to_hf -- the input is a folder of folders
if not parts then args.config = converters.config_file(args.config, route) end

---Where an output goes: its folder, beside or inside the input, and its name without a suffix.
local function output_of(path, name_inside)
  local folder = (folders or cbk.fs.is_dir(path)) and path or cbk.fs.dirname(path)
  local stem = folders and name_inside or converters.stem(path, route)
  return args.output_dir or folder, ("%s_to_%s"):format(stem, route.tgt)
end

local folder, name = output_of(args.checkpoint_file, "pytorch_model")
local config_folder, config_name = output_of(args.config, "config")
local targets, config_target = { cbk.fs.join(folder, to_hf and name or name .. ".mdl") }, nil
if to_hf and parts then
  for i, part in ipairs(parts) do targets[i] = cbk.fs.join(folder, part.left) end
elseif to_hf then
  config_target = cbk.fs.join(targets[1], "config.json")
else
  config_target = cbk.fs.join(config_folder, config_name .. ".yaml")
end
for _, target in ipairs(#args.explain == 0 and targets or {}) do converters.refuse_existing(target, args) end
if config_target and #args.explain == 0 then converters.refuse_existing(config_target, args) end
if args.h5_version and to_hf then cbk.warn "--h5-version is ignored: the output is in Hugging Face's format" end
if args.export_safetensors and not to_hf then cbk.warn "--export-safetensors is ignored: the output is a Cerebras checkpoint" end

-- --- the plan

if not folders then cli.depend_on(args.config, args) end
local source_config = folders and composite.load_configs(args.config, parts, args) or cbk.config.load(args.config)
local input
if folders then
  input = composite.open(args.checkpoint_file, parts, args)
else
  input = other_names.input(checkpoint or cli.open(args.checkpoint_file, args))
end
local source = input.source
local version, said = release.of_metadata(source)
if said and route.src ~= "hf" and said ~= converters.catalogue.release(route.src) then
  cbk.warn(("the checkpoint's __metadata__ says release %s, but --src-fmt is %s: it is read as %s"):format(cbk.shown(version), args.src_fmt,
    route.src))
end
local job = converters.job(route, input, {
  seed = args.seed, drop_unmatched = args.drop_unmatched_keys, is_watched = args.debug or args.dry_run, advise = advice,
})
local config = converters.config(args.model, job, source_config)
local watch = job.watch
local planned, root = pcall(function()
  local new = converters.convert.checkpoint(job, source)
  identity.refuse(job, source)
  return new
end)
if not planned and watch and #watch.steps[1] == 0 then error(root, 0) end
if #args.explain > 0 then
  local is_known, results = true, cbk.list()
  for i, key in ipairs(args.explain) do
    local lines, count = explain.lines(watch, key)
    results[i] = cbk.dict { { "key", key }, { "rules", count }, { "lines", cbk.list(lines) } }
    if i > 1 then cli.say(args, "") end
    for _, line in ipairs(lines) do cli.say(args, cbk.shown(line)) end
    is_known = is_known and count > 0
  end
  if args.json then cli.print_json(results) end
  if not planned then error(root, 0) end
  os.exit(is_known and 0 or 1)
end
local rows = watch and plan.rows(watch) or {}
if not args.json then
  local stream = args.dry_run and io.stdout or io.stderr
  for _, row in ipairs(rows) do stream:write(cbk.shown(plan.line(row)), "\n") end
  if watch then stream:write(planned and "" or "up to the error: ", plan.summary(rows), "\n") end
end
if not planned then error(root, 0) end
local doubts = identity.doubts(job, { config = source_config, root = source }, { config = config, root = root })
for _, doubt in ipairs(doubts) do cbk.warn(doubt) end

local options, config_file = { root = root }, { path = config_target, tree = config }
if to_hf then
  options.format = args.export_safetensors and "safetensors" or "torch"
  options.shard_size = args.hf_shard_size
  if job.path[#job.path].converter.tool == "1.9.1" then
    if args.hf_shard_size ~= default_shard_size then cbk.warn(("--hf-shard-size is ignored: %s writes one file"):format(job.src)) end
    options.shard_size = "1000000GB"
  end
  config_file.format, config_file.style = "json", { indent = 4 }
else
  local tgt_release = converters.catalogue.release(job.tgt)
  options.format = "h5"
  options.h5_version = args.h5_version or converters.h5_version(tgt_release)
  options.framework_version = tgt_release .. ".0"
  config_file.format, config_file.style = "yaml", { indent = 4, sort = true }
end

-- --- the output

local saved, forecast
if to_hf and parts then
  local outputs = {}
  for i, part in ipairs(parts) do
    local own = { root = root[part.left], companions = composite.files(part, config, folder) }
    for option, value in pairs(options) do own[option] = own[option] or value end
    outputs[i] = { path = targets[i], options = own }
  end
  saved, forecast = converters.write_all(outputs, args)
  config_target = cbk.fs.join(folder, "*", "config.json")
else
  saved, forecast = converters.write(targets[1], options, config_file, args)
end
local result = { { "checkpoint", parts and to_hf and folder or targets[1] }, { "config", parts and to_hf and folder or config_target } }
for field, value in cbk.items(args.dry_run and plan.tree(rows) or {}) do result[#result + 1] = { field, value } end
cli.print_result(args, saved, result, forecast)
local verb = saved and "saved" or "would be saved"
converters.say_saved(args, job, ("Checkpoint %s to %s"):format(verb, table.concat(targets, ", ")),
  ("Config %s to %s"):format(verb, config_target))
