-- Masks of sparse weights: up to release 2.1 in the optimizer's state, since then beside the weights, as `<weight>_mask`. The model
-- computes with the product of both.

local cbk = require "cbk"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local optimizer_state = require "converters.modelzoo.optimizer_state"

local is_dict, is_list, is_sequence, present = kinds.is_dict, kinds.is_list, kinds.is_sequence, kinds.present

local sparsity = {}

---Adds the unknown fields of a dict.
---@param known table<string, boolean>
local function add_others(lost, place, tree, known)
  for name in cbk.items(tree) do
    if not known[name] and present(tree[name]) then lost[#lost + 1] = { path = place .. tostring(name) } end
  end
end

---The model's key of a weight with a mask. Fails if the model lacks it.
---@param model Dict
---@param name any
---@return string
local function key_of(model, name)
  return type(name) == "string" and optimizer_state.weight_of(model, name) or cbk.fail("key", ("the optimizer's sparsity has a mask for "
    .. "the parameter '%s', and the model has no weight of that name: the mask would be lost"):format(tostring(name)))
end

---Moves the masks of a sparsity state next to their weights.
---@param lost { path: string }[]
local function move_masks(root, state, lost)
  for weight, own in cbk.items(state) do
    local place = ("optimizer.sparsity.state.%s."):format(tostring(weight))
    if is_dict(own) then
      add_others(lost, place, own, { mask = true })
      local name = (own.mask ~= nil and key_of(root.model, weight) or tostring(weight)) .. "_mask"
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
    local field = is_dict(group) and (is_sequence(group, "param_names") and "param_names" or is_sequence(group, "params") and "params")
    local own = is_dict(group) and is_dict(group, "sparsity") and group.sparsity or cbk.dict()
    if is_dict(group) then add_others(lost, place, group, { params = true, param_names = true, sparsity = is_dict(group, "sparsity") }) end
    add_others(lost, place .. "sparsity.", own, { step = true })
    local count = 0
    for _, name in cbk.items(own.step ~= nil and field and group[field] or cbk.list()) do
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

---Moves sparsity state from the optimizer to masks next to the weights; warns about fields without a place there.
---@param root Dict   changed in place
function sparsity.move(root)
  if not is_dict(root, "optimizer") or root.optimizer.sparsity == nil then return end
  local optimizer, lost = cbk.copy(root.optimizer), {}
  local own = is_dict(optimizer, "sparsity") and optimizer.sparsity or cbk.dict()
  if not is_dict(optimizer, "sparsity") and present(optimizer.sparsity) then lost[1] = { path = "optimizer.sparsity" } end
  if root.sparsity ~= nil then lost[#lost + 1] = { path = "sparsity" } end
  optimizer.sparsity = nil
  root.optimizer = optimizer
  local has_state, has_groups = is_dict(own, "state"), is_list(own, "param_groups")
  add_others(lost, "optimizer.sparsity.", own, { state = has_state, param_groups = has_groups, step = true })
  if has_state then move_masks(root, own.state, lost) end
  local out = cbk.dict()
  if own.step ~= nil then out.step = cbk.raw(own, "step") end
  out.sparsity = has_groups and levels_of(own.param_groups, lost) or cbk.dict()
  root.sparsity = out
  if #lost == 0 then return end
  local names = {}
  for i, group in ipairs(fold.groups(lost)) do names[i] = group.name end
  cbk.warn(("the masks and steps of the optimizer's sparsity are moved to the model; other fields are left out: %s"):format(
    table.concat(names, ", ")))
end

---The masks of a checkpoint by the weights of its model.
---@param root Dict
---@return table<string, Tensor>
---@return table<string, string>   the path of each mask
local function masks_of(root)
  local out, paths = {}, {}
  local function add(weight, path, mask)
    if not kinds.is_tensor(mask) or not kinds.is_tensor(root.model[weight]) then
      cbk.fail("checkpoint", ("'%s' is not a mask: it, or the weight '%s', is no tensor"):format(path, weight), { key = path })
    end
    local has, want = mask:shape(), root.model[weight]:shape()
    if extents.shape(has) ~= extents.shape(want) then
      cbk.fail("checkpoint", ("the mask '%s' has the shape %s, and its weight %s"):format(path, extents.shape(has), extents.shape(want)),
        { key = path })
    end
    out[weight], paths[weight] = mask, path
  end
  local state = is_dict(root, "optimizer") and is_dict(root.optimizer, "sparsity") and root.optimizer.sparsity.state or nil
  for name, own in cbk.items(is_dict(state) and state or cbk.dict()) do
    local mask = is_dict(own) and own.mask
    if present(mask) and mask then add(key_of(root.model, name), ("optimizer.sparsity.state.%s.mask"):format(tostring(name)), mask) end
  end
  for key, value in cbk.items(root.model) do
    local weight = type(key) == "string" and key:match "^(.*)_mask$"
    if weight and kinds.is_tensor(root.model[weight]) then add(weight, "model." .. key, value) end
  end
  return out, paths
end

---The model of a checkpoint with its masks applied: what a model without masks has to have to compute the same. Warns if there are some.
---@param root Dict   changed in no way
---@return Dict   root.model, if there are no masks
function sparsity.dense(root)
  local masks, paths = masks_of(root)
  if next(masks) == nil then return root.model end
  local out, names = cbk.copy(root.model), naming.sorted(masks)
  for _, weight in ipairs(names) do
    local value = out[weight]
    out[weight] = value * masks[weight]:to(value.dtype)
    if paths[weight] == ("model.%s_mask"):format(weight) then out[weight .. "_mask"] = nil end
  end
  cbk.warn(("the masks of %s are applied, as the model does: %s"):format(numbers.counted(#names, "weight"), naming.folded(names)))
  return out
end

return sparsity
