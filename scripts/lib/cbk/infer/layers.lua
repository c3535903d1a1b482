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
      for side, prefix in pairs(prefixes_of(state, left_prefix, right_prefix)) do
        rule.layers[side] = witness_of(side, prefix)
      end
      if not (rule.layers.left and rule.layers.right) then is_gone[rule] = true end
    end
  end
  if next(is_gone) then state:take_back(is_gone) end
end

return layers
