-- cbk tensorflow-to-h5: a TensorFlow checkpoint as an H5 file.

local cbk = require "cbk"
local cli = require "cbk.cli"
local tensorflow = require "cbk.tensorflow"

local parser = cli.parser("tensorflow-to-h5", "Convert a TensorFlow checkpoint to an H5 file, streamed.", [[
Each variable becomes a dataset of the H5 file, whose name is that of the variable percent-encoded.
H5 has no form for tensors of texts, such as the object graph of TensorFlow 2: they are left out,
and named on stderr. With --shard-size, h5_path is a folder of H5 files with their index.json.

GLOB matches whole names: '*' stands for any text, '?' for one character, [a-z], {a,b}; a plain
name also means everything below it.

examples:
  cbk tensorflow-to-h5 run/model.ckpt-1000 model.h5
  cbk tensorflow-to-h5 run model.h5 --exclude '*/Adam' --exclude '*/Adam_1'
  cbk tensorflow-to-h5 run/model.ckpt-1000 shards --shard-size 10GB]])
parser:argument("saver_path", "the prefix, its .index file, or a folder, whose 'checkpoint' file decides")
parser:argument("h5_path", "what to write")
parser:option("--shard-size", "write files of at most this size, such as 10GB"):argname("SIZE"):convert(cli.size "--shard-size")
tensorflow.options(parser)
local args = parser:parse()

local checkpoint = cli.open(args.saver_path, args)
if checkpoint.format ~= "tensorflow" then
  cbk.fail("value", ("'%s' is no TensorFlow checkpoint (%s); 'cbk copy' takes any"):format(args.saver_path, checkpoint.format))
end
tensorflow.write(checkpoint, args.h5_path, { format = "h5", h5_version = "flat", shard_size = args.shard_size }, args)
