-- Makes and loads an optimizer's state dict.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local loaded = require "cstorch.loaded"
local naming = require "cbk.naming"
local ordered_map = require "cstorch.ordered_map"
local tensors = require "cstorch.tensors"
local text = require "cstorch.text"

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

--- The entry of a map whose integer keys may have become text in a file.
---@return any key, any value   nil without a value
local function entry(map, number)
  for _, key in ipairs { number, tostring(number) } do
    local value = map[key]
    if value ~= nil and value ~= cbk.null then return key, value end
  end
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

--- A function that makes a value of the state what it is in a new optimizer: in the same tensor, which recorded steps use.
local function fresh_writer(own, name, value)
  local old = own[name]
  if tensors.is_tensor(old) and tensors.is_tensor(value) then return function() old:copy_(value) end end
  return function() own[name] = value end
end

--- Adds functions to `writes` that load the saved states. What loaded hyper-parameters need and a state lacks is taken from `fresh`, as
--- the whole state of a parameter without a saved one.
local function plan_states(optimizer, states, fresh, writes)
  local number, none = -1, {}
  for p, own in optimizer:parameters() do
    local saved = states[p] or none
    number = number + 1
    for name, value in ordered_map.items(fresh[p]) do
      check(saved == none or own[name] == nil or saved[name] ~= nil, "value", "the state of parameter %d has no '%s', which %s needs",
        number, name, optimizer.class.name)
      if saved[name] == nil then writes[#writes + 1] = fresh_writer(own, name, value) end
    end
    for name, value in ordered_map.items(saved) do
      writes[#writes + 1] = state_writer(optimizer, own, name, value, ("state '%s' of parameter %d"):format(name, number))
    end
    for name in ordered_map.items(own) do
      if saved[name] == nil and fresh[p][name] == nil then writes[#writes + 1] = function() own[name] = nil end end
    end
  end
end

--- Warns about parameters that begin anew, as the state dict has no state for them. Frozen ones need none.
local function warn_of_missing(optimizer, states, fresh)
  local missing, count = {}, 0
  for p in optimizer:parameters() do
    if not states[p] and p.requires_grad and ordered_map.items(fresh[p])() ~= nil then missing[#missing + 1] = count end
    count = count + 1
  end
  if #missing == 0 then return end
  errors.warn(("%s: the state dict has no state for %d of %d parameters (%s): they begin with the state of a new optimizer"):format(
    optimizer.class.name, #missing, count, naming.listed(missing)))
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
    local is_own = key == "params" or key == "param_names" and group.param_names ~= nil -- in this group's order
    if not is_own and value ~= cbk.null then
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
  local fine, problem = pcall(optimizer._make_state, optimizer)
  optimizer.state, optimizer.param_groups = own_state, own_groups
  if not fine then error(problem, 0) end
  return fresh
end

--- Whether some parameter has no saved state, or the loaded groups need another state than those of now.
local function needs_fresh(optimizer, groups, states)
  for p in optimizer:parameters() do
    if not states[p] then return true end
  end
  for g, group in ipairs(optimizer.param_groups) do
    local before = flags_of(group)
    for key, value in pairs(flags_of(groups[g])) do
      if before[key] ~= value then return true end
    end
  end
  return false
end

--- The names of a group's `count` parameters; nil if it has none.
local function names_of(group, count, where)
  local names, seen = loaded.plain(group.param_names), {}
  if names == nil then return nil end
  local is_list = type(names) == "table" and #names == count
  check(is_list, "type", "expected the names of %d parameters as param_names of %s, found %s", count, where,
    type(names) == "table" and #names or errors.show(names))
  for _, name in ipairs(names) do
    check(type(name) == "string", "type", "expected names as param_names of %s, found %s", where, errors.show(name))
    check(not seen[name], "value", "two parameters of %s have the name '%s' in param_names", where, name)
    seen[name] = true
  end
  return names
end

--- Names of `list` that `other` does not have, as text after `word`.
local function difference(word, list, other)
  local has, names = {}, {}
  for _, name in ipairs(other) do has[name] = true end
  for _, name in ipairs(list) do
    if not has[name] then names[#names + 1] = name end
  end
  return #names > 0 and { word .. " " .. text.some(names) } or {}
end

--- The position in the saved group of each parameter of group `g`: by name, where both have names.
local function positions_in(optimizer, g, saved)
  local group, where = optimizer.param_groups[g], ("group %d of the state dict"):format(g)
  local count, found, positions = #group.params, saved.params == nil and 0 or #saved.params, {}
  local own = names_of(group, count, ("group %d of %s"):format(g, optimizer.class.name))
  local names = names_of(saved, found, where)
  if not own or not names then
    check(found == count, "value", "%s has %d parameters, %s has %d there", where, found, optimizer.class.name, count)
    for k = 1, count do positions[k] = k end
    return positions
  end
  local parts = difference("missing", own, names)
  parts[#parts + 1] = difference("unknown", names, own)[1]
  check(#parts == 0, "value", "%s does not have the parameters of %s, by its param_names: %s; make the groups as they were when it was "
    .. "saved", where, optimizer.class.name, table.concat(parts, "; "))
  local position_of = {}
  for k, name in ipairs(names) do position_of[name] = k end
  for k, name in ipairs(own) do positions[k] = position_of[name] end
  return positions
end

--- The saved groups as maps of this class's hyper-parameters.
local function saved_groups(optimizer, groups)
  local own, count, saved = optimizer.param_groups, 0, {}
  check(loaded.is_list(groups), "type", "expected a list as 'param_groups' of the state dict, found %s", errors.show(groups))
  for _ in ordered_map.items(groups) do count = count + 1 end
  check(count == #own, "value", "the state dict has %d parameter groups, %s has %d", count, optimizer.class.name, #own)
  for g = 1, count do
    check(keywords.is_map(groups[g]), "type", "expected a map as group %d of the state dict, found %s", g, errors.show(groups[g]))
    loaded.check_names(groups[g], ("group %d of the state dict"):format(g))
    local params = groups[g].params
    check(params == nil or loaded.is_list(params), "type", "expected a list as params of group %d of the state dict, found %s", g,
      errors.show(params))
    saved[g] = ordered_map.new(groups[g])
    if optimizer.convert_group then optimizer.convert_group(saved[g]) end
  end
  return saved
end

--- The saved state of a parameter in the form of this class; nil if it is empty. torch has null for a momentum that is not used.
local function converted(optimizer, group, state, number)
  check(keywords.is_map(state), "type", "expected a map as state of parameter %d, found %s", number, errors.show(state))
  loaded.check_names(state, ("the state of parameter %d"):format(number))
  local own = ordered_map.new()
  for name, value in ordered_map.items(state) do
    if value ~= cbk.null then own[name] = value end
  end
  if optimizer.convert_state then optimizer:convert_state(group, own) end
  return #ordered_map.keys(own) > 0 and own or nil
end

--- The saved state of each parameter that has one.
local function saved_states(optimizer, groups, state)
  check(keywords.is_map(state), "type", "expected a map as 'state' of the state dict, found %s", errors.show(state))
  local states, is_used, orphans = {}, {}, {}
  for g, group in ipairs(optimizer.param_groups) do
    local positions = positions_in(optimizer, g, groups[g])
    for k, p in ipairs(group.params) do
      -- uses the file's numbers, because its groups may list parameters in another order
      local given = groups[g].params[positions[k]]
      local number = tonumber(given)
      check(number, "type", "expected numbers as params of group %d of the state dict, found %s", g, errors.show(given))
      local key, found = entry(state, number)
      if found then
        is_used[key], states[p] = true, converted(optimizer, groups[g], found, number)
      end
    end
  end
  for key, value in ordered_map.items(state) do
    if not is_used[key] and value ~= cbk.null then orphans[#orphans + 1] = tostring(key) end
  end
  check(#orphans == 0, "value", "the state dict has states of parameters that are in none of its groups: %s; the keys of 'state' must be "
    .. "the numbers that its groups have as 'params'", text.some(orphans))
  return states
end

---Loads all or, after an error, nothing.
---@param optimizer cstorch.optim.Optimizer
---@param dict table
---@param settle fun(group: table)   checks a group that is loaded, and puts it in its final form
function state_dicts.load(optimizer, dict, settle)
  local is_map = keywords.is_map(dict)
  check(is_map and dict.param_groups ~= nil, "value", "expected the state dict of an optimizer { state =, param_groups = }, found %s",
    is_map and "no 'param_groups' in it" or errors.show(dict))
  local saved, groups, writes = saved_groups(optimizer, dict.param_groups), {}, {}
  local states = saved_states(optimizer, saved, dict.state or {})
  for g, group in ipairs(optimizer.param_groups) do
    groups[g] = plan_group(optimizer.class, group, saved[g], writes)
    settle(groups[g])
  end
  local fresh = needs_fresh(optimizer, groups, states) and fresh_state(optimizer, groups) or optimizer.state
  plan_states(optimizer, states, fresh, writes)
  for _, write in ipairs(writes) do write() end
  for g, group in ipairs(optimizer.param_groups) do
    for key, value in pairs(groups[g]) do group[key] = value end
  end
  warn_of_missing(optimizer, states, fresh)
end

return state_dicts
