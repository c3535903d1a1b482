-- cbk tensorflow-to-h5: convert a TensorFlow checkpoint to an H5 file

local cbk = require "cbk"
local cli = require "cbk.cli"
local tensorflow = require "cbk.cli.tensorflow"

local parser = cli.parser("tensorflow-to-h5", "Convert a TensorFlow checkpoint to an H5 file, streamed.", [[
Each variable becomes a dataset of the H5 file, named by the percent-encoded name of the variable.
Tensors of texts are left out with a warning; with --strings they become
datasets of strings. Quantised variables and the object graph of TensorFlow 2 have no form in H5 and
are always left out. Datasets are not compressed: trained weights hardly shrink, and without compression
they are written at the speed of a copy and can be mapped.
With --shard-size, H5_PATH is a folder of H5 files with their index.json.

GLOB matches whole names: '*' matches any text, '?' one character, [a-z], {a,b}; a plain
name also means everything below it.

examples:
  cbk tensorflow-to-h5 run/model.ckpt-1000 model.h5
  cbk tensorflow-to-h5 run model.h5 --exclude '*/Adam' --exclude '*/Adam_1'
  cbk tensorflow-to-h5 run/model.ckpt-1000 shards --shard-size 10GB]])
parser:argument("saver_path", "the prefix, its .index file, or a folder with a 'checkpoint' file")
parser:argument("h5_path", "what to write")
parser:option("--shard-size", "write files of at most this size, such as 10GB (default: one file)"):argname("SIZE")
  :convert(cli.size "--shard-size")
parser:flag("--strings", "store tensors of texts too, as datasets of variable-length strings")
tensorflow.options(parser)
local args = parser:parse()

tensorflow.check_path(args.saver_path)
local checkpoint = cli.open(args.saver_path, args)
if checkpoint.format ~= "tensorflow" then
  cbk.fail("value", ("'%s' is not a TensorFlow checkpoint (%s); 'cbk copy' reads others"):format(args.saver_path, checkpoint.format))
end

local OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

local function convert(name, value)
  if name == "." or name == ".." then
    cbk.fail("value", ("the variable '%s' cannot be a dataset: other variables make it a group; leave it out with --exclude %s")
      :format(name, name))
  end
  local foreign = cbk.kind(value) == "object" and value.type == "tensorflow.tensor" and value.state.dtype
  local is_text = foreign == "string"
  if is_text and name == OBJECT_GRAPH then return nil, "the object graph of TensorFlow means nothing in H5" end
  if is_text and not args.strings then return nil, "it holds texts; --strings stores them" end
  if foreign and not is_text then return nil, ("it is quantized (%s), which H5 cannot say"):format(foreign) end
  return value
end

local options = { format = "h5", h5_version = "flat", keep_texts = true, shard_size = args.shard_size }
local has_shards = args.shard_size or #args.shard_by > 0
local what = has_shards and "H5 files" or "H5 file"
tensorflow.write("tensorflow-to-h5", what, checkpoint, args.h5_path, options, args, convert)
