-- cbk dump: print the whole content of a checkpoint as JSON

local cli = require "cbk.cli"
local expected = require "cbk.cli.expected"

local parser = cli.parser("dump", "Print the whole content of a checkpoint as JSON (schema cbk-expected/1).", [[
For a tensor of more than 4096 bytes, the SHA-256 of its bytes is printed. The output is streamed: it
may be large, but memory stays small.

examples:
  cbk dump model.mdl | jq '.root.items[0]'
  cbk dump pytorch_model.bin >content.json]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
cli.input_options(parser)
parser:flag("--json", "print errors and warnings as JSON too; the output always is")
local args = parser:parse()

local checkpoint = cli.open(args.file, args)
io.stdout:setvbuf("full", 65536)
expected.write(checkpoint, function(text) io.stdout:write(text) end)
