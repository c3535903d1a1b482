-- Makes the classes of one family of schedules (learning rate, weight decay, any key) from the definitions of this folder.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local namespace = require "cstorch.namespace"

local family = {}

---@class cstorch.optim.ScheduleDefinition   One schedule, under the argument names of all families.
---@field name string              "CosineDecay" makes CosineDecayLR, CosineDecayWD and CosineDecayScheduler
---@field names? table<string, string>   suffix to the class name, where it is another
---@field keywords table<string, any>
---@field closed_form? fun(self: table, t: any): any   the value at step t, a 0-dim float32 tensor
---@field computed? string[]     fields that `validate` computes from the arguments; they are in state dicts
---@field _check_values? fun(self: table)   checks the arguments, which are fields by then; after a state dict was loaded, too
---@field validate? fun(self: table)     completes a new schedule, whose arguments are checked

--- The definitions, in the order of the reference.
local DEFINITIONS = {
  "constant", "polynomial", "linear", "exponential", "inverse_exponential_time_decay", "inverse_square_root_decay", "cosine_decay",
  "sequential", "piecewise_constant", "multi_step", "step", "cosine_annealing", "lambda", "cosine_annealing_warm_restarts",
  "multiplicative", "chained", "cyclic", "one_cycle", "scale_per_param",
}

--- Suffix to module.
local MODULES = { LR = "lr_scheduler", WD = "weight_decay_scheduler", Scheduler = "scheduler" }

--- Arguments that are not one number.
local KINDS = {
  cycle = "boolean", staircase = "boolean", three_phase = "boolean", mode = "string", scale_mode = "string", anneal_strategy = "string",
  vals = "list of numbers", milestones = "list of numbers", adjustment_scalars = "list of numbers", schedulers = "table",
  scheduler = "table",
}

--- Divisors of closed forms. Polynomials of 0 steps are at their end from the start.
local DIVISORS = {
  total_iters = true, T_max = true, T_0 = true, step_size = true, step_size_up = true, total_steps = true, warmup_steps = true,
}
local MAY_BE_ZERO = { Polynomial = true, Linear = true, Constant = true }

--- Arguments that may be nil: by their default, or because a schedule has no such argument.
local MAY_BE_NIL = { [keywords.OPTIONAL] = true, [keywords.REMOVED] = true }

local function fits(value, kind)
  if kind ~= "list of numbers" then return type(value) == kind end
  if type(value) ~= "table" then return false end
  local count = 0
  for _, item in pairs(value) do
    if type(item) ~= "number" then return false end
    count = count + 1
  end
  return count == #value -- other keys would be ignored
end

--- What an argument is instead; in a list, the first item that is no number.
local function found(value, kind)
  for i, item in ipairs(kind == "list of numbers" and type(value) == "table" and value or {}) do
    if type(item) ~= "number" then return ("%s at position %d"):format(errors.show(item), i) end
  end
  return errors.show(value)
end

--- A check that each argument, and each field computed from them, has its type, and what else the definition checks.
local function checked(definition, renamed)
  local declared = {}
  for generic, default in pairs(definition.keywords) do declared[generic] = default end
  for _, generic in ipairs(definition.computed or {}) do declared[generic] = keywords.OPTIONAL end
  return function(self)
    for generic, default in pairs(declared) do
      local name, kind = renamed[generic] or generic, KINDS[generic] or "number"
      local value = rawget(self, name)
      local is_right = value == nil and MAY_BE_NIL[default] or fits(value, kind)
      if not is_right then
        errors.refuse({ kind = "type", argument = name, of = self.class.name }, ("%s: expected a %s as %s, found %s"):format(
          self.class.name, kind, name, found(value, kind)))
      end
      local may_be_zero = MAY_BE_ZERO[definition.name]
      local is_inside = value == nil or not DIVISORS[generic] or value > 0 or value == 0 and may_be_zero
      local relation = may_be_zero and ">=" or ">"
      errors.check(is_inside, "value", "%s: %s must be %s 0, not %s", self.class.name, name, relation, errors.show(value))
    end
    if definition._check_values then definition._check_values(self) end
  end
end

---@param module table   the classes of the family
local function make(module, base, suffix, renamed, definition)
  local declared = {}
  for generic, default in pairs(definition.keywords) do declared[renamed[generic] or generic] = default end
  local made = base:subclass(definition.names and definition.names[suffix] or definition.name .. suffix, declared)
  for name, member in pairs(definition) do
    if type(member) == "function" then made[name] = member end
  end
  if definition.positional then made.positional = definition.positional end
  -- an argument that the family renames is a field under both names
  function made.__index(object, name)
    local own = renamed[name]
    if own then return rawget(object, own) end
    return class.member(object, name)
  end
  function made.__newindex(object, name, value) class.assign(object, renamed[name] or name, value) end
  function made._own_name(_, name) return renamed[name] or name end
  function made._new_member(schedule, name, kw)
    local own = {}
    for generic, value in pairs(kw) do own[renamed[generic] or generic] = value end
    return module[name .. suffix](schedule.optimizer, own)
  end
  made.check_arguments = checked(definition, renamed)
  if definition.closed_form then
    made._get_closed_form = function(self) return self:closed_form(self.last_epoch:to "float32") end
  end
  return made
end

---Adds all schedules to `module`, as classes derived from `base`.
---@param module table
---@param base cstorch.Class
---@param suffix string                     "LR"
---@param renamed table<string, string>     argument name of all families to that of this one
function family.add(module, base, suffix, renamed)
  for _, file in ipairs(DEFINITIONS) do
    local path = "cstorch.optim.schedules." .. file
    local definition = require(path)
    local made = make(module, base, suffix, renamed, definition)
    made.defined_in, made.defined_as = package.searchpath(path, package.path), definition.name
    module[made.name], module[definition.name .. suffix] = made, made
  end
  return namespace(("cstorch.optim.%s"):format(MODULES[suffix]), module)
end

return family
