-- Makes and loads an optimizer's state dict.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local ordered_map = require "cstorch.ordered_map"
local tensors = require "cstorch.tensors"

local check = errors.check

local state_dicts = {}

--- Parameters to their numbers, over all groups, from 0.
local function numbers_of(optimizer)
  local numbers, count = {}, 0
  for p in optimizer:parameters() do
    numbers[p], count = count, count + 1
  end
  return numbers
end

---@param optimizer cstorch.optim.Optimizer
---@return table
function state_dicts.of(optimizer)
  local numbers, state, groups = numbers_of(optimizer), ordered_map.new(), {}
  for p, own in optimizer:parameters() do
    if #ordered_map.keys(own) > 0 then state[numbers[p]] = ordered_map.new(own) end
  end
  for g, group in ipairs(optimizer.param_groups) do
    local entry = ordered_map.new()
    for _, key in ipairs(keywords.names(group)) do
      if key ~= "params" then entry[key] = group[key] end
    end
    local params = {}
    for k, p in ipairs(group.params) do params[k] = numbers[p] end
    entry.params = params
    groups[g] = entry
  end
  local dict = ordered_map.new()
  dict.state, dict.param_groups = state, groups
  return dict
end

--- Element `key` of a map whose integer keys may have become text in a file.
local function entry(map, key)
  local value = map[key]
  if value == nil then value = map[tostring(key)] end
  if value == cbk.null then return nil end
  return value
end

--- A function that loads a value into a parameter's state, over an old value or as a new one.
local function state_writer(optimizer, own, name, value, where)
  local old = own[name]
  if tensors.is_tensor(old) then return loaded.writer(old, value, where) end
  if old ~= nil then
    local new = loaded.plain(value)
    check(type(new) == type(old), "type", "%s: expected a %s, found %s", where, type(old), errors.show(value))
    return function() own[name] = new end
  end
  if type(value) == "number" then return function() own[name] = optimizer.scalar(value) end end
  local copy = loaded.copier(value, where)
  return function() own[name] = copy() end
end

