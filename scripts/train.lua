-- cbk train: a training run of the Model Zoo on this machine

local cbk = require "cbk"
local cli = require "cbk.cli"
local shell_word = require "cbk.cli.shell_word"
local config_file = require "cbk.cli.config_file"
local converters = require "cbk.converters"
local curves = require "cbk.plot.curves"
local errors = require "cbk.errors"
local evaluation = require "cbk.training.evaluation"
local natural = require "cbk.natural"
local numbers = require "cbk.numbers"
local params = require "cbk.training.params"
local progress = require "cbk.progress"
local progress_bar = require "cbk.training.progress_bar"
local record = require "cbk.training.record"
local run = require "cbk.training.run"
local warnings = require "cbk.warnings"
local wrap = require "cbk.wrap"

local parser = cli.parser("train", "Train a model of the Model Zoo on this machine, from its params.yaml.", [[
The file has the trainer's layout (releases from 2.3 on) or the legacy one. Model, optimizer,
parameter groups, schedules, loss scale, clipping, data, evaluation and checkpoints are those of the
file. Everything is computed in float32. Fields without an effect here are named before the run starts.

Data are folders of HDF5 files with token ids, as the Model Zoo's preprocessing and `cbk make-data`
write them; for BERT and T5 also text files (`cbk make-data --for bert`).

Checkpoints are checkpoint_STEP.mdl in the folder model_dir. If it has some, the run continues after
the last one, with the same values as if it had never stopped: weights, states of the optimizer and of
the schedules, place in the data and random numbers are restored. They convert with `cbk convert` as the checkpoints of a cluster do.

examples:
  cbk train params.yaml
  cbk train params.yaml --model-dir run2 --max-steps 100
  cbk train params.yaml --checkpoint pretrained.mdl]])
parser:argument("params", "params.yaml"):argname "PARAMS"
converters.model_option(parser, "that of the file")
parser:option("--model-dir --model_dir", "the folder of the run (default: model_dir of the file, else model_dir)"):argname "DIR"
parser:option("--checkpoint --checkpoint_path", "begin with this checkpoint, unless the folder has one already"):argname "FILE"
parser:option("--max-steps --max_steps", "train up to this step"):argname("N"):convert(cli.whole_number("--max-steps", 1, 31))
parser:option("--seed", "random seed (default: that of the file, else 0)"):argname("N"):convert(cli.whole_number("--seed", 0))
parser:flag("--activation-checkpointing", "keep no inner values of layers, and compute them again: a step takes longer, and its memory "
  .. "does not grow with the number of layers")
parser:flag("--dry-run", "run two steps, print what the run will cost, and write nothing")
parser:flag("--compile-only", "record one step, print its graph and memory, and write nothing")
parser:flag("--validate-only", "check the file, the model and the data, and write nothing")
cli.options(parser, "threads", "no-progress-bar", "quiet", "json")
local args = parser:parse()
local asked
for _, name in ipairs { "dry_run", "compile_only", "validate_only" } do
  if args[name] and asked then cli.usage_error("train", ("--%s and --%s exclude each other"):format(asked, (name:gsub("_", "-")))) end
  asked = args[name] and name:gsub("_", "-") or asked
end

if args.model_dir == "" then cli.usage_error("train", "--model-dir is empty; name a folder") end

-- --- options over the file

config_file.check_run(args.params, "--checkpoint FILE begins with a checkpoint")
converters.load()
local given = params.load(args.params, args.model)
local init = given.init
init.model_dir = args.model_dir or init.model_dir
init.seed = args.seed or init.seed
args.compile_only = args.compile_only or not args.dry_run and init.backend.compile_only
args.validate_only = args.validate_only or not args.dry_run and init.backend.validate_only
given.fit.ckpt_path = args.checkpoint or given.fit.ckpt_path
if args.max_steps then
  init.loop.max_steps, init.loop.num_steps, init.loop.num_epochs = args.max_steps, nil, nil
end
if args.threads then cbk.compute.threads(args.threads) end

-- --- what is shown

