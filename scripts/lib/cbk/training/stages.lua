-- Which steps a run has: where it evaluates, and where it saves. Both count from the step at which the run began, so that one that was
-- interrupted continues as it would have done. Source: trainer/callbacks/run_schedule.py and loop.py of the Model Zoo 2.9.

local num_steps = require "cstorch.utils.data.num_steps"
local StepRange = require "cstorch.utils.step_range"

local stages = {}

---@class TrainingStage   Steps without an evaluation between them.
---@field first integer     global steps done before it
---@field last integer      and after it
---@field evaluates boolean   at its end

---@class TrainingSteps
---@field began integer   steps that were done when the run began
---@field first integer   steps that are done now
---@field last integer
---@field every? integer  steps from one evaluation to the next; nil: none

---@class EvaluationFrequency
---@field steps? integer   from one to the next; 0: none
---@field share? number    of all steps; 0: none

---The number of steps between evaluations; nil: none.
---@param frequency EvaluationFrequency|nil   default: one at the end
---@param total integer                       steps of the run
---@return integer|nil
function stages.cadence(frequency, total)
  local every = not frequency and total or frequency.steps or math.ceil(frequency.share * total)
  return every > 0 and every or nil
end

---@param loop table        the section of the params
---@param length integer    batches of an epoch, after accumulation
---@param began integer     steps that were done when the run began, from where num_steps and num_epochs count
---@param first integer     steps that are done now
---@param has_evaluation boolean
---@return TrainingSteps
function stages.of(loop, length, began, first, has_evaluation)
  if loop.max_steps and loop.max_steps <= first then return { began = began, first = first, last = loop.max_steps } end
  local accumulated = loop.grad_accum_steps or 1
  local total = num_steps.steps(length * accumulated, { initial_step = began, num_steps = loop.num_steps, max_steps = loop.max_steps,
    num_epochs = loop.num_epochs, steps_per_epoch = loop.steps_per_epoch, grad_accum_steps = accumulated })
  local every = has_evaluation and stages.cadence(loop.eval_frequency, total) or nil
  return { began = began, first = first, last = began + total, every = every }
end

---The stages of a run, one after the other.
---@param steps TrainingSteps
---@return fun(): TrainingStage|nil
function stages.each(steps)
  local at, every, began = steps.first, steps.every, steps.began
  return function()
    if at >= steps.last then return nil end
    local first = at
    at = every and math.min(steps.last, began + (math.floor((first - began) / every) + 1) * every) or steps.last
    return { first = first, last = at, evaluates = every ~= nil }
  end
end

---The steps of a stage at whose end a checkpoint is saved, as a DataExecutor takes them: from 0.
---@param steps TrainingSteps
---@param stage TrainingStage
---@param every integer   steps from one to the next; 0: none
---@return cstorch.utils.StepRange[]|nil
function stages.checkpoints(steps, stage, every)
  if every == 0 then return nil end
  local count, first = stage.last - stage.first, every - (stage.first - steps.began) % every - 1
  local is_end = stage.last == steps.last
  if first < count then return { StepRange(first, count, { step = every, include_last = is_end }) } end
  return is_end and { StepRange(count - 1, count) } or nil
end

return stages
