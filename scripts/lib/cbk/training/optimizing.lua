-- What changes the weights of a run: the optimizer, its schedules, the loss scale and clipping, from the sections of a params.yaml.

local cbk = require "cbk"
local cstorch = require "cstorch"
local keywords = require "cstorch.keywords"
local kinds = require "converters.engine.kinds"
local norms = require "cbk.training.norms"
local params = require "cbk.training.params"

---@class Optimizing
---@field optimizer cstorch.optim.Optimizer
---@field schedules cstorch.optim.Scheduler[]
---@field scaler? cstorch.amp.GradScaler
---@field precision table   the section of the params
---@field measured? cstorch.models.Trainable   whose norms are computed in each step
local Optimizing = {}
Optimizing.__index = Optimizing

local OPTIMIZER, SCHEDULES = "trainer.init.optimizer", "trainer.init.schedulers"

---The name and the options of a map with one entry.
---@param run TrainingParams
---@param place string
---@return string name, table options
local function only_entry(run, map, place)
  local name, options
  for key, value in cbk.items(map) do
    if name then params.refuse(run, place, ("expected one name, found '%s' and '%s'"):format(name, tostring(key))) end
    name, options = tostring(key), kinds.present(value) and keywords.plain(value) or {}
  end
  if not name then params.refuse(run, place, "expected a name such as AdamW, found none") end
  if type(options) ~= "table" then params.refuse(run, place .. "." .. name, "expected a map of fields") end
  return name, options
end

---Fails at a number with which nothing can be trained, though optimizers and schedules take it.
---@param run TrainingParams
---@param place string
---@param value any     of options
local function check_numbers(run, place, value)
  if type(value) == "number" and (value ~= value or math.abs(value) == math.huge) then
    params.refuse(run, place, ("expected a finite number, found %s"):format(params.shown(value)))
  end
  for name, part in pairs(type(value) == "table" and value or {}) do
    check_numbers(run, ("%s.%s"):format(place, tostring(type(name) == "number" and name - 1 or name)), part)
  end
end

---Fails at values of schedules that are below 0, and at milestones that do not ascend.
---@param run TrainingParams
---@param place string
---@param value any
local function check_schedule(run, place, value)
  if type(value) == "number" and value < 0 then
    params.refuse(run, place, ("expected a number from 0, found %s"):format(params.shown(value)))
  end
  for name, part in pairs(type(value) == "table" and value or {}) do
    local at = ("%s.%s"):format(place, tostring(type(name) == "number" and name - 1 or name))
    check_schedule(run, at, part)
    for i = 2, name == "milestones" and type(part) == "table" and #part or 0 do
      if type(part[i]) == "number" and type(part[i - 1]) == "number" and part[i] < part[i - 1] then
        params.refuse(run, at, ("expected steps in ascending order, found %g behind %g"):format(part[i], part[i - 1]))
      end
    end
  end
end

---An optimizer, and the names of options that it does not have. Other warnings are shown.
---@param options table
---@return cstorch.optim.Optimizer, string[]|nil
local function made_optimizer(options)
  local unused, before
  before = cstorch.on_warning(function(text, info)
    if info and info.unused then unused = info.unused else (before or cbk.warn)(text, info) end
  end)
  local fine, result = pcall(cstorch.optim.configure_optimizer, options)
  cstorch.on_warning(before)
  if not fine then error(result, 0) end
  return result, unused
end

---@param run TrainingParams
---@param module cstorch.models.Trainable
---@return cstorch.optim.Optimizer
local function optimizer_of(run, module)
  if not run.init.optimizer then params.refuse(run, "trainer.init", "it has no optimizer, such as AdamW") end
  local name, options = only_entry(run, run.init.optimizer, OPTIMIZER)
  local place = OPTIMIZER .. "." .. name
  check_numbers(run, place, options)
  local decay = options.weight_decay
  if type(decay) == "number" and decay < 0 then
    params.refuse(run, place .. ".weight_decay", ("expected a number from 0, found %s"):format(params.shown(decay)))
  end
  local groups = params.at_field(run, place, cstorch.optim.configure_param_groups, module,
    { weight_decay = options.weight_decay, adjust_learning_rate = options.adjust_learning_rate or module.description.rates,
      params = options.params })
  options.adjust_learning_rate, options.params, options.weight_decay = nil, nil, nil
  if name == "Adam" and options.correct_bias == true then options.correct_bias = nil end -- as always
  options.optimizer_type, options.params = name, groups
  local optimizer, unused = params.at_field(run, place, made_optimizer, options)
  if unused then params.refuse_unknown(run, ("%s.%s"):format(place, unused[1]), keywords.names(optimizer.class.keywords), name) end
  return optimizer
