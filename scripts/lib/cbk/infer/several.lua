-- Rules for one tensor that consists of several: parts with names of their own, such as queries, keys and values, or all experts.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"
local naming = require "cbk.naming"
local State = require "cbk.infer.state"

local several = {}

local have_same_sum, is_free = State.have_same_sum, State.is_free

-- --- parts with names of their own

local MOST_PARTS, MOST_CANDIDATES = 5, 24

---The items among `candidates` that together have the elements of `whole`.
---@param whole Item
---@param candidates Item[]
---@param steps { left: integer }   the steps that all searches may still take
---@return Item[]|nil
local function parts_of(whole, candidates, steps)
  local chosen = {}
  local function search(from, left_over)
    steps.left = steps.left - 1
    if steps.left < 0 then return false end
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

---The free items of a side, for `candidates`: by what they share with the whole that they may be part of, the smallest first.
---@param side Side
---@return table<string, Item[]>
local function free_items(state, side)
  local out = {}
  for _, item in ipairs(state[side].items) do
    if not item.rule then
      local id = ("%d %s %s"):format(#item.shape, tostring(content.is_constant(item)), item.numbers[1] or "")
      out[id] = out[id] or {}
      table.insert(out[id], item)
    end
  end
  for _, list in pairs(out) do
    table.sort(list, function(a, b) return a.numel < b.numel or a.numel == b.numel and a.order < b.order end)
  end
  return out
end

---The first numbers that the parts of an item may have; nil if any.
---@return table<any, boolean>|nil
local function first_numbers(state, item)
  if #item.numbers == 0 then return nil end
  local out = { [""] = true }
  for _, n in ipairs(item.numbers) do out[n] = true end
  for _, offset in pairs(state.known.offsets) do
    out[item.numbers[1] + (item.side == "left" and offset or -offset)] = true
  end
  return out
end

---Free items of a side that may be parts of an item of the other: with the same first number, if they have any.
---@param item Item
---@param free table<string, Item[]>   of `free_items`
local function candidates(state, item, free)
  local out, kind = {}, ("%d %s "):format(#item.shape, tostring(content.is_constant(item)))
  local function add(list)
    for _, one in ipairs(list or {}) do
      if one.numel >= item.numel or #out > MOST_CANDIDATES then return end
      if state:is_near(one, item) then out[#out + 1] = one end
    end
  end
  local numbers = first_numbers(state, item)
  for n in pairs(numbers or {}) do add(free[kind .. n]) end
  if not numbers then
    for id, list in pairs(free) do
      if id:sub(1, #kind) == kind then add(list) end
    end
  end
  if #out > MOST_CANDIDATES then return {} end
  table.sort(out, function(a, b) return a.order < b.order end)
  return out
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

---Makes one rule of what was found for some tensors: `whole` on one side, parts on the other.
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

---@param side Side   the side of the tensors that consist of several
---@param is_constant boolean   only constants: nothing but their number of elements is known
---@param state MatchState
function several.parts(state, side, is_constant)
  local other = side == "left" and "right" or "left"
  local groups, order, free = {}, {}, free_items(state, other)
  for _, item in ipairs(state[side].items) do
    local parts = not item.rule and content.is_constant(item) == is_constant
      and parts_of(item, candidates(state, item, free), state.steps)
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

---Removes one place from a template: the rest is a template, too.
local function without_place(item, place)
  local numbers = {}
  for k, n in ipairs(item.numbers) do
    if k ~= place then numbers[#numbers + 1] = n end
  end
  return names.marked(item.template, place), numbers
end

---The tensors of a template, grouped by all their numbers but one, if that one runs over 0, 1, 2, …
---@return { template: string, numbers: integer[], items: Item[] }[]
local function stacks_at(items, place)
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

---The parts of a rule for stacks of one template: its pattern, its places and its letter's name.
---@param stacks Stacks
---@param found InferredPair[]
local function stack_pattern(state, side, stacks, found)
  local other = side == "left" and "right" or "left"
  local seen, whole = {}, found[1][side][1].template
  for k, pair in ipairs(found) do
    if pair[side][1].template ~= whole then return nil end
    seen[k] = { [side] = pair[side][1].numbers, [other] = pair.numbers }
  end
  local template = stacks.list[1].template
  local places = state:places({ [side] = whole, [other] = template }, seen)
  if not places or places.divisor then return nil end
  local letter, all = "E", { unpack(places[other]) }
  for _, one in ipairs(all) do letter = one == "E" and "M" or letter end
  table.insert(all, stacks.place, letter)
  local pattern = names.pattern(template, places[other]):gsub("\2(.)", function(kind) return names.in_place(kind, letter) end)
  return { places = places, letter = letter, all = all, pattern = pattern, whole = names.pattern(whole, places[side]) }
end

---Makes a rule of stacks, one or several behind each other, and the tensors that are the same.
---@param kinds_of Stacks[]
---@param found InferredPair[]
local function take_stacks(state, side, kinds_of, found)
  local other = side == "left" and "right" or "left"
  local rule = { places = {}, pairs = found, templates = { [side] = { found[1][side][1].template }, [other] = {} }, [other] = {},
    also = { left = {}, right = {} } }
  for i, stacks in ipairs(kinds_of) do
    local own = stack_pattern(state, side, stacks, found)
    if not own or i > 1 and (own.places.offset ~= rule.offset or own.whole ~= rule[side][1]) then return end
    rule.places[i], rule.templates[other][i], rule[other][i] = own.places, stacks.template, own.pattern
    rule[side], rule.offset = { own.whole }, own.places.offset
    rule.each = { side = other, letter = own.letter, count = #found[1][other] / #kinds_of, places = own.all, place = stacks.place }
  end
  state:take(rule)
end

---Finds the free items of a side that have the same elements as a stack. Constants are left out.
---@param side Side
---@return fun(stack: Item[]): Item[]   in their order
local function wholes_by_content(state, side)
  local by_numel, by_sum = {}, {}
  for _, item in ipairs(state[side].items) do
    if not item.rule then
      by_numel[item.numel] = by_numel[item.numel] or {}
      table.insert(by_numel[item.numel], item)
    end
  end
  local function id_of(numel, dtype, common, sum) return ("%d %s %s %s"):format(numel, dtype, common, tostring(sum)) end
  local function index(numel, dtype)
    local id = numel .. " " .. dtype
    if by_sum[id] then return end
    by_sum[id] = true
    for _, item in ipairs(by_numel[numel]) do
      local common = content.common(item.dtype, dtype)
      if common and not content.is_constant(item) then
        local own = id_of(numel, dtype, common, content.sum(item, common))
        by_sum[own] = by_sum[own] or {}
        table.insert(by_sum[own], item)
      end
    end
  end
  return function(stack)
    local numel, dtype, out = stack[1].numel * #stack, stack[1].dtype, {}
    for _, item in ipairs(stack) do
      if item.dtype ~= dtype then return out end
    end
    if not by_numel[numel] then return out end
    index(numel, dtype)
    local has = {}
    for own in pairs(state[side].dtypes) do
      local common = content.common(own, dtype)
      if common and not has[common] then
        local sum = 0ULL
        for _, item in ipairs(stack) do sum = sum + content.sum(item, common) end
        for _, whole in ipairs(by_sum[id_of(numel, dtype, common, sum)] or {}) do out[#out + 1] = whole end
        has[common] = true
      end
    end
    return out
  end
end

---@class Stacks   The tensors of one template as stacks: all their numbers but one are the same in each.
---@field template string
---@field place integer   of the number that counts
---@field list { template: string, numbers: integer[], items: Item[] }[]

---The stacks of a side's free tensors.
---@param side Side
---@return Stacks[]
local function stacks_of(state, side)
  local out = {}
  for _, template in ipairs(naming.sorted(state[side].by_template)) do
    local items = state[side].by_template[template]
    for place = 1, #items[1].numbers do
      local list = items[1].rule and {} or stacks_at(items, place)
      if #list > 0 then out[#out + 1] = { template = template, place = place, list = list } end
    end
  end
  return out
end

---The tensor of the other side for each stack, or for each of several stacks behind each other; nil if one has none.
---@param kinds_of Stacks[]   with the same numbers
---@param wholes_of fun(stack: Item[]): Item[]
---@return InferredPair[]|nil
local function wholes_for(side, kinds_of, wholes_of)
  local other = side == "left" and "right" or "left"
  local found, is_taken = {}, {}
  for k, first in ipairs(kinds_of[1].list) do
    local items = {}
    for _, stacks in ipairs(kinds_of) do
      for _, item in ipairs(stacks.list[k].items) do items[#items + 1] = item end
    end
    for _, whole in ipairs(wholes_of(items)) do
      if not whole.rule and not is_taken[whole] and have_same_sum({ whole }, items) then
        is_taken[whole] = true
        found[k] = { [side] = { whole }, [other] = items, numbers = first.numbers }
        break
      end
    end
    if not found[k] then return nil end
  end
  return found
end

local MOST_ALIKE = 8 -- stacks that are tried in pairs: a model has gates, what is multiplied with them, and outputs

---Stacks beside each other with the same numbers and as many elements, such as gates and what is multiplied with them.
---@param all Stacks[]
---@return Stacks[][]
local function alike(all)
  local groups, out = {}, {}
  for _, one in ipairs(all) do
    local id = { names.before(one.template, one.place), one.place, one.list[1].items[1].numel }
    for _, stack in ipairs(one.list) do id[#id + 1] = #stack.items .. ":" .. table.concat(stack.numbers, ".") end
    id = table.concat(id, "\0")
    if not groups[id] then
      groups[id] = {}
      out[#out + 1] = groups[id]
    end
    table.insert(groups[id], one)
  end
  return out
end

---Rules for tensors that are all of a stack's, or all of two stacks.
---@param state MatchState
---@param side Side
function several.stacks(state, side)
  local wholes_of = wholes_by_content(state, side)
  local all = stacks_of(state, side == "left" and "right" or "left")
  local function try(kinds_of)
    if not State.is_free { pairs = { { left = kinds_of[1].list[1].items, right = kinds_of[#kinds_of].list[1].items } } } then return end
    local found = wholes_for(side, kinds_of, wholes_of)
    if found then take_stacks(state, side, kinds_of, found) end
  end
  for _, one in ipairs(all) do try { one } end
  for _, group in ipairs(alike(all)) do
    for i = 1, #group <= MOST_ALIKE and #group or 0 do
      for k = i + 1, #group do try { group[i], group[k] } end
    end
  end
end

return several
