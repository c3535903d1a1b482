-- Shared code of the two commands that convert between TensorFlow checkpoints and H5 files.

local cbk = require "cbk"
local cli = require "cbk.cli"
local naming = require "cbk.naming"
local selection = require "cbk.cli.selection"
local shard_by = require "cbk.cli.shard_by"

local tensorflow = {}

---Adds the options of both commands.
function tensorflow.options(parser)
  parser:option("--include --key", "convert only these variables (default: all); may be repeated"):argname("GLOB"):count "*"
  parser:option("--exclude", "leave these variables out; may be repeated"):argname("GLOB"):count "*"
  shard_by.option(parser)
  cli.input_options(parser)
  return cli.output_options(parser)
end

---Fails if saver_path names no checkpoint, with suggestions.
---@param path string
function tensorflow.check_path(path)
  if path == "" then cli.usage_error("tensorflow-to-h5", "SAVER_PATH: expected a path, found an empty text") end
  local is_folder = cbk.fs.is_dir(path)
  local is_bundle = cbk.fs.exists(path .. ".index") or cbk.fs.exists(cbk.fs.join(path, "checkpoint"))
  if is_bundle or cbk.fs.exists(path) and not is_folder then return end
  local folder, names = is_folder and path or cbk.fs.dirname(path), {}
  if cbk.fs.is_dir(folder) then
    for _, name in ipairs(cbk.fs.list(folder)) do names[#names + 1] = name:match "^(.+)%.index$" end
  end
  local near = is_folder and {} or cbk.nearest(cbk.fs.basename(path), names, 3)
  if #near == 0 then near = { unpack(names, 1, 3) } end
  for i, name in ipairs(near) do near[i] = folder == "." and name or cbk.fs.join(folder, name) end
  if is_folder and #near > 0 then return end -- opening it reports which one it is, or that there are several
  local why = is_folder and ("there is no TensorFlow checkpoint in the folder '%s': no file 'checkpoint' names one"):format(path)
    or ("there is no TensorFlow checkpoint '%s': neither '%s.index' nor a folder of that name"):format(path, path)
  cbk.fail("io", why .. naming.suggestion(near))
end

---The variables to write by name, except those that the options or `convert` leave out. Their names are the dotted paths of trees.
local function chosen_variables(checkpoint, args, convert)
  local out, left_out, names, has_any = cbk.dict(), {}, {}, false
  local chosen = selection.new(args.include, args.exclude)
  for name, value in cbk.raw_leaves(checkpoint:raw_root()) do
    names[#names + 1] = name
    if chosen:has(name) then
      has_any = true
      local converted, problem = convert(name, value)
      if problem then
        left_out[#left_out + 1] = ("%s is left out: %s"):format(cbk.quote(name, 1000), problem)
      elseif out[name] ~= nil then
        cbk.fail("value", ("two variables would be named %s"):format(cbk.quote(name)))
      else
        out[name] = converted
      end
    end
  end
  if not has_any then chosen:fail_empty(checkpoint.path, names) end
  cli.warn(chosen:idle())
  cli.warn(left_out)
  if cbk.count(out) == 0 then cbk.fail("key", ("no variable of '%s' is left to convert"):format(checkpoint.path)) end
  return out
end

---Fails if the target is one of the files that are read: the rest of the checkpoint would be lost with it.
local function check_target(checkpoint, target)
  local own = cbk.fs.absolute(target)
  for _, path in ipairs(checkpoint.files) do
    if cbk.fs.absolute(path) == own then
      cbk.fail("usage", ("'%s' is a file of the checkpoint that is converted; choose another name"):format(target))
    end
  end
end

---Writes the chosen variables of `checkpoint`.
---@param command string
---@param what string    what is written, for people
---@param checkpoint Checkpoint
---@param target string
---@param options table  of `cbk.create`
---@param args table
---@param convert fun(name: string, value: any): any, string?   the value to write; or nil, and why the variable is left out
function tensorflow.write(command, what, checkpoint, target, options, args, convert)
  check_target(checkpoint, target)
  options.overwrite = args.overwrite
  local output = cbk.create(target, options) -- an existing target is reported before omitted variables
  local root = chosen_variables(checkpoint, args, convert)
  options.shards = shard_by.shards(command, args, cbk.keys(root))
  if options.shards then
    output:close()
    output = cbk.create(target, options)
  end
  output:set_root(root)
  local written, plan = cli.commit(output, args)
  if written then cli.say(args, ("%s saved to %s"):format(what, target)) end
  cli.print_result(args, written, { { "checkpoint", target } }, plan)
end

return tensorflow
