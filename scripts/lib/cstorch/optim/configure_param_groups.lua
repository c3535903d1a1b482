-- Parameter groups of a model: without decay for biases and norms, with factors of the learning rate for layers.

local class = require "cstorch.class"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local ordered_map = require "cstorch.ordered_map"
local tags = require "cstorch.optim.tags"

local check, show = errors.check, errors.show

--- Classes whose parameters do not decay; RMSNorm is not one of them in the reference.
local NORMS = {
  LayerNorm = true, GroupNorm = true, SyncBatchNorm = true, BatchNorm1d = true, BatchNorm2d = true, BatchNorm3d = true,
  InstanceNorm1d = true, InstanceNorm2d = true, InstanceNorm3d = true,
}

--- The parameters that a key of `adjust_learning_rate` selects.
local LAYERS = {
  embedding = { "*embedding*weight" },
  decoder_kernel = { "*decoder*dense*weight", "*decoder*linear*weight" },
}

--- A glob as a Lua pattern.
local function pattern_of(glob)
  local escaped = glob:gsub("[%^%$%(%)%%%.%[%]%+%-]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".")
  return "^" .. escaped .. "$"
end

local function matches(name, globs)
  for _, glob in ipairs(globs) do
    if name:find(pattern_of(glob)) then return true end
  end
  return false
end

--- Whether the module is of a class of NORMS, or of one derived from it.
local function is_norm(module)
  local own = module.class
  while own and not NORMS[own.name] do own = own.super end
  return own ~= nil
end

--- The trainable parameters, { name =, p =, decays = }, in the model's order.
local function trainable(model)
  local norm_prefixes, list = {}, {}
  for name, module in model:named_modules() do
    if is_norm(module) then norm_prefixes[name == "" and "" or name .. "."] = true end
  end
  for name, p in model:named_parameters() do
    if p.requires_grad then
      local decays = not name:find "bias"
      for prefix in pairs(norm_prefixes) do decays = decays and name:sub(1, #prefix) ~= prefix end
      list[#list + 1] = { name = name, p = p, decays = decays }
    end
  end
  return list
end

local function is_text(value) return type(value) == "string" end

--- The globs of a filter, which is checked.
local function globs_of(filter, i)
  local globs = type(filter) == "table" and (is_text(filter.params) and { filter.params } or filter.params)
  local is_filter = type(globs) == "table" and globs[1] ~= nil and filter.tag ~= nil
  for _, glob in ipairs(is_filter and globs or {}) do is_filter = is_filter and is_text(glob) end
  check(is_filter, "value", "configure_param_groups: expected { params = glob or list of globs, tag = name } as filter %d", i)
  tags.normalize(filter.tag)
  return globs
end

--- Splits off the parameters that the tag filters select: a list of { members =, tags = }.
local function split_by_tags(members, filters)
  local groups, rest = {}, members
  check(filters == nil or type(filters) == "table", "type", "configure_param_groups: expected a list of filters as params, found %s",
    show(filters))
  for i, filter in ipairs(filters or {}) do
    local globs = globs_of(filter, i)
    local taken, left = {}, {}
    for _, member in ipairs(rest) do table.insert(matches(member.name, globs) and taken or left, member) end
    check(taken[1], "value", "configure_param_groups: the filter '%s' matches no parameter", table.concat(globs, "', '"))
    groups[#groups + 1], rest = { members = taken, tags = filter.tag }, left
  end
  groups[#groups + 1] = { members = rest }
  return groups
end

--- A list of groups, each split by `part_of(member)`; `parts` is the order of the parts.
local function split(groups, parts, part_of, key)
  local out = {}
  for _, group in ipairs(groups) do
    for _, part in ipairs(parts) do
      local new = {}
      for name, value in pairs(group) do new[name] = value end
      new.members, new[key] = {}, part
      for _, member in ipairs(group.members) do
        if part_of(member) == part then table.insert(new.members, member) end
      end
      if new.members[1] then out[#out + 1] = new end
    end
  end
  return out
end

--- Parameter to factor, and the factors in their order.
local function factors_of(adjustments)
  local layers, order, seen = {}, { 1 }, { [1] = true }
  for key, factor in ordered_map.items(adjustments) do
    local globs = LAYERS[key] or type(key) == "string" and key:find "[*?]" and { key }
    local known = keywords.names(LAYERS)
    check(globs, "value", "adjust_learning_rate: unknown layer '%s'%s (known: %s, or a glob)", tostring(key), errors.suggestion(key, known),
      table.concat(known, ", "))
    local is_factor = type(factor) == "number" and math.abs(factor) < math.huge
    check(is_factor, "type", "adjust_learning_rate: expected a finite number for '%s', found %s", key, show(factor))
    layers[#layers + 1] = { globs = globs, factor = factor }
    if not seen[factor] then order[#order + 1] = factor end
    seen[factor] = true
  end
  return order, function(member)
    for _, layer in ipairs(layers) do
      if matches(member.name, layer.globs) then return layer.factor end
    end
    return 1
  end
end

---A model's trainable parameters as groups for an optimizer: biases and parameters of norms have weight_decay 0, others the given one.
---@param model table
---@param options? { weight_decay: number, adjust_learning_rate: table<string, number>, params: table }   `adjust_learning_rate` gives the
---  groups of a layer ("embedding", "decoder_kernel" or a glob) that factor; `params` is a list of { params = glob or globs, tag = name }.
---  Each group names its parameters in `param_names`, so that a saved optimizer says whose state it holds
---@return table[]
return function(model, options)
  local is_model = type(model) == "table" and class.has(model, "named_parameters")
  check(is_model, "type", "configure_param_groups: expected a model, found %s", show(model))
  options = keywords.plain(options) or {}
  check(type(options) == "table", "type", "configure_param_groups: expected a table of options, found %s", show(options))
  local decay = options.weight_decay or 0
  check(type(decay) == "number", "type", "configure_param_groups: expected a number as weight_decay, found %s", show(decay))
  local groups = split_by_tags(trainable(model), options.params)
  groups = split(groups, { true, false }, function(member) return member.decays end, "decays")
  local factors = options.adjust_learning_rate
  check(factors == nil or type(factors) == "table", "type", "configure_param_groups: expected a table as adjust_learning_rate, found %s",
    show(factors))
  if factors and next(factors) ~= nil then
    local order, factor_of = factors_of(factors)
    groups = split(groups, order, factor_of, "adjust_learning_rate")
  end
  for i, group in ipairs(groups) do
    local params, names = {}, {}
    for k, member in ipairs(group.members) do params[k], names[k] = member.p, member.name end
    groups[i] = { params = params, param_names = names, weight_decay = group.decays and decay or 0,
      adjust_learning_rate = group.adjust_learning_rate, tags = group.tags }
  end
  return groups
end
