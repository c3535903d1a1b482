-- cbk convert: convert a model between Hugging Face and the Model Zoo

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local composite = require "cbk.converters.composite"
local config_beside = require "cbk.recognise.config_beside"
local hugging_face_files = require "cbk.hugging_face_files"
local converters = require "cbk.converters"
local left_out = require "cbk.recognise.left_out"
local ways = require "cbk.recognise.ways"
local own_layout = require "cbk.converters.own_layout"
local own_layouts = require "converters.conversion.own_layouts"
local release = require "cbk.recognise.release"
local small_items = require "cbk.small_items"
local explain = require "converters.authoring.explain"
local advice = require "cbk.recognise.advice"
local contents = require "converters.conversion.contents"
local doubts = require "cbk.recognise.doubts"
local dry_run = require "converters.authoring.dry_run"


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
parser:option("-o --output-dir", "where to write (default: beside the input; inside it, if it is a folder)"):argname "DIR"
parser:option("--hf-shard-size", ("largest size of a Hugging Face shard (default: %s)"):format(converters.SHARD_SIZE)):argname "SIZE"
parser:flag("--export-safetensors", "write Hugging Face shards as safetensors")
parser:flag("--single-file", "write pytorch_model.bin or model.safetensors for Hugging Face, without shards and index")
parser:flag("--drop-unmatched-keys", "leave out a few keys that no rule matches, if the model has all weights without them")
parser:flag("--debug", "print on stderr how each key is converted")
parser:option("--seed", "random seed for weights that the source lacks", "0"):argname("N"):convert(cli.whole_number "--seed")
parser:option("--h5-version", "0.4 or 0.5, for Cerebras output (default: the newest that the target release reads)")
  :argname("VERSION"):choices { "0.4", "0.5" }
cli.converter_options(parser)
parser:option("--explain", "print the rule for these source or target keys (globs), and why others do not apply; write nothing")
  :argname("KEY"):count "*"
cli.output_options(parser)
cli.input_options(parser)
local args = parser:parse()

-- --- what to do

local SIZES = { B = true, KB = true, KiB = true, MB = true, MiB = true, GB = true, GiB = true }

local function check_options()
  for _, key in ipairs(args.explain) do
    if key == "" then cli.usage_error("convert", "--explain: expected a key or a glob, found an empty text") end
    args.dry_run = true
  end
  if args.hf_shard_size and not SIZES[args.hf_shard_size:match "^%d+(%a+)$" or ""] then
    cbk.fail("usage", ("--hf-shard-size %s: expected digits and one of B, KB, KiB, MB, MiB, GB, GiB"):format(args.hf_shard_size))
  end
  args.checkpoint_file = args.checkpoint_file:gsub("([^/])/+$", "%1") -- a folder is named by its own name
  args.config = args.config and args.config:gsub("([^/])/+$", "%1")
end

---Sets the options that were left out.
---@param only string|nil   of converters.load
---@param checkpoint Checkpoint|nil   if it is open already
---@return Checkpoint|nil   if it had to be opened for that
local function detect_options(only, checkpoint)
  local function open()
    checkpoint = checkpoint or cli.open(args.checkpoint_file, args)
    return checkpoint
  end
  local found, names = left_out.detect(args, open, only)
  if found then
    local texts = {}
    for i, name in ipairs(names) do texts[i] = ("--%s %s"):format(name:gsub("_", "-"), args[name]) end
    cli.say(args, "Found: " .. cbk.shown(table.concat(texts, " ")))
    if found.adapter then cbk.warn(found.adapter) end
  end
  if args.src_fmt == "cs-auto" then
    args.src_fmt = ways.auto_format(open(), args.model, args.tgt_fmt, cbk.config.load(args.config))
  end
  return checkpoint
end

---The config beside the checkpoint, for a table of a user's own layouts that has fields.
---@param step OwnStep
---@return string|nil path
local function config_of_own(step)
  if args.config or step.converter.without_config then return args.config end
  local found = config_beside.find(args.checkpoint_file, catalogue.release(step.src) == nil)
  if found.path then
    cli.say(args, "Found: " .. cbk.shown("--config " .. found.path))
  elseif found.problem or own_layouts.needs_config(step.converter) then
    local why = found.problem or "there is no config beside the checkpoint: name one with --config"
    cbk.warn(why .. "; fields have their defaults, if any")
  end
  return found.path
end

---@class Targets
---@field folder string        of the checkpoint
---@field checkpoints string[]  one for each part
---@field config string        a path; "*" in it is each part

---@param route Route
---@param parts Component[]|nil
---@return Targets
local function targets_of(route, parts)
  local to_hf = route.tgt == "hf"
  local reads_parts = parts and not to_hf -- the input is a folder of folders
  ---An output's folder, beside or inside the input, and its name without a suffix.
  local function place(path, name_inside)
    local stem = reads_parts and name_inside or converters.stem(path, route)
    return args.output_dir or cbk.fs.folder_of(path), ("%s_to_%s"):format(stem, route.tgt)
  end
  local folder, name = place(args.checkpoint_file, "pytorch_model")
  local out = { folder = folder, checkpoints = { cbk.fs.join(folder, to_hf and name or name .. ".mdl") } }
  if to_hf and parts then
    for i, part in ipairs(parts) do out.checkpoints[i] = composite.output_folder(folder, part) end
    out.config = cbk.fs.join(folder, "*", "config.json")
  elseif to_hf then
    out.config = cbk.fs.join(out.checkpoints[1], "config.json")
  else
    local config_folder, config_name = place(args.config, "config")
    out.config = cbk.fs.join(config_folder, config_name .. ".yaml")
  end
  return out
