-- cbk export: write tensors of a checkpoint for other programs: NumPy, CSV, raw bytes

local cbk = require "cbk"
local chosen_tensors = require "cbk.cli.chosen_tensors"
local cli = require "cbk.cli"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local quantised = require "cbk.quantised"
local real_values = require "cbk.cli.real_values"
local small_items = require "cbk.small_items"
local stored_form = require "cbk.stored_form"

local FORMATS = { npy = true, npz = true, csv = true, raw = true }

local parser = cli.parser("export", "Write tensors of a checkpoint for other programs.", [[
The format follows from the name of OUT, or from --format:
  .npy   one tensor, for numpy.load
  .npz   any number of tensors by their keys, for numpy.load
  .csv   one tensor as text: a line for each run along its last dim; for one dim, a line for each element
  .raw   the bytes of one tensor as they are stored: little-endian, in C order, without a header

NumPy and CSV have neither bfloat16 nor 8-bit floats. Such tensors are written as float32, which
holds all their values; with --raw, their bits are written as unsigned integers. Quantised
tensors, of GGUF files or with scales beside them, are decoded to float32; with --raw, and as .raw,
their blocks are written as bytes.

KEY is a key or a glob over whole keys; a plain name also means everything below it. A part of a tensor
is written as in NumPy, and only that is read: 'KEY[0:3, ::2]', '*.weight[..., 0]'; positions count from 0.

examples:
  cbk export model.safetensors lm_head.weight -o head.npy
  cbk export model.mdl 'model.*.bias' -o biases.npz
  cbk export pytorch_model.bin 'wte.weight[0:100]' -o wte.csv
  cbk export model.safetensors lm_head.weight -o head.raw]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("key", "a key, a glob over whole keys, or either with [PART]"):argname "KEY":args "*"
cli.key_option(parser, "key", true)
parser:option("-o --output", "what to write"):argname("OUT"):count(1)
parser:option("--format", "npy, npz, csv or raw (default: from OUT)"):argname("FORMAT"):choices { "npy", "npz", "csv", "raw" }
parser:flag("--raw", "write bfloat16 and 8-bit floats as their bits, quantised tensors as blocks (default: as float32)")
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()
if #args.key == 0 then cli.usage_error("export", "missing argument KEY") end

local function format_of_output()
  if args.format then return args.format end
  local suffix = args.output:match "%.(%w+)$"
  if FORMATS[suffix] then return suffix end
  local checkpoint = cbk.format_of_name(args.output)
  local hint = checkpoint
    and ("; for a %s checkpoint: cbk copy %s %s --include %s"):format(checkpoint, args.file, args.output, args.key[1]) or ""
  cli.usage_error("export", ("-o '%s': end the name in .npy, .npz, .csv or .raw, or pass --format%s"):format(args.output, hint))
end

local format = format_of_output()

local function exported(tensor)
  if format == "raw" then return stored_form.blocks(tensor) or tensor end
  if args.raw then return stored_form.of(tensor) end
  return stored_form.is_narrow(tensor.dtype) and tensor:to "float32" or tensor
end

local function description(tensor, source)
  local from, encoding = "", (source:storage() or {}).encoding
  if encoding then
    from = (tensor.dtype == "uint8" and " (the blocks of %s)" or " (from %s)"):format(encoding)
  elseif tensor.dtype ~= source.dtype then
    from = (args.raw and " (the bits of %s)" or " (from %s)"):format(source.dtype)
  end
  return ("%s %s%s"):format(tensor.dtype, extents.shape(tensor:shape()), from)
end

local checkpoint = cli.open(args.file, args)
small_items.check(small_items.count { checkpoint }, { checkpoint }, 2100, "export them", "take a part with `cbk copy --include`")
local has_numbers = format ~= "raw" and not args.raw
local source = has_numbers and real_values(checkpoint, args.file, args.key) or checkpoint:raw_root()
local chosen = chosen_tensors(args.file, source, args.key)
if #chosen > 1 and format ~= "npz" then
  cbk.fail("value", ("%d tensors are chosen, and a .%s file holds one; name one key, or write an .npz file"):format(#chosen, format))
end

--- Codes that cbk cannot read are no numbers: as float32 they would be wrong ones.
local function refuse_codes()
  local weights = quantised.find(source)
  local by_key = {}
  for _, one in ipairs(weights.weights) do by_key[one.key] = one end
  for _, one in ipairs(chosen) do
    local weight = by_key[one.path]
    if weight and stored_form.is_narrow(one.tensor.dtype) then
      cbk.fail("unsupported", ("cannot write %s as float32: the weight is quantised (%s), and its scales are not multiplied in here; "
        .. "--raw writes the codes as they are"):format(cbk.quote(one.key), weight.method))
    end
  end
end

if has_numbers then refuse_codes() end
for _, one in ipairs(chosen) do
  if one.whole and not has_numbers and stored_form.blocks(one.whole) then
    cbk.fail("unsupported", ("cannot write a part of the quantised %s as it is stored"):format(cbk.quote(one.key)),
      { advice = "without --raw, as .npy, its numbers are written" })
  end
end
local root = cbk.dict()
for _, one in ipairs(chosen) do
  one.exported = exported(one.tensor)
  if one.exported.role == "np_scalar" then one.exported = one.exported:as { role = "ndarray" } end
  root[one.key] = one.exported
end

cli.check_output(args.output, { args.file }, { overwrite = true }) -- what exists is refused where it is written
local written, plan = not args.dry_run, nil
if format == "csv" then
  local tensor = chosen[1].exported
  if written then cbk.write_csv(args.output, tensor, { overwrite = args.overwrite }) end
else
  local output = cbk.create(args.output, { root = root, format = format, overwrite = args.overwrite })
  written, plan = cli.commit(output, args)
end
if written then
  local entries = {}
  for i, one in ipairs(chosen) do entries[i] = { path = one.key, signature = description(one.exported, one.tensor) } end
  for _, group in ipairs(fold.groups(entries)) do
    cli.say(args, ("%s: %s"):format(group.name, group.members[1].signature))
  end
end
cli.print_result(args, written, { { "checkpoint", args.output } }, plan)
