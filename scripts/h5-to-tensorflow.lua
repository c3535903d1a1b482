-- cbk h5-to-tensorflow: convert an H5 file to a TensorFlow checkpoint

local cbk = require "cbk"
local cli = require "cbk.cli"
local tensorflow = require "cbk.cli.tensorflow"

local parser = cli.parser("h5-to-tensorflow", "Convert an H5 file to a TensorFlow checkpoint, streamed.", [[
Each dataset becomes a variable. In a training checkpoint, these are all tensors and numbers, under
their dotted names. Texts and None are left out, with a warning.

Writes SAVER_PATH.data-00000-of-00001 (several such files with --shard-size), then
SAVER_PATH.index, and then the state file 'checkpoint' of the folder, which names the new
checkpoint as its latest one. All these files are open while they are written; if the system does
not allow that many (ulimit -Hn), the error names a shard size that fits.

GLOB matches whole names: '*' matches any text, '?' one character, [a-z], {a,b}; a plain
name also means everything below it.

examples:
  cbk h5-to-tensorflow model.h5 run/model.ckpt-1000
  cbk h5-to-tensorflow shards run/model.ckpt-1000 --shard-size 10GB]])
parser:argument("h5_path", "an H5 file, or a folder written by tensorflow-to-h5 --shard-size or --shard-by")
parser:argument("saver_path", "the prefix to write under")
parser:option("--shard-size", "write data files of at most this size, such as 10GB (default: one file)"):argname("SIZE")
  :convert(cli.size "--shard-size")
tensorflow.options(parser)
local args = parser:parse()

local checkpoint = cli.open(args.h5_path, args)
if not checkpoint.format:find "h5" then
  cbk.fail("value", ("'%s' is not an H5 file (%s); 'cbk copy' reads others"):format(args.h5_path, checkpoint.format))
end

local SCALARS = { bool = "bool", float = "float64" }
local TENSORS = require("cbk.tensor_kinds").ARRAYS

local function scalar(value, dtype) return cbk.full({}, value, { dtype = dtype }) end

---A whole number of Python, which has no bounds; nil beyond 64 bits.
local function whole(value)
  if value.value then return scalar(value.value, "int64") end
  local digits = tostring(value):match "^%d+$" or ("9"):rep(21)
  if #digits > 20 or #digits == 20 and digits > "18446744073709551615" then return nil end
  local out = 0ULL
  for digit in digits:gmatch "." do out = out * 10 + tonumber(digit) end
  return scalar(out, "uint64")
end

---Numbers of Python are scalars in H5, so they are here; a text or None has no array.
local function convert(_, value)
  local kind = cbk.kind(value)
  if SCALARS[kind] then return scalar(value.value, SCALARS[kind]) end
  if kind == "int" then
    local number = whole(value)
    return number, not number and ("no dtype holds a number like %s"):format(cbk.shown(tostring(value))) or nil
  end
  if kind == "np_scalar" then return value:as { role = "ndarray" } end
  if TENSORS[kind] or kind == "object" and value.type == "tensorflow.tensor" then return value end
  if kind == "object" and value.type == "unreadable" then
    if value.repr:find("has no data", 1, true) then return nil, value.repr end
    cbk.fail("unsupported", value.repr .. "; --exclude leaves it out")
  end
  return nil, ("it is not an array (%s)"):format(kind)
end

local options = { format = "tensorflow", shard_size = args.shard_size }
tensorflow.write("h5-to-tensorflow", "TensorFlow checkpoint", checkpoint, args.saver_path, options, args, convert)
