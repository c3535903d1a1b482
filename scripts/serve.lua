-- cbk serve: answer requests of another program, which reads checkpoints through it

local cli = require "cbk.cli"
local serve = require "cbk.serve"

local parser = cli.parser("serve", "Answer requests of another program: a line of JSON each, on stdin and stdout.", [[
It ends at the end of stdin. For Python there is a module that speaks this: 'cbk help python'.

A request has a method, its parameters and an id of your choice. The reply has the same id, and a
result or an error as in 'cbk help json'. A line that is not a request gets an error, too.

  open     path; allow_records, allow_external, max_expansion, salvage as the options of other
           commands; stored: true for the codes of quantised weights, not their numbers.
           Result: checkpoint (a number for later requests), format, version, path, files,
           metadata, root, warnings
  value    checkpoint, at. Result: the value
  entries  checkpoint, at, first (default: 0), count (default: 1000), values: true or false.
           Result: entries, a list of [key] or [key, value], and next: what 'first' is for more
  tensors  checkpoint, glob, first, count. Result: entries, next, of the whole tree by dotted keys
  read     checkpoint, at; index: a list of [start, stop, step], one for each dimension; stored:
           true for bits and blocks, not their numbers; files: true to get places in files. See below
  close    checkpoint

'at' is a list of steps from the root: a key of a dict (or several with dots between them), the
position in a list, {"entry": N} for the Nth entry of a dict, {"state": true} for the attributes of
an object; {"metadata": true} as the first one for the metadata. Positions count from 0.

A value has a kind. Containers (dict, list, tuple, …) have a count, tensors dtype, shape, bytes and
array: the dtype of their elements in a reply. bfloat16 and 8-bit floats are float32 there, or
unsigned integers with 'stored'. Other values have a value; bytes have hex.

The reply to 'read' begins with a line {"id": …, "array": {"dtype": …, "shape": …, "bytes": …}}.
Blocks follow: a line {"bytes": N}, and N bytes, little-endian in C order. With 'files', the line may
be {"bytes": N, "file": …, "offset": …}: then the bytes are there, for a faster read, and not in the
reply. Open the file before the next request. The last line has the result (null), or an error if
not all bytes could be read.

examples:
  echo '{"id": 1, "method": "open", "path": "model.mdl"}' | cbk serve --stdio
  cbk serve --stdio <requests.txt >replies.bin]])
parser:flag("--stdio", "read requests from stdin, and write replies to stdout")
local args = parser:parse()

if not args.stdio then cli.usage_error("serve", "--stdio is needed: requests come from stdin only") end
serve.run()
