-- Leaves that the tree of a checkpoint names but its file does not store: they read as None. The model's ties may supply weights, and
-- the optimizer's state of a parameter can be reset.

local cbk = require "cbk"
local extents = require "cbk.extents"
local naming = require "cbk.naming"
local optimizer_state = require "converters.modelzoo.optimizer_state"
local optimizers = require "converters.modelzoo.optimizers"

local lost_leaves = {}

local function is_dict(tree, key) return (cbk.kind(tree, key) or ""):find "dict" ~= nil end

local function shape_of(value) return cbk.kind(value) == "tensor" and extents.joined(value:shape(), " ") or nil end

---A parameter's state before the first step; nil if it is not known.
---@param entry Dict   the states of the parameter, some of them None
---@param other Dict   the states of a parameter that has them all
---@return Dict|nil
local function fresh(entry, other)
  local out, shapes = cbk.dict(), { [""] = {} }
  for name in cbk.items(entry) do
    local own, its = shape_of(entry[name]), shape_of(other[name])
    if own and its then shapes[its] = entry[name]:shape() end
  end
  for name in cbk.items(entry) do
    local is_lost = cbk.kind(entry, name) == "none"
    local like = is_lost and other[name] or entry[name]
    local shape = shape_of(like) and (is_lost and shapes[shape_of(like)] or not is_lost and like:shape())
    if not optimizers.is_zero_at_first(name) or not (shape or type(like) == "number") then return nil end
    if shape then
      out[name] = cbk.full(shape, 0, { dtype = like.dtype }):as { role = like.role, requires_grad = like.requires_grad }
    else
      out[name] = cbk.kind(is_lost and other or entry, name) == "float" and cbk.float(0) or 0
    end
  end
  return out
end

---Adds leaves that are None because an earlier rewrite of the file found no data: the step, and states that only some parameters lack.
---(A parameter that was never trained has no momentum.)
---@param root Dict
---@param names string[]   of leaves that are known to be lost
---@return string[] names
function lost_leaves.with_none_states(root, names)
  local states, is_known, has, out = optimizer_state.by_parameter(root), {}, {}, {}
  for i, name in ipairs(names) do is_known[name], out[i] = true, name end
  local function each(visit)
    for key in cbk.items(states) do
      local entry = is_dict(states, key) and states[key] or cbk.dict()
      for name in cbk.items(entry) do visit(key, name, cbk.kind(entry, name) == "none") end
    end
  end
  each(function(_, name, is_none) has[name] = has[name] or not is_none end)
  each(function(key, name, is_none)
    local path = optimizer_state.path(key, name)
    if is_none and has[name] and not optimizers.may_be_none(name) and not is_known[path] then out[#out + 1] = path end
  end)
  if cbk.kind(root, "global_step") == "none" and not is_known.global_step then out[#out + 1] = "global_step" end
  return out
end

---Resets the optimizer's state of parameters that lack a part of it, in place.
---@param root Dict
---@param names string[]
---@return string[] restarted   "optimizer.state.3"
---@return string[] left        the names that are still None
local function restart(root, names)
  local states = optimizer_state.by_parameter(root)
  local lacking, restarted, left = {}, {}, {}
  for _, name in ipairs(names) do
    local place = optimizer_state.parameter_of(name)
    if place then lacking[place] = true end
  end
  local done = {}
  for key in cbk.items(states) do
    local place = optimizer_state.path(key)
    if lacking[place] then
      for other_key in cbk.items(states) do
        local is_whole = not lacking[optimizer_state.path(other_key)] and is_dict(states, other_key)
        local zero = is_whole and fresh(states[key], states[other_key])
        if zero then
          for name in cbk.items(zero) do states[key][name] = cbk.raw(zero, name) end
          done[place], restarted[#restarted + 1] = true, place
          break
        end
      end
    end
  end
  for _, name in ipairs(names) do
    if not done[optimizer_state.parameter_of(name) or false] then left[#left + 1] = name end
  end
  return restarted, left
end

local function split(names)
  local weights, state = {}, {}
  for _, name in ipairs(names) do
    local list = name:find "^model%." and weights or state
    list[#list + 1] = name
  end
  return weights, state
end

---Reports the lost leaves. If the run's state lost some, it is an error unless `accept` is set.
---@param root Dict        changed if a state is reset
---@param names string[]
---@param accept? boolean
---@return string[] warnings
function lost_leaves.settle(root, names, accept)
  local weights, state = split(names)
  if #state > 0 and not accept then
    cbk.fail("key", ("no data is stored for %s: an optimizer or schedule fails with None there; with --accept-missing, the "
      .. "optimizer's state of such a parameter is reset to zero if all of it starts at zero, and the rest is None"):format(
        naming.listed(state)))
  end
  local warnings = {}
  local function warn(text, list)
    if #list > 0 then warnings[#warnings + 1] = text:format(naming.listed(list)) end
  end
  warn("no data is stored for %s: read as None, until a tie of the model fills it", weights)
  local restarted, left = restart(root, state)
  warn("parts of %s are not stored: the state of these parameters is reset, all moments and steps to zero", restarted)
  warn("no data is stored for %s: it is None, and a run that needs it fails", left)
  return warnings
end

---Fails if a model has weights that are still None after the conversion.
---@param root Dict
---@param is_weight fun(key: string): boolean   whether the model has such a weight
function lost_leaves.check_model(root, is_weight)
  local none = {}
  for key in cbk.items(is_dict(root, "model") and root.model or cbk.dict()) do
    if cbk.kind(root.model, key) == "none" and is_weight(tostring(key)) then none[#none + 1] = "model." .. tostring(key) end
  end
  if #none > 0 then
    cbk.fail("key", ("the checkpoint is incomplete: no data is stored for %s, and no tie of the model fills %s"):format(
      naming.listed(none), #none == 1 and "it" or "them"))
  end
end

return lost_leaves
