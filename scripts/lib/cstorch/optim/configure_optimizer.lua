-- Optimizers from configurations: `configure_optimizer`.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local Optimizer = require "cstorch.optim.optimizer"
local ordered_map = require "cstorch.ordered_map"

local check, show = errors.check, errors.show

--- Old argument names: the name of today, and the position in its list.
local OLD_NAMES = {
  weight_decay_rate = { "weight_decay" },
  beta1 = { "betas", 1 }, beta2 = { "betas", 2 },
  eps1 = { "eps", 1 }, eps2 = { "eps", 2 },
  eta1 = { "etas", 1 }, eta2 = { "etas", 2 },
  step_size_min = { "step_sizes", 1 }, step_size_max = { "step_sizes", 2 },
}

--- The rate of an optimizer that needs one and gets none: a schedule is expected to overwrite it.
local DUMMY_RATE = 0.1

local function find_class(kind)
  check(type(kind) == "string", "value", "configure_optimizer: expected a name as optimizer_type, found %s", show(kind))
  local known, names = class.descendants(Optimizer), {}
  for _, found in pairs(known) do
    if found.step then names[#names + 1] = found.name end
  end
  table.sort(names)
  local found = known[kind:lower()]
  if found and found.step then return found end
  errors.raise("value", "configure_optimizer: unknown optimizer_type '%s'%s (known: %s)", kind, errors.suggestion(kind, names),
    table.concat(names, ", "))
end

--- Refuses old names, or with `accepts` replaces them by the current ones.
local function handle_old_names(made, options, accepts)
  for _, old in ipairs(keywords.names(OLD_NAMES)) do
    local new, position = unpack(OLD_NAMES[old])
    local default = made.keywords[new]
    local applies = options[old] ~= nil and default ~= nil and (options[new] == nil or position ~= nil and accepts)
    if applies and not accepts then
      errors.raise("value", "configure_optimizer: '%s' is an old name; %s has '%s'%s", old, made.name, new,
        position and (", a list with it at position %d"):format(position) or "")
    elseif applies then
      errors.warn(("configure_optimizer: '%s' is deprecated; use '%s'"):format(old, new))
      if position then
        options[new] = options[new] or keywords.plain(default)
        options[new][position] = options[old]
      else
        options[new] = options[old]
      end
      options[old] = nil
    end
  end
end

--- `learning_rate` as a number; nil if it configures a schedule.
local function constant_rate(value)
  if type(value) == "string" then return tonumber(value) end
  return type(value) == "number" and value or nil
end

local function set_rate(made, options, rate)
  local default = made.keywords.lr
  if options.lr ~= nil or default == nil then return end
  options.lr = constant_rate(rate)
  if options.lr == nil and (default == keywords.REQUIRED or default == keywords.OPTIONAL) then options.lr = DUMMY_RATE end
end

--- The options that the class has; warns about others.
local function used(made, options)
  local unused, missing = keywords.mistakes(made.keywords, options)
  if unused[1] then
    local text = ("configure_optimizer: %s does not use %s"):format(made.name, table.concat(unused, ", "))
    errors.warn(text, { unused = unused })
    for _, name in ipairs(unused) do options[name] = nil end
  end
  check(not missing[1], "runtime", "configure_optimizer: %s needs '%s'", made.name, missing[1] or "")
  return options
end

---Makes the optimizer `optimizer_type` (any case, also a subclass of your own) over `params`. `learning_rate` is the rate if it is a number
---or a numeric string, and `lr` wins over it; without both the rate is the default of the class, or 0.1. Names that the optimizer does not
---have are warned about. `legacy = true` accepts the argument names of early releases, such as beta1.
---@param options { optimizer_type: string, params: table, learning_rate: any, lr: number, legacy: boolean }
---@return cstorch.optim.Optimizer
return function(options)
  check(keywords.is_map(options), "type", "configure_optimizer: expected a table { optimizer_type =, params = }, found %s", show(options))
  local own = {}
  for name, value in ordered_map.items(options) do own[name] = keywords.plain(value) end
  local made, params, rate, accepts_old = find_class(own.optimizer_type), options.params, own.learning_rate, own.legacy
  check(params ~= nil, "value", "configure_optimizer: 'params' is missing; give model:parameters()")
  own.optimizer_type, own.params, own.learning_rate, own.legacy = nil, nil, nil, nil
  if not made.keywords then return made(params, own) end
  set_rate(made, own, rate)
  handle_old_names(made, own, accepts_old)
  return made(params, used(made, own))
end
