-- The model of a params.yaml: which class it is, what it computes, and what it is trained for.

local cbk = require "cbk"
local classes = require "cbk.classes"
local configs = require "cbk.recognise.configs"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local errors = require "cbk.errors"
local kinds = require "converters.engine.kinds"
local lora = require "converters.modelzoo.lora"
local models = require "cstorch.models"
local modules_of = require "converters.modelzoo.modules"
local naming = require "cbk.naming"
local params = require "cbk.training.params"
local tasks = require "cbk.training.tasks"
local trainer = require "converters.modelzoo.trainer"

local catalogue = converters.catalogue

local model = {}

local MODEL = "trainer.init.model"

--- Fields of a model section that are no model's, and what they do on a cluster; false: they are read here.
local OTHERS = {
  name = false, compute_eval_metrics = false,
  boundary_casting = "casts between parts of the model", mixed_precision = "computes in half precision; here everything is float32",
  fp16_type = "sets the type of half precision", use_bfloat16 = "computes in half precision", dtype = "sets the type of embeddings",
  start_token = "begins a text that is generated", loop_dim = "belongs to generating", stop_sequences = "ends a text that is generated",
  max_tokens = "ends a text that is generated", temperature = "belongs to generating", top_k = "belongs to generating",
  top_p = "belongs to generating", compression = "compresses weights", selective_grad = "leaves out gradients",
  lora_params = false, use_experimental_flex_api = "compiles masks in another way",
}

--- Fields of classes that are not computed with; empty maps of them change nothing.
local NOT_EMULATED = { lr_adjustment_groups = "adjust_learning_rate of the optimizer gives factors to layers", memory_tokens_config = false,
  memory_tokens = false, num_memory_tokens_per_chunk = false, attn_memory_chunk_size = false, rel_distance_extra_args = false,
  extra_ffn_params = false }

---Fails at a field that nothing knows, and notes those without an effect.
---@param run TrainingParams
---@param section Dict
---@param list ClassTensors
---@param task TrainingTaskKind
local function check_fields(run, section, list, task)
  local known = {}
  for name in pairs(list.class:by_name()) do known[name] = true end
  for _, names in ipairs { OTHERS, NOT_EMULATED } do
    for name in pairs(names) do known[name] = true end
  end
  for _, name in ipairs(models.initializers(list.class)) do known[name] = true end
  for _, name in ipairs(task.fields) do known[name] = true end
  for name in pairs(list.class.refused or {}) do known[name] = true end
  for name in cbk.items(section) do
    local place = "trainer.init.model." .. name
    if not known[name] then
      params.refuse_unknown(run, place, naming.sorted(known), list.class.name)
    end
    local value = section[name]
    local is_empty = kinds.absent(value) or value == false or kinds.is_dict(value) and cbk.count(value) == 0
    if NOT_EMULATED[name] ~= nil and not is_empty then
      local advice = NOT_EMULATED[name] and "; " .. NOT_EMULATED[name] or ""
      params.refuse(run, place, ("it is a field of the Model Zoo's classes that is not emulated%s"):format(advice))
    end
    local refused = (list.class.refused or {})[name]
    local why = OTHERS[name] or refused and ("is not a field of the class since release %s"):format(refused)
    if why and kinds.present(value) then params.ignore(run, place, value, why) end
  end
end

---What a model is trained for, as its section says.
---@param run TrainingParams
---@param kind TrainingTaskKind
---@param module cstorch.models.Trainable
---@return TrainingTask
function model.task(run, kind, module)
  local function refuse(field, problem) params.refuse(run, "trainer.init.model." .. field, problem) end
  local section = trainer.model(run.config)
  local function ignore(field, why) params.ignore(run, MODEL .. "." .. field, section[field], why) end
  return kind.open(module, section, refuse, ignore)
end

---Makes the computation of a model; an error names the field that is the reason.
---@param run TrainingParams
---@param make function
---@return cstorch.models.Trainable
function model.make(run, make, ...)
  local fine, result = pcall(make, ...)
  if fine then return result end
  local said = type(result) == "table" and result or {}
  local place, value = MODEL .. (said.field and "." .. said.field or ""), said.value
  for name, own in cbk.items(trainer.model(run.config)) do
    if value ~= nil and own == value then place = ("%s.%s"):format(MODEL, name) end
  end
  if said.reason then params.refuse(run, place, said.reason) end
  return params.at_field(run, place, error, result, 0)
end

