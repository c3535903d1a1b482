-- Choices for tensors of other shapes: extents of 1 more or less, dimensions in another order, several of them in one.

local sizes = require "cbk.infer.sizes"

local shapes = {}

local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end

---An expression for an extent: of the config that is read in that direction, or the number itself.
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

---Reshapes: leading dims of 1, and permuted dims that the right has as one.
---@param trial Trial
---@param add fun(choice: Choice)
function shapes.add(trial, add)
  local a, b = trial.left[1].shape, trial.right[1].shape
  if same_list(a, b) and #a < 3 then return end
  local function literal(list) return #list == 0 and "{}" or "{ " .. table.concat(list, ", ") .. " }" end
  local function squeezed(list)
    local out = {}
    for _, n in ipairs(list) do out[#out + 1] = n ~= 1 and n or nil end
    return out
  end
  ---The shape `to` of a tensor `from`, with one free extent.
  local function reshaped(from, to, side, assumed)
    local out, is_free = {}, true
    for i, n in ipairs(to) do
      if n == 1 then
        out[i] = "1"
      elseif i == 1 and from[1] == n and #squeezed(to) > 1 then
        out[i] = "t:shape()[1]"
      elseif is_free then
        out[i], is_free = "-1", false
      else
        out[i] = extent(trial, n, side, assumed)
      end
    end
    return literal(out)
  end
  ---The shape `to` of a tensor `from` that has the same extents but for ones.
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
    local permuted, back, inverse, assumed = {}, {}, {}, {}
    for i, dim in ipairs(order) do permuted[i], inverse[dim + 1] = a[dim + 1], i - 1 end
    local is_free = true
    for i, n in ipairs(permuted) do
      if i == 1 and n == b[1] then
        back[i] = "t:shape()[1]"
      else
        back[i] = extent(trial, n, "right", assumed)
        if back[i] == tostring(n) and n ~= 1 and is_free then
          back[i], is_free = "-1", false
          table.remove(assumed)
        end
      end
    end
    local forward = ("function(t, at) return t:permute(%s):reshape %s end"):format(literal(order), reshaped(permuted, b, "left", assumed))
    local backward = ("function(t, at) return t:reshape(%s):permute %s end"):format(literal(back), literal(inverse))
    add { text = ('actions.pair("flat", %s, %s)'):format(forward, backward), assumes = said(assumed),
      needs = (forward .. backward):find "agreed" and { "agreed" } or nil }
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
  if #a > 2 and #a <= 5 then permutations(dims, 1) end
end

return shapes
