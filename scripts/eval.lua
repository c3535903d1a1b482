-- cbk eval: the loss of a checkpoint over a data set

local cbk = require "cbk"
local cli = require "cbk.cli"
local config_file = require "cbk.cli.config_file"
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

The data are those of the file: of validate.val_dataloader, else of fit.val_dataloader. If that is a list, each
is evaluated. --all evaluates each checkpoint of the run, or those of validate_all.ckpt_paths, over each of
validate_all.val_dataloaders. With --checkpoint and --data-dir no file is needed.

examples:
  cbk eval params.yaml
  cbk eval params.yaml --checkpoint model_folder
  cbk eval --checkpoint model_folder --data-dir data --batch-size 8]])
parser:argument("params", "params.yaml of the run"):argname("PARAMS"):args "?"
converters.model_option(parser, "that of the file, else detected")
parser:option("--checkpoint --checkpoint_path", "a checkpoint, or its folder"):argname "FILE"
parser:flag("--all", "evaluate all checkpoints, as the file's section validate_all says")
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
if args.all and (args.checkpoint or not args.params) then
  cli.usage_error("eval", "--all evaluates the checkpoints of a run: name its params.yaml, and leave out --checkpoint")
end
if args.params then config_file.check_run(args.params, "--checkpoint FILE with --data-dir DIR evaluates a checkpoint without it") end
if args.threads then cbk.compute.threads(args.threads) end
converters.load()

local given = args.params and params.load(args.params, args.model)
local DEFAULT_BATCH = 8

local function refuse_without_checkpoint()
  cbk.fail("missing", ("there is no checkpoint in %s"):format(cbk.quote(given.init.model_dir)), { advice = "--checkpoint names one" })
end

