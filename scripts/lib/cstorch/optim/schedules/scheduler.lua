-- The base class of schedules: a clock, a closed form of it, and the groups that get the value.

local cbk = require "cbk"
local class = require "cstorch.class"
local closures = require "cstorch.run.closures"
local effects = require "cstorch.run.effects"
local errors = require "cstorch.errors"
local kept = require "cstorch.kept"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local Optimizer = require "cstorch.optim.optimizer"
local ordered_map = require "cstorch.ordered_map"
local session = require "cstorch.session"
local shapes = require "cstorch.shapes"
local tags = require "cstorch.optim.tags"
local tensors = require "cstorch.tensors"
local undo = require "cstorch.optim.schedules.undo"

local check, show = errors.check, errors.show

---@class cstorch.optim.Scheduler : cstorch.Class   The base class of all schedules.
---@field param_group_key string   what it writes in the groups: "lr", "weight_decay"
---@field optimizer cstorch.optim.Optimizer
---@field last_epoch any           the clock in steps: a 0-dim int64 tensor
---@field total_iters? integer
---@field param_group_tags? any[]  which groups it writes to; nil: all
---@field is_member? boolean       its values are written by a schedule that it is part of
local Scheduler = class.Object:subclass("Scheduler", {
  total_iters = keywords.OPTIONAL, last_epoch = -1, param_group_tags = keywords.OPTIONAL,
})

Scheduler.noun = "schedule"
Scheduler.set_by_init = "last_epoch"
Scheduler.positional = 1
class.optional(Scheduler, "validate", "check_arguments", "is_member", "initial_val", "set_lr_lambda", "param_group_key", "total_iters")
Scheduler.abstract = { { "_get_closed_form", "_get_closed_form_lr" } }

--- Fields that are not part of the state dict.
local TRANSIENT = { optimizer = true, scheduler = true, schedulers = true, is_member = true }

local function counter(value) return tensors.to_device(tensors.full({}, value, { dtype = "int64" })) end

local function check_targets(self)
  check(type(self.param_group_key) == "string", "type", "%s: the class has no param_group_key, such as \"lr\"", self.class.name)
  for _, group in ipairs(self.optimizer.param_groups) do
    if tags.match(group.tags, self.param_group_tags) then return end
  end
  local wanted, available = tags.text(self.param_group_tags), tags.available(self.optimizer.param_groups)
  errors.raise("value", "%s: no parameter group has one of the tags %s; the groups have %s", self.class.name, wanted, available)
end

---Declared keywords become fields. The first value is written into the groups at once.
---@param optimizer cstorch.optim.Optimizer
---@param kw table
function Scheduler:init(optimizer, kw)
  check(class.is_a(optimizer, Optimizer), "type", "%s: expected an optimizer of cstorch.optim, found %s", self.class.name, show(optimizer))
  local last = kw.last_epoch
  local is_clock = type(last) == "number" and last == math.floor(last) and last >= -1 and last < math.huge
  check(is_clock, "value", "%s: last_epoch must be a whole number from -1, not %s", self.class.name, show(last))
  for name, value in pairs(kw) do self[name] = keywords.plain(self:_read(name, value)) end
  if self.check_arguments then self:check_arguments() end
  self.optimizer = optimizer
  self.param_group_tags = tags.wanted(self.param_group_tags)
  check_targets(self)
  self.last_epoch, self._step_count = counter(kw.last_epoch + 1), counter(1)
  self._last_value, self._get_called_within_step = {}, false
  self._keep_values = closures.step_closure(function(values)
    for g, value in ipairs(values) do self._last_value[g] = value and value:item() end
  end)
  table.insert(optimizer.schedulers, self)
  if self.validate then self:validate() end
  effects.schedule_made(self)
  self:_write()
end

---An argument of the constructor or of a state dict in the form of this class.
---@param name string
---@param value any
---@return any
function Scheduler:_read(name, value) return value end -- luacheck: no unused args

-- --- values

--- The closed form that the most derived class defines, under either of its names.
local function closed_form(scheduler)
  local own = scheduler.class
  while own do
    local method = rawget(own, "_get_closed_form") or rawget(own, "_get_closed_form_lr")
    if method then return method end
    own = own.super
  end
