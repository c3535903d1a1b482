-- Rules for one tensor that is made of several: parts with names of their own, such as queries, keys and values, or all experts.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"
local State = require "cbk.infer.state"

local several = {}

local have_same_sum, is_free = State.have_same_sum, State.is_free

-- --- parts with names of their own

local MOST_PARTS, MOST_CANDIDATES = 5, 24

---The items among `candidates` that together have the elements of `whole`.
---@param whole Item
---@param candidates Item[]
---@return Item[]|nil
local function parts_of(whole, candidates)
  local chosen = {}
  local function search(from, left_over)
    if left_over == 0 then return #chosen > 1 and have_same_sum({ whole }, chosen) end
    if #chosen == MOST_PARTS then return false end
    for i = from, #candidates do
      if candidates[i].numel <= left_over then
        chosen[#chosen + 1] = candidates[i]
        if search(i + 1, left_over - candidates[i].numel) then return true end
        chosen[#chosen] = nil
      end
    end
    return false
  end
  return search(1, whole.numel) and chosen or nil
end

---Free items of a side that may be parts of an item of the other: with the same first number, if they have any.
---@param item Item
---@param side Side
local function candidates(state, item, side)
  local out = {}
  for _, one in ipairs(state[side].items) do
    local is_alike = #one.shape == #item.shape and one.numel < item.numel
    local is_wanted = is_alike and not one.rule and state:is_near(one, item) and content.is_constant(one) == content.is_constant(item)
    if is_wanted then out[#out + 1] = one end
  end
  return #out <= MOST_CANDIDATES and out or {}
end

local ORDER = { q = 1, query = 1, k = 2, key = 2, v = 3, value = 3, gate = 1, glu = 1, up = 2 }

local function order_of(key)
  for word in key:gsub("%.weight$", ""):gsub("%.bias$", ""):gmatch "%a+" do
    if ORDER[word] then return ORDER[word] end
  end
  return 9
end

---Items in the order of their names: q, k, v.
local function in_order(items)
  table.sort(items, function(a, b)
    local first, second = order_of(a.key), order_of(b.key)
    return first < second or first == second and a.order < b.order
  end)
  return items
end

---Generalises what was found for some tensors: `whole` on one side, parts on the other.
---@param side Side   of the whole
---@param found InferredPair[]   of the same templates
local function take_parts(state, side, found)
  local other = side == "left" and "right" or "left"
  local rule = { left = {}, right = {}, templates = { left = {}, right = {} }, places = {}, pairs = found,
    also = { left = {}, right = {} } }
  local whole = found[1][side][1].template
  rule.templates[side][1] = whole
  for i, part in ipairs(found[1][other]) do
    local seen = {}
    for k, pair in ipairs(found) do
      seen[k] = { [side] = pair[side][1].numbers, [other] = pair[other][i].numbers }
    end
    local places = state:places({ [side] = whole, [other] = part.template }, seen, side)
    if not places or places.divisor or i > 1 and places.offset ~= rule.offset then return end
    rule.templates[other][i], rule.places[i], rule.offset = part.template, places, places.offset
    rule[other][i] = names.pattern(part.template, places[other])
    local pattern = names.pattern(whole, places[side])
    if rule[side][1] and rule[side][1] ~= pattern then return end
    rule[side][1] = pattern
  end
  if is_free(rule) then state:take(rule) end
end

---@param side Side   of the tensors that are made of several
---@param is_constant boolean   those of which nothing but the number of elements is known
---@param state MatchState
function several.parts(state, side, is_constant)
  local other = side == "left" and "right" or "left"
  local groups, order = {}, {}
  for _, item in ipairs(state[side].items) do
    local parts = not item.rule and content.is_constant(item) == is_constant and parts_of(item, candidates(state, item, other))
    if parts then
      in_order(parts)
      local id = item.template
      for _, part in ipairs(parts) do id = id .. "\0" .. part.template end
      if not groups[id] then
        groups[id] = {}
        order[#order + 1] = id
      end
      table.insert(groups[id], { [side] = { item }, [other] = parts })
    end
  end
  for _, id in ipairs(order) do take_parts(state, side, groups[id]) end
end

-- --- one tensor for all experts

---Splits a template at one place: the rest is a template, too.
local function without_place(item, place)
  local numbers = {}
  for k, n in ipairs(item.numbers) do
    if k ~= place then numbers[#numbers + 1] = n end
  end
  return names.marked(item.template, place), numbers
end

---The tensors of a template, by all their numbers but one; those with 0, 1, 2, … in that place.
---@return { template: string, numbers: integer[], items: Item[] }[]
local function stacks(items, place)
  local by_id, out = {}, {}
  for _, item in ipairs(items) do
    if item.rule then return {} end
    local template, numbers = without_place(item, place)
    local id = table.concat(numbers, ".")
    if not by_id[id] then
      by_id[id] = { template = template, numbers = numbers, items = {} }
      out[#out + 1] = by_id[id]
    end
    by_id[id].items[item.numbers[place] + 1] = item
  end
  for _, one in ipairs(out) do
    if #one.items < 2 or #one.items ~= #out[1].items then return {} end
  end
  return #out * #out[1].items == #items and out or {}
end

---@param place integer   of the letter that `found` has all values of
local function take_stack(state, side, template, found, whole_template, place)
  local other = side == "left" and "right" or "left"
  local seen, whole = {}, found[1][side][1].template
  for k, pair in ipairs(found) do
    if pair[side][1].template ~= whole then return end
    seen[k] = { [side] = pair[side][1].numbers, [other] = pair.numbers }
  end
  local places = state:places({ [side] = whole, [other] = template }, seen)
  if not places or places.divisor then return end
  local rule = { places = { places }, pairs = found, templates = { [side] = { whole }, [other] = { whole_template } },
    [side] = { names.pattern(whole, places[side]) }, also = { left = {}, right = {} }, offset = places.offset }
  local letter, all = "E", { unpack(places[other]) }
  for _, one in ipairs(all) do letter = one == "E" and "M" or letter end
  table.insert(all, place, letter)
  rule[other] = { (names.pattern(template, places[other]):gsub("\2(.)", function(kind) return names.in_place(kind, letter) end)) }
  rule.each = { side = other, letter = letter, count = #found[1][other], places = all, place = place }
  state:take(rule)
end

---@param state MatchState
---@param side Side   of the tensors that are one for all
function several.stacks(state, side)
  local other = side == "left" and "right" or "left"
  for template, items in pairs(state[other].by_template) do
    for place = 1, #items[1].numbers do
      local list = items[1].rule and {} or stacks(items, place)
      local found, wholes = {}, {}
      for _, whole in ipairs(state[side].items) do
        for i, stack in ipairs(list) do
          if not whole.rule and not wholes[i] and not content.is_constant(whole) and whole.numel == stack.items[1].numel * #stack.items
            and have_same_sum({ whole }, stack.items) then
            wholes[i] = whole
            found[#found + 1] = { [side] = { whole }, [other] = stack.items, numbers = stack.numbers }
            break
          end
        end
      end
      if #found > 0 and #found == #list then take_stack(state, side, list[1].template, found, template, place) end
    end
  end
end

return several
