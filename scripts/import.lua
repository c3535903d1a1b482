-- cbk import: make a checkpoint of NumPy's files, or of the tensors of several files

local cbk = require "cbk"
local cli = require "cbk.cli"
local numbers = require "cbk.numbers"
local quantised_copy = require "cbk.cli.quantised_copy"
local ties = require "cbk.ties"

local parser = cli.parser("import", "Make a checkpoint of arrays: .npy and .npz files, or any files with tensors.", [[
The key of an .npy file is its name without the suffix, unless --key gives another one; the arrays of
an .npz file, and the tensors of any other checkpoint, keep their names. Names that occur twice are an error.

The format follows from the name of OUT, or from --format, as for 'cbk copy'.

examples:
  cbk import head.npy -o head.safetensors --key lm_head.weight
  cbk import layers.*.npy biases.npz -o model.pt --to-dtype bfloat16]])
parser:argument("file", "an .npy or .npz file, or a checkpoint; may be repeated"):argname "FILE":args "+"
parser:option("-o --output", "what to write"):argname("OUT"):count(1)
parser:option("--key", "the key of the array of an .npy file; repeat it for several, in their order"):argname("KEY"):count "*"
cli.format_option(parser, "OUT")
parser:option("--to-dtype", "convert all floating tensors to this dtype (default: unchanged)"):argname("DTYPE"):convert(cli.dtype)
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

local TENSORS = require("cbk.tensor_kinds").ARRAYS

local cast = args.to_dtype and ties.caster(args.to_dtype) or function(value) return value end

local root, source_of, next_key = cbk.dict(), {}, 1

local function add(file, key, value)
  if not (type(value) == "userdata" and TENSORS[cbk.kind(value)]) then
    cbk.fail("value", ("%s of '%s' is not a tensor"):format(cbk.quote(key), file))
  end
  if source_of[key] then
    cbk.fail("value", ("both '%s' and '%s' have %s; give one another name with --key"):format(source_of[key], file, cbk.quote(key)))
  end
  source_of[key] = file
  root[key] = cast(value):as { role = "tensor" }
end

for _, file in ipairs(args.file) do
  local checkpoint = cli.open(file, args)
  local is_array = checkpoint.format == "npy"
  if args.to_dtype then quantised_copy.new(checkpoint:raw_root(), file):check_cast(args.to_dtype) end
  for key, value in cbk.raw_leaves(checkpoint:raw_root()) do
    local given = is_array and args.key[next_key]
    if given then next_key = next_key + 1 end
    add(file, given or key, value)
  end
end
if next_key <= #args.key then
  cli.usage_error("import", ("--key: %s given for %s"):format(numbers.counted(#args.key, "key"),
    numbers.counted(next_key - 1, ".npy file")))
end

local output = cbk.create(args.output, { root = root, format = args.format, overwrite = args.overwrite })
local written, plan = cli.commit(output, args)
if written then
  cli.say(args, ("%s: %d tensor%s"):format(cbk.shown(args.output), cbk.count(root), cbk.count(root) == 1 and "" or "s"))
end
cli.print_result(args, written, { { "checkpoint", args.output } }, plan)