end

---The value at the current clock: a 0-dim tensor, or [clocks] within `values_at`.
function Scheduler:_value()
  if session.trace and kept.is_first(session.trace, self) then kept.note_fields(session.trace, self, true) end
  local value = closed_form(self)(self)
  local name = self.class.name
  local is_tensor = tensors.is_tensor(value)
  check(is_tensor, "type", "%s: the closed form must return a tensor computed from self.last_epoch, not %s", name, show(value))
  check(value:numel() == 1 or value:numel() == self.last_epoch:numel(), "value",
    "%s: the closed form must return a 0-dim tensor, not one of shape %s", name, shapes.text(value))
  return value
end

---The values of all groups; false for those that are not targeted.
---@return table
function Scheduler:_group_values()
  local value, values = self:_value(), {}
  for g, group in ipairs(self.optimizer.param_groups) do values[g] = tags.match(group.tags, self.param_group_tags) and value end
  return values
end

---Calls a function for a schedule and those that it is made of.
local function each_part(self, visit)
  visit(self)
  for _, member in ipairs(rawget(self, "schedulers") or { rawget(self, "scheduler") }) do each_part(member, visit) end
end

---The values that it has for many clocks at once; its own clock stays as it is.
---@param first integer   the first clock: 0 for the first step
---@param count integer
---@param every? integer   from one clock to the next (default: 1)
---@return (cstorch.Tensor|false)[]   # [count] for each group; false for groups that are not targeted
function Scheduler:values_at(first, count, every)
  if every == nil then every = 1 end
  for name, value in pairs { first = first or false, count = count or false, every = every } do
    local is_whole = type(value) == "number" and value == math.floor(value) and value >= 0 and value <= 2 ^ 53
    check(is_whole, "value", "values_at: %s must be a whole number from 0, not %s", name, show(value or nil))
  end
  local clocks = {}
  each_part(self, function(part)
    clocks[part], part.last_epoch = part.last_epoch, tensors.zeros({ count }, { dtype = "int64" })
  end)
  local fine, values = pcall(tensors.no_grad, function()
    self:_set_clock((tensors.arange(count) * every + first):to "int64")
    return self:_group_values()
  end)
  for part, clock in pairs(clocks) do part.last_epoch = clock end
  if not fine then error(values, 0) end
  for g, value in ipairs(values) do values[g] = value and value + tensors.zeros { count } end
  return values
end

--- The tensor of a group that the schedule writes: one for the whole run, because a traced step reads it at every replay. If a script
--- puts another tensor in its place, that one is used; a number is not.
local function slot_of(self, group)
  local key = self.param_group_key
  local slots = self.optimizer.scheduled[group] or {}
  self.optimizer.scheduled[group] = slots
  if not tensors.is_tensor(group[key]) then group[key] = slots[key] and slots[key].tensor or Optimizer.scalar(0) end
  slots[key] = { tensor = group[key], schedule = self }
  return group[key]
end

local function write(self)
  local values = self:_group_values()
  for g, group in ipairs(self.optimizer.param_groups) do
    if values[g] then slot_of(self, group):copy_(values[g]) end
  end
  if session.backend and session.backend.kind == "CSX" then
    self._keep_values(values)
  else
    self._last_value = values
  end
end

---Writes the current values into the groups.
function Scheduler:_write() tensors.no_grad(write, self) end

---Sets the clock.
---@param clock any   a 0-dim int64 tensor
function Scheduler:_set_clock(clock) self.last_epoch:copy_(clock) end

local function advance(self)
  self._step_count:add_(1)
  -- a step that the gradient scaler skipped does not count
  self.last_epoch:add_(self.optimizer.step_was_taken or 1)
  self:_set_clock(self.last_epoch)
end

---Advances the clock by one step and writes the new values: to be called after the optimizer's step.
function Scheduler:step()
  self._get_called_within_step = true
  effects.schedule_used(self)
  tensors.no_grad(advance, self)
  self:_write()
  self._get_called_within_step = false
end

---The values written last, a number for each group; false for groups that are not targeted.
---@return (number|false)[]
function Scheduler:get_last_value()
  local list = {}
  for g, value in ipairs(self._last_value) do list[g] = tensors.is_tensor(value) and value:item() or value end
  return list
