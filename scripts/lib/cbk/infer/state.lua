-- The state of matching the tensors of two checkpoints: both inventories, the rules found so far, and the places that count layers.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"

local MOST_STEPS = 2 ^ 24 -- of all searches for parts

---@class InferredPair
---@field left Item[]
---@field right Item[]

---@class InferredRule
---@field left string[]     patterns
---@field right string[]
---@field templates table<Side, string[]>
---@field places Places[]   for each pair of the side with one key and a key of the other
---@field pairs InferredPair[]
---@field like? InferredRule    the rule of the weights whose bias this is
---@field is_by_name? boolean   not by content
---@field each? InferredEach
---@field divisor? integer
---@field offset? integer
---@field layers? table<Side, LayerWitness>   it holds only for this number of layers
---@field inner? table<Side, LayerWitness>[]   and of parts of a layer, such as experts
---@field also table<Side, CopyName[]>

---@class InferredEach   A side that has one key for each value of a letter.
---@field side Side
---@field letter string
---@field count integer               in the pair
---@field text string                 the number of keys, for rules.each
---@field places (string|integer)[]   the contents of its template's places
---@field place integer               the letter's place

---@class CopyName   A further pattern of the same tensors.
---@field [1] string
---@field [2] integer           its place among the keys
---@field template string
---@field places (string|integer)[]    the contents of its places
---@field original string       the template of the key itself
---@field letters (string|integer)[]   the contents of its places
---@field is_transposed? boolean
---@field is_by_name? boolean   not by content

---@class MatchState
---@field left Inventory
---@field right Inventory
---@field known Known
---@field rules InferredRule[]
---@field classes { left: Item[], right: Item[] }[]
---@field steps { left: integer }   the steps that searches for parts may still take
---@field alone table<string, boolean>   results of `are_alone`
local State = {}
State.__index = State

---@param left Inventory
---@param right Inventory
---@return MatchState
function State.new(left, right)
  return setmetatable({ left = left, right = right, known = names.known(), rules = {}, alone = {}, steps = { left = MOST_STEPS },
    classes = content.classes(left, right) }, State)
end

---Whether an item's first number counts layers or the like.
---@param item Item
function State:is_counted(item)
  return #item.numbers > 0 and (self.known:is_empty() or names.counts(self.known, item.side, item.template))
end

---Whether tensors with the same content may belong together: if both count layers, they must be in the same layer.
---@param left Item
---@param right Item
function State:may_pair(left, right)
  local is_counted = self:is_counted(left)
  if is_counted ~= self:is_counted(right) then return false end
  return not is_counted or self:is_beside(left, right, right.numbers[1])
end

