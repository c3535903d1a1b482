-- What models are trained for, by their classes: what a batch has, what the loss is, and what an evaluation measures.

local tasks = {}

---@class TrainingTaskKind
---@field processors string[]   of the Model Zoo, which read files that this task reads; the first is the default
---@field advice? string        for data that are not read
---@field fields string[]       of a model section, which the task reads
---@field open fun(module: cstorch.models.Trainable, section: Dict, refuse: fun(field: string, problem: string), ignore: fun(field: string,
---                why: string)): TrainingTask   `ignore` notes a field that has no effect

---@class TrainingTask
---@field layout TokenLayout      what a sample has
---@field loss fun(model: cstorch.CompiledModel, batch: table, pass: cstorch.models.Pass): cstorch.Tensor        in training
---@field evaluate fun(model: cstorch.CompiledModel, batch: table): cstorch.Tensor, table<string, table>
---                               the loss, and what each metric gets, by its key
---@field metrics TaskMetric[]

---@class TaskMetric
---@field key string       in records and for --json: "accuracy"
---@field name string      that of the Model Zoo
---@field class string     of cstorch.metrics
---@field options? table

local KINDS = {
  BertForPreTraining = require "cbk.training.tasks.pretraining",
  BertForSequenceClassification = require "cbk.training.tasks.classification",
  T5ForConditionalGeneration = require "cbk.training.tasks.generation",
}
local USUAL = require "cbk.training.tasks.text"

---The task of a class.
---@param name string
---@return TrainingTaskKind
function tasks.of(name) return KINDS[name] or USUAL end

return tasks
