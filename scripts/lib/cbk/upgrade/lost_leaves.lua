-- Leaves that the tree of a checkpoint names and its file does not store: they read as None. Weights may be filled by the ties of
-- their model; of the run's state, that of an optimizer's parameter can begin anew.

local cbk = require "cbk"
local extents = require "cbk.extents"
local naming = require "converters.engine.naming"
local optimizer_state = require "converters.modelzoo.optimizer_state"
local optimizers = require "converters.modelzoo.optimizers"

local lost_leaves = {}

local function is_dict(tree, key) return (cbk.kind(tree, key) or ""):find "dict" ~= nil end

local function shape_of(value) return cbk.kind(value) == "tensor" and extents.joined(value:shape(), " ") or nil end

---What a parameter's state was before the first step; nil where that is not known.
---@param entry Dict   the states of the parameter, some of them None
---@param other Dict   those of a parameter that has them all
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

---Adds what is None because whoever wrote the file anew found nothing there: the step, and states of some parameters only. (A
---parameter that was never trained has no momentum.)
---@param root Dict
---@param names string[]   of what is known to be lost
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

---Lets the optimizer's state of the parameters that lack a part of it begin anew, in place.
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
        local anew = is_whole and fresh(states[key], states[other_key])
        if anew then
          for name in cbk.items(anew) do states[key][name] = cbk.raw(anew, name) end
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

---Tells of the leaves that are lost. Those of the run's state are an error unless that is accepted.
---@param root Dict        changed where a state begins anew
---@param names string[]
---@param accept? boolean
---@return string[] warnings
function lost_leaves.settle(root, names, accept)
  local weights, state = split(names)
  if #state > 0 and not accept then
    cbk.fail("key", ("nothing is stored under %s: an optimizer or schedule that finds None there stops. --accept-missing continues: the "
      .. "optimizer's state of such a parameter is reset to zero where that is known, and the rest is None"):format(
        naming.first(state)))
  end
  local warnings = {}
  local function warn(text, list)
    if #list > 0 then warnings[#warnings + 1] = text:format(naming.first(list)) end
  end
  warn("nothing is stored under %s: read as None, for a tie of the model to fill", weights)
  local restarted, left = restart(root, state)
  warn("of %s parts are not stored: the state of such a parameter is reset: all its moments and steps are zero", restarted)
  warn("nothing is stored under %s: None, and what needs it in the run stops", left)
  return warnings
end

---Refuses a model of which weights are None in the end.
---@param root Dict
---@param is_weight fun(key: string): boolean   whether the model has such a weight
function lost_leaves.check_model(root, is_weight)
  local none = {}
  for key in cbk.items(is_dict(root, "model") and root.model or cbk.dict()) do
    if cbk.kind(root.model, key) == "none" and is_weight(tostring(key)) then none[#none + 1] = "model." .. tostring(key) end
  end
  if #none > 0 then
    cbk.fail("key", ("the checkpoint is incomplete: nothing is stored as %s, and no tie of the model gives %s data"):format(
      naming.first(none), #none == 1 and "it" or "them"))
  end
end

return lost_leaves