end

local function bare(name) return (tostring(name):lower():gsub("lr$", "")) end

---The path of an argument of a schedule; nil if it is not found.
---@param list List       of schedules
---@param place string    of the list
---@param class string
---@param argument string
---@return string|nil
local function place_of_argument(list, place, class, argument)
  for i, entry in cbk.items(list) do
    for name, options in cbk.items(kinds.is_dict(entry) and entry or cbk.dict()) do
      local at = ("%s.%d.%s"):format(place, i - 1, tostring(name))
      local has = kinds.is_dict(options) and options[argument] ~= nil and bare(name) == bare(class)
      local inner = not has and kinds.is_dict(options) and kinds.is_list(options.schedulers)
        and place_of_argument(options.schedulers, at .. ".schedulers", class, argument)
      if has or inner then return has and ("%s.%s"):format(at, argument) or inner end
    end
  end
end

---@param run TrainingParams
---@param optimizer cstorch.optim.Optimizer
---@param list List
---@return cstorch.optim.Scheduler[]
local function made_schedules(run, optimizer, list)
  local fine, result = pcall(cstorch.optim.configure_scheduler, optimizer, list)
  if fine then return result end
  local place = type(result) == "table" and result.argument and place_of_argument(list, SCHEDULES, result.of, result.argument)
  return params.at_field(run, place or SCHEDULES, error, result, 0)
end

---@param run TrainingParams
---@param optimizer cstorch.optim.Optimizer
---@return cstorch.optim.Scheduler[]
local function schedules_of(run, optimizer)
  local list = run.init.schedulers
  if not list or #list == 0 then return {} end
  check_numbers(run, SCHEDULES, keywords.plain(list))
  check_schedule(run, SCHEDULES, keywords.plain(list))
  local schedules, has_factors = made_schedules(run, optimizer, list), false
  for _, group in ipairs(optimizer.param_groups) do has_factors = has_factors or group.adjust_learning_rate ~= nil end
  for i, schedule in ipairs(schedules) do
    -- muP gives factors to groups, which apply without a ScalePerParamLR in the file.
    local is_plain = has_factors and schedule.param_group_key == "lr" and schedule.class.name ~= "ScalePerParamLR"
    if is_plain then schedules[i] = cstorch.optim.lr_scheduler.ScalePerParamLR(optimizer, { scheduler = schedule }) end
  end
  return schedules
end

---The scaler that a cluster has for float16 and cbfloat16; bfloat16 needs none.
local function scaler_of(precision)
  local has_scale = precision.loss_scaling_factor and precision.loss_scaling_factor ~= 1 or precision.fp16_type == "cbfloat16"
  if not has_scale or not precision.fp16_type or precision.fp16_type == "bfloat16" then return nil end
  return cstorch.amp.GradScaler { loss_scale = precision.loss_scaling_factor, init_scale = precision.initial_loss_scale,
    steps_per_increase = precision.steps_per_increase, min_loss_scale = precision.min_loss_scale,
    max_loss_scale = precision.max_loss_scale }
end

local optimizing = {}

---@param run TrainingParams
---@param module cstorch.models.Trainable
---@return Optimizing
function optimizing.new(run, module)
  local precision = run.init.precision
  if precision.max_gradient_norm and precision.max_gradient_value then
    params.refuse(run, "trainer.init.precision.max_gradient_value", "it excludes max_gradient_norm; remove one of them")
  end
  local optimizer = optimizer_of(run, module)
  return setmetatable({ optimizer = optimizer, schedules = schedules_of(run, optimizer),
    scaler = params.at_field(run, "trainer.init.precision", scaler_of, precision), precision = precision,
    measured = run.init.callbacks.ComputeNorm and module or nil }, Optimizing)
