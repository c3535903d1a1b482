-- cbk repl: explore checkpoints in Lua, at a prompt

local cli = require "cbk.cli"

local parser = cli.parser("repl", "Explore checkpoints in Lua, at a prompt with completion, history and help.", [[
The checkpoints are opened as ckpt (and ckpt1, ckpt2, …). Without a terminal, statements are
read from standard input.

At the prompt, Tab completes, also the keys of tensors, and ':help' explains the rest.

examples:
  cbk repl model.safetensors
  echo 'ckpt["lm_head.weight"]' | cbk repl model.bin]])
parser:argument("checkpoint", "checkpoints to open"):argname "CHECKPOINT":args "*"
cli.input_options(parser)
local args = parser:parse()
require("cbk.warnings").main.is_once = false -- what is typed again may warn again

return require("cbk.repl").run(args.checkpoint, cli.reading(args))
