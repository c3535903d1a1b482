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

---The root without what the options or `problem_of` leave out.
local function chosen_variables(checkpoint, args, problem_of)
  local root, left_out = checkpoint:raw_root(), {}
  local chosen = selection.new(args.include, args.exclude)
  local function path(key, value)
    if not chosen:has(key) then return nil end
    local problem = problem_of and problem_of(key, value)
    if not problem then return key end
    left_out[#left_out + 1] = ("%s is left out: %s"):format(cbk.quote(key, 1000), problem)
  end
  root = cbk.rewrite(root, { path = path })
  cli.warn(chosen:idle(), args)
  cli.warn(left_out, args)
  if cbk.leaves(root)() == "" then cbk.fail("key", ("no variable of '%s' is left to convert"):format(checkpoint.path)) end
  return root
end

---Writes the chosen variables of `checkpoint`.
---@param checkpoint Checkpoint
---@param target string
---@param options table  as `cbk.create` takes them
---@param args table
---@param problem_of? fun(key: string, value: any): string|nil   why a variable is left out
function tensorflow.write(checkpoint, target, options, args, problem_of)
  options.root, options.overwrite = chosen_variables(checkpoint, args, problem_of), args.overwrite
  cli.commit(cbk.create(target, options), args)
end

return tensorflow
