-- The model of a params.yaml: which class it is, what it computes, and what its section says about the loss.

local cbk = require "cbk"
local classes = require "cbk.classes"
local configs = require "cbk.recognise.configs"
local kinds = require "converters.engine.kinds"
local lora = require "converters.modelzoo.lora"
local models = require "cstorch.models"
local naming = require "cbk.naming"
local params = require "cbk.training.params"
local trainer = require "converters.modelzoo.trainer"

local model = {}

--- Fields of a model section that are no model's, and what they do on a cluster; false: they are read here.
local OTHERS = {
  name = false, loss_scaling = false, loss_weight = false, compute_eval_metrics = false, disable_nsp = false,
  boundary_casting = "casts between parts of the model", mixed_precision = "computes in half precision; here everything is float32",
  fp16_type = "sets the type of half precision", use_bfloat16 = "computes in half precision", dtype = "sets the type of embeddings",
  start_token = "begins a text that is generated", loop_dim = "belongs to generating", stop_sequences = "ends a text that is generated",
  max_tokens = "ends a text that is generated", temperature = "belongs to generating", top_k = "belongs to generating",
  top_p = "belongs to generating", compression = "compresses weights", selective_grad = "leaves out gradients",
  lora_params = false,
}

local INITIALIZERS = {
  initializer = true, embedding_initializer = true, output_layer_initializer = true, ffn_initializer = true,
  ffn_output_layer_initializer = true,
}

---Fails at a field that nothing knows, and notes those without an effect.
---@param run TrainingParams
---@param section Dict
---@param list ClassTensors
local function check_fields(run, section, list)
  local known = {}
  for name in pairs(list.class:by_name()) do known[name] = true end
  for name in pairs(OTHERS) do known[name] = true end
  for name in pairs(INITIALIZERS) do known[name] = true end
  for name in pairs(list.class.refused or {}) do known[name] = true end
  for name in cbk.items(section) do
    local place = "trainer.init.model." .. name
    if not known[name] then
      params.refuse_unknown(run, place, naming.sorted(known), list.class.name)
    end
    local refused = (list.class.refused or {})[name]
    local why = OTHERS[name] or refused and ("is not a field of the class since release %s"):format(refused)
    if why and kinds.present(section[name]) then
      table.insert(run.ignored, ("%s=%s (%s)"):format(place, cbk.json(section[name]), why))
    end
  end
end

local BALANCE = 0.01 -- the coefficient of a mixture whose config has none

---What the loss of a model is.
---@param run TrainingParams
---@return cstorch.models.LossOptions
function model.loss_of(run)
  local section = trainer.model(run.config)
  local by, weight = section.loss_scaling, section.loss_weight
  by = kinds.present(by) and tostring(by):lower() or "num_tokens"
  if by ~= "num_tokens" and by ~= "batch_size" then
    params.refuse(run, "trainer.init.model.loss_scaling", ("expected num_tokens or batch_size, found %s"):format(by))
  end
  weight = kinds.present(weight) and weight or 1
  if type(weight) ~= "number" then
    params.refuse(run, "trainer.init.model.loss_weight", ("expected a number, found %s"):format(cbk.json(weight)))
  end
  local moe = section.moe_params or section.moe
  local balance = kinds.is_dict(moe) and (kinds.present(moe.load_balancing_loss_coef) and moe.load_balancing_loss_coef or BALANCE) or 0
  return { by = by, weight = by == "num_tokens" and 1 or weight, balance = balance }
end

---Adds the low-rank matrices of the callback Lora, if the file has it.
---@param run TrainingParams
---@param own TrainingModel
---@param module cstorch.models.Trainable
---@param seed integer
function model.adapt(run, own, module, seed)
  if not lora.is_in(run.config) then return end
  local groups, section, modules = lora.groups(run.config, run.file), trainer.model(run.config), {}
  for _, one in ipairs(own.list) do
    local path = one.key:match "^(.*)%.weight$"
    local group, class = nil, nil
    if path and not one.tied_to then group, class = lora.of_module(path, groups, own.name, section) end
    if group and group.fan_in_fan_out then
      params.refuse(run, "trainer.init.callbacks", group.name .. ".fan_in_fan_out=true is not emulated")
    end
    if group then modules[path] = { rank = group.rank, scale = group.scale, dropout = group.dropout, class = class } end
  end
  if next(modules) == nil then
    params.refuse(run, "trainer.init.callbacks", "no module of the model is among the target_modules of lora_params")
  end
  module:adapt(modules, seed)
end

---@class TrainingModel
---@field name string                   as `cbk list` names it
---@field format string                 of the checkpoints
---@field list ClassTensors
---@field loss cstorch.models.LossOptions

---@param run TrainingParams
---@return TrainingModel
function model.of(run)
  local section = trainer.model(run.config)
  local name, format = configs.model_of(run.config)
  local list = classes.tensors(run.config, name, format)
  if not models.knows(list.class) then
    params.refuse(run, "trainer.init.model.name",
      ("%s (%s) cannot be trained here; decoders such as gpt2, gptj and llama can"):format(name, list.class.name))
  end
  check_fields(run, section, list)
  return { name = name, format = format, list = list, loss = model.loss_of(run) }
end

return model
