-- A run: the model, the optimizer, its schedules and the data of a params.yaml, and the steps that it trains.

local cbk = require "cbk"
local cost = require "cbk.training.cost"
local cstorch = require "cstorch"
local data = require "cbk.training.data"
local errors = require "cbk.errors"
local evaluation = require "cbk.training.evaluation"
local model = require "cbk.training.model"
local numbers = require "cbk.numbers"
local optimizing = require "cbk.training.optimizing"
local params = require "cbk.training.params"
local recomputed = require "cstorch.models.recomputed"
local record = require "cbk.training.record"
local saving = require "cbk.training.saving"
local stages = require "cbk.training.stages"

local run = {}

---@class TrainingRun
---@field params TrainingParams
---@field model TrainingModel
---@field module cstorch.models.Trainable
---@field compiled cstorch.CompiledModel
---@field optimizing Optimizing
---@field task TrainingTask
---@field loader cstorch.utils.data.DataLoader
---@field evaluations { name?: string, own: TrainingEvaluation }[]   of each val_dataloader; none if the run does not evaluate
---@field lost { name?: string, own: TrainingEvaluation }[]   of these, those to make before the first step
---@field step integer        global steps done
---@field samples integer     of the training data
---@field seed integer
---@field systems integer     that share a batch
---@field recomputes boolean   layers are computed again in backward
---@field steps TrainingSteps
---@field began integer       steps that were done when the run began that is in its folder
---@field others table<string, boolean>   checkpoints in its folder that it did not save
---@field progress? cstorch.utils.Progress
---@field loaded? string       the checkpoint that it began with
---@field lacking string[]     states that this checkpoint has not

---The seed of a step: each has its own, so that a run that was resumed draws the same random numbers.
local function seed_of(seed, step) return seed % 2 ^ 21 * 2 ^ 31 + step end

---@param self TrainingRun
---@return fun(batch: table): cstorch.Tensor, OptimizingFacts, DynamicScale|nil
---@return fun(): table|nil size   of the recorded step
local function training_step(self)
  local count, own = self.params.init.loop.grad_accum_steps or 1, self.optimizing
  return cstorch.compile_step(function(batch)
    local total
    for i = 0, count - 1 do
      local again = self.recomputes and recomputed.new() or nil
      local loss = self.task.loss(self.compiled, data.part(batch, i, count), { training = true, recomputed = again }) / count
      own:backward(loss, i == count - 1, again)
      total = total and total + loss:detach() or loss:detach()
    end
    return total, own:step()
  end)
end

---Runs some steps whose results nobody gets, and says what they cost.
---@param self TrainingRun
---@param count integer   steps; the time is the mean of those after the first
---@return TrainingCost
function run.try(self, count)
  local step_of, size = training_step(self)
  local executor = cstorch.utils.data.DataExecutor(self.loader, { num_steps = count, checkpoint_steps = 0 })
  local lengths, start, seconds
  local see = cstorch.step_closure(function(i)
    if i == 1 then start = cbk.clock() else seconds = (cbk.clock() - start) / (i - 1) end
  end)
  for i, batch in executor:iter() do
    lengths = {}
    for name, tensor in pairs(batch) do lengths[name] = tensor:dim() > 1 and tensor:size(1) or nil end
    cstorch.manual_seed(seed_of(self.seed, i))
    see(i, (step_of(batch)))
  end
  local out = cost.of(self, lengths, size())
  out.seconds = seconds
  return out
end

---@class TrainingEvents   What happens in a run, for those who show it.
---@field on_line fun(line: string)   a line of progress
---@field on_step fun(step: integer, loss: number, facts: table<string, number>)   with lr, and grad_norm and loss_scale if there are
---@field on_checkpoint fun(path: string, step: integer)
---@field on_evaluation fun(step: integer, found: EvaluationResult, name?: string)   with the name of the data, if there are several

---Fails if gradients overflow at the least loss scale. Source: check_non_recoverable_nan in trainer/callbacks/precision.py of the Model
---Zoo 2.9.
---@param step integer
---@param scale DynamicScale
local function check_scale(step, scale)
  local least = scale.own:item()
  if least < math.huge and scale.wanted:item() >= least then return end
  cbk.fail("value", ("step %d: the gradients overflow at the least loss scale, %g, so its step is skipped and nothing is trained"):format(
    step, least), { advice = "try a lower learning rate or a smaller precision.min_loss_scale, and check the data" })
