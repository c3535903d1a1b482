-- An optimizer's state dict, made and loaded.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
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

local function same_shape(a, b)
  local x, y = a:shape(), b:shape()
  if #x ~= #y then return false end
  for i = 1, #x do
    if x[i] ~= y[i] then return false end
  end
  return true
end

--- Writes `value`, a tensor or a number, into the tensor `target`.
local function write(target, value, where)
  if type(value) == "number" then
    check(target:dim() == 0, "value", "%s: expected a tensor of shape %s, found a number", where, tostring(target:shape()))
    return target:fill_(value)
  end
  check(tensors.is_tensor(value), "type", "%s: expected a tensor, found %s", where, errors.show(value))
  check(same_shape(target, value), "value", "%s: expected shape %s, found %s", where, tostring(target:shape()), tostring(value:shape()))
  return target:copy_(tensors.to_device(value:to(target.dtype)))
end

local function load_state(optimizer, number, own, saved)
  for name in ordered_map.items(own) do
    check(saved[name] ~= nil, "value", "the state of parameter %d has no '%s', which %s needs", number, name, optimizer.class.name)
  end
  for name, value in ordered_map.items(saved) do
    if own[name] ~= nil then
      write(own[name], value, ("state '%s' of parameter %d"):format(name, number))
    elseif tensors.is_tensor(value) then
      own[name] = tensors.to_device(value:clone())
    else
      own[name] = optimizer.scalar(value)
    end
  end
end

--- A number from a number or a 0-dim tensor.
local function plain_number(value)
  if tensors.is_tensor(value) and value:dim() == 0 then return value:item() end
  return value
end

local function load_group(group, saved)
  for key, value in ordered_map.items(saved) do
    if key ~= "params" and value ~= cbk.null then
      if tensors.is_tensor(group[key]) then
        write(group[key], value, ("hyper-parameter '%s'"):format(key))
      else
        value = keywords.plain(value)
        if type(value) == "table" and getmetatable(value) == nil then
          for i, item in ipairs(value) do value[i] = plain_number(item) end
        end
        value = plain_number(value)
        if type(group[key]) == "boolean" and type(value) == "number" then value = value ~= 0 end
        group[key] = value
      end
    end
  end
end

local function check_groups(optimizer, groups)
  local own, count = optimizer.param_groups, 0
  for _ in ordered_map.items(groups) do count = count + 1 end
  check(count == #own, "value", "the state dict has %d parameter groups, %s has %d", count, optimizer.class.name, #own)
  for g, group in ipairs(own) do
    local params = groups[g].params
    local found = params == nil and 0 or #params
    check(found == #group.params, "value", "group %d of the state dict has %d parameters, %s has %d there", g, found, optimizer.class.name,
      #group.params)
  end
end

---@param optimizer cstorch.optim.Optimizer
---@param dict table
function state_dicts.load(optimizer, dict)
  local is_map = type(dict) == "table" or type(dict) == "userdata" and cbk.kind(dict) == "dict"
  check(is_map and dict.param_groups ~= nil, "value", "expected the state dict of an optimizer { state =, param_groups = }, found %s",
    is_map and "no 'param_groups' in it" or errors.show(dict))
  check_groups(optimizer, dict.param_groups)
  local numbers, saved_state = numbers_of(optimizer), dict.state or {}
  for g, group in ipairs(optimizer.param_groups) do
    local saved = ordered_map.new(dict.param_groups[g])
    if optimizer.convert_group then optimizer.convert_group(saved) end
    for k, p in ipairs(group.params) do
      -- the numbers of the file count, as its groups may list parameters in another order than by number
      local state = entry(saved_state, tonumber(saved.params[k]))
      state = state and ordered_map.new(state)
      if state and optimizer.convert_state then optimizer:convert_state(saved, state) end
      if state and #ordered_map.keys(state) > 0 then load_state(optimizer, numbers[p], optimizer.state[p], state) end
    end
    load_group(group, saved)
  end
end

return state_dicts