---Prints a line of the log as it is, for programs that read it.
local function log(line)
  if args.json or args.quiet then return end
  cbk.terminal.progress ""
  print(line)
  io.stdout:flush()
end

local function say(line) log(wrap.text(line, cli.columns(), 2)) end

local function json_line(members) print(cbk.json(cbk.dict(members), { shown = true })) end

local function warn_of_ignored()
  if #given.ignored == 0 then return end
  cbk.warn(("without an effect here: %s"):format(table.concat(given.ignored, ", ")))
end

---What `cbk convert` will refuse is better known before the training.
---@param self TrainingRun
local function warn_of_conversion(self)
  local fine, problem = warnings.quietly(function()
    local job = converters.job(converters.route(self.model.name, self.model.format, "hf", "config"))
    job.is_config_only = true
    converters.config(self.model.name, job, given.config)
  end)
  if not fine then cbk.warn(("`cbk convert --to hf` will refuse the checkpoints: %s"):format(errors.text(problem))) end
end

local function parameter_count(module)
  local count = 0
  for _, p in ipairs(module:parameters()) do count = count + p:numel() end
  return count
end

---@param self TrainingRun
local function name_of(self) return ("%s (%s)"):format(self.model.name, self.model.list.class.name) end

---@param self TrainingRun
local function say_what_runs(self)
  local steps, accumulated = self.steps, init.loop.grad_accum_steps or 1
  say(("%s: %s"):format(name_of(self), numbers.counted(parameter_count(self.module), "parameter")))
  if self.loaded then say(("from %s, step %d"):format(cbk.shown(self.loaded), self.step)) else say "from random weights" end
  for _, name in ipairs(self.lacking) do say(("  it has no %s, which begins anew"):format(name)) end
  if steps.last == steps.first then return say(("the evaluation of step %d is missing"):format(steps.first)) end
  say(("steps %d to %d, a batch of %s each%s"):format(steps.first + 1, steps.last, numbers.counted(self.loader.batch_size, "sample"),
    accumulated > 1 and (" in %d parts"):format(accumulated) or ""))
end

local samples, started = 0, cbk.clock()
local _, ranks = cbk.team_place()

local FIRST = { lr = 1, grad_norm = 2, loss_scale = 3 }

