-- The base class of optimizers: parameter groups, state, hooks, state dicts.

local class = require "cstorch.class"
local effects = require "cstorch.run.effects"
local errors = require "cstorch.errors"
local hooks = require "cstorch.hooks"
local kept = require "cstorch.kept"
local keywords = require "cstorch.keywords"
local ordered_map = require "cstorch.ordered_map"
local parameter_list = require "cstorch.parameter_list"
local session = require "cstorch.session"
local shapes = require "cstorch.shapes"
local state_dicts = require "cstorch.optim.state_dicts"
local tags = require "cstorch.optim.tags"
local tensors = require "cstorch.tensors"
local text = require "cstorch.text"

local check, show = errors.check, errors.show

---@class cstorch.optim.Optimizer : cstorch.Class   The base class of optimizers. A subclass defines step.
---@field param_groups table[]        each { params = { … }, lr = …, … }; a hyper-parameter is a number until a schedule makes it a tensor
---@field state table                 `state[p].exp_avg`: an ordered map of tensors for each parameter
---@field limits? table<string, table>   ranges of hyper-parameters: { min =, max =, below = }; of a list for each element
---@field check_group? fun(group: table)   fails on a group that the step does not compute, of the constructor or of a state dict
---@field sparsified_state? string[]  names of the state that follows a parameter's sparsity mask
---@field schedulers table[]          the schedules that write into its groups
---@field scheduled table             `scheduled[group][key]`: the tensor that a schedule writes, and the schedule
---@field counts_steps boolean     it has the counter `state[p].step`
---@field scaler? cstorch.amp.GradScaler   the scaler that its gradients may be scaled with
local Optimizer = class.Object:subclass "Optimizer"

Optimizer.noun = "optimizer"
Optimizer.set_by_init = "param_groups"
Optimizer.positional = 1
class.optional(Optimizer, "limits", "sparsified_state", "check_group", "convert_group", "convert_state", "step_was_taken", "has_stepped",
  "scaler")
Optimizer.abstract = { "preinitialize", "step" }

-- --- making one

--- The limit as text: ">= 0", "in [0, 1)".
local function range_text(limit)
  if limit.below then return ("in [%g, %g)"):format(limit.min, limit.below) end
  if limit.max then return ("in [%g, %g]"):format(limit.min, limit.max) end
  return (">= %g"):format(limit.min)
end

local function check_number(name, key, value, limit)
  check(type(value) == "number", "type", "%s: expected a number as %s, found %s", name, key, show(value))
  if not limit then return end
  local is_inside = value >= limit.min and (not limit.max or value <= limit.max) and (not limit.below or value < limit.below)
  check(is_inside, "value", "%s: %s must be %s, not %g", name, key, range_text(limit), value)
end

