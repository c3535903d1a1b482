-- Rules for one layer whose number is another one on the other side, such as a last norm that counts as a layer, or the layers with cross
-- attention: how many layers there are decides what the number is.

local names = require "cbk.infer.names"

local layers = {}

---@class LayerWitness   Keys of one side that show how many layers there are.
---@field last string
---@field beyond string

---The number of a rule's first place on a side, if others are there, too.
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
---@return LayerWitness|nil   nil where no key has the prefix, such as that of a number within a stage
local function witness(inventory, prefix)
  local best
  for _, item in ipairs(inventory.items) do
    if item.numbers[1] and names.before(item.template, 1) == prefix and (not best or item.numbers[1] > best.numbers[1]) then best = item end
  end
  if not best then return nil end
  local numbers = { unpack(best.numbers) }
  numbers[1] = numbers[1] + 1
  return { last = best.key, beyond = names.filled(best.template, numbers) }
end

---The prefixes of layers on both sides, where one is that of a rule.
---@return table<Side, string>
local function prefixes_of(state, left_prefix, right_prefix)
  for id in pairs(state.known) do
    local left, right = id:match "^(.-)%z(.*)$"
    if left == left_prefix or right == right_prefix then return { left = left, right = right } end
  end
  return { left = left_prefix, right = right_prefix }
end

---Notes, of each rule that needs it, the keys that show how many layers the pair has. The first layer is the first one in all models.
---Rules without such keys hold for no other model, and are taken back.
---@param state MatchState
function layers.note(state)
  for _, rule in ipairs({ unpack(state.rules) }) do
    local left, left_prefix = number_of(state, rule, "left")
    local right, right_prefix = number_of(state, rule, "right")
    if left ~= right and (left or 0) + (right or 0) > 0 then
      rule.layers = {}
      for side, prefix in pairs(prefixes_of(state, left_prefix, right_prefix)) do
        rule.layers[side] = witness(state[side], prefix)
      end
      if not (rule.layers.left and rule.layers.right) then state:take_back(rule) end
    end
  end
end

return layers
