-- The parameters in an optimizer's state: their names, which change with the model's.

local cbk = require "cbk"
local extents = require "cbk.extents"
local kinds = require "converters.engine.kinds"
local moved = require "converters.engine.moved"
local naming = require "cbk.naming"
local optimizers = require "converters.modelzoo.optimizers"

local is_dict, is_tuple, is_sequence = kinds.is_dict, kinds.is_tuple, kinds.is_sequence

local optimizer_state = {}

-- --- names of parameters, which optimizers keep too

---What became of a parameter, which an optimizer may call with or without `model.`.
---@param moves table<string, KeyMove>
---@return KeyMove|nil move
---@return string|nil key                          the model's
---@return (fun(key: string): string|nil)|nil own   the optimizer's name of a key of the new model
local function move_of(moves, name)
  local inner = name:match "^model%.(.*)$"
  if moves[name] then return moves[name], name, function(key) return key end end
  local key = "model." .. name
  if moves[key] then return moves[key], key, function(new) return new:match "^model%.(.*)$" end end
  if inner and moves[inner] then return moves[inner], inner, function(new) return "model." .. new end end
end

---@alias Split fun(key: string, tensor: Tensor): Dict   a tensor with the shape of a parameter, as the step splits that one: by new keys

---@class Names   Names of parameters through a step.
---@field moves table<string, KeyMove>
---@field model Dict         before the step
---@field split Split
---@field pieces table<string, string[]>   the new names of parameters whose state is split
---@field lost string[]      names that the new model lacks, or has split in a way that their state does not follow
---@field gone string[]      those among them that are names of other parameters now
---@field targets table<string, boolean>   the keys of the new model that had other names
---@field changed string[]   names whose tensors have other values now
---@field seen table<string, boolean>