end

---Trains the steps of one stage.
---@param self TrainingRun
---@param step_of fun(batch: table): cstorch.Tensor, OptimizingFacts, DynamicScale|nil
---@param stage TrainingStage
---@param events TrainingEvents
local function train_stage(self, step_of, stage, events)
  local every = self.params.init.checkpoint.steps or 0
  local progress, current = self.progress, nil
  local executor = cstorch.utils.data.DataExecutor(self.loader, { num_steps = stage.last - stage.first, initial_step = stage.first,
    checkpoint_steps = stages.checkpoints(self.steps, stage, every) or 0, advise = function() return data.advice(current) end })
  local report = cstorch.step_closure(function(step, loss, facts, scale)
    local own = {}
    for name, value in pairs(facts) do own[name] = cstorch.value(value) end
    events.on_step(step, loss:item(), own)
    if scale then check_scale(step, scale) end
  end)
  local save = cstorch.checkpoint_closure(function(step) events.on_checkpoint(saving.save(self, step), step) end)
  if self.params.init.checkpoint.save_initial_checkpoint and not self.loaded and stage.first == self.steps.first then save(self.step) end
  for i, batch in executor:iter() do
    self.step, current = stage.first + i, batch
    cstorch.manual_seed(seed_of(self.seed, self.step))
    local loss, facts, scale = step_of(batch)
    progress:step(loss)
    report(self.step, loss, facts, scale)
    save(self.step)
  end
end

