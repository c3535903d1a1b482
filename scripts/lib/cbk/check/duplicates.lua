-- Equal content at different keys: whole layers, and single tensors.

local layers = require "cbk.check.layers"
local numbers = require "cbk.numbers"
local values = require "cbk.check.values"

local duplicates = {}

---Whether equal content of two tensors means anything.
---@param one CheckedTensor
local function is_candidate(one)
  return one.scan.constant == nil and one.scan.numel > 1 and not values.is_state(one.key) and not (one.known and one.known.buffer)
end

---Groups of tensors with equal bytes, the first of each group first.
---@param checked CheckedTensor[]
---@return CheckedTensor[][]
local function groups_of(checked)
  local by_content, order = {}, {}
  for _, one in ipairs(checked) do
    if is_candidate(one) and not one.row.tied_to then
      local id = ("%s %s %s"):format(one.row.type, table.concat(one.row.shape, ","), one.scan.fingerprint)
      if not by_content[id] then by_content[id], order[#order + 1] = {}, id end
      table.insert(by_content[id], one)
    end
  end
  local out = {}
  for _, id in ipairs(order) do
    if #by_content[id] > 1 then out[#out + 1] = by_content[id] end
  end
  return out
end

---A fingerprint is only that: the content decides.
---@param group CheckedTensor[]
---@param tensor_of fun(one: CheckedTensor): Tensor
local function verified(group, tensor_of)
  local out = { group[1] }
  for i = 2, #group do
    if tensor_of(group[1]):compare(tensor_of(group[i])).same_bits then out[#out + 1] = group[i] end
  end
  return #out > 1 and out or nil
end

---The layer that a key is of, by its first number.
local function layer_of(key)
  local prefix, number, rest = layers.places(key)()
  if prefix then return ("%s.%d"):format(prefix, number), rest, prefix end
end

---How many matrices with content of their own each layer has.
---@param checked CheckedTensor[]
---@return table<string, integer>
local function matrices_of_layers(checked)
  local out = {}
  for _, one in ipairs(checked) do
    local layer = layer_of(one.key)
    if layer and #one.row.shape > 1 and is_candidate(one) then out[layer] = (out[layer] or 0) + 1 end
  end
  return out
end

---Pairs of layers with equal content, and how many matrices they share.
---@param groups CheckedTensor[][]
local function shared_by_layers(groups)
  local counts, order = {}, {}
  for _, group in ipairs(groups) do
    for k = 2, #group do
      local one, other = group[1], group[k]
      local layer, rest, prefix = layer_of(one.key)
      local layer_b, rest_b, prefix_b = layer_of(other.key)
      if layer and layer ~= layer_b and rest == rest_b and prefix == prefix_b and #one.row.shape > 1 then
        local id = layer .. "\0" .. layer_b
        if not counts[id] then counts[id], order[#order + 1] = 0, { id, layer, layer_b, other.file } end
        counts[id] = counts[id] + 1
      end
    end
  end
  return counts, order
end

---@param checked CheckedTensor[]
---@param groups CheckedTensor[][]
---@param found Findings
---@return table<string, string> covered   a layer by the one that it repeats
local function check_layers(checked, groups, found)
  local covered, matrices = {}, matrices_of_layers(checked)
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

---Equal tensors in one place of each layer are tables that the program makes, such as rotary frequencies.
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

---@param group CheckedTensor[]
local function check_group(group, found)
  local first, are_layers = group[1], true
  for _, one in ipairs(group) do are_layers = are_layers and layer_of(one.key) ~= nil end
  local is_weight = #first.row.shape > 1 and first.scan.numel >= SMALL and are_layers and not is_table(group)
  for i = 2, #group do
    found:add("duplicate", group[i].file, group[i].key, ("the tensor %s of %s has the same content as %s, but is not tied to it"):format(
      table.concat(group[i].row.shape, " x "), numbers.counted(group[i].row.bytes, "byte"), first.key),
      { severity = not is_weight and "note" or nil, advice = not is_weight and "Tie them, or keep one of them, to save the space" or nil })
  end
end

---@param checked CheckedTensor[]
---@param tensor_of fun(one: CheckedTensor): Tensor
---@param found Findings
---@param is_tied fun(one: CheckedTensor, other: CheckedTensor): boolean   by the config
function duplicates.check(checked, tensor_of, found, is_tied)
  local groups = {}
  for _, group in ipairs(groups_of(checked)) do groups[#groups + 1] = verified(group, tensor_of) end
  local covered = check_layers(checked, groups, found)
  for _, group in ipairs(groups) do
    local is_wanted = not is_covered(group, covered) and not (is_table(group) and group[1].scan.numel < 65536)
    if is_wanted and not is_tied(group[1], group[2]) then check_group(group, found) end
  end
end

return duplicates
