-- Masks of sparse weights: up to release 2.1 in the optimizer's state, since then beside the weights, as `<weight>_mask`. The model
-- computes with the product of both.

local cbk = require "cbk"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local optimizer_state = require "converters.modelzoo.optimizer_state"
local releases = require "converters.engine.releases"

local is_dict, is_list, is_sequence, present = kinds.is_dict, kinds.is_list, kinds.is_sequence, kinds.present

local sparsity = {}

local SINCE = "2.2" -- the release since which masks are beside the weights

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
---@param names table<integer, string>   of weights that are numbers there
---@param lost { path: string }[]
local function move_masks(root, state, names, lost)
  for weight, own in cbk.items(state) do
    local place = ("optimizer.sparsity.state.%s."):format(tostring(weight))
    if is_dict(own) then
      add_others(lost, place, own, { mask = true })
      local name = (own.mask ~= nil and key_of(root.model, names[weight] or weight) or tostring(weight)) .. "_mask"
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

---Warns of masks beside weights for a release that has them in the optimizer's state.
---@param model Dict
---@param to string   the release
local function warn_of_old(model, to)
  for key in cbk.items(model) do
    local weight = type(key) == "string" and key:match "^(.*)_mask$"
    if weight and kinds.is_tensor(model[weight]) then
      return cbk.warn(("release %s has the masks of sparse weights in the optimizer's state: those beside the weights, such as '%s', stay "
        .. "where they are"):format(to, key))
    end
  end
end

---Moves sparsity state from the optimizer to masks next to the weights; warns about fields without a place there.
---@param root Dict   changed in place
---@param from string   the release of the old checkpoint
---@param to string
function sparsity.move(root, from, to)
  if not releases.since(to, SINCE) then return releases.since(from, SINCE) and warn_of_old(root.model, to) or nil end
  if not is_dict(root, "optimizer") or root.optimizer.sparsity == nil then return end
  local optimizer, lost = cbk.copy(root.optimizer), {}
  local own = is_dict(optimizer, "sparsity") and optimizer.sparsity or cbk.dict()
  if not is_dict(optimizer, "sparsity") and present(optimizer.sparsity) then lost[1] = { path = "optimizer.sparsity" } end
  if root.sparsity ~= nil then lost[#lost + 1] = { path = "sparsity" } end
  optimizer.sparsity = nil
  root.optimizer = optimizer
  local has_state, has_groups = is_dict(own, "state"), is_list(own, "param_groups")
  add_others(lost, "optimizer.sparsity.", own, { state = has_state, param_groups = has_groups, step = true })
  if has_state then move_masks(root, own.state, optimizer_state.names_by_number(own), lost) end
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

---The masks in the optimizer's state, up to release 2.1.
---@param root Dict
---@return { name: any, path: string, mask: any }[]
function sparsity.in_optimizer(root)
  local own = is_dict(root, "optimizer") and is_dict(root.optimizer, "sparsity") and root.optimizer.sparsity or cbk.dict()
  local names, out = optimizer_state.names_by_number(own), {}
  for key, state in cbk.items(is_dict(own, "state") and own.state or cbk.dict()) do
    local mask = is_dict(state) and state.mask
    if mask and present(mask) then
      out[#out + 1] = { name = names[key] or key, path = ("optimizer.sparsity.state.%s.mask"):format(tostring(key)), mask = mask }
    end
  end
  return out
end

---The keys of each weight whose tensor has several.
---@param model Dict
---@return fun(key: string): string[]
local function names_of_weights(model)
  local by_id = {}
  for key, value in cbk.items(model) do
    if kinds.is_tensor(value) then
      local id = value:storage_id()
      by_id[id] = by_id[id] or {}
      table.insert(by_id[id], key)
    end
  end
  return function(key)
    local out = {}
    for _, other in ipairs(by_id[model[key]:storage_id()]) do
      if model[other]:same(model[key]) then out[#out + 1] = other end
    end
    return out
  end
end

---@param path string    of the mask
---@param weight string
local function check_mask(path, mask, weight, value)
  if not kinds.is_tensor(mask) or not kinds.is_tensor(value) then
    cbk.fail("checkpoint", ("'%s' is not a mask: it, or the weight '%s', is no tensor"):format(path, weight), { key = path })
  end
  local has, want = extents.shape(mask:shape()), extents.shape(value:shape())
  if has ~= want then
    cbk.fail("checkpoint", ("the mask '%s' has the shape %s, and its weight %s"):format(path, has, want), { key = path })
  end
end

---The model of a checkpoint with its masks applied: what a model without masks has to have to compute the same. Tied weights stay so. Warns
---if there are masks.
---@param root Dict   changed in no way
---@return Dict   root.model, if there are no masks
function sparsity.dense(root)
  local model, masked = root.model, {}
  local out, keys_of = nil, nil
  local function apply(path, weight, mask)
    check_mask(path, mask, weight, model[weight])
    out, keys_of = out or cbk.copy(model), keys_of or names_of_weights(model)
    local product = out[weight] * mask:to(model[weight].dtype)
    for _, key in ipairs(keys_of(weight)) do out[key], masked[key] = product, true end
  end
  for _, one in ipairs(sparsity.in_optimizer(root)) do apply(one.path, key_of(model, one.name), one.mask) end
  for key, value in cbk.items(model) do
    local weight = type(key) == "string" and key:match "^(.*)_mask$"
    if weight and kinds.is_tensor(model[weight]) then
      apply("model." .. key, weight, value)
      out[key] = nil
    end
  end
  if not out then return model end
  local names = naming.sorted(masked)
  cbk.warn(("the masks of %s are applied, as the model does: %s"):format(numbers.counted(#names, "weight"), naming.folded(names)))
  return out
end

return sparsity
