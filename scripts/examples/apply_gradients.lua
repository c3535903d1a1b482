-- One AdamW step over a checkpoint that may be larger than memory:
--
--   cbk run scripts/examples/apply_gradients.lua STATE.mdl GRADS.safetensors -o NEXT.mdl
--
-- STATE has `model`, `optimizer` and perhaps more, as cstorch.save writes them; GRADS has a gradient under the name of each parameter. The
-- formula is that of cstorch.optim.AdamW; tensors are read, computed and written block by block.

local cbk = require "cbk"
local cstorch = require "cstorch"

local state_path, grads_path, flag, out_path = unpack(arg)
if flag ~= "-o" or not out_path then
  cbk.fail("usage", "usage: cbk run apply_gradients.lua STATE GRADS -o NEXT")
end

local state, grads = cstorch.load(state_path), cbk.open(grads_path)

--- The parameters in the order of the model, which is that of their numbers in the optimizer's state, with their gradients.
local function parameters()
  local list, names = {}, {}
  for name, tensor in cbk.items(state.model) do
    local gradient = grads:get(name)
    if gradient then
      local p = cstorch.nn.Parameter(cstorch.tensor(tensor))
      p.grad = cstorch.tensor(gradient):to(p.dtype)
      list[#list + 1], names[#names + 1] = p, name
    end
  end
  if #list == 0 then cbk.fail("key", ("'%s' has no gradient of any weight of '%s'"):format(grads_path, state_path)) end
  return list, names
end

--- The groups of the file, with parameters in the place of their numbers.
local function groups_of(list)
  local groups = {}
  for g, saved in cbk.items(state.optimizer.param_groups) do
    local group = { params = {}, tags = saved.tags ~= cbk.null and saved.tags or nil }
    for i, number in cbk.items(saved.params) do group.params[i] = list[tonumber(number) + 1] end
    groups[g] = group
  end
  return groups
end

local result = cstorch.lazily(function()
  local list, names = parameters()
  local optimizer = cstorch.optim.AdamW(groups_of(list), {})
  optimizer:load_state_dict(state.optimizer)
  optimizer:step()
  local tree = {}
  for name, value in cbk.items(state) do tree[name] = value end
  tree.model = cbk.dict(state.model)
  tree.optimizer = optimizer:state_dict()
  tree.changed = {}
  for i, name in ipairs(names) do tree.changed[name] = list[i]:detach() end
  return tree
end)

for name, tensor in pairs(result.changed) do result.model[name] = tensor end
result.changed = nil
if result.global_step then result.global_step = result.global_step + 1 end
cstorch.save(result, out_path)
print(("wrote '%s'"):format(out_path))
