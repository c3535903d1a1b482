-- An optimizer's states: shapes of one parameter against each other, and, where states are only numbered, against its weight; and
-- parameters without a state.

local cbk = require "cbk"
local extents = require "cbk.extents"
local named = require "converters.modelzoo.optimizers"
local naming = require "cbk.naming"
local optimizer_table = require "cbk.optimizer_table"
local optimizers = require "cbk.optimizers"
local scalar = require "cbk.scalar"
local tensor_kinds = require "cbk.tensor_kinds"

local states = {}

local FEW = 0.25 -- of the parameters: more of them are how this optimizer works

---The states of a parameter that have its weight's shape in the usual optimizers. Some keep one number for all elements.
---@param entry any
---@return { name: string, shape: string }[]
local function shapes_of(entry)
  local out = {}
  for name, value in cbk.raw_items(optimizers.is_dict(entry) and entry or cbk.dict()) do
    if named.has_weights_shape(tostring(name)) and tensor_kinds.is_tensor(value) and value:numel() > 1 then
      out[#out + 1] = { name = cbk.key_text(name), shape = extents.shape(value:shape()) }
    end
  end
  return out
end

---@param optimizer Optimizer
---@param report fun(path: string, text: string)
local function check_each_other(optimizer, report)
  local unlike, count = {}, 0
  for key, entry in cbk.raw_items(optimizer.state) do
    local list = shapes_of(entry)
    count = count + (#list > 1 and 1 or 0)
    for i = 2, #list do
      if list[i].shape ~= list[1].shape then
        unlike[#unlike + 1] = { key = key, one = list[1], other = list[i] }
        break
      end
    end
  end
  if #unlike > FEW * count then return end
  for _, it in ipairs(unlike) do
    report(("%s.%s.%s"):format(optimizer_table.state_path(optimizer), cbk.key_text(it.key), it.one.name),
      ("it has the shape %s, and '%s' of the same parameter %s"):format(it.one.shape, it.other.name, it.other.shape))
  end
end

---Whether two shapes may be those of one weight, before and after somebody has changed it.
---@param a string
---@param b string
local function are_alike(a, b)
  local has, of_a, of_b, is_shared = {}, 0, 0, false
  for extent in a:gmatch "%d+" do has[extent], of_a = extent ~= "1", of_a + 1 end
  for extent in b:gmatch "%d+" do is_shared, of_b = is_shared or has[extent] == true, of_b + 1 end
  return of_a == of_b and (of_a == 1 or is_shared)
end

---@param optimizer Optimizer
---@param report fun(path: string, text: string)
local function check_weight(optimizer, report)
  local number, name, shape = optimizers.misfit(optimizer)
  for _, one in ipairs(number and shapes_of(optimizer.state[number]) or {}) do
    if are_alike(one.shape, shape) then
      report(("%s.%s.%s"):format(optimizer_table.state_path(optimizer), cbk.key_text(number), one.name),
        ("the optimizer's state has the shape %s, and its weight '%s' %s; the states of all other parameters fit in the model's "
          .. "order"):format(one.shape, name, shape))
    end
  end
end

local FEW_LACKING = 0.1 -- of a group, or one; more may be frozen
local LEAST_STATES = 6

---Whether other parameters of the same kind, as that of another layer, have states; nil if the names are unknown.
---@param optimizer Optimizer
local function has_siblings(optimizer, key)
  local own = optimizer.names[key] or type(key) == "string" and key
  if not own then return nil end
  for other in cbk.items(optimizer.state) do
    local name = optimizer.names[other] or tostring(other)
    if name ~= own and optimizers.kind_of(name) == optimizers.kind_of(own) then return true end
  end
  return false
end

---Reports many parameters of a group without states at once: a frozen layer has none.
local function add_many_lacking(optimizer, lacking, count, report)
  local keys = {}
  for i, key in ipairs(lacking) do keys[i] = cbk.key_text(key) end
  report(optimizer_table.state_path(optimizer), ("the optimizer has no state of %d of the %d parameters in a group: %s; they were lost, or "
    .. "the parameters are frozen or unused"):format(#lacking, count, naming.listed(keys, 6)), "note")
end

---Reports the few parameters of a group that have no state. PyTorch makes one at the first step with a gradient, so a frozen or unused
---parameter has none; a layer of which others are trained is neither.
---@param optimizer Optimizer
---@param report fun(path: string, text: string, severity: string|nil)
local function check_lacking(optimizer, report)
  for _, group in ipairs(optimizer.groups) do
    local lacking, count = {}, 0
    for _, key in optimizers.parameters(group) do
      local entry = optimizer.state[key]
      count = count + 1
      if entry == nil or optimizers.is_dict(entry) and cbk.count(entry) == 0 then lacking[#lacking + 1] = key end
    end
    local with = count - #lacking
    local is_few = with >= LEAST_STATES and #lacking <= math.max(1, FEW_LACKING * count)
    if with >= LEAST_STATES and not is_few and #lacking <= FEW * count then add_many_lacking(optimizer, lacking, count, report) end
    for _, key in ipairs(is_few and lacking or {}) do
      local is_alone = has_siblings(optimizer, key) == false
      report(("%s.%s"):format(optimizer_table.state_path(optimizer), cbk.key_text(key)),
        ("the optimizer has no state of this parameter, and has one of %d of the %d in its group: it was lost, or the parameter is "
          .. "frozen or unused"):format(with, count), is_alone and "note" or "warning")
    end
  end
end

---How often the entries have each state with the weight's shape.
local function counts_of(optimizer)
  local counts, all = {}, 0
  for _, entry in cbk.raw_items(optimizer.state) do
    all = all + 1
    for key, value in cbk.raw_items(optimizers.is_dict(entry) and entry or cbk.dict()) do
      local name = tostring(key)
      if cbk.kind(value) ~= "none" and named.has_weights_shape(name) then counts[name] = (counts[name] or 0) + 1 end
    end
  end
  return counts, all
end

---Whether a parameter lacks a state whose companions it has. Optimizers that keep rows and columns do so for matrices only.
local function lacks(entry, name)
  local value, has_companion = entry[name], false
  if value ~= nil and (cbk.kind(entry, name) ~= "none" or named.may_be_none(name)) then return false end
  for other in cbk.raw_items(entry) do
    if named.is_factor(tostring(other)) then return false end
    has_companion = has_companion or tostring(other) ~= name and named.belong_together(name, tostring(other))
  end
  return has_companion
end

---Reports the few parameters that lack one of the states which nearly all have.
---@param optimizer Optimizer
---@param report fun(path: string, text: string, severity: string|nil)
local function check_companions(optimizer, report)
  local counts, all = counts_of(optimizer)
  for _, name in ipairs(naming.sorted(counts)) do
    local lacking = {}
    for key, entry in cbk.raw_items(all >= LEAST_STATES and optimizer.state or cbk.dict()) do
      if optimizers.is_dict(entry) and lacks(entry, name) then lacking[#lacking + 1] = key end
    end
    for _, key in ipairs(#lacking <= math.max(1, FEW_LACKING * all) and lacking or {}) do
      report(("%s.%s.%s"):format(optimizer_table.state_path(optimizer), cbk.key_text(key), name),
        ("the optimizer's state is missing, which %d other parameters have"):format(counts[name]))
    end
  end
end

---Reports the few states whose parameter is in no group: no program reads them.
---@param optimizer Optimizer
---@param report fun(path: string, text: string, severity: string|nil)
local function check_strangers(optimizer, report)
  local is_known, strangers, count = {}, {}, 0
  for _, group in ipairs(optimizer.groups) do
    for _, key in optimizers.parameters(group) do is_known[tostring(key)] = true end
  end
  for key in cbk.raw_items(optimizer.state) do
    count = count + 1
    if not is_known[tostring(key)] then strangers[#strangers + 1] = key end
  end
  for _, key in ipairs(next(is_known) and #strangers <= FEW * count and strangers or {}) do
    report(("%s.%s"):format(optimizer_table.state_path(optimizer), cbk.key_text(key)),
      "the state belongs to no parameter of the groups in param_groups", "warning")
  end
end

local STEPS = { "global_step", "step" }

---Reports an optimizer like Adam, which has states from its first step on, without any behind that step.
---@param root Dict
---@param optimizer Optimizer
---@param report fun(path: string, text: string, severity: string|nil)
local function check_all_lost(root, optimizer, report)
  local group = optimizer.groups[1]
  local is_stateful = optimizers.is_dict(group) and group.betas ~= nil and optimizers.parameters(group)
  for _, name in ipairs(is_stateful and cbk.count(optimizer.state) == 0 and optimizers.is_dict(root) and STEPS or {}) do
    local step = root[name] ~= nil and scalar.of(root, name)
    if step and tonumber(step) and tonumber(step) > 0 then
      report(optimizer_table.state_path(optimizer), ("the optimizer has no states, and the checkpoint is of step %s: they were lost, or "
        .. "left out"):format(tostring(step)), "warning")
      return
    end
  end
end

---Reports states whose shape contradicts another state of the parameter, or the weight whose place they have, and parameters without
---states. Reads no values.
---@param root any   as `Checkpoint:raw_root` returns it
---@param report fun(path: string, text: string, severity: string|nil)
function states.check(root, report)
  for _, optimizer in ipairs(optimizers.find(root)) do
    check_each_other(optimizer, report)
    check_weight(optimizer, report)
    check_lacking(optimizer, report)
    check_companions(optimizer, report)
    check_strangers(optimizer, report)
    check_all_lost(root, optimizer, report)
  end
end

return states
