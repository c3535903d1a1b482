-- Equal content at different keys: whole layers, and single tensors.

local extents = require "cbk.extents"
local layers = require "cbk.check.layers"
local numbers = require "cbk.numbers"
local values = require "cbk.check.values"

local duplicates = {}

---@class Content   The facts kept about a tensor until all are read; there may be many tensors.
---@field file string
---@field key string
---@field rows LeafRows
---@field index integer
---@field fingerprint string
---@field dims integer
---@field numel integer

---The facts kept about a tensor; nil if equal content would mean nothing.
---@param one CheckedTensor
---@param rows LeafRows
---@param index integer
---@return Content|nil
function duplicates.content(one, rows, index)
  local is_plain = one.scan.constant ~= nil or one.scan.numel < 2 or values.is_state(one.key) or one.known and one.known.buffer
    or one.is_scale
  if is_plain then return nil end
  return { file = one.file, key = one.key, rows = rows, index = index, fingerprint = one.scan.fingerprint, dims = #one.row.shape,
    numel = one.scan.numel }
end

---Groups of tensors with equal fingerprints, the first of each group first.
---@param contents Content[]
---@return Content[][]
local function groups_of(contents)
  local first, groups, out = {}, {}, {}
  for _, one in ipairs(contents) do
    local id = one.fingerprint
    if not first[id] then
      first[id] = one
    elseif groups[id] then
      table.insert(groups[id], one)
    else
      groups[id] = { first[id], one }
      out[#out + 1] = groups[id]
    end
  end
  return out
end

---The tensors of a group that are really equal: fingerprints may collide, so dtype, shape and content are compared.
---@param group Content[]
---@return Content[]|nil
local function verified(group)
  local out = { group[1] }
  local tensor = group[1].rows:value(group[1].index)
  for i = 2, #group do
    local other = group[i].rows:value(group[i].index)
    local is_like = tensor.dtype == other.dtype and extents.shape(tensor:shape()) == extents.shape(other:shape())
    if is_like and tensor:compare(other).same_bits then out[#out + 1] = group[i] end
  end
  return #out > 1 and out or nil
end

---The layer that a key is in, by its first number.
local function layer_of(key)
  local place = layers.places(key)[1]
  if place then return place.before .. place.digits, place.rest, place.before end
end

---How many matrices with unique content each layer has.
---@param contents Content[]
---@return table<string, integer>
local function matrices_of_layers(contents)
  local out = {}
  for _, one in ipairs(contents) do
    local layer = layer_of(one.key)
    if layer and one.dims > 1 then out[layer] = (out[layer] or 0) + 1 end
  end
  return out
end

---Pairs of layers with equal content, with the number of matrices that they share.
---@param groups Content[][]
local function shared_by_layers(groups)
  local counts, order = {}, {}
  for _, group in ipairs(groups) do
    for k = 2, #group do
      local one, other = group[1], group[k]
      local layer, rest, prefix = layer_of(one.key)
      local layer_b, rest_b, prefix_b = layer_of(other.key)
      if layer and layer ~= layer_b and rest == rest_b and prefix == prefix_b and one.dims > 1 then
        local id = layer .. "\0" .. layer_b
        if not counts[id] then counts[id], order[#order + 1] = 0, { id, layer, layer_b, other.file } end
        counts[id] = counts[id] + 1
      end
    end
  end
  return counts, order
end

---@param contents Content[]
---@param groups Content[][]
---@param found Findings
---@return table<string, string> covered   for each repeated layer, the layer that it repeats
local function check_layers(contents, groups, found)
  if #groups == 0 then return {} end
  local covered, matrices = {}, matrices_of_layers(contents)
  local counts, order = shared_by_layers(groups)
  for _, pair in ipairs(order) do
    local id, first, second, file = unpack(pair)
    if counts[id] == matrices[first] and counts[id] == matrices[second] then
      covered[second] = first
      found:add("duplicate", file, second, ("the layer has the same weights as %s: %s are equal"):format(first,
        counts[id] == 1 and "its matrix" or ("all %d matrices"):format(counts[id])))
    end
  end
  return covered
end

---Whether a group is a table that the program computes, such as rotary frequencies: equal tensors at one place of each layer.
local function is_table(group)
  local first_rest
  for i, one in ipairs(group) do
    local layer, rest = layer_of(one.key)
    first_rest = i == 1 and rest or first_rest
    if not layer or rest ~= first_rest then return false end
  end
  return #group > 2
end

local function is_covered(group, covered)
  for i = 2, #group do
    local layer = layer_of(group[i].key)
    if not (layer and covered[layer]) then return false end
  end
  return true
end

local SMALL = 64 -- elements of tensors that may be equal by chance or on purpose

---@param group Content[]
local function check_group(group, found)
  local first, are_layers = group[1], true
  local _, _, stack = layer_of(first.key)
  for _, one in ipairs(group) do are_layers = are_layers and stack ~= nil and select(3, layer_of(one.key)) == stack end
  local is_weight = first.dims > 1 and first.numel >= SMALL and are_layers and not is_table(group)
  for i = 2, #group do
    local row = group[i].rows[group[i].index]
    found:add("duplicate", group[i].file, group[i].key, ("the tensor %s of %s has the same content as %s, but is not tied to it"):format(
      extents.shape(row.shape), numbers.counted(row.bytes, "byte"), first.key),
      { severity = not is_weight and "note" or nil, advice = not is_weight and "Tie them, or keep one of them, to save the space" or nil })
  end
end

local LARGE_TABLE = 65536 -- elements

---@param contents Content[]   in the order of the files
---@param found Findings
---@param is_tied fun(key: string, other: string): boolean   by the config
function duplicates.check(contents, found, is_tied)
  local groups = {}
  for _, group in ipairs(groups_of(contents)) do groups[#groups + 1] = verified(group) end
  local covered = check_layers(contents, groups, found)
  for _, group in ipairs(groups) do
    local is_wanted = not is_covered(group, covered) and not (is_table(group) and group[1].numel < LARGE_TABLE)
    if is_wanted and not is_tied(group[1].key, group[2].key) then check_group(group, found) end
  end
end

return duplicates
