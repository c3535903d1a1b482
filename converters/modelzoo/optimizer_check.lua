-- What contradicts in a training checkpoint: the optimizer's states of each parameter, and the model's weights.

local cbk = require "cbk"
local extents = require "cbk.extents"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local optimizer_state = require "converters.modelzoo.optimizer_state"
local optimizers = require "converters.modelzoo.optimizers"
local is_key = require("cbk.optimizers").is_key

local is_dict = kinds.is_dict

local optimizer_check = {}

---@class StateMistake
---@field kind "shape"|"missing"|"unknown"
---@field path string   "optimizer.state.w.exp_avg", or of the parameter
---@field text string
---@field name? string   of an unknown parameter

---The group of each parameter, by its number and its name.
---@param optimizer Dict
---@return table<any, integer>
local function groups_of(optimizer)
  local out = {}
  local groups = kinds.is_sequence(optimizer, optimizers.GROUPS) and optimizer[optimizers.GROUPS] or cbk.list()
  for i, group in cbk.items(groups) do
    for _, list in ipairs(optimizers.LISTS) do
      local has = is_dict(group) and kinds.is_sequence(group, list)
      for _, key in cbk.items(has and group[list] or cbk.list()) do
        if is_key(key) then out[key] = out[key] or i end
      end
    end
  end
  return out
end

---The shapes that a state may have: the weight's, or those of its sums over rows or columns.
---@param name string
---@param shape integer[]
---@return table<string, boolean>
local function shapes_for(name, shape)
  local out, count = { [extents.shape(shape)] = true }, #shape
  if not optimizers.is_factor(name) or count < 2 then return out end
  for dim = count - 1, count do
    local kept, lacking = { unpack(shape) }, { unpack(shape) }
    kept[dim] = 1
    table.remove(lacking, dim)
    out[extents.shape(kept)], out[extents.shape(lacking)] = true, true
  end
  return out
end

---@param place string   of the parameter
---@param out StateMistake[]
local function check_shapes(place, entry, weight, out)
  local shape = weight:shape()
  for name, value in cbk.items(entry) do
    local state = tostring(name)
    local is_known = optimizers.has_weights_shape(state) or optimizers.is_factor(state)
    local own = is_known and kinds.is_tensor(value) and extents.shape(value:shape())
    if own and not shapes_for(state, shape)[own] then
      out[#out + 1] = { kind = "shape", path = ("%s.%s"):format(place, cbk.key_text(name)),
        text = ("the optimizer's state has the shape %s, and its weight %s"):format(own, extents.shape(shape)) }
    end
  end
end

---The states that most parameters of a kind have: those of one group, and all of them vectors or none.
---@param of_kind { entry: Dict }[]
---@return string[]
local function usual_states(of_kind)
  local counts, out = {}, {}
  for _, one in ipairs(of_kind) do
    for name in cbk.items(one.entry) do counts[name] = (counts[name] or 0) + 1 end
  end
  for name, count in pairs(counts) do
    out[#out + 1] = 2 * count > #of_kind and type(name) == "string" and optimizers.has_weights_shape(name) and name or nil
  end
  return out
end

---Whether a parameter lacks a state of the optimizer whose other states it has.
---@param entry Dict
---@param name string
local function lacks(entry, name)
  if entry[name] ~= nil then return false end
  for other in cbk.items(entry) do
    if optimizers.belong_together(name, tostring(other)) then return true end
  end
  return false
end

---@param kinds_of table<string, { place: string, entry: Dict }[]>
---@param out StateMistake[]
local function check_missing(kinds_of, out)
  for _, of_kind in pairs(kinds_of) do
    local usual = usual_states(of_kind)
    for _, one in ipairs(of_kind) do
      for _, name in ipairs(usual) do
        if lacks(one.entry, name) then
          out[#out + 1] = { kind = "missing", path = one.place .. "." .. cbk.key_text(name),
            text = "the optimizer's state is missing, which other parameters have" }
        end
      end
    end
  end
end

---What contradicts between the optimizer's states and the model. Reads no values. States whose parameter is only a position are not
---compared: their order is that of the program that made them.
---@param root Dict   of a training checkpoint
---@return StateMistake[]   by path
function optimizer_check.mistakes(root)
  local states, out, kinds_of = optimizer_state.by_parameter(root), {}, {}
  if not is_dict(root, "model") or cbk.count(states) == 0 then return out end
  local group_of, name_of = groups_of(root.optimizer), optimizer_state.names_by_number(root.optimizer)
  for key, entry in cbk.items(states) do
    local number, place = tonumber(key), optimizer_state.path(key) -- files may have numbers as text
    local name = number and name_of[number] or not number and type(key) == "string" and key
    local weight = name and optimizer_state.weight_of(root.model, name)
    if name and not weight then
      out[#out + 1] = { kind = "unknown", path = place, name = name, text = ("the model has no weight '%s'"):format(name) }
    elseif weight and is_dict(entry) and kinds.is_tensor(root.model[weight]) then
      check_shapes(place, entry, root.model[weight], out)
      local kind = ("%s %s"):format(tostring(group_of[number or key]), root.model[weight]:dim() > 1)
      kinds_of[kind] = kinds_of[kind] or {}
      table.insert(kinds_of[kind], { place = place, entry = entry })
    end
  end
  check_missing(kinds_of, out)
  table.sort(out, function(a, b) return a.path < b.path end)
  return out
end

---The parameters that an optimizer names, in its states or its groups, and that the model lacks.
---@param root any   of a checkpoint
---@return string[]   sorted
function optimizer_check.strangers(root)
  local found = {}
  local function add(name)
    if type(name) == "string" and not tonumber(name) and not optimizer_state.weight_of(root.model, name) then found[name] = true end
  end
  if is_dict(root) and is_dict(root, "model") and is_dict(root, "optimizer") then
    for name in cbk.items(optimizer_state.by_parameter(root)) do add(name) end
    for name in pairs(groups_of(root.optimizer)) do add(name) end
  end
  return naming.sorted(found)
end

---Fails if a state has another shape than its weight: no program can go on with it. Warns of parameters that the model lacks.
---@param root Dict   of a training checkpoint
function optimizer_check.check(root)
  local strange = {}
  for _, one in ipairs(optimizer_check.mistakes(root)) do
    if one.kind == "shape" then
      cbk.fail("checkpoint", ("%s: %s"):format(one.path, one.text), { key = one.path,
        advice = "go on without these states: copy the checkpoint with --exclude 'optimizer.state.*'" })
    end
    strange[#strange + 1] = one.kind == "unknown" and one.name or nil
  end
  if #strange > 0 then
    cbk.warn(("the optimizer has states of parameters that the model lacks: %s; they are kept as they are"):format(
      naming.listed(strange, 3)))
  end
end

return optimizer_check