--- Adds functions to `writes` that load the state of one parameter.
local function plan_state(optimizer, number, own, saved, writes)
  for name in ordered_map.items(own) do
    check(saved[name] ~= nil, "value", "the state of parameter %d has no '%s', which %s needs", number, name, optimizer.class.name)
  end
  for name, value in ordered_map.items(saved) do
    writes[#writes + 1] = state_writer(optimizer, own, name, value, ("state '%s' of parameter %d"):format(name, number))
  end
end

-- Flags of PyTorch's optimizers that change how a step is computed, and not what.
local HOW = { foreach = true, fused = true, capturable = true, differentiable = true }

--- Fails if a saved flag that the class does not have asks for another step.
local function check_flag(class, group, key, value)
  local is_known = not class.keywords or class.keywords[key] ~= nil or HOW[key]
  if is_known or value ~= true or group[key] == true then return end
  errors.raise("value", "load_state_dict: the state says %s=true, which %s does not compute", key, class.name)
end

--- The group with the saved hyper-parameters. Tensors are written later, by `writes`.
local function plan_group(class, group, saved, writes)
  local loaded_group = {}
  for key, value in pairs(group) do loaded_group[key] = value end
  for key, value in ordered_map.items(saved) do
    check_flag(class, group, key, value)
    if key ~= "params" and value ~= cbk.null then
      if tensors.is_tensor(group[key]) then
        writes[#writes + 1] = loaded.writer(group[key], value, ("hyper-parameter '%s'"):format(key))
      else
        value = loaded.plain(value)
        if type(group[key]) == "boolean" and type(value) == "number" then value = value ~= 0 end
        loaded_group[key] = value
      end
    end
  end
  return loaded_group
end

--- The flags of a group, and whether its numbers are 0: they determine the state that the group needs.
local function flags_of(group)
  local flags = {}
  for key, value in pairs(group) do
    if type(value) == "boolean" then flags[key] = value end
    if type(value) == "number" then flags[key] = value ~= 0 end
  end
  return flags
end

--- The state that a new optimizer with these groups would have.
local function fresh_state(optimizer, groups)
  local own_state, own_groups, fresh = optimizer.state, optimizer.param_groups, {}
  for p in optimizer:parameters() do fresh[p] = ordered_map.new() end
  optimizer.state, optimizer.param_groups = fresh, groups
  local fine, problem = pcall(optimizer.preinitialize, optimizer)
  optimizer.state, optimizer.param_groups = own_state, own_groups
  if not fine then error(problem, 0) end
  return fresh
end

--- Adds the state that the loaded hyper-parameters need and the state dict did not have.
local function complete_state(optimizer, fresh)
  for p, state in pairs(fresh) do
    for name, value in ordered_map.items(state) do
      if optimizer.state[p][name] == nil then optimizer.state[p][name] = value end
    end
  end
end

local function check_groups(optimizer, groups)
  local own, count = optimizer.param_groups, 0
  check(loaded.is_list(groups), "type", "expected a list as 'param_groups' of the state dict, found %s", errors.show(groups))
  for _ in ordered_map.items(groups) do count = count + 1 end
  check(count == #own, "value", "the state dict has %d parameter groups, %s has %d", count, optimizer.class.name, #own)
  for g, group in ipairs(own) do
    check(keywords.is_map(groups[g]), "type", "expected a map as group %d of the state dict, found %s", g, errors.show(groups[g]))
    loaded.check_names(groups[g], ("group %d of the state dict"):format(g))
    local params = groups[g].params
    check(params == nil or loaded.is_list(params), "type", "expected a list as params of group %d of the state dict, found %s", g,
      errors.show(params))
    local found = params == nil and 0 or #params
    check(found == #group.params, "value", "group %d of the state dict has %d parameters, %s has %d there", g, found, optimizer.class.name,
      #group.params)
  end
end

--- Adds functions to `plan` that load the states of a group's parameters.
local function plan_states(optimizer, group, saved, saved_state, plan)
  for k, p in ipairs(group.params) do
    -- uses the file's numbers, because its groups may list parameters in another order
    local number = tonumber(saved.params[k])
    check(number, "type", "expected numbers as params of group %d of the state dict, found %s", plan.group, errors.show(saved.params[k]))
    local state = entry(saved_state, number)
    check(state == nil or keywords.is_map(state), "type", "expected a map as state of parameter %d, found %s", number, errors.show(state))
    if state then loaded.check_names(state, ("the state of parameter %d"):format(number)) end
    state = state and ordered_map.new(state)
    if state and optimizer.convert_state then optimizer:convert_state(saved, state) end
    if state and #ordered_map.keys(state) > 0 then plan_state(optimizer, plan.numbers[p], optimizer.state[p], state, plan.writes) end
  end
end

---Loads all or, after an error, nothing.
---@param optimizer cstorch.optim.Optimizer
---@param dict table
---@param settle fun(group: table)   checks a group that is loaded, and puts it in its final form
function state_dicts.load(optimizer, dict, settle)
  local is_map = keywords.is_map(dict)
  check(is_map and dict.param_groups ~= nil, "value", "expected the state dict of an optimizer { state =, param_groups = }, found %s",
    is_map and "no 'param_groups' in it" or errors.show(dict))
  check_groups(optimizer, dict.param_groups)
  local saved_state = dict.state or {}
  check(keywords.is_map(saved_state), "type", "expected a map as 'state' of the state dict, found %s", errors.show(saved_state))
  local plan, groups, needs_other_state = { numbers = numbers_of(optimizer), writes = {} }, {}, false
  for g, group in ipairs(optimizer.param_groups) do
    local saved = ordered_map.new(dict.param_groups[g])
    if optimizer.convert_group then optimizer.convert_group(saved) end
    plan.group = g
    plan_states(optimizer, group, saved, saved_state, plan)
    groups[g] = plan_group(optimizer.class, group, saved, plan.writes)
    settle(groups[g])
    local before = flags_of(group)
    for key, value in pairs(flags_of(groups[g])) do needs_other_state = needs_other_state or before[key] ~= value end
  end
  local fresh = needs_other_state and fresh_state(optimizer, groups) or {}
  for _, write in ipairs(plan.writes) do write() end
  complete_state(optimizer, fresh)
  for g, group in ipairs(optimizer.param_groups) do
    for key, value in pairs(groups[g]) do group[key] = value end
  end
end

return state_dicts