---The evaluations of the step after which a run continues that it did not record, because it was killed while it evaluated.
---@param self TrainingRun
---@return { name?: string, own: TrainingEvaluation }[]
local function lost_evaluations(self)
  local steps, out, recorded = self.steps, {}, {}
  local is_due = steps.first > steps.began
    and (steps.first == steps.last or steps.every and (steps.first - steps.began) % steps.every == 0)
  if not is_due then return out end
  for _, row in ipairs(record.read(self.params.init.model_dir)) do
    for name in cbk.items(tonumber(tostring(row.step)) == steps.first and row or cbk.dict()) do recorded[name] = true end
  end
  for _, one in ipairs(self.evaluations) do
    if not recorded[(one.name and one.name .. "/" or "") .. "eval_loss"] then out[#out + 1] = one end
  end
  return out
end

---@param self TrainingRun
---@param list { name?: string, own: TrainingEvaluation }[]
---@param events TrainingEvents
local function evaluate(self, list, events)
  for _, one in ipairs(list) do events.on_evaluation(self.step, one.own:run(), one.name) end
end

---Trains to the end.
---@param self TrainingRun
---@param events TrainingEvents
function run.train(self, events)
  evaluate(self, self.lost, events)
  local step_of = training_step(self)
  self.progress = cstorch.utils.Progress { log_steps = self.params.init.logging.log_steps or 1, batch_size = self.loader.batch_size,
    check_loss_values = self.params.init.checks_loss, print = events.on_line }
  self.progress:start()
  for stage in stages.each(self.steps) do
    train_stage(self, step_of, stage, events)
    if stage.evaluates then evaluate(self, self.evaluations, events) end
    -- A loop begins with the first worker, so the workers are placed anew, as behind a checkpoint.
    if self.loader.num_workers_per_csx > 1 then self.loader:load_state_dict(self.loader:state_dict()) end
  end
end

local FIT = "trainer.fit"

---@param self TrainingRun
local function open_data(self)
  local given, loop = self.params, self.params.init.loop
  local function loader(section, place, more)
    more.systems = self.systems
    more.place, more.task, more.layout, more.module = place, self.model.task, self.task.layout, self.module
    return data.loader(given, section, more)
  end
  if not given.fit.train_dataloader then params.refuse(given, FIT, "it has no train_dataloader") end
  local facts
  self.loader, facts = loader(given.fit.train_dataloader, FIT .. ".train_dataloader", { accumulated = loop.grad_accum_steps })
  self.loader:length() -- opens the data
  self.samples = facts.samples
  self.evaluations = {}
  if not stages.cadence(loop.eval_frequency, 1) then return end
  for i, one in ipairs(given.fit.val_dataloader or {}) do
    local own = loader(one.section, FIT .. ".val_dataloader" .. one.at, { from_start = true })
    self.evaluations[i] = { name = one.name, own = evaluation.new(self.compiled, own, self.task, loop.eval_steps) }
  end
end

---Begins with the last checkpoint of the run's folder, else with the one that the file names, if there is any.
---@param self TrainingRun
local function load_first(self)
  local last = self.params.init.checkpoint.autoload_last_checkpoint ~= false and saving.last(self.params)
  self.loaded = last and last.path or self.params.fit.ckpt_path
  if not self.loaded then return end
  local fine, result = pcall(saving.load, self, self.loaded, last and true or false)
  if not fine then
    if type(result) == "table" and not result.code and result.message then -- of a state dict
      cbk.fail("value", ("cannot load %s into the model of %s: %s"):format(cbk.quote(self.loaded), cbk.quote(self.params.file),
        result.message), { file = self.loaded,
        advice = "a run of another model or optimizer needs another model_dir; LoadCheckpointStates names states to load" })
    end
    local is_of_checkpoint = type(result) == "table" and result.code and result.code ~= "config" -- not of a field of the file
    local advice = last and "move it to another folder: the run then continues after the checkpoint before it" or nil
    error(is_of_checkpoint and errors.with(result, { advice = advice }) or result, 0)
  end
  self.lacking = result
end

---Fails if a run would continue with other samples than it would have had, and warns if it will with other random numbers.
---@param self TrainingRun
---@param began RunFacts   of the run when it began
local function check_continued(self, began)
  if began.samples ~= self.samples then
    params.refuse(self.params, FIT .. ".train_dataloader", ("its data has %s, and had %s when the run in '%s' began: other samples would "
      .. "come next; restore the files, or name another --model-dir"):format(numbers.counted(self.samples, "sample"),
      numbers.grouped(began.samples), self.params.init.model_dir))
  end
  if began.seed ~= self.seed then
    cbk.warn(("the run in %s began with the seed %d, and continues with %d: its random numbers, such as those of dropout, are others")
      :format(cbk.quote(self.params.init.model_dir), began.seed, self.seed))
  end
end

---Makes a run: its model with first values or those of a checkpoint, and all that it needs to train.
---@param given TrainingParams
---@param options? { recomputes: boolean }   keep no inner values of layers, but compute them again
---@return TrainingRun
function run.open(given, options)
  local init = given.init
  local cluster = init.backend.cluster_config or {}
  params.at_field(given, "trainer.init.backend.cluster_config", cstorch.configure, { model_dir = init.model_dir,
    num_csx = cluster.num_csx, num_workers_per_csx = cluster.num_workers_per_csx or 1, check_loss_values = init.checks_loss })
  local self = { params = given, recomputes = options ~= nil and options.recomputes, seed = init.seed or 0, step = 0, lacking = {} }
  self.model = model.of(given)
  self.module = model.trainable(given, self.model, self.seed)
  self.task = model.task(given, self.model.task, self.module)
  model.adapt(given, self.model, self.module, self.seed)
  self.compiled = cstorch.compile(self.module, { backend = init.device })
  self.systems = cstorch.use_cs() and (cluster.num_csx or select(2, cbk.team_place())) or 1
  self.optimizing = optimizing.new(given, self.module)
  open_data(self)
  load_first(self)
  local began = record.facts(init.model_dir)
  local continues = began ~= nil and self.loaded ~= given.fit.ckpt_path
  if continues then check_continued(self, began) end
  self.began = continues and began.first_step or self.step
  self.others = saving.others(given, continues and self.began or math.huge)
  self.steps = params.at_field(given, "trainer.init.loop", stages.of, init.loop, self.loader:length(), self.began, self.step,
    self.evaluations[1] ~= nil)
  self.lost = continues and lost_evaluations(self) or {}
  return self
end

return run
