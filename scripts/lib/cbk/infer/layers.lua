-- Rules for one layer that has another number on the other side, such as a last norm that counts as a layer, or the layers with cross
-- attention. The number depends on how many layers there are.

local names = require "cbk.infer.names"

local layers = {}

---@class LayerWitness   Keys of one side that show how many layers there are.
---@field last string
---@field beyond string

---The number in a rule's first place on a side, if other tensors have a number there too.
---@param state MatchState
---@param rule InferredRule
---@param side Side
---@return integer|nil number, string|nil prefix
local function number_of(state, rule, side)
  local template, places = rule.templates[side][1], rule.places[1] and rule.places[1][side]
  local number = places and places[1]
  if type(number) ~= "number" then return nil end
  local is_counted = names.counts(state.known, side, template)
  for _, item in ipairs(state[side].by_template[template]) do is_counted = is_counted or item.numbers[1] ~= number end
  if is_counted then return number, names.before(template, 1) end
end

---The last key of the layers below a prefix, and the one after it.
---@param inventory Inventory
---@param prefix string
---@return LayerWitness|nil   nil if no key has the prefix, as for a number within a stage
local function witness(inventory, prefix)
  local best
  for _, template in ipairs(inventory.by_prefix[prefix] or {}) do
    for _, item in ipairs(inventory.by_template[template]) do
      local is_later = best and (item.numbers[1] > best.numbers[1] or item.numbers[1] == best.numbers[1] and item.order < best.order)
      if not best or is_later then best = item end
    end
  end
  if not best then return nil end
  local numbers = { unpack(best.numbers) }
  numbers[1] = numbers[1] + 1
  return { last = best.key, beyond = names.filled(best.template, numbers) }
end

---The prefixes of layers on both sides, if one of them is a rule's.
---@return table<Side, string>
local function prefixes_of(state, left, right)
  local partners = state.known.partners
  if left and partners.left[left] then return { left = left, right = partners.left[left] } end
  if right and partners.right[right] then return { left = partners.right[right], right = right } end
  return { left = left, right = right }
end

-- --- numbers within a layer, such as those of experts

local FEW = 2 -- numbers within a layer: parts of one kind each, and no count

---By the text before a place that is not the first, the item with the largest number there.
---@param inventory Inventory
---@return table<string, { item: Item, place: integer }>
local function largest_in(inventory)
  local out = {}
  for _, item in ipairs(inventory.items) do
    for place = 2, #item.numbers do
      local prefix = names.before(item.template, place)
      local known = out[prefix]
      if type(item.numbers[place]) == "number" and (not known or item.numbers[place] > known.item.numbers[place]) then
        out[prefix] = { item = item, place = place }
      end
    end
  end
  return out
end

---@param best { item: Item, place: integer }|nil
---@return LayerWitness|nil
local function inner_witness(best)
  if not best or best.item.numbers[best.place] < FEW then return nil end
  local numbers = { unpack(best.item.numbers) }
  numbers[best.place] = numbers[best.place] + 1
  return { last = best.item.key, beyond = names.filled(best.item.template, numbers) }
end

---The prefixes before the places of a rule with the same letter on both sides: these count the same.
---@param partners table<Side, table<string, string>>   changed
local function note_partners(rule, partners)
  local places, left, right = rule.places[1], rule.templates.left[1], rule.templates.right[1]
  for i = 2, #places.left do
    for k = 2, #places.right do
      if type(places.left[i]) == "string" and places.left[i] == places.right[k] then
        local a, b = names.before(left, i), names.before(right, k)
        partners.left[a], partners.right[b] = partners.left[a] or b, partners.right[b] or a
      end
    end
  end
end

---The numbers that a rule has within a layer, with the texts before them.
local function inner_numbers(rule, side)
  local list, text = {}, {}
  for place, number in ipairs(rule.places[1][side]) do
    if place > 1 and type(number) == "number" then
      list[#list + 1], text[#text + 1] = names.before(rule.templates[side][1], place), number
    end
  end
  table.sort(text)
  return list, table.concat(text, " ")
end

---Records for each rule with other numbers within a layer on the other side the keys that show how many the pair has.
---@param state MatchState
local function note_inner(state)
  local partners, largest = { left = {}, right = {} }, { left = largest_in(state.left), right = largest_in(state.right) }
  for _, rule in ipairs(state.rules) do
    if rule.places[1] then note_partners(rule, partners) end
  end
  for _, rule in ipairs(state.rules) do
    local lists, texts = {}, {}
    for _, side in ipairs { "left", "right" } do
      if rule.places[1] then lists[side], texts[side] = inner_numbers(rule, side) end
    end
    for _, side in ipairs(texts.left ~= texts.right and { "left", "right" } or {}) do
      local other = side == "left" and "right" or "left"
      for _, prefix in ipairs(lists[side]) do
        local own = inner_witness(largest[side][prefix])
        local far = inner_witness(largest[other][partners[side][prefix] or lists[other][1] or ""])
        if own then
          rule.inner = rule.inner or {}
          table.insert(rule.inner, { [side] = own, [other] = far })
        end
      end
    end
  end
end

---Records for each such rule the keys that show how many layers the pair has. The first layer is the first one in all models. Rules
---without such keys hold for no other model and are removed.
---@param state MatchState
function layers.note(state)
  local known, is_gone = { left = {}, right = {} }, {}
  local function witness_of(side, prefix)
    if known[side][prefix] == nil then known[side][prefix] = witness(state[side], prefix) or false end
    return known[side][prefix] or nil
  end
  for _, rule in ipairs(state.rules) do
    local left, left_prefix = number_of(state, rule, "left")
    local right, right_prefix = number_of(state, rule, "right")
    if left ~= right and (left or 0) + (right or 0) > 0 then
      rule.layers = {}
      local own = { left = left_prefix, right = right_prefix }
      for side, prefix in pairs(prefixes_of(state, left_prefix, right_prefix)) do
        rule.layers[side] = witness_of(side, prefix)
        local further = own[side] and own[side] ~= prefix and witness_of(side, own[side])
        if further then rule.inner = { { [side] = further } } end
      end
      if not (rule.layers.left and rule.layers.right) then is_gone[rule] = true end
    end
  end
  if next(is_gone) then state:take_back(is_gone) end
  note_inner(state)
end

-- --- one layer

---Whether all keys below a prefix, of several kinds, have the same number behind it.
local function has_one_number(inventory, prefix)
  local templates, number = inventory.by_prefix[prefix] or {}, nil
  for _, template in ipairs(templates) do
    for _, item in ipairs(inventory.by_template[template]) do
      number = number or item.numbers[1]
      if item.numbers[1] ~= number then return false end
    end
  end
  return #templates > 1
end

---The layers that rules name with their number, since the pair has one layer and the other side does not count it the same:
---"model.layers.0".
---@param inventories table<Side, Inventory>
---@param rules InferredRule[]
---@return string[]
function layers.fixed(inventories, rules)
  local out, seen = {}, {}
  for _, rule in ipairs(rules) do
    for side, inventory in pairs(inventories) do
      for i, template in ipairs(rule.templates[side]) do
        local prefix = names.before(template, 1)
        local number = prefix and rule[side][i] and rule[side][i]:match("^%d+", #prefix + 1)
        local name = number and has_one_number(inventory, prefix) and prefix .. number
        if name and not seen[name] then out[#out + 1], seen[name] = name, true end
      end
    end
  end
  table.sort(out)
  return out
end

return layers