end

---@param targets Targets
local function refuse_existing(targets)
  if #args.explain > 0 then return end
  for _, target in ipairs(targets.checkpoints) do converters.refuse_existing(target, args) end
  converters.refuse_existing(targets.config, args)
end

-- --- the plan

---@param input JobInput
local function warn_of_other_release(route, input)
  local version, stated = release.of_metadata(input.source)
  if stated and route.src ~= "hf" and stated ~= converters.catalogue.release(route.src) then
    cbk.warn(("the checkpoint's __metadata__ says release %s, but --src-fmt is %s: it is read as %s; if __metadata__ is right, use "
      .. "--src-fmt cs-auto"):format(cbk.shown(version), args.src_fmt, route.src))
  end
end

---Whether a checkpoint is of a release, though it would be read as in a layout of the user's own.
---@param step OwnStep
---@param root Dict
local function is_of_release(step, root)
  local _, stated = release.of_metadata(root)
  return stated ~= nil and not args.src_fmt and catalogue.is_own_layout(step.src)
end

---Sets the release that a table of the user's own reads, if the checkpoint says one. Fails if the table reads others.
---@param step OwnStep   changed
---@param root Dict
local function set_release(step, root)
  local reads = step.converter[step.side == "left" and 1 or 2]
  local version, stated = release.of_metadata(root)
  if not stated or not catalogue.release(step.src) then return end
  if args.src_fmt then return warn_of_other_release(step, { source = root }) end
  local format = "cs-" .. stated
  if not catalogue.names_format(reads, format) then
    cbk.fail("unsupported", ("the checkpoint's __metadata__ says release %s, and the converter reads %s: first convert it to %s, without "
      .. "the converter's layout, or name the release with --src-fmt"):format(cbk.shown(version), reads, step.src))
  end
  step.src = format
end

---Prints the rules of the keys that --explain names, and ends the program.
---@param watch Watch
local function print_explanation(watch, planned, problem)
  local is_known, results = true, cbk.list()
  for i, key in ipairs(args.explain) do
    local lines, count = explain.lines(watch, key)
    results[i] = cbk.dict { { "key", key }, { "rules", count }, { "lines", cbk.list(lines) } }
    if i > 1 then cli.say(args, "") end
    for _, line in ipairs(lines) do cli.say(args, cbk.shown(line)) end
    is_known = is_known and count > 0
  end
  if args.json then cli.print_json(results) end
  if not planned then error(problem, 0) end
  os.exit(is_known and 0 or 1)
end

---@param rows DryRunRow[]
local function print_rows(rows, planned)
  local stream = args.dry_run and io.stdout or io.stderr
  for _, row in ipairs(rows) do stream:write(cbk.shown(dry_run.line(row)), "\n") end
  stream:write(planned and "" or "up to the error: ", dry_run.summary(rows), "\n")
end

---Prints what becomes of each key, or the rules of those that --explain names. Fails if the conversion did.
---@param watch Watch|nil   nil: nobody asked for it
---@param planned boolean
---@param problem any       if not planned
---@return DryRunRow[]
local function show(watch, planned, problem)
  if not planned and watch and #watch.steps[1] == 0 then error(problem, 0) end
  if #args.explain > 0 then print_explanation(watch, planned, problem) end
  local rows = watch and dry_run.rows(watch) or {}
  if watch and not args.json then print_rows(rows, planned) end
  if not planned then error(problem, 0) end
  return rows
end

---@param job Job
---@param config Dict   the source's
---@return Dict root, Dict config   to write
---@return DryRunRow[] rows           what becomes of each key, if that was asked for
local function convert(job, config)
  local new_config = converters.config(args.model, job, config)
  local planned, root = pcall(function()
    local new = converters.convert.checkpoint(job, job.source)
    doubts.refuse(job, config, job.source)
    return new
  end)
  root = planned and root or advice.explained(job, root)
  local rows = show(job.watch, planned, root)
  cli.warn(doubts.all(job, { config = config, root = job.source }, { config = new_config, root = root }))
  return root, new_config, rows
end

---What is converted of the checkpoint.
---@param checkpoint Checkpoint
---@param route Route
---@param config Dict
---@return JobInput
local function read_input(checkpoint, route, config)
  local input, found = ways.input(checkpoint, route, config)
  local text = contents.text(found)
  if text then cli.say(args, "Looked inside: " .. cbk.shown(text)) end
  return input
end

-- --- the output

