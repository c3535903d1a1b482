-- What the two commands between TensorFlow checkpoints and H5 files share.

local cbk = require "cbk"
local cli = require "cbk.cli"
local selection = require "cbk.selection"

local tensorflow = {}

---Adds the options of both commands.
function tensorflow.options(parser)
  parser:option("--include", "convert only these variables"):argname("GLOB"):count "*"
  parser:option("--exclude", "leave these variables out"):argname("GLOB"):count "*"
  return cli.output_options(parser)
end

---Writes the chosen variables of `checkpoint`.
---@param checkpoint Checkpoint
---@param target string
---@param options table  as `cbk.create` takes them
---@param args table
function tensorflow.write(checkpoint, target, options, args)
  local root = checkpoint:raw_root()
  if #args.include + #args.exclude > 0 then
    local chosen = selection.new(args.include, args.exclude)
    root = cbk.rewrite(root, { path = function(key) return chosen:has(key) and key or nil end })
    cli.warn(chosen:idle(), args)
    if cbk.leaves(root)() == "" then cbk.fail("key", ("no variable of '%s' is left to convert"):format(checkpoint.path)) end
  end
  options.root, options.overwrite = root, args.overwrite
  cli.commit(cbk.create(target, options), args)
end

return tensorflow
