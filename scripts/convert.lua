-- cbk convert: convert a model between Hugging Face and the Model Zoo

local adapter_folder = require "cbk.converters.adapter_folder"
local cbk = require "cbk"
local cli = require "cbk.cli"
local composite = require "cbk.converters.composite"
local hugging_face_files = require "cbk.hugging_face_files"
local converters = require "cbk.converters"
local lacking_field = require "cbk.recognise.lacking_field"
local left_out = require "cbk.recognise.left_out"
local output = require "cbk.converters.output"
local to_dtype = require "cbk.cli.to_dtype"
local ways = require "cbk.recognise.ways"
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
  cbk convert llama-folder --adapter adapter-folder --to cs-2.4
  cbk convert --model llama --src-fmt hf --tgt-fmt cs-2.4 --config config.json model.safetensors
  cbk convert --model llama --src-fmt cs-auto --tgt-fmt hf --config params.yaml model.mdl -o back
  cbk convert --model gpt2 --src-fmt hf --tgt-fmt cs-2.4 --config config.json gpt2 --dry-run]])
parser:argument("checkpoint_file", "a checkpoint (.bin, .safetensors, .mdl), an index.json of shards, or a folder of shards")
  :argname "CHECKPOINT"
converters.model_option(parser)
cli.format_options(parser, { from = "its format: hf, cs-X.Y, or cs-auto to detect the release (default: detected)",
  to = "the format wanted, such as cs-2.5 or hf; cs-current is the newest release", needs_to = true })
parser:option("--config", "its config: config.json or params.yaml (default: the one beside it)"):hidden_name("--params"):argname "FILE"
adapter_folder.option(parser, "fold an adapter of PEFT into a Hugging Face model first")
parser:option("-o --output-dir", "where to write (default: beside the input; in it, if it is a folder); a Hugging Face model is a new "
  .. "folder there, NAME_to_hf"):hidden_name("--output")
  :argname "DIR"
parser:option("--hf-shard-size", ("largest size of a Hugging Face shard (default: %s)"):format(converters.SHARD_SIZE)):argname "SIZE"
parser:flag("--export-h5-checkpoint", "no effect: Cerebras output is H5; accepted for command lines of 1.8 and 1.9")
parser:flag("--export-safetensors", "write Hugging Face shards as safetensors, not as PyTorch files (.bin)")
parser:flag("--single-file", "write pytorch_model.bin or model.safetensors for Hugging Face, without shards and index")
to_dtype.option(parser, "the model's floating tensors, after the conversion,")
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

---Refuses the format of a file, such as safetensors, in --to.
local function refuse_file_format()
  local known, name = {}, args.tgt_fmt
  for _, format in ipairs(cbk.formats()) do known[format.name] = { suffix = format.suffixes[1], written = format.written } end
  local suffix = known[name] and known[name].suffix or name and cbk.format_of_name("x." .. name) and "." .. name
  if not suffix then return end
  local what_to_do = known[name] and not known[name].written and "cbk reads such files and writes none"
    or ("`cbk copy %s NEW%s` writes such a file"):format(cbk.shown(args.checkpoint_file), suffix)
  cbk.fail("usage", ("%s %s: expected the format of a model, such as cs-2.5 or hf, found one of files"):format(
    cli.typed_format "tgt_fmt", name), { advice = what_to_do })
end

local function check_options()
  for _, key in ipairs(args.explain) do
    if key == "" then cli.usage_error("convert", "--explain: expected a key or a glob, found an empty text") end
    args.dry_run = true
  end
  if args.hf_shard_size and not SIZES[args.hf_shard_size:match "^%d+(%a+)$" or ""] then
    cbk.fail("usage", ("--hf-shard-size %s: expected digits and one of B, KB, KiB, MB, MiB, GB, GiB"):format(args.hf_shard_size))
  end
  refuse_file_format()
  args.checkpoint_file = args.checkpoint_file:gsub("([^/])/+$", "%1") -- a folder is named by its own name
  args.config = args.config and args.config:gsub("([^/])/+$", "%1")
end

