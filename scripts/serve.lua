-- cbk serve: answer requests of another program, which reads checkpoints through it

local cli = require "cbk.cli"
local serve = require "cbk.serve"

local parser = cli.parser("serve", "Answer requests of another program: a line of JSON each, on stdin and stdout.", [[
It ends at the end of stdin. For Python there is a module that makes these requests: 'cbk help python'.

A request has a method, its parameters and an id of your choice. The reply has the same id, and a
result or an error as in 'cbk help json'. A line that is not a request gets an error, too.

  open     path; allow_records, allow_external, max_expansion and salvage as
           in other commands; stored: true for the codes of quantised weights.
           Result: checkpoint (its number in later requests), path, format,
           version, files, metadata, root, warnings
  value    checkpoint, at. Result: the value
  entries  checkpoint, at, first (default: 0), count (default: 1000); values:
           true to get these, too. Result: entries, a list of [key] or
           [key, value], and next: the 'first' of the next request, or null
  tensors  checkpoint, glob, first, count. Result: entries, next, of the whole
           tree by dotted keys
  read     checkpoint, at; index: [start, stop, step] of each dimension;
           stored: true for bits and blocks; files: true for places in files
  close    checkpoint

'at' is a list of steps from the root: a key of a dict (or several with dots between them), or a
position in a list. Other steps are {"entry": N}, the Nth entry of a dict, and {"state": true}, the
attributes of an object. If the first step is {"metadata": true}, the others are steps in the
metadata. Positions count from 0.

A value has a kind. Containers, such as dict and list, have a count. Tensors have dtype, shape, bytes
and array, the dtype in which they are read: float32 for bfloat16 and 8-bit floats. With 'stored',
these are unsigned integers. Other values have a value; bytes have hex.

The reply to 'read' is several lines:

  {"id": 7, "array": {"dtype": "float32", "shape": [2, 3], "bytes": 24}}
  {"bytes": 24}
  (24 bytes, little-endian in C order; more such blocks may follow)
  {"id": 7, "result": null}

The last line has an error if not all bytes could be read. With 'files', a block may be
{"bytes": N, "file": F, "offset": N}: the bytes are in that file, and not in the reply. Open it
before the next request.

examples:
  echo '{"id": 1, "method": "open", "path": "model.mdl"}' | cbk serve --stdio
  cbk serve --stdio <requests.txt >replies.bin]])
parser:flag("--stdio", "read requests from stdin, and write replies to stdout"):count(1)
parser:parse()
serve.run()
