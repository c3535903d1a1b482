-- One AdamW step over a checkpoint that may be larger than memory:
--
--   cbk run scripts/examples/apply_gradients.lua STATE.mdl GRADS.safetensors -o NEXT.mdl
--
-- STATE has `model`, `optimizer` and perhaps more, as cstorch.save writes them; GRADS has a gradient under the name of each parameter, or
-- under one name of tied ones. A parameter without a gradient stays as it is, and so does its state. The formula is that of
-- cstorch.optim.AdamW; tensors are read, computed and written block by block.
--
-- A checkpoint has numbers for the parameters of an optimizer. Those of one group follow the order of the model. Several groups need their
-- names: a list `param_names` in each, beside `params`, which cstorch.optim.configure_param_groups makes.

local cbk = require "cbk"
local cstorch = require "cstorch"

local state_path, grads_path, flag, out_path = unpack(arg)
if flag ~= "-o" or not out_path then
  cbk.fail("usage", "usage: cbk run apply_gradients.lua STATE GRADS -o NEXT")
end

local FLOATS = { float16 = true, bfloat16 = true, float32 = true, float64 = true }

local function check(condition, format, ...)
  if not condition then cbk.fail("value", ("cannot apply '%s' to '%s': %s"):format(grads_path, state_path, format:format(...))) end
end

local function kind_of(value) return type(value) == "userdata" and cbk.kind(value) or type(value) end

local function is_tensor(value) return kind_of(value) == "tensor" or kind_of(value) == "parameter" end

--- The value, which must be a map or list.
local function container(value, kinds, what)
  local kind = kind_of(value)
  local found = (value == nil or value == cbk.null) and "nothing" or "a " .. kind
  check(kinds[kind], "expected a %s as '%s' of the checkpoint, found %s", kinds.name, what, found)
  return value
end

local MAP = { name = "map", dict = true, ordereddict = true }
local LIST = { name = "list", list = true, tuple = true }

local function text(tensor) return ("%s [%s]"):format(tensor.dtype, table.concat(tensor:shape(), ", ")) end

-- --- weights and their gradients

---@class Weight   A tensor of the model that is stored once.
---@field names string[]     its names; tied ones have several
---@field tensor Tensor
---@field gradient? Tensor

--- The weight that is the same tensor, if it is in the list.
local function tied_to(candidates, tensor)
  for _, weight in ipairs(candidates) do
    if weight.tensor:same(tensor) then return weight end
  end
end