---@param names Names
---@return string|nil   nil: the name is another parameter's now
local function follow(names, name)
  if type(name) ~= "string" then return name end
  local move, key, own = move_of(names.moves, name)
  local new = move and move.to and own(move.to)
  local is_gone = move and not new and names.targets[key]
  local list = is_gone and names.gone or move and (not new and names.lost or move.is_changed and names.changed)
  if list and not names.seen[name] then names.seen[name], list[#list + 1] = true, name end
  return new or not is_gone and name or nil
end

---The states of the parameters into which a step has split one; nil if it has not, or if it is not known how to split a state: it has
---neither the parameter's shape nor a single value.
---@param names Names
---@param name any
---@param state any   of the one
---@return table<string, Dict>|nil by_name, string[]|nil order
local function pieces_of(names, name, state)
  if type(name) ~= "string" or not is_dict(state) then return nil end
  local move, key, own = move_of(names.moves, name)
  local weight = move and move.is_split and names.model[key]
  if not kinds.is_tensor(weight) then return nil end
  local by_name, order, others, shape = {}, {}, cbk.dict(), extents.shape(weight:shape())
  for field, value in cbk.items(state) do
    if kinds.is_tensor(value) and extents.shape(value:shape()) == shape then
      local function split(given) return names.split(key, given[key]) end
      local given = cbk.dict { { key, value } }
      if moved.computed(given, split) then return nil end
      for new, part in cbk.items(split(given)) do
        local to = own(new)
        if not by_name[to] then by_name[to], order[#order + 1] = cbk.dict(), to end
        by_name[to][field] = part
      end
    elseif kinds.is_tensor(value) and value:numel() > 1 then -- such as Adafactor's rows and columns
      return nil
    else
      others[field] = cbk.raw(state, field)
    end
  end
  for _, to in ipairs(order) do
    for field in cbk.items(others) do by_name[to][field] = cbk.raw(others, field) end
  end
  if #order > 0 then return by_name, order end
end

---A list or tuple with other members; nil if `tree[key]` is neither.
---@param change fun(value: any): any   a list of members; nil: it stays what it is
local function with_members(tree, key, change)
  if not is_sequence(tree, key) then return nil end
  local out, old = cbk.list(), tree[key]
  for i, value in cbk.items(old) do
    for _, new in ipairs(change(value) or { cbk.raw(old, i) }) do out[#out + 1] = new end
  end
  return is_tuple(tree, key) and cbk.tuple(out) or out
end

---A dict by parameters under their new names, or a list of parameters with these.
---@param names Names
local function followed(names, tree, key)
  local value = tree[key]
  if is_dict(tree, key) then
    local out = cbk.dict()
    local function put(name, state)
      if out[name] ~= nil then
        cbk.fail("convert", ("two parameters in the optimizer's '%s' would be called '%s'"):format(key, tostring(name)),
          { advice = "change the table, or copy the checkpoint without the optimizer's states first" })
      end
      out[name] = state
    end
    for name, state in cbk.items(value) do
      local by_name, order = pieces_of(names, name, state)
      for _, new in ipairs(order or {}) do put(new, by_name[new]) end
      local new = not order and follow(names, name)
      if new then put(new, cbk.raw(value, name)) end
      if order then names.pieces[name] = order end
    end
    return out
  end
  return with_members(tree, key, function(name)
    return type(name) == "string" and (names.pieces[name] or { follow(names, name) }) or nil
  end) or cbk.raw(tree, key)
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
  local out = with_names(names, state, { optimizers.BY_PARAMETER })
  local groups = out[optimizers.GROUPS] ~= nil and with_members(state, optimizers.GROUPS, function(group)
    return is_dict(group) and { with_names(names, group, optimizers.LISTS) } or nil
  end)
  if groups then out[optimizers.GROUPS] = groups end
  return out
end

---Whether an optimizer knows its parameters by their positions in the model, as PyTorch's do.
local function is_by_position(optimizer)
  local by_position = optimizers.LISTS[1]
  for _, group in cbk.items(is_sequence(optimizer, optimizers.GROUPS) and optimizer[optimizers.GROUPS] or cbk.list()) do
    if is_dict(group) and is_sequence(group, by_position) and type(group[by_position][1]) == "number" then return true end
  end
  return false
end

---An optimizer's states, parameter by parameter.
---@param root Dict
---@return Dict
function optimizer_state.by_parameter(root)
  local has_states = is_dict(root, "optimizer") and is_dict(root.optimizer, optimizers.BY_PARAMETER)
  return has_states and root.optimizer[optimizers.BY_PARAMETER] or cbk.dict()
end

---The model's key of a parameter, which an optimizer may call with or without `model.`; nil if the model lacks it.
---@param model Dict
---@param name string
---@return string|nil
function optimizer_state.weight_of(model, name)
  for _, key in ipairs { name, name:match "^model%.(.*)$" or name, "model." .. name } do
    if model[key] ~= nil then return key end
  end
end

---The names of parameters that groups know by a number, as PyTorch's do.
---@param tree Dict   an optimizer, or its sparsity
---@return table<integer, string>
function optimizer_state.names_by_number(tree)
  local out = {}
  for _, group in cbk.items(is_sequence(tree, optimizers.GROUPS) and tree[optimizers.GROUPS] or cbk.list()) do
    local has_both = is_dict(group) and is_sequence(group, "params") and is_sequence(group, "param_names")
    for i, number in cbk.items(has_both and group.params or cbk.list()) do
      local name = type(number) == "number" and group.param_names[i]
      if type(name) == "string" and number == number then out[number] = name end -- not NaN
    end
  end
  return out
end

local PLACE = ("optimizer.%s."):format(optimizers.BY_PARAMETER)

---@param key any       a parameter
---@param state? any    one of its states
---@return string   "optimizer.state.3.exp_avg"
function optimizer_state.path(key, state)
  return PLACE .. cbk.key_text(key) .. (state ~= nil and "." .. cbk.key_text(state) or "")
end

---The path of the parameter that a state belongs to; nil for other paths.
---@param path string   "optimizer.state.3.exp_avg"
---@return string|nil   "optimizer.state.3"
function optimizer_state.parameter_of(path)
  return path:sub(1, #PLACE) == PLACE and path:match "^(.*)%.[^.]+$" or nil
end

---The keys whose tensors are not among the others, under any name.
---@param is_known fun(key: string): any   keys that are among the others for sure
local function alone(tensors, others, is_known)
  local function is_other(value)
    for _, other in cbk.items(others) do
      if kinds.is_tensor(other) and value:same(other) then return true end
    end
  end
  local out = {}
  for key, value in cbk.items(tensors) do
    if not is_known(key) and kinds.is_tensor(value) and not is_other(value) then out[#out + 1] = tostring(key) end
  end
  return out
end

---Warns if positions mean other parameters now, because the model has lost or gained some.
---@param root Dict
---@param moves table<string, KeyMove>
---@param old Dict   the model before
function optimizer_state.warn_of_positions(root, moves, old)
  if not is_dict(root, "optimizer") or not is_by_position(root.optimizer) then return end
  local is_target = {}
  for _, move in pairs(moves) do is_target[move.to or 0] = true end
  local gone = alone(old, root.model, function(key) return moves[key] and moves[key].to end)
  local added = alone(root.model, old, function(key) return is_target[key] end)
  if #gone + #added == 0 then return end
  local texts = {}
  if #gone > 0 then texts[1] = "lacks " .. naming.listed(gone) end
  if #added > 0 then texts[#texts + 1] = "adds " .. naming.listed(added) end
  cbk.warn("the optimizer's state refers to parameters by position, but the new model " .. table.concat(texts, " and ")
    .. ": it is kept as it is, and later positions now mean different parameters")
end

---Renames parameters in the optimizer's state as in the model, and splits the states of those that are split.
---@param root Dict                        changed in place
---@param moves table<string, KeyMove>   of the model's keys
---@param model Dict                       before the step
---@param split Split
function optimizer_state.rename_parameters(root, moves, model, split)
  local is_idle = true
  for name, move in pairs(moves) do is_idle = is_idle and name == move.to and not move.is_changed end
  if is_idle then return end
  local targets = {}
  for name, move in pairs(moves) do
    if move.to and move.to ~= name then targets[move.to] = true end
  end
  local names = { moves = moves, model = model, split = split, targets = targets, pieces = {}, lost = {}, gone = {},
    changed = {}, seen = {} }
  if is_dict(root, "optimizer") then
    local optimizer = state_with_names(names, root.optimizer)
    if is_dict(optimizer, "sparsity") then optimizer.sparsity = state_with_names(names, optimizer.sparsity) end
    root.optimizer = optimizer
  end
  if is_dict(root, "sparsity") then root.sparsity = with_names(names, root.sparsity, { "sparsity" }) end
  if #names.lost > 0 then
    cbk.warn(("the optimizer's state keeps names of parameters that the new model lacks or has split: %s"):format(
      naming.all_folded(names.lost)))
  end
  if #names.gone > 0 then
    cbk.warn(("the optimizer's state of parameters that the new model lacks is left out, as others have their names now: %s"):format(
      naming.all_folded(names.gone)))
  end
  if #names.changed > 0 then
    cbk.warn(("these parameters are converted, but their state in the optimizer is kept as it is: %s"):format(naming.listed(names.changed)))
  end
end

return optimizer_state
