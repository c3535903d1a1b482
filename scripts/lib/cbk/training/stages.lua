-- Which steps a run has: where it evaluates, and where it saves. Both count from the first step of the model, so that a run that was
-- interrupted goes on as it would have done. Source: trainer/callbacks/run_schedule.py and loop.py of the Model Zoo 2.9.

local num_steps = require "cstorch.utils.data.num_steps"
local StepRange = require "cstorch.utils.step_range"

local stages = {}

---@class TrainingStage   Steps without an evaluation between them.
---@field first integer     global steps done before it
---@field last integer      and after it
---@field evaluates boolean   at its end

---@class TrainingSteps
---@field first integer   steps done before
---@field last integer
---@field stages TrainingStage[]

---The number of steps between evaluations; nil: none.
local function evaluation_cadence(frequency, last)
  if not frequency or frequency == 0 then return nil end
  return frequency <= 1 and frequency ~= 1 and math.ceil(frequency * last) or frequency == 1 and last or frequency
end

---@param loop table        the section of the params
---@param length integer    batches of an epoch, after accumulation
---@param began integer     steps that were done when the run began, from where num_steps and num_epochs count
---@param first integer     steps that are done now
---@param has_evaluation boolean
---@return TrainingSteps
function stages.of(loop, length, began, first, has_evaluation)
  if loop.max_steps and loop.max_steps <= began then return { first = first, last = first, stages = {} } end
  local last, list = began + num_steps.steps(length, { initial_step = began, num_steps = loop.num_steps, max_steps = loop.max_steps,
    num_epochs = loop.num_epochs, steps_per_epoch = loop.steps_per_epoch }), {}
  local every = has_evaluation and evaluation_cadence(loop.eval_frequency or 1, last) or nil
  local at = first
  while at < last do
    local stop = every and math.min(last, (math.floor(at / every) + 1) * every) or last
    list[#list + 1] = { first = at, last = stop, evaluates = every ~= nil }
    at = stop
  end
  return { first = first, last = math.max(first, last), stages = list }
end

---The steps of a stage at whose end a checkpoint is saved, as a DataExecutor takes them: from 0.
---@param steps TrainingSteps
---@param stage TrainingStage
---@param every integer   steps from one to the next; 0: none
---@return cstorch.utils.StepRange[]|nil
function stages.checkpoints(steps, stage, every)
  if every == 0 then return nil end
  local count, first = stage.last - stage.first, every - stage.first % every - 1
  local is_end = stage.last == steps.last
  if first < count then return { StepRange(first, count, { step = every, include_last = is_end }) } end
  return is_end and { StepRange(count - 1, count) } or nil
end

return stages
