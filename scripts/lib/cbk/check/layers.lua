-- Numbered layers: gaps in their numbers, layers that lack tensors which the others have, and a tensor of another shape than theirs.
-- For checkpoints without a known class.

local cbk = require "cbk"
local extents = require "cbk.extents"
local layer_places = require "cbk.layer_places"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"

local layers = {}

---The numbered places in a key that have a name before and behind them: "a.3.b.0.c" to ("a.", "3", "b.0.c") and ("a.3.b.", "0", "c").
---@param key string
---@return { before: string, digits: string, rest: string }[]
function layers.places(key)
  local out = {}
  for _, place in ipairs(layer_places.of(key)) do
    if place.before ~= "" and place.behind ~= "" then
      out[#out + 1] = { before = place.before, digits = place.digits, rest = place.behind:sub(2) }
    end
  end
  return out
end

---@class LayerTensor
---@field file string
---@field key string
---@field shape integer[]
---@field dtype string

---@class LayerStack
---@field prefix string                          "layers." or "block_"
---@field names table<integer, string>           of the layers: "layers.5"
---@field file string
---@field is_flat? boolean                        the numbers are not those of layers
---@field numbers integer[]                       in the order of the file
---@field parts table<integer, string[]>          the rests of the keys by number
---@field series table<string, LayerTensor[]>     by the rest of the key

local LEAST_LAYERS = 6 -- that say which shape is usual

---Whether a stack has blocks of several parts. Modules such as Sequential have gaps on purpose, and a few numbers that end a name, as in
---"branch_1", are of parts of a layer.
local function is_stack(stack)
  return not stack.is_flat and #stack.numbers >= (stack.prefix:find "[./]$" and 3 or LEAST_LAYERS)
end

---Notes that a layer has a tensor that is no part of it: the numbers are not those of layers, and nothing of them is kept.
local function flatten(stack) stack.is_flat, stack.names, stack.numbers, stack.parts, stack.series = true, {}, {}, {}, {} end

---@param stack LayerStack
---@param place { before: string, digits: string, rest: string }
---@param one LayerTensor
local function add(stack, place, one)
  local number, rest = tonumber(place.digits), place.rest
  if not stack.parts[number] then stack.parts[number], stack.numbers[#stack.numbers + 1] = {}, number end
  stack.names[number] = place.before .. place.digits
  table.insert(stack.parts[number], rest)
  stack.series[rest] = stack.series[rest] or {}
  stack.series[rest][number] = one
end

---@param tensors LayerTensor[]
---@return LayerStack[]
local function stacks_of(tensors)
  local by_prefix, out = {}, {}
  for _, one in ipairs(tensors) do
    for _, place in ipairs(layers.places(one.key)) do
      local prefix = place.before
      local stack = by_prefix[prefix]
      if not stack then
        stack = { prefix = prefix, names = {}, file = one.file, numbers = {}, parts = {}, series = {} }
        by_prefix[prefix], out[#out + 1] = stack, stack
      end
      if not place.rest:find "[./]" then
        flatten(stack)
      elseif not stack.is_flat then
        add(stack, place, one)
      end
    end
  end
  local chosen = {}
  for _, stack in ipairs(out) do
    if is_stack(stack) then chosen[#chosen + 1] = stack end
  end
  return chosen
end

---"3", "3 to 5", "3, 7 and 9 more"
local function ranges_text(list)
  local parts, first = {}, 1
  for i = 1, #list do
    if list[i + 1] ~= list[i] + 1 then
      parts[#parts + 1] = list[first] == list[i] and ("%d"):format(list[i]) or ("%d to %d"):format(list[first], list[i])
      first = i + 1
    end
  end
  return table.concat(parts, ", ", 1, math.min(#parts, 10)) .. (#parts > 10 and ", …" or "")
end

local function check_gaps(stack, found)
  local is_there, low, high = {}, math.huge, -1
  for _, number in ipairs(stack.numbers) do
    is_there[number], low, high = true, math.min(low, number), math.max(high, number)
  end
  if high - low + 1 > 2 * #stack.numbers then return end -- numbers with another meaning
  local missing = {}
  for number = low, high do
    if not is_there[number] then missing[#missing + 1] = number end
  end
  if #missing == 0 then return end
  found:add("layer-gap", stack.file, stack.prefix:gsub("[._/]$", ""), ("%s missing between %d and %d: %s"):format(
    #missing == 1 and "a layer is" or numbers.counted(#missing, "layer") .. " are", low, high, ranges_text(missing)))
end

---Reports layers that lack some of the usual tensors. Layers of other kinds also have other tensors; an incomplete layer only lacks some.
local function check_parts(stack, found)
  local times, common, most = {}, nil, 0
  for _, number in ipairs(stack.numbers) do
    local rests = stack.parts[number]
    table.sort(rests)
    local id = table.concat(rests, "\0")
    times[id] = (times[id] or 0) + 1
    if times[id] > most then most, common = times[id], rests end
  end
  if most < 2 or most * 2 <= #stack.numbers then return end
  for _, number in ipairs(stack.numbers) do
    local has, lacking, has_others = {}, {}, #stack.parts[number] >= #common
    for _, rest in ipairs(stack.parts[number]) do has[rest] = true end
    for _, rest in ipairs(common) do
      if not has[rest] then lacking[#lacking + 1] = rest end
    end
    has_others = has_others or #stack.parts[number] + #lacking > #common
    if #lacking > 0 and not has_others then
      local count = #lacking == 1 and "a tensor is" or numbers.counted(#lacking, "tensor") .. " are"
      found:add("layer-incomplete", stack.file, stack.names[number],
        ("%s missing that the other layers have: %s"):format(count, naming.folded(lacking, 20)))
    end
  end
end

---The shape that most layers have, and the layers with another one.
---@param stack LayerStack
---@param series table<integer, LayerTensor>
---@return string usual, integer[] others, integer count
local function shapes_of(stack, series)
  local times, usual, others, count = {}, nil, {}, 0
  for _, number in ipairs(stack.numbers) do
    local shape = series[number] and extents.shape(series[number].shape)
    if shape then
      times[shape], count = (times[shape] or 0) + 1, count + 1
      if not usual or times[shape] > times[usual] then usual = shape end
    end
  end
  for _, number in ipairs(stack.numbers) do
    if series[number] and extents.shape(series[number].shape) ~= usual then others[#others + 1] = number end
  end
  return usual, others, count
end

---Whether all are floats of one dtype. The shapes of quantised weights follow from how they are stored.
---@param series table<integer, LayerTensor>
local function are_plain(series, dtype)
  for _, one in pairs(series) do
    if one.dtype ~= dtype or not cbk.dtype(dtype).floating then return false end
  end
  return true
end

---Reports the only tensor whose shape is not that of all other layers, if nothing else is unusual in its layer and those beside it: a
---layer of another kind has other tensors, too. The first and the last layer are often unlike the others.
---@param stack LayerStack
---@param found Findings
---@param reported table<string, boolean>   by key, which may be in several stacks
local function check_shapes(stack, found, reported)
  local unusual, odd, low, high = {}, {}, math.huge, -1
  for _, number in ipairs(stack.numbers) do unusual[number], low, high = 0, math.min(low, number), math.max(high, number) end
  for _, series in pairs(stack.series) do
    local usual, others, count = shapes_of(stack, series)
    for number in pairs(count * 2 <= #stack.numbers and series or {}) do unusual[number] = unusual[number] + 1 end
    for _, number in ipairs(others) do unusual[number] = unusual[number] + 1 end
    local one = #others == 1 and count >= LEAST_LAYERS and series[others[1]]
    if one and are_plain(series, one.dtype) then odd[#odd + 1] = { number = others[1], tensor = one, usual = usual, count = count } end
  end
  for _, it in ipairs(odd) do
    local near, key = 0, it.tensor.key
    for number = it.number - 1, it.number + 1 do near = near + (unusual[number] or 0) end
    if near == 1 and it.number > low and it.number < high and not reported[key] then
      reported[key] = true
      found:add("layer-shape", it.tensor.file, key, ("it has the shape %s, and the same weight of the %d other layers %s"):format(
        extents.shape(it.tensor.shape), it.count - 1, it.usual))
    end
  end
end

---@param tensors LayerTensor[]
---@param is_part boolean   other files have the other tensors
---@param found Findings
function layers.check(tensors, is_part, found)
  local reported = {}
  for _, stack in ipairs(stacks_of(tensors)) do
    if not is_part then
      check_gaps(stack, found)
      check_parts(stack, found)
    end
    check_shapes(stack, found, reported)
  end
end

return layers
