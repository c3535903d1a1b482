-- Rules for one tensor on each side, for all numbers of layers and experts: by content, or, if several tensors have the same content, by
-- the rules found before and by names.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"
local near = require "cbk.infer.near"
local State = require "cbk.infer.state"

local one_to_one = {}

---The pairs of a rule that holds for every tensor of its left; nil if it does not.
---@param templates { left: string, right: string }
---@param places Places
---@return InferredPair[]|nil
local function pairs_of(state, templates, places)
  local out, count, has_letters = {}, 0, false
  for _, place in ipairs(places.right) do has_letters = has_letters or type(place) == "string" end
  local by_key = state.right.by_key
  for _, item in ipairs(state.left.by_template[templates.left]) do
    local numbers = names.right_numbers(places, item.numbers)
    local other = numbers and by_key[names.filled(templates.right, numbers)]
    if numbers then
      if not other or not content.same(item, other) then return nil end
      out[#out + 1] = { left = { item }, right = { other } }
    end
  end
  for _, item in ipairs(state.right.by_template[templates.right]) do
    if names.right_numbers({ left = places.right, right = {} }, item.numbers) then count = count + 1 end
  end
  return #out > 0 and (count == #out or not has_letters) and out or nil
end

---@param templates { left: string, right: string }
---@param seen Seen[]
---@param add fun(rule: InferredRule)
---@param depth? integer
local function rules_from(state, templates, seen, add, depth)
  depth = depth or 0
  local places, side, place = state:places(templates, seen)
  local found = places and pairs_of(state, templates, places)
  if found then
    return add { left = { names.pattern(templates.left, places.left) }, right = { names.pattern(templates.right, places.right) },
      templates = { left = { templates.left }, right = { templates.right } }, places = { places }, pairs = found,
      divisor = places.divisor, offset = places.offset, also = { left = {}, right = {} } }
  end
  if places then -- the numbers do not agree everywhere: split by the first that varies
    for s in ipairs(places.right) do
      if type(places.right[s]) == "string" then side, place = "right", s end
    end
  end
  if not side or depth > 2 then return end
  local groups, order = {}, {}
  for _, one in ipairs(seen) do
    local value = one[side][place]
    if not groups[value] then
      groups[value] = {}
      order[#order + 1] = value
    end
    table.insert(groups[value], one)
  end
  if #order < 2 or #order > 16 then return end
  for _, value in ipairs(order) do rules_from(state, templates, groups[value], add, depth + 1) end
end

---Items by template, in order.
---@param items Item[]
---@param is_free boolean   only those without a rule
---@return string[] templates, table<string, Item[]> by_template
local function grouped(items, is_free)
  local order, by_template = {}, {}
  for _, item in ipairs(items) do
    if not (is_free and item.rule) then
      if not by_template[item.template] then
        by_template[item.template] = {}
        order[#order + 1] = item.template
      end
      table.insert(by_template[item.template], item)
    end
  end
  return order, by_template
end

---Calls `visit` with items of two templates that may belong together. `visit` returns false to stop.
---@param lefts Item[]
---@param rights Item[]
---@param visit fun(left: Item, right: Item): boolean
local function each_beside(state, lefts, rights, visit)
  if state:is_counted(lefts[1]) ~= state:is_counted(rights[1]) then return end
  local by_number
  if state:is_counted(lefts[1]) then -- only items of the same layer
    by_number = {}
    for _, b in ipairs(rights) do
      by_number[b.numbers[1]] = by_number[b.numbers[1]] or {}
      table.insert(by_number[b.numbers[1]], b)
    end
  end
  for _, a in ipairs(lefts) do
    local found = by_number and {} or rights
    for _, number in ipairs(by_number and state:numbers_beside(a, rights[1]) or {}) do
      for _, b in ipairs(by_number[number] or {}) do found[#found + 1] = b end
    end
    if by_number then table.sort(found, function(x, y) return x.order < y.order end) end
    for _, b in ipairs(found) do
      if not visit(a, b) then return end
    end
  end
end

local LEAST_SEEN, MOST_SEEN = 64, 4096 -- of two templates
local SEEN_OF_CLASS = 65536            -- and about 16 for each of its tensors

---@class SeenPair
---@field left string    a template
---@field right string
---@field seen Seen[]

local NO_NUMBERS = { { left = {}, right = {} } } -- not to be changed

---The pairs of keys with the same content, for each pair of templates.
---@param is_certain boolean   only content that one tensor on the left has
---@return SeenPair[]
local function seen_pairs(state, is_certain)
  local by_id, out = {}, {}
  local function seen_of(left, right)
    local id = left .. "\0" .. right
    if not by_id[id] then
      by_id[id] = { left = left, right = right, seen = {} }
      out[#out + 1] = by_id[id]
    end
    return by_id[id].seen
  end
  local function look_at(class)
    local lefts, by_left = grouped(class.left, not is_certain)
    local rights, by_right = grouped(class.right, not is_certain)
    local share = (SEEN_OF_CLASS + 16 * (#class.left + #class.right)) / math.max(1, near.count(#lefts, #rights))
    near.pairs(lefts, rights, function(left, right)
      local a, b = by_left[left], by_right[right]
      if #a[1].numbers + #b[1].numbers == 0 then -- one tensor on each side
        out[#out + 1] = { left = left, right = right, seen = NO_NUMBERS }
        return
      end
      local most = math.max(#a + #b + LEAST_SEEN, math.min(MOST_SEEN, share))
      local seen
      local function add(one, other)
        seen = seen or seen_of(left, right)
        if #seen < MOST_SEEN then seen[#seen + 1] = { left = one.numbers, right = other.numbers } end
        most = most - 1
        return most > 0 and #seen < MOST_SEEN
      end
      if not is_certain then return each_beside(state, a, b, add) end
      for _, other in ipairs(b) do
        if not add(a[1], other) then return end
      end
    end)
  end
  for _, class in ipairs(state.classes) do
    if not is_certain or #class.left == 1 then look_at(class) end
  end
  return out
end

local MANY = 4096 -- pairs of templates; above this, rules are made one by one, the likeliest first

---@param seen SeenPair[]
local function take_one_by_one(state, seen, is_certain)
  for _, one in ipairs(seen) do one.score = state:score(one.left, one.right) end
  table.sort(seen, function(a, b)
    if a.score ~= b.score then return a.score > b.score end
    if a.left ~= b.left then return a.left < b.left end
    return a.right < b.right
  end)
  local function has_free(side, template)
    for _, item in ipairs(state[side].by_template[template]) do
      if not item.rule then return true end
    end
  end
  for _, one in ipairs(seen) do
    if has_free("left", one.left) and has_free("right", one.right) then
      rules_from(state, { left = one.left, right = one.right }, one.seen, function(rule)
        rule.is_by_name = not is_certain
        if State.is_free(rule) then state:take(rule) end
      end)
    end
  end
end

---Whether the numbers of the right vary.
---@param seen Seen[]
local function varies(seen)
  local first = seen[1].right
  for _, other in ipairs(seen) do
    for s, n in ipairs(other.right) do
      if n ~= first[s] then return true end
    end
  end
  return false
end

---@param state MatchState
---@param is_certain boolean   only content that one tensor on the left has
function one_to_one.match(state, is_certain)
  local list, seen, is_varying = {}, seen_pairs(state, is_certain), {}
  if #seen > MANY then return take_one_by_one(state, seen, is_certain) end
  for _, one in ipairs(seen) do is_varying[one] = varies(one.seen) end
  table.sort(seen, function(a, b) -- pairs with varying numbers come first
    if is_varying[a] ~= is_varying[b] then return is_varying[a] end
    if a.left ~= b.left then return a.left < b.left end
    return a.right < b.right
  end)
  for _, one in ipairs(seen) do
    rules_from(state, { left = one.left, right = one.right }, one.seen, function(rule)
      rule.is_by_name = not is_certain
      list[#list + 1] = { rule = rule, score = state:score(one.left, one.right) }
    end)
  end
  state:take_best(list)
end

return one_to_one