---A model with first values, to be trained.
---@param run TrainingParams
---@param own TrainingModel
---@param seed integer
---@return cstorch.models.Trainable
function model.trainable(run, own, seed)
  local values = own.list.values
  if values.position_embedding_type == "alibi" and values.alibi_trainable_slopes then
    params.refuse(run, MODEL .. ".alibi_trainable_slopes", "true is not emulated: the slopes have no gradient here")
  end
  return model.make(run, models.trainable, own.list, seed)
end

---The classes of a model's modules, which target_modules may name.
---@param own TrainingModel
---@param section Dict
---@return string[]
local function classes_of(own, section)
  local found = {}
  for _, one in ipairs(own.list) do
    for _, class in ipairs((modules_of.classes(one.key:match "^(.*)%.[^.]*$" or "", own.name, section))) do found[class] = true end
  end
  return naming.sorted(found)
end

---@param run TrainingParams
---@param own TrainingModel
---@param groups LoraGroup[]
local function refuse_targets(run, own, groups)
  local names, near = classes_of(own, trainer.model(run.config)), nil
  local is_known = {}
  for _, name in ipairs(names) do is_known[name] = true end
  for _, name in ipairs(groups[1].targets or {}) do near = near or not is_known[name] and cbk.nearest(name, names, 1)[1] or nil end
  params.refuse(run, groups[1].name .. ".target_modules", ("no module of the model is among the target_modules of lora_params%s; known: %s")
    :format(naming.suggestion(near), table.concat(names, ", ")))
end

---Adds the low-rank matrices of the callback Lora, if the file has it.
---@param run TrainingParams
---@param own TrainingModel
---@param module cstorch.models.Trainable
---@param seed integer
function model.adapt(run, own, module, seed)
  if not lora.is_in(run.config) then return end
  local fine, groups = pcall(lora.groups, run.config, run.file)
  if not fine then
    local is_at_field = type(groups) == "table" and groups.field
    error(is_at_field and errors.put_in(groups, (params.line(run, groups.field))) or groups, 0)
  end
  local section, modules = trainer.model(run.config), {}
  for _, one in ipairs(own.list) do
    local path = one.key:match "^(.*)%.weight$"
    local group, class = nil, nil
    if path and not one.tied_to then group, class = lora.of_module(path, groups, own.name, section) end
    if group and group.fan_in_fan_out then
      params.refuse(run, "trainer.init.callbacks", group.name .. ".fan_in_fan_out=true is not emulated")
    end
    if group then modules[path] = { rank = group.rank, scale = group.scale, dropout = group.dropout, class = class } end
  end
  if next(modules) == nil then refuse_targets(run, own, groups) end
  module:adapt(modules, seed)
end

---The tensors of a model; an error names the field that is the reason.
---@param run TrainingParams
---@param name string
---@param format string
---@return ClassTensors
local function tensors_of(run, name, format)
  local fine, result = pcall(classes.tensors, run.config, name, format)
  if fine then return result end
  local field = type(result) == "table" and result.code == "config" and result.field
  if not field then return params.at_field(run, MODEL, error, result, 0) end
  local place = ("%s.%s"):format(MODEL, field)
  if result.supported then params.refuse(run, place, ("expected %s, found %s"):format(result.supported, result.found)) end
  return params.at_field(run, place, error, result, 0)
end

---@class TrainingModel
---@field name string                   as `cbk list` names it
---@field format string                 of the checkpoints
---@field list ClassTensors
---@field task TrainingTaskKind

---The model that the command line or the file names.
---@param run TrainingParams
---@param section Dict
---@return string name, string format
local function named(run, section)
  local asked = run.model_name
  if asked then
    local of_zoo = not catalogue.find(asked) and converters.stated_models(false, cbk.dict { name = asked })[1]
    return configs.model_of(run.config, of_zoo or asked)
  end
  if kinds.absent(section.name) then
    params.refuse(run, MODEL, "it has no 'name', as files of releases up to 2.2; --model NAME names it, such as gpt2")
  end
  local fine, name, format = pcall(configs.model_of, run.config)
  if fine then return name, format end
  local advice = converter_list.advice(tostring(section.name), catalogue.names())
  return params.at_field(run, MODEL .. ".name", error, errors.with(name, { advice = advice }), 0)
end

---@param run TrainingParams
---@return TrainingModel
function model.of(run)
  local section = trainer.model(run.config)
  local name, format = named(run, section)
  local list = tensors_of(run, name, format)
  if not models.knows(list.class) then
    params.refuse(run, "trainer.init.model.name",
      ("%s (%s) cannot be trained here; decoders such as gpt2 and llama can, and bert and t5"):format(name, list.class.name))
  end
  local task = tasks.of(list.class.name)
  check_fields(run, section, list, task)
  return { name = name, format = format, list = list, task = task }
end

return model
