-- cbk upgrade: bring an old run to a newer release, in one pass

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local lacking_field = require "cbk.recognise.lacking_field"
local left_out = require "cbk.recognise.left_out"
local release = require "cbk.recognise.release"
local upgrade = require "cbk.upgrade"

local parser = cli.parser("upgrade", [[
Bring a checkpoint and its config to a newer release: detect their release, repair files of
releases before 2.0, keep the state of the data loaders, and convert release by release. The plan is
printed and confirmed once; then everything is written in one pass, without files in between.]], [[
The release is detected from __metadata__, the H5 version, the weight names and the fields of the
config. If several releases remain and give different results, pass --from. The states of 1.8 and 1.9 data
loaders are read from the folder that the config names in cerebras.save_iter_state_path, below the
current folder or beside the config. 'cbk help
upgrade' has the single steps, 'cbk help releases' the rules.

examples:
  cbk upgrade checkpoint_1000.mdl --to cs-2.5
  cbk upgrade --model gpt2 --config params.yaml checkpoint_1000.mdl --to cs-2.5 --dry-run]])
parser:argument("checkpoint_file", "the checkpoint"):argname "CHECKPOINT"
converters.model_option(parser)
parser:option("--config", "its YAML config (default: the one beside it, or in it)"):argname "FILE"
cli.format_options(parser, { from = "the format it has (default: detected)",
  to = "the format wanted, such as cs-2.5; cs-2.0 or later, or cs-current", needs_to = true })
parser:option("-w --worker_data_iter_files_dir", "the states of 1.8 or 1.9 data loaders (default: as the config says)"):argname "DIR"
parser:option("-d --dataloader_type", "how the 1.8 or 1.9 run loads its data (default: as the config says)")
  :hidden_name("--dataloader-type"):choices { "map", "iterable" }
cli.shuffle_seed(parser, "-s --shuffle_seed", "seed for a map loader's state (default: what the config shuffles with)")
parser:flag("--no-dataloader-state", "ignore the states of 1.8 or 1.9 data loaders: the run begins at sample 0")
parser:option("-o --output-dir", "where to write (default: beside the inputs)"):hidden_name("--output"):argname "DIR"
parser:option("--h5-version", "0.4 or 0.5 (default: the newest that the release reads)"):argname("VERSION"):choices { "0.4", "0.5" }
parser:flag("--accept-missing", "continue if parts of the optimizer's or schedules' state are missing")
parser:flag("--drop-unmatched-keys", "leave out a few keys that no rule matches, if the model has all weights without them")
parser:flag("-y --yes", "do not ask")
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

local function resolved(option, format)
  local found = format and converters.catalogue.resolve(format, converters.catalogue.find(args.model))
  local problem = found and release.problem(found)
  if problem then cli.usage_error("upgrade", ("%s %s: %s"):format(cli.typed_format(option), format, problem)) end
  return found
end

-- --- from where to where

converters.load()
local old
if not (args.model and args.config) then
  old = upgrade.open(args.checkpoint_file, cli.reading(args))
  local from = args.src_fmt -- which upgrade.detect finds, with the evidence
  left_out.detect(args, function() return old.checkpoint end)
  args.src_fmt = from
  cli.say(args, ("Found: --model %s %s"):format(cbk.shown(args.model),
    args.config and "--config " .. cbk.shown(args.config) or "and the config in the checkpoint"))
end
local from, to = resolved("src_fmt", args.src_fmt), resolved("tgt_fmt", args.tgt_fmt)
if not converters.catalogue.since(converters.catalogue.release(to), "2.0") then
  cli.usage_error("upgrade", ("--to %s: cbk writes H5 0.4 and later, which releases before 2.0 cannot read; "
    .. "use cs-2.0 or later"):format(args.tgt_fmt))
end
if args.config then cli.depend_on(args.config, args) end
local config = args.own_config or cbk.config.load(args.config)
upgrade.check_config(config, args.config or args.checkpoint_file, ("cbk convert %s --to %s"):format(cbk.shown(args.checkpoint_file), to))
old = old or upgrade.open(args.checkpoint_file, cli.reading(args))
local options = { seed = args.shuffle_seed, kind = args.dataloader_type, without_state = args.no_dataloader_state,
  accept_missing = args.accept_missing, drop_unmatched = args.drop_unmatched_keys }
if args.no_dataloader_state and (args.worker_data_iter_files_dir or args.dataloader_type) then
  cli.usage_error("upgrade", "--no-dataloader-state cannot be combined with --worker_data_iter_files_dir or --dataloader_type")