---The config in errors about a field that it lacks.
---@param checkpoint Checkpoint|nil   nil: the model has several
---@param config Dict|nil
---@param src string
---@return ConvertedConfig
local function about(checkpoint, config, src)
  return { path = args.config, config = config, model = args.model, src = src, tgt = args.tgt_fmt, checkpoint = checkpoint,
    checkpoint_path = args.checkpoint_file }
end

---Sets the options that were left out.
---@param only string|nil   of converters.load
---@return Checkpoint|nil   if it had to be opened for that
---@return Identity|nil     what it was recognised as
local function detect_options(only)
  local checkpoint
  local function open()
    checkpoint = checkpoint or cli.open(args.checkpoint_file, args)
    return checkpoint
  end
  local found, names = left_out.detect(args, open, only)
  local texts = {}
  for i, name in ipairs(names) do texts[i] = ("--%s %s"):format(name:gsub("_", "-"), args[name]) end
  if args.own_config then texts[#texts + 1] = "and the config in the checkpoint" end
  if #texts > 0 then cli.say(args, "Found: " .. cbk.shown(table.concat(texts, " "))) end
  if found and found.adapter then cbk.warn(("%s; %s"):format(found.adapter.reason, found.adapter.advice)) end
  if args.src_fmt == "cs-auto" then
    local config = args.own_config or cbk.config.load(args.config)
    args.src_fmt = lacking_field.within(about(open(), config, "cs-current"), ways.auto_format, open(), args.model, args.tgt_fmt, config,
      args.config)
  end
  return checkpoint, found
end

-- --- the plan

---@param input JobInput
local function warn_of_other_release(route, input)
  local version, stated = release.of_metadata(input.whole or input.source)
  if stated and route.src ~= "hf" and stated ~= converters.catalogue.release(route.src) then
    cbk.warn(("the checkpoint's __metadata__ says release %s, but --src-fmt is %s: it is read as %s; if __metadata__ is right, use "
      .. "--src-fmt cs-auto"):format(cbk.shown(version), args.src_fmt, route.src))
  end
end

---Prints the rules of the keys that --explain names, and ends the program.
---@param watch Watch
local function print_explanation(watch, planned, problem)
  local is_known, results, print_line = true, cbk.list(), cli.printer()
  for i, key in ipairs(args.explain) do
    local lines, count = explain.lines(watch, key)
    results[i] = cbk.dict { { "key", key }, { "rules", count }, { "lines", cbk.list(lines) } }
    if i > 1 then cli.say(args, "") end
    for _, line in ipairs(args.json and {} or lines) do print_line(cbk.shown(line)) end
    is_known = is_known and count > 0
  end
  if args.json then cli.print_json(results) end
  if not planned then error(problem, 0) end
  os.exit(is_known and 0 or 1)
end

---With --dry-run the totals, and like layers in one line; with --debug every key, and the totals.
---@param rows DryRunRow[]
local function print_rows(rows, planned)
  local summary = (planned and "" or "up to the error: ") .. dry_run.summary(rows)
  if args.debug then
    for _, row in ipairs(rows) do io.stderr:write(cbk.shown(dry_run.line(row)), "\n") end
    io.stderr:write(summary, "\n")
  else
    local print_line = cli.printer()
    print_line(summary)
    for _, line in ipairs(dry_run.folded(rows)) do print_line("  " .. cbk.shown(line)) end
  end
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
---@param config Dict|nil   the source's
---@return Dict root, Dict|nil config   to write
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
---@param config Dict|nil
---@param identity Identity|nil   what the checkpoint was recognised as
---@return JobInput
---@return Dict|nil config   that belongs to it
local function read_input(checkpoint, route, config, identity)
  local input, found, own_config, dequantised = ways.input(checkpoint, route, config, identity)
  local text = contents.text(found)
  if text then cli.say(args, "Looked inside: " .. cbk.shown(text)) end
  if dequantised then cli.say(args, cbk.shown(dequantised)) end
  return input, own_config
end

---The model's tensors in another dtype, and the Hugging Face config that says so.
---@param root Dict
---@param config Dict|nil
---@param route Route
---@param dtype string
---@return Dict root, Dict|nil config
local function in_dtype(root, config, route, dtype)
  local counters = {}
  local leaf = to_dtype.caster(dtype, counters)
  local is_zoo = converters.catalogue.release(route.tgt) ~= nil
  local out = cbk.copy(root)
  if is_zoo then out.model = cbk.rewrite(root.model, { leaf = leaf }) else out = cbk.rewrite(root, { leaf = leaf }) end
  to_dtype.warn_of_counters(dtype, counters, "leave out --to-dtype")
  if is_zoo or not config then return out, config end
  config = cbk.copy(config)
  config[config.dtype ~= nil and config.torch_dtype == nil and "dtype" or "torch_dtype"] = dtype -- transformers 5, and 4
  return out, config
end

-- --- all of it

check_options()
cli.confine(args, args.output_dir or cbk.fs.folder_of(args.checkpoint_file),
  args.output_dir or cbk.fs.folder_of(args.config or args.checkpoint_file))
local checkpoint, identity = detect_options(converters.load(args.converter, args.sandbox))
converters.refuse_foreign(args.model, args)
local route = converters.route(args.model, args.src_fmt, args.tgt_fmt)
local parts = composite.parts(route)
local read_parts, written_parts = route.tgt ~= "hf" and parts or nil, route.tgt == "hf" and parts or nil
if args.config and not parts then args.config = converters.config_file(args.config) end
checkpoint = checkpoint or not read_parts and cli.open(args.checkpoint_file, args) or nil
local targets = output.targets(route, parts, args, checkpoint and checkpoint.format)
if #args.explain == 0 then output.refuse_existing(targets, args) end
output.warn_of_idle_options(targets, args)

if args.config and not read_parts then cli.depend_on(args.config, args) end
local source_config = read_parts and composite.load_configs(args.config, read_parts, args) or args.config and cbk.config.load(args.config)
  or args.own_config
if args.config and not read_parts then source_config = converters.with_states_beside(source_config, args.config) end
local input
if read_parts then
  input = composite.open(args.checkpoint_file, read_parts, args)
else
  input, source_config = read_input(checkpoint, route, source_config, identity)
end
if args.adapter then
  if route.src ~= "hf" or read_parts then
    cli.usage_error("convert", ("--adapter: it is folded into a Hugging Face model of one part, and the checkpoint is %s of %s"):format(
      route.src, args.model))
  end
  local folded = adapter_folder.fold(args, input.source, source_config)
  input.source, source_config = folded.root, folded.config
  cli.say(args, adapter_folder.text(folded, args.model, true))
end
if checkpoint then
  local count = small_items.count({ checkpoint }, source_config)
  local per_item = (args.dry_run or args.debug) and 6700 or 5200 -- the rules of each key are kept
  small_items.check(count, { checkpoint }, per_item, "convert them", "convert the checkpoint of a model")
end
warn_of_other_release(route, input)
local job = converters.job(route, input, {
  seed = args.seed, drop_unmatched = args.drop_unmatched_keys, is_watched = args.debug or args.dry_run,
})
local root, config, rows = lacking_field.within(about(checkpoint, source_config, route.src), convert, job, source_config)
if args.to_dtype then root, config = in_dtype(root, config, route, args.to_dtype) end
local saved, forecast = output.write(job, targets, written_parts, root, config, args)

local made = { table.concat(targets.checkpoints, ", "), targets.config }
local result = {
  { "checkpoint", written_parts and targets.folder or targets.checkpoints[1] },
  { "config", written_parts and targets.folder or targets.config or cbk.null },
}
for field, value in cbk.items(args.dry_run and args.json and dry_run.tree(rows) or {}) do result[#result + 1] = { field, value } end
cli.print_result(args, saved, result, forecast)
local has_others = route.src == "hf" and route.tgt ~= "hf" and not read_parts
local others = has_others and hugging_face_files.names(cbk.fs.folder_of(args.checkpoint_file)) or {}
if #others > 0 then cli.say(args, "Not converted, since only Hugging Face's programs read them: " .. table.concat(others, ", ")) end
for i, what in ipairs { "Checkpoint", "Config" } do
  made[i] = made[i] and ("%s %s to %s"):format(what, saved and "saved" or "would be saved", made[i])
end
converters.say_saved(args, job, unpack(made))