end

---Adds the gradients of a loss. A scaled loss is one for all parts of a batch, so its parts are added up to the last.
---@param loss cstorch.Tensor
---@param is_last boolean
---@param again cstorch.models.Recomputed|nil   of this part
function Optimizing:backward(loss, is_last, again)
  local waiting = self.waiting or { again = {} }
  self.waiting = waiting
  waiting.again[#waiting.again + 1] = again
  if self.scaler then
    waiting.loss = waiting.loss and waiting.loss + loss or loss
    if not is_last then return end
    self.scaler:scale(waiting.loss):backward()
  else
    loss:backward()
  end
  for _, one in ipairs(waiting.again) do one:backward() end
  self.waiting = nil
end

---@class OptimizingFacts   Tensors without dims, or numbers.
---@field lr cstorch.Tensor|number            of the first group, in this step
---@field grad_norm? cstorch.Tensor           before clipping by norm
---@field loss_scale? cstorch.Tensor          in this step
---@field [string] cstorch.Tensor             norms of the callback ComputeNorm, before clipping

---@class DynamicScale
---@field own cstorch.Tensor        after the step
---@field wanted cstorch.Tensor     the same without a lower limit

---One step of the optimizer and its schedules with the gradients that there are.
---@return OptimizingFacts
---@return DynamicScale|nil scale   nil if the loss scale is not dynamic
function Optimizing:step()
  local optimizer, scaler, precision = self.optimizer, self.scaler, self.precision
  if scaler then scaler:unscale_(optimizer) end
  local list, rate = {}, optimizer.param_groups[1].lr
  for p in optimizer:parameters() do list[#list + 1] = p end
  local facts = { lr = type(rate) == "number" and rate or rate:clone(), loss_scale = scaler and scaler:get_scale():clone() }
  for name, value in pairs(self.measured and norms.of(self.measured) or {}) do facts[name] = value end
  if precision.max_gradient_norm then
    facts.grad_norm = cstorch.nn.utils.clip_grad_norm_(list, precision.max_gradient_norm)
  elseif precision.max_gradient_value then
    cstorch.nn.utils.clip_grad_value_(list, precision.max_gradient_value)
  end
  if scaler then
    scaler:step(optimizer)
    scaler:update()
  else
    optimizer:step()
  end
  optimizer:zero_grad()
  for _, schedule in ipairs(self.schedules) do schedule:step() end
  local has_scale = scaler and scaler.is_dynamic
  return facts, has_scale and { own = scaler:get_scale():clone(), wanted = scaler:get_non_clamped_scale():clone() } or nil
end

---What a checkpoint keeps of it, by the names of the Model Zoo.
---@param root table   an ordered map, which gets `optimizer`, `schedulers` and `grad_scaler`
function Optimizing:save(root)
  root.optimizer = self.optimizer:state_dict()
  if self.schedules[1] then
    root.schedulers = {}
    for i, schedule in ipairs(self.schedules) do root.schedulers[i] = schedule:state_dict() end
  end
  if self.scaler then root.grad_scaler = self.scaler:state_dict() end
end

---Loads what a checkpoint has of it.
---@param root Dict
---@return string[] lacking   what it has not, which begins anew
function Optimizing:load(root)
  local lacking = {}
  local function load(name, into)
    if kinds.present(root[name]) then into:load_state_dict(root[name]) else lacking[#lacking + 1] = name end
  end
  load("optimizer", self.optimizer)
  local saved = kinds.present(root.schedulers) and root.schedulers or nil
  for i, schedule in ipairs(self.schedules) do
    local own = saved and saved[i] or i == 1 and kinds.present(root.lr_scheduler) and root.lr_scheduler or nil
    if own then schedule:load_state_dict(own) else lacking[#lacking + 1] = ("schedulers.%d"):format(i - 1) end
  end
  if self.scaler then load("grad_scaler", self.scaler) end
  return lacking
end

return optimizing