---The files of a folder whose names match a pattern.
---@param pattern string
---@return string[]
local function matching(pattern)
  local folder, out = cbk.fs.dirname(pattern), {}
  local matches = cbk.glob(cbk.fs.basename(pattern))
  for _, name in ipairs(cbk.fs.is_dir(folder) and cbk.fs.list(folder) or {}) do
    if matches(name) then out[#out + 1] = cbk.fs.join(folder, name) end
  end
  return out
end

---The checkpoints that validate_all names, by their names or patterns; default: all of the run.
---@return string[]
local function all_checkpoints()
  local named, out = given.validate_all.ckpt_paths, {}
  for _, pattern in ipairs(type(named) == "string" and { named } or named or {}) do
    local found = matching(pattern)
    if not found[1] then params.refuse(given, "trainer.validate_all.ckpt_paths", ("there is no file '%s'"):format(pattern)) end
    for _, path in ipairs(found) do out[#out + 1] = path end
  end
  for _, one in ipairs(named and {} or saving.all(given)) do out[#out + 1] = one.path end
  return out
end

---@return string[]
local function checkpoint_paths()
  if args.checkpoint then return { args.checkpoint } end
  local paths = args.all and all_checkpoints()
  local last = not paths and saving.last(given)
  paths = paths or { last and last.path or given.validate.ckpt_path or given.fit.ckpt_path }
  return paths[1] and paths or refuse_without_checkpoint()
end

---The loaders of the data, and where they are in the file.
---@return DataSection[], string
local function data_of_file()
  local all = args.all and given.validate_all.val_dataloaders
  if all then return all, "trainer.validate_all.val_dataloaders" end
  if given.validate.val_dataloader then return given.validate.val_dataloader, "trainer.validate.val_dataloader" end
  return given.fit.val_dataloader or {}, "trainer.fit.val_dataloader"
end

---The sections of the data, with the options over them.
---@return { section: Dict, place: string, name?: string }[]
local function data_sections()
  local list, place = {}, ""
  if given then list, place = data_of_file() end
  if not list[1] and not args.data_dir then
    params.refuse(given, "trainer", "it has no val_dataloader to evaluate with; --data-dir names a folder")
  end
  if not list[1] or args.data_dir then list = { list[1] or { section = cbk.dict { batch_size = DEFAULT_BATCH }, at = "" } } end
  local out = {}
  for i, one in ipairs(list) do
    local section = cbk.copy(one.section)
    local folder = section.src_data_dir and "src_data_dir" or "data_dir"
    section[folder] = args.data_dir or section[folder]
    section.batch_size = args.batch_size or section.batch_size
    section.max_sequence_length = args.max_sequence_length or section.max_sequence_length
    out[i] = { section = section, place = place .. one.at, name = list[2] and one.name }
  end
  return out
end

---The model with the weights of a checkpoint, and what it is: "gpt2 (cs-2.9)".
---@param path string
local function model_of(path)
  local checkpoint = cli.open(path, args)
  -- A checkpoint of the Model Zoo is a state of the file's model; others have a config of their own.
  local is_of_file = given and kinds.is_dict(checkpoint.root, "model")
  if is_of_file then saving.check_model(given, checkpoint.root, path) end
  if is_of_file and saving.has_adapters(checkpoint.root.model) then
    local own = training_model.of(given)
    local module = models.trainable(own.list, 0)
    training_model.adapt(given, own, module, 0)
    saving.load_weights({ params = given, model = own, module = module }, checkpoint.root.model, path)
    return module, ("%s (%s, with LoRA)"):format(own.name, converters.catalogue.resolve(own.format))
  end
  local side, identity = computable.of(path, checkpoint, args.config or is_of_file and args.params or nil, args.model)
  local module = errors.within(cbk.quote(path), models.module, side.list, side.tensors)
  return module, ("%s (%s)"):format(identity.model, identity.format)
end

local at = given or { file = "", moves = {}, ignored = {} }
local has_bar = cli.has_progress(args) and cbk.terminal.is_tty "stderr"
local results = {}

---@param found EvaluationResult
local function show(found)
  for _, line in ipairs(evaluation.lines(found)) do print(line) end
  cli.say(args, ("Processed %d sample(s) in %.1f seconds."):format(found.samples, found.seconds))
end

---Evaluates a checkpoint over all data.
---@param path string
---@param sections { section: Dict, place: string, name?: string }[]
local function evaluate(path, sections)
  local model, what = model_of(path)
  local compiled = cstorch.compile(model, { backend = given and given.init.device or "CSX" })
  local kind = tasks.of(model.class_name)
  local task = given and training_model.task(given, kind, model) or kind.open(model, cbk.dict(), error)
  cli.say(args, ("%s, %s"):format(what, cbk.shown(path)))
  for _, one in ipairs(sections) do
    local loader, facts = data.loader(at, one.section, { place = one.place, task = kind,
      layout = task.layout, module = model, from_start = true,
      is_typed = not given or args.data_dir ~= nil or args.batch_size ~= nil or args.max_sequence_length ~= nil })
    local steps = args.steps or given and given.init.loop.eval_steps
    local own = evaluation.new(compiled, loader, task, steps and math.min(steps, loader:length()))
    if one.name then cli.say(args, ("Evaluation %s"):format(one.name)) end
    local found = own:run(function(batch, count)
      if has_bar then cbk.terminal.progress(batch < count and ("batch %d of %d"):format(batch, count) or "") end
    end)
    if not args.json then show(found) end
    if not steps and facts.samples > found.samples then
      cli.say(args, ("%s at the end, which fill no batch of %d, were left out"):format(
        numbers.counted(facts.samples - found.samples, "sample"), loader.batch_size))
    end
    local members = evaluation.members(found, "")
    for _, member in ipairs(members) do member[2] = numbers.json_number(member[2]) end
    members[#members + 1], members[#members + 2] = { "batches", found.batches }, { "samples", found.samples }
    if one.name then table.insert(members, 1, { "data", one.name }) end
    results[#results + 1] = cbk.dict { { "checkpoint", path }, unpack(members) }
  end
end

local paths, sections = checkpoint_paths(), data_sections()
for _, path in ipairs(paths) do evaluate(path, sections) end
if args.json then
  cli.print_json((args.all or sections[2]) and cbk.dict { { "evaluations", cbk.list(results) } } or results[1])
end