end

-- --- state dicts

--- The form of a field in a state dict.
local function saved(value)
  if type(value) ~= "table" or tensors.is_tensor(value) then return value end
  local copy = {}
  for key, item in pairs(value) do copy[key] = item == keywords.UNTAGGED and cbk.null or saved(item) end
  return copy
end

---All fields of the schedule but its optimizer.
---@return table
function Scheduler:state_dict()
  local dict, names = ordered_map.new(), {}
  for name, value in pairs(self) do
    if not TRANSIENT[name] and type(value) ~= "function" then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do dict[name] = saved(rawget(self, name)) end
  dict._last_value = self:get_last_value()
  return dict
end

--- Fields that a state dict does not set directly.
local KEPT = { _step_count = true, _last_value = true, last_epoch = true }
local COUNTERS = { "last_epoch", "_step_count" }

---Fails if a state dict is invalid in itself.
---@param dict any
function Scheduler:_check_state_dict(dict)
  local name = self.class.name
  check(keywords.is_map(dict), "type", "%s: expected a state dict, found %s", name, show(dict))
  loaded.check_names(dict, name .. ": the state dict")
  check(dict.last_epoch ~= nil, "value", "%s: the state dict has no 'last_epoch', the steps taken; is it that of a schedule?", name)
end

local function load(self, dict)
  self:_check_state_dict(dict)
  for _, name in ipairs(COUNTERS) do
    if dict[name] ~= nil then loaded.write(self[name], dict[name], ("%s: %s"):format(self.class.name, name)) end
  end
  for name, value in ordered_map.items(dict) do
    local own = rawget(self, name)
    local is_field = own ~= nil and type(own) ~= "function" or self.class.keywords[name] ~= nil
    if is_field and not KEPT[name] and not TRANSIENT[name] then
      self[name] = loaded.plain(self:_read(name, value))
      local is_right = self[name] ~= nil or self.class.keywords[name] == keywords.OPTIONAL
      check(is_right, "type", "%s: expected a value as '%s' in the state dict, found null", self.class.name, name)
    elseif not is_field then
      errors.warn(("%s: the state dict has '%s', which this class does not use"):format(self.class.name, tostring(name)))
    end
  end
  if self.check_arguments then self:check_arguments() end
  self.param_group_tags = tags.wanted(self.param_group_tags)
  check_targets(self)
  -- also the clocks of members that have no state dict; those inside a member stand still (`Sequential._set_clock`)
  if not self.is_member then self:_set_clock(self.last_epoch) end
  if self.is_member then
    local values = loaded.plain(dict._last_value)
    check(values == nil or type(values) == "table", "type", "%s: expected a list as _last_value, found %s", self.class.name, show(values))
    self._last_value = values or self._last_value
  else
    self:_write()
  end
end

---Overwrites all fields: arguments in the state dict win over those given to this object. It needs 'last_epoch'. If something does not
---fit, it fails and changes nothing.
---@param dict table
function Scheduler:load_state_dict(dict) undo.after_error(self, load, dict) end

-- --- schedules made of schedules

---Checks that all members are schedules of one optimizer, one key and the same tags.
---@param members any
function Scheduler:_check_members(members)
  local name = self.class.name
  local is_empty = type(members) == "table" and next(members) == nil
  check(type(members) == "table" and members[1] ~= nil, "value", "%s: expected a list of schedules, found %s", name,
    is_empty and "an empty one" or show(members))
  local first = members[1]
  local function text(own) return own and tags.text(own) or "none" end
  for i, member in ipairs(members) do
    check(class.is_a(member, Scheduler), "type", "%s: item %d of 'schedulers' is %s, not a schedule", name, i, show(member))
    check(member.optimizer == first.optimizer, "value", "%s: schedule %d belongs to another optimizer than the first", name, i)
    local key, first_key = member.param_group_key, first.param_group_key
    check(key == first_key, "value", "%s: schedule %d writes '%s', the first '%s'", name, i, key, first_key)
    local own, first_own = text(member.param_group_tags), text(first.param_group_tags)
    check(own == first_own, "value", "%s: schedule %d has the tags %s, the first %s", name, i, own, first_own)
  end
end

return Scheduler
