-- cbk eval: the loss of a checkpoint over a data set

local cbk = require "cbk"
local cli = require "cbk.cli"
local computable = require "cbk.recognise.computable"
local converters = require "cbk.converters"
local cstorch = require "cstorch"
local data = require "cbk.training.data"
local errors = require "cbk.errors"
local evaluation = require "cbk.training.evaluation"
local kinds = require "converters.engine.kinds"
local models = require "cstorch.models"
local numbers = require "cbk.numbers"
local params = require "cbk.training.params"
local saving = require "cbk.training.saving"
local tasks = require "cbk.training.tasks"
local training_model = require "cbk.training.model"

local parser = cli.parser("eval", "Evaluate a checkpoint: loss, perplexity and accuracy over a data set.", [[
The checkpoint may have any format: one of a run, of the Model Zoo, or a folder of Hugging Face, which is
computed in its own layout. Without --checkpoint it is the last one in the run's folder. Everything is computed
in float32, the weights are in memory.

The data are those of the file: of validate.val_dataloader, else of fit.val_dataloader. With --checkpoint and
--data-dir no file is needed.

examples:
  cbk eval params.yaml
  cbk eval params.yaml --checkpoint model_folder
  cbk eval --checkpoint model_folder --data-dir data --batch-size 8]])
parser:argument("params", "params.yaml of the run"):argname("PARAMS"):args "?"
parser:option("--checkpoint --checkpoint_path", "a checkpoint, or its folder"):argname "FILE"
parser:option("--data-dir", "the folder with token files (default: that of the file)"):argname "DIR"
parser:option("--batch-size", "samples of a batch (default: that of the file, else 8)"):argname("N")
  :convert(cli.whole_number("--batch-size", 1))
parser:option("--max-sequence-length", "cut samples to so many tokens"):argname("N")
  :convert(cli.whole_number("--max-sequence-length", 1))
parser:option("--steps --eval_steps", "at most so many batches (default: all, or eval_steps of the file)"):argname("N")
  :convert(cli.whole_number("--steps", 1))
parser:option("--config", "the checkpoint's config (default: the one beside it)"):argname "FILE"
cli.options(parser, "threads", "no-progress-bar", "quiet", "json", "allow-external")
local args = parser:parse()
if not args.params and not (args.checkpoint and args.data_dir) then
  cli.usage_error("eval", "name params.yaml, or a checkpoint and its data with --checkpoint and --data-dir")
end
if args.threads then cbk.compute.threads(args.threads) end
converters.load()

local given = args.params and params.load(args.params)
local DEFAULT_BATCH = 8

---@return string
local function checkpoint_path()
  if args.checkpoint then return args.checkpoint end
  local last = saving.last(given)
  local path = last and last.path or given.validate.ckpt_path or given.fit.ckpt_path
  if path then return path end
  cbk.fail("missing", ("there is no checkpoint in %s"):format(cbk.quote(given.init.model_dir)), { advice = "--checkpoint names one" })
end

---The section of the data, with the options over it.
local function data_section()
  local section = given and (given.validate.val_dataloader or given.fit.val_dataloader)
  local place = given and given.validate.val_dataloader and "trainer.validate.val_dataloader" or "trainer.fit.val_dataloader"
  if not section and not args.data_dir then
    params.refuse(given, "trainer", "it has no val_dataloader to evaluate with; --data-dir names a folder")
  end
  section = section and cbk.copy(section) or cbk.dict { batch_size = DEFAULT_BATCH }
  section.data_dir = args.data_dir or section.data_dir
  section.batch_size = args.batch_size or section.batch_size
  section.max_sequence_length = args.max_sequence_length or section.max_sequence_length
  return section, place
end

local section, place = data_section()
local path = checkpoint_path()
local checkpoint = cli.open(path, args)
-- A checkpoint of the Model Zoo is a state of the file's model; others have a config of their own.
local is_of_file = given and kinds.is_dict(checkpoint.root, "model")

---The model with the weights of the checkpoint, and what it is: "gpt2 (cs-2.9)".
local function model_of()
  if is_of_file and saving.has_adapters(checkpoint.root.model) then
    local own = training_model.of(given)
    local module = models.trainable(own.list, 0)
    training_model.adapt(given, own, module, 0)
    saving.load_weights({ params = given, model = own, module = module }, checkpoint.root.model)
    return module, ("%s (%s, with LoRA)"):format(own.name, converters.catalogue.resolve(own.format))
  end
  local side, identity = computable.of(path, checkpoint, args.config or is_of_file and args.params or nil)
  local module = errors.within(cbk.quote(path), models.module, side.list, side.tensors)
  return module, ("%s (%s)"):format(identity.model, identity.format)
end

local model, what = model_of()
local compiled = cstorch.compile(model, { backend = given and (given.init.backend.backend_type or given.init.device) or "CSX" })
local at = given or { file = "", moves = {}, ignored = {} }
local kind = tasks.of(model.class_name)
local task = given and training_model.task(given, kind, model) or kind.open(model, cbk.dict(), error)
local loader = data.loader(at, section, { place = place, task = kind, layout = task.layout, module = model, from_start = true,
  is_typed = not given or args.data_dir ~= nil or args.batch_size ~= nil or args.max_sequence_length ~= nil })
local steps = args.steps or given and given.init.loop.eval_steps
local one = evaluation.new(compiled, loader, task, steps and math.min(steps, loader:length()))

local has_bar = cli.has_progress(args) and cbk.terminal.is_tty "stderr"
cli.say(args, ("%s, %s"):format(what, cbk.shown(path)))
local found = one:run(function(batch, count)
  if has_bar then cbk.terminal.progress(batch < count and ("batch %d of %d"):format(batch, count) or "") end
end)
if args.json then
  local members = evaluation.members(found, "")
  for _, member in ipairs(members) do member[2] = numbers.json_number(member[2]) end
  members[#members + 1], members[#members + 2] = { "batches", found.batches }, { "samples", found.samples }
  cli.print_json(cbk.dict {
    { "checkpoint", path }, unpack(members),
  })
else
  for _, line in ipairs(evaluation.lines(found)) do print(line) end
  cli.say(args, ("Processed %d sample(s) in %.1f seconds."):format(found.samples, found.seconds))
end
