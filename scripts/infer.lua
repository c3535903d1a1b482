-- cbk infer: write the converter for two checkpoints of the same weights

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local errors = require "cbk.errors"
local infer = require "cbk.infer"
local contents = require "converters.conversion.contents"
local progress = require "cbk.progress"
local quantised = require "cbk.quantised"
local small_items = require "cbk.small_items"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local trainer = require "converters.modelzoo.trainer"

local parser = cli.parser("infer", [[
Write the converter for two checkpoints that have the same weights in two layouts. Tensors are matched
by their values: renamed, transposed, cast, joined, split, with interleaved rotary rows, tied.]], [[
The rules hold for other numbers of layers and experts (`cbk help infer` has the exceptions). What cannot
be explained is a comment in the file. With both configs, fields are paired by value, and sizes such as the number of heads are read
from the config. Without them, the converter needs no --config. It has such sizes as numbers, and refuses
tensors of other shapes where one counts; with --same-sizes, it takes them to have the same numbers.
A folder with one folder for each part of a model, as Hugging Face's LLaVA, needs the formats hf and
cs-X.Y, and --tgt-config. A tiny pair is enough. Give all sizes different values: fields are paired by these.

A format is hf, cs-X.Y, or a lower-case letter for a layout of your own. Tensors are read in blocks;
memory stays small.

Exit status: 0 all tensors are explained. 1 some are not: the converter is written without them, and they
are printed. 1 also for an error, such as a missing file: then stderr has a line that begins with "cbk:",
and no converter is written. 2 wrong usage.

examples:
  cbk infer a.safetensors b.pt -o mine.lua
  cbk infer a.bin b.mdl --src-config a.json --tgt-config b.yaml -o mine.lua]])
parser:argument("a", "a checkpoint, an index.json of shards, or a folder of shards"):argname "A"
parser:argument("b", "the same weights in another layout"):argname "B"
parser:option("-o --output", "the converter to write"):argname("FILE"):count(1)
parser:option("--model", "the model's name in the converter", "inferred"):argname "NAME"
cli.format_options(parser, { from = "the format of A", from_default = "a", to = "the format of B", to_default = "b" })
parser:option("--src-config", "A's config: config.json or params.yaml"):argname "FILE"
parser:option("--tgt-config", "B's config"):argname "FILE"
parser:flag("--same-sizes", "other checkpoints have heads of the same size, and the same ratios of parts")
cli.input_options(parser)
cli.dry_run_option(parser)
cli.options(parser, "overwrite", "no-progress-bar", "json")
local args = parser:parse()

---@param option string
local function check_format(option, format)
  local fine, why = pcall(converters.catalogue.formats, format)
  if fine then return end
  cli.usage_error("infer", ("%s: %s; or a lower-case letter, for a layout of your own"):format(option, errors.text(why)))
end

local opened = {}

---The name of a file or folder, for messages; "folder/" and "." have one, too.
local function name_of(path) return cbk.fs.basename((cbk.fs.absolute(path):gsub("/+$", ""))) end

