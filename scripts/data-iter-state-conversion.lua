-- cbk data-iter-state-conversion: move the data loader state of 1.8 or 1.9 into the checkpoint

local cbk = require "cbk"
local cli = require "cbk.cli"
local dataloader_state = require "cbk.dataloader_state"

local parser = cli.parser("data-iter-state-conversion",
  "Move the data loader state of a 1.8 or 1.9 run into its checkpoint, where release 2.0 looks for it.", [[
Releases 1.8 and 1.9 wrote the position of each worker into separate files, in the folder
cerebras.save_iter_state_path. The positions at the last checkpoint's step are added up (map) or
listed (iterable) under the key 'dataloader' of a new checkpoint; the rest is copied, streamed.

`cbk convert` does the same from 1.9 to 2.0 if the config names that folder, and
`cbk show --dataloader` prints where a run will resume.

examples:
  cbk data-iter-state-conversion -c checkpoint_1000.mdl -w iter_state -o new.mdl -d iterable
  cbk data-iter-state-conversion -c checkpoint_1000.mdl -w iter_state -o new.mdl -s 7]])
parser:option("-c --old_checkpoint", "the checkpoint"):hidden_name("--old-checkpoint"):argname("FILE"):count(1)
parser:option("-w --worker_data_iter_files_dir", "the folder of the state files")
  :hidden_name("--worker-data-iter-files-dir"):argname("DIR"):count(1)
parser:option("-o --output_file", "the new checkpoint"):hidden_name("--output-file --output"):argname("FILE"):count(1)
parser:option("-d --dataloader_type", "how the run loads its data", "map"):hidden_name("--dataloader-type")
  :choices { "map", "iterable" }
cli.shuffle_seed(parser, "-s --shuffle_seed", "what a map loader shuffles with", "0")
parser:option("--h5-version", "0.4, which every release from 2.0 on reads, or 0.5", "0.4"):argname("VERSION"):choices { "0.4", "0.5" }
cli.input_options(parser)
cli.output_options(parser)
local args = parser:parse()

if args.old_checkpoint == "" or not cbk.fs.exists(args.old_checkpoint) or cbk.fs.is_dir(args.old_checkpoint) then
  local why = args.old_checkpoint ~= "" and cbk.fs.is_dir(args.old_checkpoint) and "is a folder, not a file" or "does not exist"
  cbk.fail("io", ("the checkpoint '%s' %s"):format(args.old_checkpoint, why))
end
cli.folder("data-iter-state-conversion", "--worker_data_iter_files_dir", args.worker_data_iter_files_dir)
local files = dataloader_state.read_files(args.worker_data_iter_files_dir)
local state = dataloader_state.from_files(files, args.dataloader_type, args.shuffle_seed)

local checkpoint = cli.open(args.old_checkpoint, args)
if not (cbk.kind(checkpoint.root) or ""):find "dict" then
  cbk.fail("format", ("'%s' is not a dict (%s): it cannot take a 'dataloader'"):format(args.old_checkpoint, cbk.kind(checkpoint.root)))
end
local doubts = dataloader_state.doubts(files, checkpoint.root)
local root = cbk.copy(checkpoint.root)
root.dataloader = dataloader_state.to_dict(state)

local output = cbk.create(args.output_file, {
  root = root, format = "h5", h5_version = args.h5_version, overwrite = args.overwrite,
})
local written, plan = cli.commit(output, args)
cli.warn(doubts)
if written then cli.say(args, "Checkpoint saved to " .. args.output_file) end
cli.print_result(args, written, { { "checkpoint", args.output_file }, { "dataloader", root.dataloader } }, plan)