---The names of a step's numbers: the usual ones, then others in natural order.
---@param facts table<string, number>
---@return string[]
local function names_of(facts)
  local out = {}
  for name in pairs(facts) do out[#out + 1] = name end
  table.sort(out, function(a, b)
    local first, second = FIRST[a] or 4, FIRST[b] or 4
    return first < second or first == second and natural.less(a, b)
  end)
  return out
end

---@param self TrainingRun
---@param kept RunRecord
---@return TrainingEvents
local function events_of(self, kept)
  local bar = cli.has_progress(args) and cbk.terminal.is_tty "stderr" and progress_bar.new(self.steps.first, self.steps.last)
  local every = init.logging.log_steps or 1
  return {
    on_line = log,
    on_step = function(step, loss, facts)
      samples = samples + self.loader.batch_size
      if step % every == 0 or step == self.steps.last then
        local members = { { "loss", loss }, { "samples_per_second", self.progress.global_rate } }
        for _, name in ipairs(names_of(facts)) do members[#members + 1] = { name, facts[name] } end
        kept:add(step, members)
      end
      if args.json then json_line { { "step", step }, { "loss", numbers.json_number(loss) } } end
      if bar then
        bar:add(loss)
        bar:draw(step, samples)
      end
    end,
    on_checkpoint = function(path, step)
      say(("Saved checkpoint %s"):format(cbk.shown(path)))
      if args.json then json_line { { "step", step }, { "checkpoint", path } } end
    end,
    on_evaluation = function(step, found, name)
      if name then say(("Evaluation %s"):format(name)) end
      log(("| Eval Device=%s, GlobalStep=%d, Batch=%d, Loss=%.5f, Rate=%.2f samples/sec"):format(self.compiled.device:upper(), step,
        found.batches, found.loss, found.samples / found.seconds))
      for _, line in ipairs(evaluation.lines(found)) do say(line) end
      local members = evaluation.members(found, name and name .. "/eval_" or "eval_")
      kept:add(step, members)
      if args.json then
        for _, member in ipairs(members) do member[2] = numbers.json_number(member[2]) end
        json_line { { "step", step }, unpack(members) }
      end
    end,
  }
end

-- --- without a run

---@param self TrainingRun
---@param found TrainingCost
local function print_cost(self, found)
  local count, memory = self.steps.last - self.steps.first, found.weights + found.states + (found.within or 0)
  if args.json then
    json_line {
      { "parameters", found.parameters }, { "steps", count }, { "tokens", found.tokens }, { "flop", found.flop }, { "memory", memory },
      { "kernels", found.kernels or cbk.null }, { "seconds", found.seconds and numbers.json_number(found.seconds) or cbk.null },
    }
    return
  end
  say(("tokens: %s a step, %s in all"):format(numbers.grouped(found.tokens), numbers.grouped(found.tokens * count)))
  say(("computation: about %.3g GFLOP a step"):format(found.flop / 1e9))
  local within = found.within and (", within a step %s"):format(cbk.format_size(found.within)) or ""
  say(("memory: %s (weights %s, optimizer %s%s)"):format(cbk.format_size(memory), cbk.format_size(found.weights),
    cbk.format_size(found.states), within))
  if found.kernels then
    say(("graph: %s, joined to %s"):format(numbers.counted(found.recorded, "operation"), numbers.counted(found.kernels, "kernel")))
  end
  if found.seconds then
    local whole = progress.format_time(found.seconds * count)
    say(("time: about %s (%.3g s a step), without evaluations and checkpoints"):format(whole, found.seconds))
  end
end

-- --- the run

local writes = not (args.validate_only or args.dry_run or args.compile_only)
if writes and cbk.fs.is_dir(init.model_dir) then record.hold(init.model_dir) end -- before its last checkpoint is read
local self = run.open(given, { recomputes = args.activation_checkpointing })
warn_of_ignored()
warn_of_conversion(self)
if self.steps.last <= self.steps.first and not self.lost[1] then
  if args.json then json_line { { "step", self.step }, { "checkpoint", self.loaded or cbk.null } } end
  say(("Nothing is left to train: %s has step %d, and the run ends at step %d. A larger loop.max_steps, or --max-steps, continues it.")
    :format(cbk.shown(self.loaded or "it"), self.step, self.steps.last))
  if self.loaded == given.fit.ckpt_path then
    say "The callback LoadCheckpointStates with `load_checkpoint_states: model` takes the weights alone, and begins at step 0."
  end
  return
end
say_what_runs(self)
if args.validate_only then
  if args.json then json_line { { "parameters", parameter_count(self.module) }, { "steps", self.steps.last - self.steps.first } } end
  say "The file, the model and the data fit."
  return
end
if args.dry_run or args.compile_only then
  print_cost(self, run.try(self, args.dry_run and 3 or 1))
  return
end
local command = { ranks > 1 and ("mpirun -n %d cbk train"):format(ranks) or "cbk train" }
for _, word in ipairs(arg) do command[#command + 1] = shell_word(word) end
local kept = record.begin(init.model_dir, self.step, { params = args.params, facts = { model = name_of(self),
  parameters = parameter_count(self.module), seed = self.seed, samples = self.samples, first_step = self.began, last_step = self.steps.last,
  command = table.concat(command, " ") } })
run.train(self, events_of(self, kept))
local list = kept:finish(("%s, %s"):format(self.model.name, init.model_dir))
say "Training completed successfully!"
say(("Processed %d training sample(s) in %.1f seconds."):format(samples, cbk.clock() - started))
if ranks == 1 and cbk.terminal.is_tty "stdout" and not (args.json or args.quiet) then -- mpirun gives each rank a terminal
  local shown = {}
  for _, curve in ipairs(list) do shown[#shown + 1] = (curve.name == "loss" or curve.name == "lr") and curve or nil end
  for _, line in ipairs(curves.lines(shown, { width = cli.width() })) do print(line) end
end