--- The weights of the model in its order, and by name.
local function weights_of(model)
  local list, by_name, by_storage = {}, {}, {}
  for name, tensor in cbk.items(container(model, MAP, "model")) do
    if is_tensor(tensor) then
      local id = tensor:storage_id() or tensor
      by_storage[id] = by_storage[id] or {}
      local weight = tied_to(by_storage[id], tensor)
      if not weight then
        weight = { names = {}, tensor = tensor }
        list[#list + 1] = weight
        table.insert(by_storage[id], weight)
      end
      table.insert(weight.names, name)
      by_name[name] = weight
    end
  end
  return list, by_name
end

local function read_gradients(by_name)
  local count = 0
  for name, gradient in cbk.open(grads_path):tensors() do
    local weight = by_name[name]
    check(weight, "the gradient '%s' belongs to no weight", name)
    check(FLOATS[gradient.dtype], "the gradient '%s' is %s; expected floating-point numbers", name, gradient.dtype)
    check(FLOATS[weight.tensor.dtype], "the weight '%s' is %s; expected floating-point numbers", name, weight.tensor.dtype)
    check(tostring(gradient:shape()) == tostring(weight.tensor:shape()), "the gradient '%s' is %s, the weight %s", name, text(gradient),
      text(weight.tensor))
    local is_new = weight.gradient == nil or weight.gradient:same(gradient)
    check(is_new, "the weights '%s' are one tensor, but have several gradients; keep their sum under one name",
      table.concat(weight.names, "', '"))
    count = count + (weight.gradient and 0 or 1)
    weight.gradient = gradient
  end
  check(count > 0, "there is no gradient")
  return count
end

-- --- parameters of the optimizer

--- The groups of the checkpoint: { numbers =, names =, tags = }, and how many parameters they have.
local function groups_of(optimizer)
  local groups, count = {}, 0
  container(optimizer, MAP, "optimizer")
  for g, saved in cbk.items(container(optimizer.param_groups, LIST, "optimizer.param_groups")) do
    local place = ("optimizer.param_groups.%d"):format(g - 1)
    container(saved, MAP, place)
    local names = saved.param_names
    groups[g] = {
      numbers = container(saved.params, LIST, place .. ".params"), place = place, tags = saved.tags ~= cbk.null and saved.tags or nil,
      names = names ~= nil and names ~= cbk.null and container(names, LIST, place .. ".param_names") or nil,
    }
    check(not groups[g].names or #groups[g].names == #saved.params, "'%s' has %d params and %d param_names", place, #saved.params,
      groups[g].names and #groups[g].names or 0)
    count = count + #saved.params
  end
  return groups, count
end

--- The weights that the numbers of the only group mean.
local function numbered(weights, gradient_count, count)
  local only_stepped = count == gradient_count
  check(only_stepped or count == #weights, "the optimizer has %d parameters, but the model has %d tensors and %d gradients; add the "
    .. "names to its group, as a list 'param_names' beside 'params'", count, #weights, gradient_count)
  local list = {}
  for _, weight in ipairs(weights) do
    if weight.gradient or not only_stepped then list[#list + 1] = weight end
  end
  return list
end

--- Puts the weight of each parameter into `group.weights`.
local function assign_weights(groups, count, weights, gradient_count, by_name)
  local by_number, seen = nil, {}
  for _, group in ipairs(groups) do
    group.weights = {}
    check(group.names or #groups == 1, "several groups of parameters need their names; add a list 'param_names' to '%s'", group.place)
    by_number = by_number or not group.names and numbered(weights, gradient_count, count)
    for k, number in cbk.items(group.numbers) do
      local place, value = ("%s.params.%d"):format(group.place, k - 1), tonumber(number)
      check(value and value % 1 == 0 and value >= 0 and value < count, "expected a number from 0 to %d as '%s', found %s", count - 1, place,
        tostring(number))
      local weight = group.names and by_name[group.names[k]] or not group.names and by_number[value + 1]
      check(weight, "'%s' is the parameter '%s', which the model does not have", place, tostring(group.names and group.names[k]))
      check(not seen[weight] and not seen[value], "the parameter %d, '%s', occurs twice in the groups", value, weight.names[1])
      seen[weight], seen[value], group.weights[k] = true, true, weight
    end
  end
  for _, weight in ipairs(weights) do
    check(seen[weight] or not weight.gradient, "'%s' has a gradient, but the optimizer does not have it", weight.names[1])
  end
end

-- --- the step

--- The groups for the optimizer, with a parameter made of each weight.
local function parameter_groups(groups)
  local made = {}
  for g, group in ipairs(groups) do
    made[g] = { params = {}, tags = group.tags }
    for k, weight in ipairs(group.weights) do
      local p = cstorch.nn.Parameter(cstorch.tensor(weight.tensor))
      if weight.gradient then p.grad = cstorch.tensor(weight.gradient):to(p.dtype) end
      made[g].params[k], weight.parameter = p, p
    end
  end
  return made
end

local state = cstorch.load(state_path)
local global_step = state.global_step
check(global_step == nil or type(global_step) == "number" or is_tensor(global_step) and #global_step:shape() == 0,
  "expected a number as 'global_step' of the checkpoint, found %s", tostring(global_step))
local weights, by_name = weights_of(state.model)
local gradient_count = read_gradients(by_name)
local groups, count = groups_of(state.optimizer)
assign_weights(groups, count, weights, gradient_count, by_name)

local result = cstorch.lazily(function()
  local optimizer = cstorch.optim.AdamW(parameter_groups(groups), {})
  optimizer:load_state_dict(state.optimizer)
  optimizer:step()
  local changed = {}
  for i, weight in ipairs(weights) do changed[i] = weight.gradient and weight.parameter:detach() or false end
  return { optimizer = optimizer:state_dict(), changed = changed }
end)

local tree = {}
for name, value in cbk.items(state) do tree[name] = value end
tree.model, tree.optimizer = cbk.dict(state.model), result.optimizer
for i, weight in ipairs(weights) do
  for _, name in ipairs(result.changed[i] and weight.names or {}) do tree.model[name] = result.changed[i] end
end
if global_step then tree.global_step = global_step + 1 end
cstorch.save(tree, out_path)
print(("wrote '%s'"):format(out_path))