---The folders of a Hugging Face model of several parts, each with a config; nil for anything else.
---@return Component[]|nil
local function parts_in(path)
  local out = {}
  for _, name in ipairs(cbk.fs.is_dir(path) and not cbk.fs.exists(cbk.fs.join(path, "config.json")) and cbk.fs.list(path) or {}) do
    if cbk.fs.exists(cbk.fs.join(path, name, "config.json")) then out[#out + 1] = { left = name } end
  end
  return #out > 1 and out or nil
end

---@return InferSide
local function side_of_parts(path, parts)
  local configs, input = composite.load_configs(path, parts, args), composite.open(path, parts, args)
  local out = { parts = {}, format = "hf", source = name_of(path) }
  quantised.refuse(input.source, configs, ("cannot infer a converter from '%s'"):format(path))
  for i, part in ipairs(parts) do
    out.parts[i] = { name = part.left, tensors = input.source[part.left], config = configs[part.left] }
  end
  return out
end

local function check_items()
  small_items.check(small_items.count(opened), opened, 3500, "compare them", "keep a few of each kind with `cbk copy --include`")
end

---@return InferSide
local function side_of(path, config_path, format)
  local checkpoint = cli.open(path, args)
  opened[#opened + 1] = checkpoint
  check_items()
  local config = config_path and cbk.config.load(config_path) or nil
  quantised.refuse(checkpoint:raw_root(), config, ("cannot infer a converter from '%s'"):format(path))
  local is_zoo = catalogue.release(format) ~= nil and kinds.is_dict(config) and kinds.is_dict(config, "model")
  if is_zoo or trainer.is_file(config) then config = trainer.model(config) end
  if config_path and not kinds.is_dict(config) then cbk.fail("config", ("'%s' is not a map of fields"):format(config_path)) end
  return { tensors = contents.of_layout(checkpoint.root).root, config = config, format = format, source = name_of(path),
    file = checkpoint.format, path = path }
end

local FROM, TO = cli.typed_format "src_fmt", cli.typed_format "tgt_fmt"
check_format(FROM, args.src_fmt)
check_format(TO, args.tgt_fmt)
if args.src_fmt == args.tgt_fmt then cli.usage_error("infer", ("%s and %s must differ"):format(FROM, TO)) end
local parts = { args.src_fmt == "hf" and parts_in(args.a) or nil, args.tgt_fmt == "hf" and parts_in(args.b) or nil }
for i, option in ipairs { "src_config", "tgt_config" } do
  if parts[i] then args[option] = args[option] or ({ args.a, args.b })[i] end
end
if (args.src_config == nil) ~= (args.tgt_config == nil) then
  cli.usage_error("infer", "--src-config and --tgt-config belong together: pairs of fields need both")
end
cli.check_output(args.output, { args.a, args.b, args.src_config, args.tgt_config }, args)

local left = parts[1] and side_of_parts(args.a, parts[1]) or side_of(args.a, args.src_config, args.src_fmt)
local right = parts[2] and side_of_parts(args.b, parts[2]) or side_of(args.b, args.tgt_config, args.tgt_fmt)
if right.format == "hf" then left, right = right, left end

---A function that shows how much has been read: every tensor is read twice, once to find it and once to compare it.
local function new_progress()
  if args.no_progress_bar or args.json then return function() end end
  local total = 0
  for _, side in ipairs { left, right } do
    for _, part in ipairs(side.parts or { side }) do
      for _, tensor in cbk.items(part.tensors) do total = total + 2 * tensor:nbytes() end
    end
  end
  return progress.reading(total)
end

local show = new_progress()
local found = infer.run(left, right, { model = args.model, on_read = show, has_same_sizes = args.same_sizes })
show()
if not args.dry_run then cbk.fs.write(args.output, found.text, { overwrite = args.overwrite }) end

local function count_of(side) return ("%d of %d"):format(found.matched[side], found.count[side]) end
if args.json then
  local unexplained = cbk.list()
  for i, one in ipairs(found.unexplained) do
    unexplained[i] = cbk.dict { { "side", one.side }, { "key", one.key }, { "why", one.why } }
  end
  cli.print_json(cbk.dict { { "written", not args.dry_run }, { "converter", args.output }, { "rules", #found.rules },
    { "fixed", cbk.list(found.fixed) }, { "by_name", found.by_name }, { "guesses", cbk.list(found.guesses) },
    { "left", cbk.dict { { "tensors", found.count.left }, { "explained", found.matched.left } } },
    { "right", cbk.dict { { "tensors", found.count.right }, { "explained", found.matched.right } } }, { "unexplained", unexplained } })
else
  local print_line = cli.printer()
  print_line(("%s explained: %s tensors of '%s', %s of '%s'"):format(#found.unexplained == 0 and "All" or "Not all", count_of "left",
    cbk.shown(left.source), count_of "right", cbk.shown(right.source)))
  for _, side in ipairs { "left", "right" } do
    local keys = {}
    for _, one in ipairs(found.unexplained) do keys[#keys + 1] = one.side == side and one.key or nil end
    if #keys > 0 then print_line(("  without a rule, %s: %s"):format(side, cbk.shown(naming.folded(keys, 20)))) end
  end
  if not found.is_related then print_line "  no values are in both, except equal numbers everywhere: these are not the same weights" end
  if found.by_name > 0 then
    print_line(("  %d %s matched by name only, as their values do not tell: see the comments in the file"):format(found.by_name,
      found.by_name == 1 and "rule is" or "rules are"))
  end
  if #found.fixed > 0 then
    print_line(("  rules name %s with its number, as the pair has one layer there: infer from a pair with several, or write a letter "
      .. "for the number"):format(cbk.shown(naming.listed(found.fixed, 3))))
  end
  if #found.guesses > 0 then
    print_line(("  other fields have the same values as these pairs; check them: %s"):format(cbk.shown(table.concat(found.guesses, "; "))))
  end
  local output = cbk.shown(args.output)
  local check = args.dry_run and "" or ("; check it with `cbk rules %s %s`"):format(output, cbk.shown(args.a))
  print_line(cli.saved_text(args, "Converter", output) .. check)
end
os.exit(#found.unexplained == 0 and 0 or 1)