local function check_list(name, key, value, count, limit)
  check(type(value) == "table", "type", "%s: expected a list of %d numbers as %s, found %s", name, count, key, show(value))
  check(#value == count, "type", "%s: expected a list of %d numbers as %s, found a list of %d", name, count, key, #value)
  for i, item in ipairs(value) do check_number(name, ("element %d of %s"):format(i, key), item, limit) end
end

--- Hyper-parameters must have the type of their default and be within their limits.
local function check_hyper_parameters(self, group)
  local name, limits = self.class.name, self.limits or {}
  for key, default in pairs(self.class.keywords or {}) do
    local value, limit = group[key], limits[key]
    local is_list = type(default) == "table" and type(default[1]) == "number"
    local is_number = type(default) == "number" or limit and (default == keywords.REQUIRED or default == keywords.OPTIONAL)
    if value == nil then
      check(default == keywords.OPTIONAL, "value", "%s: a group has no '%s'", name, key)
    elseif tensors.is_tensor(value) and not is_list then
      check(value:numel() == 1, "value", "%s: expected a number or a 0-dim tensor as %s, found shape %s", name, key, shapes.text(value))
    elseif type(default) == "boolean" then
      check(type(value) == "boolean", "type", "%s: expected true or false as %s, found %s", name, key, show(value))
    elseif is_number then
      check_number(name, key, value, limit)
    elseif is_list then
      check_list(name, key, value, #default, limit)
    end
  end
  if self.check_group then self.check_group(group) end
end

--- The groups of a parameter list or of a list of groups, as new tables.
local function as_groups(self, params)
  local name = self.class.name
  if tensors.is_tensor(params) then errors.raise("type", "%s: expected a list of parameters, found one tensor; put it in { }", name) end
  local is_list = type(params) == "table" and getmetatable(params) == nil
  check(is_list, "type", "%s: expected a list such as model:parameters(), or of groups, found %s", name, show(params))
  check(parameter_list.length(name, params, "parameters or groups") > 0, "value", "%s: the list of parameters is empty", name)
  if tensors.is_tensor(params[1]) then return { { params = params } } end
  local groups = {}
  for g, given in ipairs(params) do
    local is_group = type(given) == "table" and not tensors.is_tensor(given)
    check(is_group, "type", "%s: expected a group { params = { ... } } at position %d, found %s",
      name, g, show(given))
    local group = {}
    for key, value in ordered_map.items(given) do group[key] = keywords.plain(value) end
    check(group.params ~= nil, "value", "%s: group %d has no 'params'", name, g)
    if tensors.is_tensor(group.params) then group.params = { group.params } end
    groups[g] = group
  end
  return groups
end

local function check_parameters(self, group, g, seen)
  for k, p in ipairs(group.params) do
    check(tensors.is_tensor(p), "type", "%s: parameter %d of group %d is %s, not a tensor", self.class.name, k, g, show(p))
    check(p.is_leaf, "value", "%s: parameter %d of group %d was computed from others; an optimizer changes nn.Parameters only",
      self.class.name, k, g)
    check(not seen[p], "value", "%s: parameter %d of group %d is already in group %d", self.class.name, k, g, seen[p] or 0)
    seen[p] = g
  end
end

local function add_groups(self, params, defaults)
  local seen = {}
  for g, group in ipairs(as_groups(self, params)) do
    local own = {}
    local count = parameter_list.length(self.class.name, group.params, ("parameters as params of group %d"):format(g))
    for k = 1, count do own[k] = group.params[k] end
    group.params = own
    check_parameters(self, group, g, seen)
    for key, value in pairs(defaults or {}) do
      if group[key] == nil then group[key] = keywords.plain(value) end
    end
    check_hyper_parameters(self, group)
    self.param_groups[g] = group
  end
  for p in pairs(seen) do self.state[p] = ordered_map.new() end
end

--- Keeps what the step being recorded uses, so that later changes are noticed.
local function note_kept(self)
  local trace, owner = session.trace, self.class.name
  if not kept.is_first(trace, self) then return end
  kept.note(trace, self, "param_groups", owner .. ".param_groups")
  kept.note(trace, self.hooks, "step_pre", ("%s: the list of hooks before its step"):format(owner))
  kept.note(trace, self.hooks, "step_post", ("%s: the list of hooks after its step"):format(owner))
  for g, group in ipairs(self.param_groups) do
    for key in pairs(group) do kept.note(trace, group, key, ("%s.param_groups[%d].%s"):format(owner, g, tostring(key))) end
  end
  for _, state in self:parameters() do
    for key in ordered_map.items(state) do kept.note(trace, state, key, ("%s: the state '%s'"):format(owner, tostring(key))) end
  end
end

--- The run mode is that of the last `train` or `eval` of a compiled model.
local function check_mode()
  local backend = session.backend
  if not backend or backend.mode ~= "eval" then return end
  backend.mode = "train"
  errors.warn "an optimizer stepped in eval mode: the run is in train mode now; call train() of the model, as its Dropout is still off"
end

--- Fails if a script changed groups or state in an invalid way after the optimizer was made.
local function check_changes(self)
  local name, own, fresh = self.class.name, self.state, {}
  for g, group in ipairs(self.param_groups) do
    check_hyper_parameters(self, group)
    for k, p in ipairs(group.params) do
      local is_known = tensors.is_tensor(p) and own[p] ~= nil
      check(is_known, "value", "%s: parameter %d of group %d was added later; an optimizer is made with all its parameters", name, k, g)
      fresh[p] = ordered_map.new()
    end
  end
  self.state = fresh
  local fine = pcall(self._make_state, self)
  self.state = own
  for p, state in pairs(fine and fresh or {}) do
    for key in ordered_map.items(state) do
      check(tensors.is_tensor(own[p][key]), "value", "%s: a parameter has no tensor as state '%s'; it was replaced, or a "
        .. "setting that needs it was changed after the optimizer was made", name, key)
    end
  end
end

--- The state tensors of each parameter.
local function held_state(self)
  local held = {}
  for p, state in self:parameters() do held[p] = ordered_map.new(state) end
  return held
end

--- Fails if a step made state: the state would start over with each replay of a recorded step.
local function check_held(self, held)
  for p, state in self:parameters() do
    for key, value in ordered_map.items(state) do
      check(rawequal(value, held[p][key]), "runtime", "%s: its step made a new tensor for the state '%s'; make all state in preinitialize, "
        .. "and write into it: state.%s:copy_(…), mul_, add_", self.class.name, key, key)
    end
  end
end

--- Warns about numbers that replaced a schedule's tensor. A recorded step would keep such a number forever, so it uses the schedule's
--- tensor. Otherwise the number holds until the schedule writes again.
local function check_scheduled(self)
  for g, group in ipairs(self.param_groups) do
    for key, slot in pairs(self.scheduled[group] or {}) do
      if type(group[key]) == "number" then
        local is_recorded = session.trace ~= nil
        errors.warn(("%s.param_groups[%d].%s was set to %g, but %s writes it: %s; set it in the schedule, or make no schedule"):format(
          self.class.name, g, key, group[key], slot.schedule.class.name,
          is_recorded and "the schedule's value is used" or "that holds until the schedule's next step only"))
        if is_recorded then group[key] = slot.tensor end
      end
    end
  end
end

--- Runs `update`. Groups and state are checked only after an error, because that takes time.
local function run_checked(self, update)
  local held = (session.trace or not self.has_stepped) and held_state(self)
  local note_writes = effects.watch_step(self)
  local fine, result = pcall(tensors.no_grad, tensors.formula, update)
  if fine and held then check_held(self, held) end
  if fine and note_writes then note_writes() end
  self.has_stepped = true
  if fine then return result end
  if errors.is_library(debug.getinfo(class.original(self.class.step), "S").source) then tensors.no_grad(check_changes, self) end
  error(result, 0)
end

--- `optimizer:step()` runs the class's `step` without recording gradients, as one fused formula, between the hooks.
local function wrap_step(self)
  local update, given = self.class.step, nil
  local function run() return update(self, given) end
  self.step = function(object, closure)
    check(object == self, "type", "%s.step: call it with a colon, as in optimizer:step()", self.class.name)
    closure = hooks.run(self.hooks.step_pre, self, closure, "function")
    local is_closure = closure == nil or type(closure) == "function"
    check(is_closure, "type", "%s:step: expected a function or nothing, found %s", self.class.name, show(closure))
    check_mode()
    check_scheduled(self)
    if session.trace then note_kept(self) end
    local loss = closure and closure()
    given = closure and function() return loss end
    effects.check_gradients(self)
    if self.scaler then
      self.scaler:_check_unscaled(self, self.class.name .. ":step",
        "call scaler:step(optimizer) instead, or scaler:unscale_(optimizer) before")
    end
    local result = run_checked(self, run)
    effects.optimizer_stepped(self)
    hooks.run(self.hooks.step_post, self)
    return result
  end
end

---Sets up groups and state; a subclass calls it from its own `init`.
---@param params table       a list of parameters, or of groups { params = { … }, lr = … }
---@param defaults? table    the hyper-parameters of groups that do not have their own
---@param options? { enable_global_step: boolean }   keeps a float32 counter `state[p].step`, see `increment_global_step`
function Optimizer:init(params, defaults, options)
  self.param_groups, self.state, self.schedulers, self.scheduled = {}, {}, {}, {}
  self.hooks = { step_pre = {}, step_post = {}, zero_grad_pre = {}, zero_grad_post = {}, load_state_dict_post = {} }
  add_groups(self, params, defaults)
  self.counts_steps = options ~= nil and options.enable_global_step or false
  tensors.no_grad(self._make_state, self)
  self:_mark_state()
  session.optimizer_count = session.optimizer_count + 1
  session.optimizers[self] = session.optimizer_count
  for _, group in ipairs(self.param_groups) do group.tags = tags.normalize(group.tags) end
  wrap_step(self)
end

---The groups with their hyper-parameters, a line each.
function Optimizer:__tostring()
  local lines = { self.class.name }
  for g, group in ipairs(self.param_groups) do
    lines[g + 1] = ("  group %d (parameters: %d): %s"):format(g, #group.params, text.fields(self.class.keywords or {}, group))
  end
  return table.concat(lines, "\n")
end

--- Makes the state of a new optimizer, in empty maps.
function Optimizer:_make_state()
  self:preinitialize()
  if not self.counts_steps then return end
  for _, state in self:parameters() do state.step = self.scalar(0) end
end

--- Marks the state tensors: they leave the CSX only in checkpoints.
function Optimizer:_mark_state()
  for _, state in self:parameters() do
    for _, value in ordered_map.items(state) do
      if tensors.is_tensor(value) then tensors.mark_weight(value) end
    end
  end
end

-- --- what subclasses use

---Iterates over all parameters: `for p, state, group in self:parameters() do`.
---@return fun(): any, table, table
function Optimizer:parameters()
  local g, k = 1, 0
  return function()
    k = k + 1
    local group = self.param_groups[g]
    while group and k > #group.params do
      g, k = g + 1, 1
      group = self.param_groups[g]
    end
    if group then return group.params[k], self.state[group.params[k]], group end
  end
end

local function is_half(tensor) return tensor.dtype == "float16" or tensor.dtype == "bfloat16" end

---Iterates over the parameters that have a gradient: `for p, grad, state, group in self:gradients() do`. A gradient of half precision
---comes as float32, like the state: the square of 1e-3 is 0 in float16.
---@return fun(): any, any, table, table
function Optimizer:gradients()
  local next_parameter = self:parameters()
  return function()
    while true do
      local p, state, group = next_parameter()
      if p == nil then return nil end
      local grad = p.grad
      if grad then return p, is_half(grad) and grad:to "float32" or grad, state, group end
    end
  end
end

---A state tensor of zeros in the shape of `p`, float32 also for a parameter of half precision.
function Optimizer.zeros(p)
  local zeros = tensors.zeros_like(p)
  if is_half(p) then zeros = zeros:to "float32" end
  return zeros
end

---A state tensor without dims, float32.
---@param value number|cstorch.Tensor
function Optimizer.scalar(value) return tensors.to_device(tensors.zeros({}, { dtype = "float32" })):copy_(value) end

---Counts the parameter's step.
---@return any step   the counter, a 0-dim tensor
function Optimizer:increment_global_step(p)
  check(self.state[p], "type", "increment_global_step: expected a parameter of this %s, found %s", self.class.name, show(p))
  local step = self.state[p].step
  check(step, "runtime", "%s has no step counter; pass { enable_global_step = true } to Optimizer.init", self.class.name)
  return step:add_(1)
end

---Names of the state that follows a parameter's sparsity mask.
---@return string[]
function Optimizer:state_names_to_sparsify() return { unpack(self.sparsified_state or {}) } end

-- --- using one

---Removes the gradients.
---@param options? { set_to_none: boolean }   false: fills them with zeros instead
function Optimizer:zero_grad(options)
  options = keywords.complete(self.class.name .. ":zero_grad", { set_to_none = true }, options)
  if session.trace and kept.is_first(session.trace, self.hooks) then
    kept.note(session.trace, self.hooks, "zero_grad_pre", self.class.name .. ": the list of hooks before zero_grad")
    kept.note(session.trace, self.hooks, "zero_grad_post", self.class.name .. ": the list of hooks after zero_grad")
  end
  options = hooks.run(self.hooks.zero_grad_pre, self, options, "table")
  if options.set_to_none == false then
    errors.warn "zero_grad: filling gradients with zeros changes the compiled graph; leave out set_to_none = false"
  end
  for p in self:parameters() do
    if options.set_to_none ~= false then
      p.grad = nil
    elseif p.grad then
      p.grad:zero_()
    end
  end
  hooks.run(self.hooks.zero_grad_post, self)
end

---`{ state = { [0] = { exp_avg = … } }, param_groups = { { lr = …, params = { 0, 1 } } } }`: parameters are numbered over all
---groups, from 0.
---@return table
function Optimizer:state_dict() return state_dicts.of(self) end

---Writes the state and the hyper-parameters of a state dict into this optimizer. States are matched by `param_names` where both sides
---have them, else by position. A parameter without a state begins anew. If something does not fit, it fails and changes nothing.
---@param state_dict table
function Optimizer:load_state_dict(state_dict)
  tensors.no_grad(state_dicts.load, self, state_dict, function(group)
    check_hyper_parameters(self, group)
    group.tags = tags.normalize(group.tags)
  end)
  self:_mark_state()
  hooks.run(self.hooks.load_state_dict_post, self)
end

---Calls `f(self)`, or `f:apply(self)` of an object that has this method.
function Optimizer:apply(f)
  if type(f) == "function" then return f(self) end
  local apply = type(f) == "table" and class.has(f, "apply") and not class.is_a(f, Optimizer) and f.apply
  check(type(apply) == "function", "type", "%s:apply: expected a function or an object with 'apply', found %s", self.class.name, show(f))
  return apply(f, self)
end

--- Writes into the existing tensor, which recorded steps use, or replaces it by one of another kind.
local function replace(state, name, new)
  local old = state[name]
  local fits = tensors.is_tensor(old) and old.dtype == new.dtype and old.device == new.device and shapes.same(old, new)
  if not fits then state[name] = new else tensors.no_grad(old.copy_, old, new) end
end

---Replaces each state tensor by `f(tensor)`, unless that is nil.
---@param f fun(value: any): any
function Optimizer:visit_state(f)
  check(type(f) == "function", "type", "%s:visit_state: expected a function, found %s", self.class.name, show(f))
  for _, state in self:parameters() do
    for name, value in ordered_map.items(state) do
      local new = f(value)
      check(new == nil or tensors.is_tensor(new), "type", "%s:visit_state: expected a tensor or nil for '%s', found %s",
        self.class.name, name, show(new))
      if new ~= nil then replace(state, name, new) end
    end
  end
  self:_mark_state()
end

---`hook(optimizer, closure)` runs before each step; it may return another closure.
---@return cstorch.HookHandle
function Optimizer:register_step_pre_hook(hook) return hooks.register(self.hooks.step_pre, hook) end

---`hook(optimizer)` runs after each step.
---@return cstorch.HookHandle
function Optimizer:register_step_post_hook(hook) return hooks.register(self.hooks.step_post, hook) end

---`hook(optimizer, options)` runs before `zero_grad`; it may return other options.
---@return cstorch.HookHandle
function Optimizer:register_zero_grad_pre_hook(hook) return hooks.register(self.hooks.zero_grad_pre, hook) end

---`hook(optimizer)` runs after `zero_grad`.
---@return cstorch.HookHandle
function Optimizer:register_zero_grad_post_hook(hook) return hooks.register(self.hooks.zero_grad_post, hook) end

---`hook(optimizer)` runs after `load_state_dict`.
---@return cstorch.HookHandle
function Optimizer:register_load_state_dict_post_hook(hook) return hooks.register(self.hooks.load_state_dict_post, hook) end

return Optimizer
