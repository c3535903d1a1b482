-- Schedules from configurations: `configure_lr_scheduler` and `configure_scheduler`.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local lr = require "cstorch.optim.lr_scheduler"
local tags = require "cstorch.optim.tags"
local wd = require "cstorch.optim.weight_decay_scheduler"

local check, raise, show = errors.check, errors.raise, errors.show

local configure = {}

--- Old argument names, each with those that it may mean today.
local OLD_NAMES = {
  steps = { "total_iters" }, decay_steps = { "total_iters" }, learning_rate = { "initial_learning_rate", "base_lr" },
  base_lr = { "initial_learning_rate" }, initial_learning_rate = { "base_lr" }, values = { "learning_rates" }, val = { "learning_rate" },
  boundaries = { "milestones" },
}

-- --- configure_lr_scheduler

--- All schedules of learning rates by lower-cased name, with and without the suffix; and their names.
local function known_schedules()
  local known, names = {}, {}
  for lower, found in pairs(class.descendants(lr.LRScheduler)) do
    known[lower], known[(lower:gsub("lr$", ""))] = found, found
    names[#names + 1] = found.name
  end
  table.sort(names)
  return known, names
end

local function find_class(name)
  local known, names = known_schedules()
  check(type(name) == "string", "value", "learning_rate: expected the name of a schedule as 'scheduler', found %s", show(name))
  local found = known[name:lower()] or known[(name:lower():gsub("lr$", ""))]
  if found then return found end
  raise("value", "learning_rate: unknown scheduler '%s'%s (known: %s)", name, errors.suggestion(name, names), table.concat(names, ", "))
end

--- The name of today for an argument that `declared` does not have, if it is an old spelling.
local function new_name(declared, old)
  for _, new in ipairs(OLD_NAMES[old] or {}) do
    if declared[new] ~= nil then return new end
  end
  for name in pairs(declared) do
    if name ~= name:lower() and name:lower() == old then return name end
  end
end

local function check_arguments(made, arguments)
  local declared = made.keywords
  local unknown, missing = keywords.mistakes(declared, arguments)
  for _, name in ipairs(unknown) do
    local new = new_name(declared, name)
    if new then
      errors.refuse({ argument = name, of = made.name }, ("%s: '%s' is an old name; use '%s'"):format(made.name, name, new))
    end
  end
  if unknown[1] then
    local names = keywords.names(declared)
    local known = table.concat(names, ", ")
    local near = errors.suggestion(unknown[1], names)
    errors.refuse({ argument = unknown[1], of = made.name }, ("%s: unknown argument '%s'%s (known: %s)"):format(made.name, unknown[1], near,
      known))
  end
  check(not missing[1], "runtime", "%s: argument '%s' is missing", made.name, missing[1] or "")
end

--- One schedule from { scheduler = name, … }.
local function build(optimizer, entry)
  local is_table = type(entry) == "table"
  local found = is_table and "one without" or show(entry)
  check(is_table and entry.scheduler ~= nil, "value", "learning_rate: expected a table with 'scheduler', found %s", found)
  local arguments = {}
  for name, value in pairs(entry) do
    if name ~= "scheduler" and name ~= "main_scheduler" then arguments[name] = value end
  end
  local made = find_class(entry.scheduler)
  check_arguments(made, arguments)
  return made(optimizer, arguments)
end

--- How the entries of a list are combined: "chained", "sequential" or nil.
local function main_scheduler(entries)
  local main
  for _, entry in ipairs(entries) do
    local name = type(entry) == "table" and entry.main_scheduler
    if name then
      name = tostring(name):lower():gsub("lr$", "")
      local first = main or name
      check(first == name, "value", "learning_rate: main_scheduler is '%s' in one entry and '%s' in another", first, name)
      main = name
    end
  end
  return main
end

local function build_list(optimizer, entries, is_chained)
  local schedulers, milestones, total = {}, {}, 0
  for i, entry in ipairs(entries) do
    if not is_chained and i < #entries then
      local steps = type(entry) == "table" and entry.total_iters
      check(steps, "assertion", "learning_rate: entry %d needs 'total_iters', as another entry follows it", i)
      check(type(steps) == "number", "value", "learning_rate: expected a number as total_iters of entry %d, found %s", i, show(steps))
      total = total + steps
      milestones[i] = total
    end
    schedulers[i] = build(optimizer, entry)
  end
  if is_chained then return lr.ChainedScheduler { schedulers = schedulers } end
  return lr.SequentialLR(optimizer, { schedulers = schedulers, milestones = milestones })
end

local function is_empty(value) return value == nil or value == 0 or value == "" or type(value) == "table" and next(value) == nil end

---Makes the schedule that `learning_rate` describes: a number or numeric string (constant), { scheduler = "Linear", … } (any case, with or
---without "LR"), or a list of those: one after the other, or chained with main_scheduler = "chained". Nil, 0, "" and {} give nil.
---@param optimizer cstorch.optim.Optimizer
---@param learning_rate any
---@param options? { adjust_learning_rate: table }   not empty: the rate of each group times its `adjust_learning_rate`
---@return cstorch.optim.Scheduler?
function configure.configure_lr_scheduler(optimizer, learning_rate, options)
  options = keywords.complete("configure_lr_scheduler", { adjust_learning_rate = keywords.OPTIONAL }, options)
  local factors = keywords.plain(options.adjust_learning_rate)
  check(is_empty(factors) or type(factors) == "table", "type",
    "configure_lr_scheduler: expected a table as adjust_learning_rate, found %s", show(factors))
  local config = keywords.plain(learning_rate)
  if is_empty(config) then return nil end
  local is_adjusted = not is_empty(factors)
  if type(config) == "string" then
    config = check(tonumber(config), "value", "learning_rate: expected a number or a schedule, found '%s'", config)
  end
  local schedule
  if type(config) == "number" then
    schedule = lr.ConstantLR(optimizer, { learning_rate = config })
  elseif type(config) == "table" and config.scheduler == nil and #config > 1 then
    local is_chained = main_scheduler(config) == "chained"
    check(not (is_adjusted and is_chained), "value", "learning_rate: chained schedules cannot be combined with adjust_learning_rate")
    schedule = build_list(optimizer, config, is_chained)
  else
    local entry = type(config) == "table" and config.scheduler == nil and config[1] or config
    schedule = build(optimizer, entry)
  end
  return is_adjusted and lr.ScalePerParamLR(optimizer, { scheduler = schedule }) or schedule
end

-- --- configure_scheduler

--- The class that a config names exactly, and its arguments.
local function named_class(config)
  local name, arguments = next(config)
  local is_one = type(name) == "string" and next(config, name) == nil
  check(is_one, "value", "configure_scheduler: expected a table with one key, the name of a class")
  local found = rawget(lr, name) or rawget(wd, name)
  if not found then
    for _, base in ipairs { lr.LRScheduler, wd.WeightDecayScheduler } do
      local derived = class.descendants(base)[name:lower()]
      if derived and derived.name == name then found = derived end
    end
  end
  local names = {}
  for _, module in ipairs { lr, wd } do
    for known in pairs(module) do names[#names + 1] = known end
  end
  check(found, "value", "configure_scheduler: unknown class '%s'%s", name, errors.suggestion(name, names))
  check(type(arguments) == "table", "value", "configure_scheduler: expected a table of arguments for %s, found %s", name, show(arguments))
  return found, arguments
end

--- The milestones that a sequence of schedules has where its config names none: each begins where the total_iters before it end.
local function fill_milestones(made, arguments)
  local is_sequence = made.keywords.milestones ~= nil and made.keywords.schedulers ~= nil and type(arguments.schedulers) == "table"
  if not is_sequence or arguments.milestones ~= nil then return end
  local milestones, total = {}, 0
  for i = 1, #arguments.schedulers - 1 do
    local _, own = next(arguments.schedulers[i])
    local steps = type(own) == "table" and own.total_iters
    check(type(steps) == "number", "value", "%s: schedule %d needs 'total_iters', as another one follows it; or give 'milestones'",
      made.name, i)
    total = total + steps
    milestones[i] = total
  end
  arguments.milestones = milestones
end

local function build_generic(optimizer, config, inherited_tags)
  check(type(config) == "table", "value", "configure_scheduler: expected a table { Class = { ... } }, found %s", show(config))
  local made, arguments = named_class(config)
  if inherited_tags ~= nil then
    check(arguments.param_group_tags == nil, "value", "%s: param_group_tags belongs to the outermost schedule only", made.name)
    arguments.param_group_tags = inherited_tags or nil
  end
  local own_tags = arguments.param_group_tags or false
  fill_milestones(made, arguments)
  if arguments.scheduler ~= nil then arguments.scheduler = build_generic(optimizer, arguments.scheduler, own_tags) end
  if arguments.schedulers ~= nil then
    local members = arguments.schedulers
    check(type(members) == "table", "value", "%s: expected a list as 'schedulers', found %s", made.name, show(members))
    for i, member in ipairs(members) do members[i] = build_generic(optimizer, member, own_tags) end
  end
  check_arguments(made, arguments)
  if made.positional == 0 then return made(arguments) end
  return made(optimizer, arguments)
end

--- Fails if several schedules share a group.
local function check_disjoint(schedules)
  local owner = {}
  for i, schedule in ipairs(schedules) do
    local key = schedule.param_group_key
    for j, other in ipairs(schedules) do
      local is_shared = i ~= j and other.param_group_key == key
      check(not (is_shared and schedule.param_group_tags == nil), "value",
        "configure_scheduler: schedules %d and %d both write '%s'; give each its param_group_tags", math.min(i, j), math.max(i, j), key)
    end
    for _, tag in ipairs(schedule.param_group_tags or {}) do
      local place = key .. "\0" .. tostring(tag)
      local text = tags.text { tag }
      local first = owner[place] or i
      check(first == i, "value", "configure_scheduler: schedules %d and %d both write '%s' of groups %s", first, i, key, text)
      owner[place] = i
    end
  end
end

---Makes a schedule from { ClassName = { arguments } }, with exact names of classes of learning rate or weight decay. Members of composites
---are written the same way: `schedulers = { { LinearLR = { … } }, … }`. In a sequence without `milestones` each begins where the
---`total_iters` of those before it end. A list of such tables gives a list of schedules.
---@param optimizer cstorch.optim.Optimizer
---@param config table
---@return any
function configure.configure_scheduler(optimizer, config)
  config = keywords.plain(config)
  check(type(config) == "table", "value", "configure_scheduler: expected a table { Class = { ... } }, found %s", show(config))
  if config[1] == nil then return build_generic(optimizer, config) end
  local schedules = {}
  for i, entry in ipairs(config) do schedules[i] = build_generic(optimizer, entry) end
  check_disjoint(schedules)
  return schedules
end

return configure