---Names options that have no effect on an output of this kind.
---@param to_hf boolean
local function warn_of_idle_options(to_hf)
  local function tell(is_idle, text)
    if is_idle then cbk.warn(text) end
  end
  tell(to_hf and args.h5_version, "--h5-version is ignored: the output is in Hugging Face's format")
  tell(to_hf and args.single_file and args.hf_shard_size, "--hf-shard-size is ignored: --single-file writes no shards")
  tell(not to_hf and args.single_file, "--single-file is ignored: a Cerebras checkpoint is one file")
  tell(not to_hf and args.hf_shard_size, "--hf-shard-size is ignored: a Cerebras checkpoint is one file")
  tell(not to_hf and args.export_safetensors, "--export-safetensors is ignored: the output is a Cerebras checkpoint")
end

---@param job Job
---@return table   options of cbk.create
local function options_of(job)
  if job.tgt ~= "hf" then
    local number = converters.catalogue.release(job.tgt)
    return { format = "h5", h5_version = converters.h5_version(number, args.h5_version), framework_version = number .. ".0" }
  end
  local out = converters.hf_shards(args)
  out.format = args.export_safetensors and "safetensors" or "torch"
  if out.shard_size and job.path[#job.path].converter.tool == "1.9.1" then
    if args.hf_shard_size then cbk.warn(("--hf-shard-size is ignored: %s writes one file"):format(job.src)) end
    out.shard_size = "1000000GB"
  end
  return out
end

---@param job Job
---@param targets Targets
---@param parts Component[]|nil   to write
---@return boolean saved, table forecast
local function write(job, targets, parts, root, config)
  local options = options_of(job)
  if parts then
    local outputs = {}
    for i, part in ipairs(parts) do
      local own = { root = root[part.left], companions = composite.files(part, config, targets.folder) }
      for option, value in pairs(options) do own[option] = value end
      outputs[i] = { path = targets.checkpoints[i], options = own }
    end
    return converters.write_all(outputs, args)
  end
  local to_hf = job.tgt == "hf"
  options.root = root
  return converters.write(targets.checkpoints[1], options, {
    path = targets.config, tree = config, format = to_hf and "json" or "yaml", style = { indent = 4, sort = not to_hf },
  }, args)
end

-- --- all of it

check_options()
cli.confine(args, args.output_dir or cbk.fs.folder_of(args.checkpoint_file),
  args.output_dir or cbk.fs.folder_of(args.config or args.checkpoint_file))
local only = converters.load(args.converter, args.sandbox)
local own_step, checkpoint = own_layout.step(args, only), nil
if own_step then
  checkpoint = cli.open(args.checkpoint_file, args)
  if is_of_release(own_step, checkpoint.root) then own_step = nil end
end
if not own_step then
  checkpoint = detect_options(only, checkpoint)
  own_step = own_layout.step(args) -- of a model that was detected
end
if own_step then
  args.config = config_of_own(own_step)
  checkpoint = checkpoint or cli.open(args.checkpoint_file, args)
  set_release(own_step, checkpoint.root)
  return own_layout.convert(own_step, checkpoint, args, show)
end
converters.refuse_foreign(args.model, args)
local route = converters.route(args.model, args.src_fmt, args.tgt_fmt)
local to_hf, parts = route.tgt == "hf", composite.parts(route)
local read_parts, written_parts = not to_hf and parts or nil, to_hf and parts or nil
if not parts then args.config = converters.config_file(args.config) end
local targets = targets_of(route, parts)
refuse_existing(targets)
warn_of_idle_options(to_hf)

if not read_parts then cli.depend_on(args.config, args) end
local source_config = read_parts and composite.load_configs(args.config, read_parts, args) or cbk.config.load(args.config)
checkpoint = checkpoint or not read_parts and cli.open(args.checkpoint_file, args) or nil
local input = read_parts and composite.open(args.checkpoint_file, read_parts, args)
  or read_input(checkpoint, route, source_config)
if checkpoint then
  local count = small_items.count({ checkpoint }, source_config)
  small_items.check(count, { checkpoint }, 2600, "convert them", "convert the checkpoint of a model")
end
warn_of_other_release(route, input)
local job = converters.job(route, input, {
  seed = args.seed, drop_unmatched = args.drop_unmatched_keys, is_watched = args.debug or args.dry_run,
})
local root, config, rows = convert(job, source_config)
local saved, forecast = write(job, targets, written_parts, root, config)

local result = {
  { "checkpoint", written_parts and targets.folder or targets.checkpoints[1] },
  { "config", written_parts and targets.folder or targets.config },
}
for field, value in cbk.items(args.dry_run and dry_run.tree(rows) or {}) do result[#result + 1] = { field, value } end
cli.print_result(args, saved, result, forecast)
local beside = route.src == "hf" and not to_hf and not read_parts and hugging_face_files.names(cbk.fs.folder_of(args.checkpoint_file)) or {}
if #beside > 0 then cli.say(args, "Not converted, since only Hugging Face's programs read them: " .. table.concat(beside, ", ")) end
local verb = saved and "saved" or "would be saved"
converters.say_saved(args, job, ("Checkpoint %s to %s"):format(verb, table.concat(targets.checkpoints, ", ")),
  ("Config %s to %s"):format(verb, targets.config))
