-- cbk fix-checkpoint-spec: repair an H5 checkpoint of a release before 2.0

local cbk = require "cbk"
local cli = require "cbk.cli"
local errors = require "cbk.errors"
local spec = require "cbk.checkpoint_spec"

local parser = cli.parser("fix-checkpoint-spec", "Fix an H5 checkpoint of a release before 2.0 so that later releases load it.", [[
Three things are fixed. Containers of a removed class become dicts. Tied weights that were stored
under one name get the other one too, as a hard link: no byte is stored twice. Each last_epoch
becomes the number of steps that its schedule has taken.

The tensors are not read: the file is copied as a file and what changes is appended.
With --fix_inplace nothing is copied, which takes milliseconds. If it is killed, the file is the
old one or the new one.

examples:
  cbk fix-checkpoint-spec checkpoint_1000.mdl
  cbk fix-checkpoint-spec checkpoint_1000.mdl --fixed_checkpoint_path fixed.mdl
  cbk fix-checkpoint-spec checkpoint_1000.mdl --fix_inplace]])
parser:argument("checkpoint_path", "the checkpoint"):argname "CHECKPOINT"
parser:option("--fixed_checkpoint_path", "where to write the fixed one (default: beside it, with _fixed in its name)")
  :hidden_name("--fixed-checkpoint-path"):argname "PATH"
parser:flag("--fix_inplace", "change the checkpoint itself, after asking"):hidden_name "--fix-inplace"
parser:flag("-y --yes", "do not ask")
cli.input_options(parser)
cli.dry_run_option(parser)
cli.options(parser, "overwrite", "sync", "no-progress-bar", "quiet", "json")
local args = parser:parse()

if args.fixed_checkpoint_path == "" then cli.usage_error("fix-checkpoint-spec", "--fixed_checkpoint_path: expected a path") end

local function say(line)
  cli.say(args, line)
  io.stdout:flush()
end

if args.fix_inplace and not args.dry_run and not cli.confirmed(args, "Are you sure you want to fix the checkpoint inplace?") then
  return say "Aborting..."
end

--- "dir/a.b.mdl" -> "dir/a.b_fixed.mdl"
local function fixed_name(path)
  local name = cbk.fs.basename(path)
  local stem, suffix = name:match "^(.+)(%.[^.]+)$"
  return path:sub(1, #path - #name) .. (stem or name) .. "_fixed" .. (suffix or "")
end

local path = args.checkpoint_path
local target = args.fixed_checkpoint_path or fixed_name(path)
local edit = cbk.h5.edit(path, { allow_records = args.allow_records, allow_external = args.allow_external })

--- Runs a rule; its errors name the file.
local function in_this_file(rule, ...)
  return errors.within(("'%s'"):format(path), rule, ...)
end

local function number_of(name)
  local value = edit:scalar(name)
  if type(value) == "boolean" then return value and 1 or 0 end
  if type(value) == "cdata" then return value end -- beyond 2^53
  return tonumber(value) or cbk.fail("format", ("'%s': %s is not a number"):format(path, cbk.quote(name)))
end

-- --- the tree

local function read_spec()
  local text, version = edit:attribute "__spec__", edit:attribute "__version__"
  if text == nil then
    cbk.fail("key", ("'%s' has no __spec__: it is not a checkpoint, or its tree is lost"):format(path))
  elseif type(version) == "number" and version > 0.45 then
    cbk.fail("unsupported", ("'%s' has format %.1f, of release 2.5 or later: there is nothing to fix"):format(path, version))
  elseif type(text) ~= "string" then
    cbk.fail("format", ("'%s': __spec__ is not a text"):format(path))
  end
  return in_this_file(cbk.h5.parse_spec, text)
end

say "Fixing spec..."
local tree = read_spec()
edit:set_attribute("__spec__", tree.text)

-- --- tied weights

if not args.fix_inplace then say "Copying keys..." end
say "Fixing duplicate weights..."
local linked, epochs = cbk.dict(), cbk.dict()
for _, missing in ipairs(in_this_file(spec.missing_aliases, tree.keys, function(name) return edit:has(name) end)) do
  edit:link(missing.key, missing.source)
  linked[missing.key] = missing.source
end

-- --- step counts

say "Fixing last_epochs..."
if edit:has "global_step" then
  local names = edit:names()
  local milestones = in_this_file(spec.milestone_names, names)
  for i, name in ipairs(milestones) do milestones[i] = number_of(name) end
  for _, one in ipairs(in_this_file(spec.last_epochs, names, number_of "global_step", milestones)) do
    edit:set_value(one.name, one.value)
    epochs[one.name] = one.value
  end
else
  say "Cannot fix last epoch(s) without a global_step key. Skipping..."
end

if args.fix_inplace then target = path end
if args.dry_run then
  edit:close()
  if not args.fix_inplace then cli.check_output(target, { path }, args) end
elseif args.fix_inplace then
  edit:commit { sync = args.sync }
else
  edit:save_as(target, { overwrite = args.overwrite, sync = args.sync, progress = cli.has_progress(args) })
end
say(("Fixed checkpoint %s to: %s"):format(args.dry_run and "would be saved" or "saved", target))
cli.print_result(args, not args.dry_run, { { "checkpoint", target }, { "linked", linked }, { "last_epochs", epochs } })