end
local given, evidence = config, {}
local config_place = args.config or cbk.fs.join(cbk.fs.folder_of(args.checkpoint_file), "config.yaml") -- where a config would be
if args.worker_data_iter_files_dir then
  cli.folder("upgrade", "--worker_data_iter_files_dir", args.worker_data_iter_files_dir)
  config = cbk.copy(config)
  config.cerebras = cbk.dict { save_iter_state_path = args.worker_data_iter_files_dir }
else
  config = converters.with_states_beside(config, config_place)
end
if args.dataloader_type and (cbk.find(config, "cerebras.save_iter_state_path") or cbk.null) == cbk.null then
  cli.usage_error("upgrade", "--dataloader_type needs a folder of states: set cerebras.save_iter_state_path in the config, or pass "
    .. "--worker_data_iter_files_dir")
end
---The config in errors about a field that it lacks.
---@param src string
---@return ConvertedConfig
local function about(src)
  return { path = args.config, config = given, model = args.model, src = src, tgt = to, checkpoint = old.checkpoint,
    checkpoint_path = args.checkpoint_file }
end

if not from then
  local found
  found, evidence = lacking_field.within(about "cs-current", upgrade.detect, old, given, args.model, to, config, args.config)
  from = upgrade.format_at(args.model, found)
end
local since = converters.catalogue.since
if since(converters.catalogue.release(from), converters.catalogue.release(to)) then
  cbk.fail("usage", upgrade.NOTHING_TO_DO:format(args.checkpoint_file, converters.catalogue.release(from)))
end
if args.worker_data_iter_files_dir and since(converters.catalogue.release(from), "2.0") then
  cli.usage_error("upgrade", ("--worker_data_iter_files_dir: release %s keeps the states in the checkpoint")
    :format(converters.catalogue.release(from)))
end
local job = upgrade.job(args.model, from, to, options)

local function target_of(path, suffix)
  local name = ("%s_to_%s%s"):format(converters.stem(path, job), job.tgt, suffix)
  return cbk.fs.join(args.output_dir or cbk.fs.folder_of(path), name)
end
local target, config_target = target_of(args.checkpoint_file, ".mdl"), target_of(config_place, ".yaml")
converters.refuse_existing(target, args)
converters.refuse_existing(config_target, args)

-- --- the plan, and the question

local done = lacking_field.within(about(from), upgrade.run, old, config, job)
for _, part in pairs {
  upgrade.identity(done, job, { config = config, root = old.checkpoint.root }) or false, upgrade.stale(done.config, target) or false,
} do
  done.parts[#done.parts + 1] = part or nil
end
local tgt_release = converters.catalogue.release(job.tgt)
local h5_version = converters.h5_version(tgt_release, args.h5_version)

local is_unattended = args.yes or args.json -- warnings then go to stderr
local found, steps = release.lines(evidence), cbk.list()
for i, part in ipairs(done.parts) do steps[i] = cbk.dict { { "title", part.title }, { "lines", cbk.list(part.lines) } } end

cli.say(args, ("%s is of release %s"):format(args.checkpoint_file, converters.catalogue.release(job.src)))
for _, line in ipairs(found) do cli.say(args, "  " .. line) end
cli.say(args, ("Upgrade of %s from %s to %s, in one pass:"):format(args.model, job.src, job.tgt))
cli.say(args, upgrade.text(done, is_unattended))
for _, part in ipairs(is_unattended and done.parts or {}) do cli.warn(part.warnings or {}) end
cli.say(args, ("Writes %s (H5 %s) and %s"):format(target, h5_version, config_target))

if not args.dry_run and not cli.confirmed(args, "Go ahead?") then
  print "Aborted: nothing was written."
  os.exit(1)
end

-- --- the output

local written, plan = converters.write(target, {
  root = done.root, format = "h5", h5_version = h5_version, framework_version = tgt_release .. ".0",
}, { path = config_target, tree = done.config, format = "yaml", style = { indent = 4, sort = true } }, args)
if written then
  cli.say(args, "Checkpoint saved to " .. target)
  cli.say(args, "Config saved to " .. config_target)
end
cli.print_result(args, written, {
  { "checkpoint", target }, { "config", config_target }, { "from", job.src }, { "to", job.tgt },
  { "evidence", cbk.list(found) }, { "steps", steps },
}, plan)