---The numbers of layers, in the right's counting, that an item of the left may have.
---@param a Item   of the left
---@param b Item   of the right
---@return integer[]
function State:numbers_beside(a, b)
  local left, right = names.before(a.template, 1), names.before(b.template, 1)
  local by = left and right and self.known:offset(left, right) or 0
  if by ~= 0 then return { a.numbers[1] + by } end
  local out, has = {}, {}
  for _, n in ipairs(a.numbers) do
    if not has[n] then has[n], out[#out + 1] = true, n end
  end
  return out
end

---Whether an item of the left may be in the layer `number` of the right.
---@param a Item   of the left
---@param b Item
---@param number integer   of b
function State:is_beside(a, b, number)
  for _, n in ipairs(self:numbers_beside(a, b)) do
    if n == number then return true end
  end
  return false
end

---Whether items of both sides may be in the same layer.
---@param one Item
---@param other Item
function State:is_near(one, other)
  if #one.numbers == 0 or #other.numbers == 0 or one.numbers[1] == other.numbers[1] then return true end
  local a, b = one, other
  if a.side == "right" then a, b = b, a end
  return #a.numbers == 1 and self:is_beside(a, b, b.numbers[1])
end

---Whether no template has tensors both in some layers and outside of them. If a tensor is only in some layers, other models may have it in
---other layers.
---@param inventory Inventory
---@param prefix string   before their numbers
---@param numbers table<integer, boolean>
local function are_alone(inventory, prefix, numbers)
  for _, template in ipairs(inventory.by_prefix[prefix] or {}) do
    local is_inside, is_outside = false, false
    for _, item in ipairs(inventory.by_template[template]) do
      if numbers[item.numbers[1]] then is_inside = true else is_outside = true end
    end
    if is_inside and is_outside then return false end
  end
  return true
end

---`are_alone`, with its result cached.
---@param side Side
---@param prefix string
---@param numbers table<integer, boolean>
function State:layers_are_alone(side, prefix, numbers)
  local list = {}
  for number in pairs(numbers) do list[#list + 1] = number end
  table.sort(list)
  local id = ("%s\0%s\0%s"):format(side, prefix, table.concat(list, " "))
  if self.alone[id] == nil then self.alone[id] = are_alone(self[side], prefix, numbers) end
  return self.alone[id]
end

---`names.places`. The two sides may count differently only for layers of their own.
---@param templates { left: string, right: string }
---@param seen Seen[]
---@param by? Side
---@return Places|nil, Side|nil, integer|nil
function State:places(templates, seen, by)
  local places, side, place = names.places(templates, seen, self.known, by)
  if not places or not (places.offset or places.divisor) then return places, side, place end
  local prefixes = {}
  for _, own in ipairs { "left", "right" } do
    local numbers = {}
    prefixes[own] = names.before(templates[own], 1)
    for _, one in ipairs(seen) do numbers[one[own][1]] = true end
    if not self:layers_are_alone(own, prefixes[own], numbers) then return nil, "right", 1 end
  end
  if places.offset then self.known:add(prefixes.left, prefixes.right, places.offset) end
  return places
end

---Whether some tensors together have the same elements as others.
---@param list Item[]
---@param others Item[]
function State.have_same_sum(list, others)
  local numel, dtype = 0, list[1].dtype
  for _, item in ipairs(list) do numel, dtype = numel + item.numel, dtype and content.common(dtype, item.dtype) end
  for _, item in ipairs(others) do numel, dtype = numel - item.numel, dtype and content.common(dtype, item.dtype) end
  if numel ~= 0 or not dtype then return false end
  local sum = 0ULL
  for _, item in ipairs(list) do sum = sum + content.sum(item, dtype) end
  for _, item in ipairs(others) do sum = sum - content.sum(item, dtype) end
  return sum == 0ULL
end

---Whether no other rule has the rule's tensors.
---@param rule InferredRule
function State.is_free(rule)
  for _, pair in ipairs(rule.pairs) do
    for _, side in ipairs { "left", "right" } do
      for _, item in ipairs(pair[side]) do
        if item.rule then return false end
      end
    end
  end
  return true
end

function State:take(rule)
  for _, pair in ipairs(rule.pairs) do
    for _, side in ipairs { "left", "right" } do
      for _, item in ipairs(pair[side]) do item.rule = rule end
    end
  end
  self.rules[#self.rules + 1] = rule
end

---@param is_gone table<InferredRule, boolean>
function State:take_back(is_gone)
  local kept = {}
  for _, rule in ipairs(self.rules) do
    if not is_gone[rule] then kept[#kept + 1] = rule end
    for _, pair in ipairs(is_gone[rule] and rule.pairs or {}) do
      for _, side in ipairs { "left", "right" } do
        for _, item in ipairs(pair[side]) do item.rule, item.is_numbered_apart = nil, true end
      end
    end
  end
  self.rules = kept
end

---Accepts the best of the candidate rules. Each must have tensors that no earlier one has.
---@param list { rule: InferredRule, score: number }[]
function State:take_best(list)
  for i, one in ipairs(list) do one.place = i end
  table.sort(list, function(a, b) return a.score > b.score or a.score == b.score and a.place < b.place end)
  for _, one in ipairs(list) do
    if State.is_free(one.rule) then self:take(one.rule) end
  end
end

---The place of a template on its side, from 0 to 1.
local function rank(inventory, template)
  return inventory.by_template[template][1].order / math.max(1, #inventory.items)
end

---How likely two templates belong together if nothing else is known.
---@param left string
---@param right string
function State:score(left, right)
  return names.likeness(left, right) - 0.5 * math.abs(rank(self.left, left) - rank(self.right, right))
end

return State
