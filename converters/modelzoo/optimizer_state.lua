-- What an optimizer's state says of parameters: their names, which change with the model's, and how sparse they are.

local cbk = require "cbk"
local fold = require "cbk.fold"
local kinds = require "converters.engine.kinds"
local naming = require "converters.engine.naming"

local is_dict, is_list, present = kinds.is_dict, kinds.is_list, kinds.present

local optimizer_state = {}

-- --- names of parameters, which optimizers keep too

---The new name of a parameter, which an optimizer may call with or without `model.`.
---@param moves table<string, KeyMove>
---@return KeyMove|nil move, string|nil name
local function move_of(moves, name)
  local move = moves[name]
  if move then return move, move.to end
  move = moves["model." .. name]
  if move then return move, move.to and move.to:match "^model%.(.*)$" end
  move = moves[name:match "^model%.(.*)$" or false]
  if move then return move, move.to and "model." .. move.to end
end

---@class Names   Of parameters, as they are followed through a step.
---@field moves table<string, KeyMove>
---@field lost string[]      those that the model has no more under one name
---@field changed string[]   … and those whose tensors are others now
---@field seen table<string, boolean>

---@param names Names
---@return string
local function follow(names, name)
  if type(name) ~= "string" then return name end
  local move, new = move_of(names.moves, name)
  local list = move and (not new and names.lost or move.is_changed and names.changed)
  if list and not names.seen[name] then names.seen[name], list[#list + 1] = true, name end
  return new or name
end

---A dict by parameters under their new names, or a list of parameters with these.
---@param names Names
local function followed(names, tree, key)
  local value = tree[key]
  if is_dict(tree, key) then
    local out = cbk.dict()
    for name in cbk.items(value) do out[follow(names, name)] = cbk.raw(value, name) end
    return #out == #value and out or value
  elseif is_list(tree, key) then
    local out = cbk.list()
    for i, name in cbk.items(value) do out[i] = type(name) == "string" and follow(names, name) or cbk.raw(value, i) end
    return out
  end
  return cbk.raw(tree, key)
end

---A copy of a dict whose fields are by parameters, or lists of them.
---@param names Names
---@param fields string[]
local function with_names(names, tree, fields)
  local out = cbk.copy(tree)
  for _, field in ipairs(fields) do
    if out[field] ~= nil then out[field] = followed(names, tree, field) end
  end
  return out
end

---The state of an optimizer, or of its sparsity, with the new names of parameters.
---@param names Names
local function state_with_names(names, state)
  local out = with_names(names, state, { "state" })
  if is_list(out, "param_groups") then
    local groups = cbk.list()
    for i, group in cbk.items(state.param_groups) do
      groups[i] = is_dict(group) and with_names(names, group, { "params", "param_names" }) or cbk.raw(state.param_groups, i)
    end
    out.param_groups = groups
  end
  return out
end

---Parameters keep their state when the model calls them otherwise.
---@param root Dict                        changed in place
---@param moves table<string, KeyMove>   of the model's keys
function optimizer_state.rename_parameters(root, moves)
  local is_idle = true
  for name, move in pairs(moves) do is_idle = is_idle and name == move.to and not move.is_changed end
  if is_idle then return end
  local names = { moves = moves, lost = {}, changed = {}, seen = {} }
  if is_dict(root, "optimizer") then
    local optimizer = state_with_names(names, root.optimizer)
    if is_dict(optimizer, "sparsity") then optimizer.sparsity = state_with_names(names, optimizer.sparsity) end
    root.optimizer = optimizer
  end
  if is_dict(root, "sparsity") then root.sparsity = with_names(names, root.sparsity, { "sparsity" }) end
  if #names.lost > 0 then
    cbk.warn(("the optimizer's state keeps names of parameters that the model has no more, or several of: %s"):format(
      naming.first(names.lost)))
  end
  if #names.changed > 0 then
    cbk.warn(("the optimizer's state is kept as it is of parameters that are converted: %s"):format(naming.first(names.changed)))
  end
end

-- --- sparsity

---Names what a dict has beside the fields that are known.
---@param known table<string, boolean>
local function add_others(lost, place, tree, known)
  for name in cbk.items(tree) do
    if not known[name] and present(tree[name]) then lost[#lost + 1] = { path = place .. tostring(name) } end
  end
end

---The masks of a sparsity state beside the weights that they are of.
---@param lost { path: string }[]
local function move_masks(root, state, lost)
  for weight, own in cbk.items(state) do
    local place = ("optimizer.sparsity.state.%s."):format(tostring(weight))
    if is_dict(own) then
      add_others(lost, place, own, { mask = true })
      local name = tostring(weight) .. "_mask"
      if own.mask ~= nil and root.model[name] ~= nil then lost[#lost + 1] = { path = "model." .. name } end
      if own.mask ~= nil then root.model[name] = cbk.raw(own, "mask") end
    else
      lost[#lost + 1] = { path = place:sub(1, -2) }
    end
  end
end

---The steps of a sparsity's groups, parameter by parameter.
---@param lost { path: string }[]
---@return Dict
local function levels_of(groups, lost)
  local levels = cbk.dict()
  for i, group in cbk.items(groups) do
    local place = ("optimizer.sparsity.param_groups.%d."):format(i - 1)
    local names = is_dict(group) and (is_list(group, "param_names") and group.param_names or group.params)
    local own = is_dict(group) and is_dict(group, "sparsity") and group.sparsity or cbk.dict()
    if is_dict(group) then add_others(lost, place, group, { params = true, param_names = true, sparsity = is_dict(group, "sparsity") }) end
    add_others(lost, place .. "sparsity.", own, { step = true })
    local count = 0
    for _, name in cbk.items(own.step ~= nil and is_list(names) and names or cbk.list()) do
      if type(name) == "string" then
        if levels[name] == nil then levels[name] = cbk.dict() end
        levels[name].index = cbk.raw(own, "step")
        count = count + 1
      end
    end
    if own.step ~= nil and count == 0 then lost[#lost + 1] = { path = place .. "sparsity.step" } end
  end
  return levels
end

---Sparsity state moves from the optimizer to masks beside the weights; what has no place there is named.
---@param root Dict   changed in place
function optimizer_state.move_sparsity(root)
  if not is_dict(root, "optimizer") or root.optimizer.sparsity == nil then return end
  local optimizer, lost = cbk.copy(root.optimizer), {}
  local sparsity = is_dict(optimizer, "sparsity") and optimizer.sparsity or cbk.dict()
  if not is_dict(optimizer, "sparsity") and present(optimizer.sparsity) then lost[1] = { path = "optimizer.sparsity" } end
  if root.sparsity ~= nil then lost[#lost + 1] = { path = "sparsity" } end
  optimizer.sparsity = nil
  root.optimizer = optimizer
  local has_state, has_groups = is_dict(sparsity, "state"), is_list(sparsity, "param_groups")
  add_others(lost, "optimizer.sparsity.", sparsity, { state = has_state, param_groups = has_groups, step = true })
  if has_state then move_masks(root, sparsity.state, lost) end
  local out = cbk.dict()
  if sparsity.step ~= nil then out.step = cbk.raw(sparsity, "step") end
  out.sparsity = has_groups and levels_of(sparsity.param_groups, lost) or cbk.dict()
  root.sparsity = out
  if #lost == 0 then return end
  local names = {}
  for i, group in ipairs(fold.groups(lost)) do names[i] = group.name end
  cbk.warn(("masks and steps of the optimizer's sparsity become the model's, and these are left out: %s"):format(table.concat(names, ", ")))
end

return optimizer_state
