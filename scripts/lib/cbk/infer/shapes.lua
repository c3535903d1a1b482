-- Choices for tensors with other shapes: more or fewer extents of 1, dimensions in another order, several dimensions in one.

local sizes = require "cbk.infer.sizes"

local shapes = {}

local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end

---An expression for an extent: from the config that is read in that direction, or the number itself.
---@param trial Trial
---@param side Side   that is read
---@param assumed integer[]   gets the number, if no field has it
local function extent(trial, n, side, assumed)
  if n == 1 then return "1" end
  local found = trial.configs[side] and sizes.extent(trial.configs[side], side, n, trial.left[1].key)
  if not found then assumed[#assumed + 1] = n end
  return found or tostring(n)
end

local function said(assumed) return #assumed > 0 and "extents of " .. table.concat(assumed, " and ") or nil end

local function literal(list) return #list == 0 and "{}" or "{ " .. table.concat(list, ", ") .. " }" end

---The groups of successive dims of a shape that are one dim each of another shape; nil if there are none.
---@param shape integer[]
---@param other integer[]
---@return integer[][]|nil   for each dim of the other
local function groups_of(shape, other)
  local groups, next_dim = {}, 1
  for k, extent_of in ipairs(other) do
    local product = 1
    groups[k] = {}
    while next_dim <= #shape and (product < extent_of or #groups[k] == 0 or k == #other) do
      product = product * shape[next_dim]
      table.insert(groups[k], next_dim)
      next_dim = next_dim + 1
    end
    if product ~= extent_of or #groups[k] == 0 then return nil end
  end
  return next_dim > #shape and groups or nil
end

---The shape with one dim for each group, for a tensor with its dims still in their old order.
local function merged_shape(order, groups)
  local out = {}
  for k, group in ipairs(groups) do
    local factors = {}
    for i, dim in ipairs(group) do factors[i] = ("t:shape()[%d]"):format(order[dim] + 1) end
    out[k] = table.concat(factors, " * ")
  end
  return out
end

---Whether a group has an extent twice. One field of the config has both, and which of them it means is unknown, except for a patch, which
---is as high as it is wide.
local function has_twice(group, permuted, texts)
  for i, dim in ipairs(group) do
    for k = 1, i - 1 do
      local is_same = permuted[dim] > 1 and permuted[group[k]] == permuted[dim]
      if is_same and not (texts[dim]:find("patch", 1, true) or texts[dim]:find("kernel", 1, true)) then return permuted[dim] end
    end
  end
end

---The shape with all dims, for a tensor with one dim for each group. In each group one extent follows from the others: the first one that
---is in no field of the config.
---@param trial Trial
---@param permuted integer[]
---@param groups integer[][]
---@return string[] shape, integer[] assumed
local function split_shape(trial, permuted, groups)
  local out, assumed, side = {}, {}, trial.is_turned and "left" or "right"
  for k, group in ipairs(groups) do
    local free, rest, numbers = nil, {}, {}
    for _, dim in ipairs(group) do
      local unknown = {}
      out[dim] = extent(trial, permuted[dim], side, unknown)
      if unknown[1] and not free then free = dim else numbers[#numbers + 1] = unknown[1] end
    end
    numbers[#numbers + 1] = has_twice(group, permuted, out)
    free = free or group[1]
    for _, dim in ipairs(group) do
      local factor = tonumber(out[dim]) and out[dim] or ("(%s)"):format(out[dim])
      if dim ~= free and factor ~= "1" then rest[#rest + 1] = factor end
    end
    out[free] = ("t:shape()[%d]%s"):format(k, #rest > 0 and " / " .. table.concat(rest, " / ") or "")
    for _, n in ipairs(numbers) do assumed[#assumed + 1] = n end
  end
  return out, assumed
end

---Adds reshapes: leading dims of 1, and permuted dims that are one dim on the right.
---@param trial Trial
---@param add fun(choice: Choice)
function shapes.add(trial, add)
  local a, b = trial.left[1].shape, trial.right[1].shape
  if same_list(a, b) and #a < 3 then return end
  local function squeezed(list)
    local out = {}
    for _, n in ipairs(list) do out[#out + 1] = n ~= 1 and n or nil end
    return out
  end
  ---The shape `to` for a tensor of the shape `from`, which has the same extents except for ones.
  local function with_ones(from, to)
    local out, places = {}, {}
    for i, n in ipairs(from) do places[#places + 1] = n ~= 1 and i or nil end
    local next_place = 0
    for i, n in ipairs(to) do
      if n ~= 1 then next_place = next_place + 1 end
      out[i] = n == 1 and "1" or ("t:shape()[%d]"):format(places[next_place])
    end
    return literal(out)
  end
  if same_list(squeezed(a), squeezed(b)) and not same_list(a, b) then
    local text = 'actions.pair("reshape", function(t) return t:reshape %s end, function(t) return t:reshape %s end)'
    return add { text = text:format(with_ones(a, b), with_ones(b, a)) }
  end
  local function try(order)
    local permuted, inverse = {}, {}
    for i, dim in ipairs(order) do permuted[i], inverse[dim + 1] = a[dim + 1], i - 1 end
    if same_list(permuted, b) then
      return add { text = ('actions.pair("permute", function(t) return t:permute %s end, function(t) return t:permute %s end)'):format(
        literal(order), literal(inverse)) }
    end
    local groups = groups_of(permuted, b)
    if not groups then return end
    local back, assumed = split_shape(trial, permuted, groups)
    local forward = ("function(t) return t:permute(%s):reshape %s end"):format(literal(order), literal(merged_shape(order, groups)))
    local backward = ("function(t, at) return t:reshape(%s):permute %s end"):format(literal(back), literal(inverse))
    add { text = ('actions.pair("flat", %s, %s)'):format(forward, backward), assumes = said(assumed) }
  end
  local function permutations(list, from)
    if from > #list then return try { unpack(list) } end
    for i = from, #list do
      list[from], list[i] = list[i], list[from]
      permutations(list, from + 1)
      list[from], list[i] = list[i], list[from]
    end
  end
  local dims = {}
  for i = 1, #a do dims[i] = i - 1 end
  if (#a > 2 or #b == 1) and #a <= 5 then permutations(dims, 1) end
end

return shapes
