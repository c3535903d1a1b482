-- Which tensors of two checkpoints belong together: by what is in them, in rules that hold for all numbers of layers and experts.
-- Where several tensors have the same content, such as norms that are all ones, the rules found before and the names decide.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"

local match = {}

---@class InferredPair
---@field left Item[]
---@field right Item[]

---@class InferredRule
---@field left string[]     patterns
---@field right string[]
---@field templates table<Side, string[]>
---@field places Places[]   one for each pair of the side that has one key and those of the other
---@field pairs InferredPair[]
---@field like? InferredRule    the rule of the weights whose bias this is
---@field is_by_name? boolean   the content says nothing
---@field each? { side: Side, letter: string, count: integer }
---@field divisor? integer
---@field also table<Side, { [1]: string, [2]: integer }[]>   further patterns of the same tensors, each with its place among the keys

local State = {}
State.__index = State

-- --- one tensor and one tensor

---The pairs of a rule that holds for every tensor of its left; nil if it does not.
---@param templates { left: string, right: string }
---@param places Places
---@return InferredPair[]|nil
function State:pairs_of(templates, places)
  local out, pattern, count = {}, names.filled(templates.right, places.right), 0
  local by_key = self.right.by_key
  for _, item in ipairs(self.left.by_template[templates.left]) do
    local numbers = names.right_numbers(places, item.numbers)
    local other = numbers and by_key[names.filled(templates.right, numbers)]
    if numbers then
      if not other or not content.same(item, other) then return nil end
      out[#out + 1] = { left = { item }, right = { other } }
    end
  end
  for _, item in ipairs(self.right.by_template[templates.right]) do
    if names.right_numbers({ left = places.right, right = {} }, item.numbers) then count = count + 1 end
  end
  return #out > 0 and (count == #out or not pattern:find "%f[^.%z]%u%f[.%z]") and out or nil
end

---@param templates { left: string, right: string }
---@param seen Seen[]
---@param add fun(rule: InferredRule)
---@param depth? integer
function State:rules_from(templates, seen, add, depth)
  depth = depth or 0
  local places, side, place = names.places(templates, seen, self.known)
  local found = places and self:pairs_of(templates, places)
  if found then
    return add { left = { names.filled(templates.left, places.left) }, right = { names.filled(templates.right, places.right) },
      templates = { left = { templates.left }, right = { templates.right } }, places = { places }, pairs = found,
      divisor = places.divisor, also = { left = {}, right = {} } }
  end
  if places then -- the numbers do not agree everywhere: by the first that varies
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
  for _, value in ipairs(order) do self:rules_from(templates, groups[value], add, depth + 1) end
end

---What was seen of each pair of templates.
---@param is_certain boolean   only content that is of one tensor on the left
---@return { templates: table, seen: Seen[], likeness: number, distance: integer }[]
function State:seen_pairs(is_certain)
  local by_id, out = {}, {}
  local function add(a, b)
    local id = a.template .. "\0" .. b.template
    local one = by_id[id]
    if not one then
      one = { templates = { left = a.template, right = b.template }, seen = {}, likeness = names.likeness(a.template, b.template) }
      by_id[id], out[#out + 1] = one, one
    end
    if #one.seen < 4096 then one.seen[#one.seen + 1] = { left = a.numbers, right = b.numbers } end
  end
  for _, class in ipairs(self.classes) do
    for _, a in ipairs((not is_certain or #class.left == 1) and class.left or {}) do
      for _, b in ipairs(class.right) do
        local is_wanted = is_certain or not a.rule and not b.rule and self:may_pair(a, b)
        if is_wanted then add(a, b) end
      end
    end
  end
  return out
end

---Whether an item's first number counts layers and such.
---@param item Item
function State:is_counted(item)
  return #item.numbers > 0 and (next(self.known) == nil or names.counts(self.known, item.side, item.template))
end

---Tensors of one content: those with the same numbers where both count.
function State:may_pair(a, b)
  local is_counted = self:is_counted(a)
  if is_counted ~= self:is_counted(b) then return false end
  if not is_counted then return true end
  for _, n in ipairs(a.numbers) do
    if n == b.numbers[1] then return true end
  end
  return false
end

---Whether some tensors together have the same elements as others.
---@param list Item[]
---@param others Item[]
local function have_same_sum(list, others)
  local numel, dtype = 0, list[1].dtype
  for _, item in ipairs(list) do numel, dtype = numel + item.numel, dtype and content.common(dtype, item.dtype) end
  for _, item in ipairs(others) do numel, dtype = numel - item.numel, dtype and content.common(dtype, item.dtype) end
  if numel ~= 0 or not dtype then return false end
  local sum = 0ULL
  for _, item in ipairs(list) do sum = sum + content.sum(item, dtype) end
  for _, item in ipairs(others) do sum = sum - content.sum(item, dtype) end
  return sum == 0ULL
end

---Whether no other rule has its tensors.
---@param rule InferredRule
local function is_free(rule)
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

---Takes the best rules among candidates, each of tensors that no earlier one has.
---@param list { rule: InferredRule, score: number }[]
function State:take_best(list)
  for i, one in ipairs(list) do one.place = i end
  table.sort(list, function(a, b) return a.score > b.score or a.score == b.score and a.place < b.place end)
  for _, one in ipairs(list) do
    if is_free(one.rule) then self:take(one.rule) end
  end
end

---Where a side has its templates, from 0 to 1.
local function rank(inventory, template)
  return inventory.by_template[template][1].order / math.max(1, #inventory.items)
end

---How likely two templates belong together, if nothing else is known.
---@param templates { left: string, right: string }
function State:score(templates)
  local distance = math.abs(rank(self.left, templates.left) - rank(self.right, templates.right))
  return names.likeness(templates.left, templates.right) - 0.5 * distance
end

function State:match_one_to_one(is_certain)
  local list, seen = {}, self:seen_pairs(is_certain)
  local function is_varying(one)
    local first = one.seen[1].right
    for _, other in ipairs(one.seen) do
      for s, n in ipairs(other.right) do
        if n ~= first[s] then return true end
      end
    end
    return false
  end
  table.sort(seen, function(a, b) -- those that show what counts come first
    local varying_a, varying_b = is_varying(a), is_varying(b)
    if varying_a ~= varying_b then return varying_a end
    if a.templates.left ~= b.templates.left then return a.templates.left < b.templates.left end
    return a.templates.right < b.templates.right
  end)
  for _, one in ipairs(seen) do
    self:rules_from(one.templates, one.seen, function(rule)
      rule.is_by_name = not is_certain
      list[#list + 1] = { rule = rule, score = self:score(one.templates) }
    end)
  end
  self:take_best(list)
end

-- --- a weight and its bias

local SIBLINGS = { weight = "bias", bias = "weight" }

---The template or key of the other part of a linear or norm.
local function sibling(name)
  local stem, last = name:match "^(.*%.)(%a+)$"
  local other = SIBLINGS[last or ""]
  return other and stem .. other
end

---@param rule InferredRule
---@return InferredRule|nil
function State:sibling_rule(rule)
  local out = { left = {}, right = {}, templates = { left = {}, right = {} }, places = rule.places, pairs = {}, like = rule,
    divisor = rule.divisor, also = { left = {}, right = {} } }
  for _, side in ipairs { "left", "right" } do
    for i, pattern in ipairs(rule[side]) do
      out[side][i], out.templates[side][i] = sibling(pattern), sibling(rule.templates[side][i])
      if not out[side][i] then return nil end
    end
  end
  for _, pair in ipairs(rule.pairs) do
    local own = { left = {}, right = {} }
    for _, side in ipairs { "left", "right" } do
      for i, item in ipairs(pair[side]) do
        local other = self[side].by_key[sibling(item.key) or ""]
        if not other or other.rule then return nil end
        own[side][i] = other
      end
    end
    if not have_same_sum(own.left, own.right) then return nil end
    out.pairs[#out.pairs + 1] = own
  end
  return out
end

function State:match_siblings()
  for _, rule in ipairs { unpack(self.rules) } do
    local other = not rule.each and self:sibling_rule(rule)
    if other then self:take(other) end
  end
end

-- --- one tensor that is made of several

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
function State:candidates(item, side)
  local out = {}
  for _, one in ipairs(self[side].items) do
    local is_near = (one.numbers[1] == item.numbers[1] or #item.numbers == 0 or #one.numbers == 0) and one.numel < item.numel
    local is_wanted = is_near and not one.rule and #one.shape == #item.shape and content.is_constant(one) == content.is_constant(item)
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
function State:take_parts(side, found)
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
    local places = names.places({ [side] = whole, [other] = part.template }, seen, self.known, side)
    if not places then return end
    rule.templates[other][i], rule.places[i] = part.template, places
    rule[other][i] = names.filled(part.template, places[other])
    local pattern = names.filled(whole, places[side])
    if rule[side][1] and rule[side][1] ~= pattern then return end
    rule[side][1] = pattern
  end
  if is_free(rule) then self:take(rule) end
end

---@param side Side   of the tensors that are made of several
---@param is_constant boolean   those of which nothing but the number of elements is known
function State:match_parts(side, is_constant)
  local other = side == "left" and "right" or "left"
  local groups, order = {}, {}
  for _, item in ipairs(self[side].items) do
    local parts = not item.rule and content.is_constant(item) == is_constant and parts_of(item, self:candidates(item, other))
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
  for _, id in ipairs(order) do self:take_parts(side, groups[id]) end
end

-- --- one tensor for all experts

---Splits a template at one place: the rest is a template, too.
local function without_place(item, place)
  local i = 0
  local template = item.template:gsub("%f[^.%z]#%f[.%z]", function()
    i = i + 1
    return i == place and "@" or nil
  end)
  local numbers = {}
  for k, n in ipairs(item.numbers) do
    if k ~= place then numbers[#numbers + 1] = n end
  end
  return template, numbers
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

---@param side Side   of the tensors that are one for all
function State:match_stacks(side)
  local other = side == "left" and "right" or "left"
  for template, items in pairs(self[other].by_template) do
    for place = 1, #items[1].numbers do
      local list = items[1].rule and {} or stacks(items, place)
      local found, wholes = {}, {}
      for _, whole in ipairs(self[side].items) do
        for i, stack in ipairs(list) do
          if not whole.rule and not wholes[i] and not content.is_constant(whole) and whole.numel == stack.items[1].numel * #stack.items
            and have_same_sum({ whole }, stack.items) then
            wholes[i] = whole
            found[#found + 1] = { [side] = { whole }, [other] = stack.items, numbers = stack.numbers }
            break
          end
        end
      end
      if #found > 0 and #found == #list then self:take_stack(side, list[1].template, found, template) end
    end
  end
end

function State:take_stack(side, template, found, whole_template)
  local other = side == "left" and "right" or "left"
  local seen, whole = {}, found[1][side][1].template
  for k, pair in ipairs(found) do
    if pair[side][1].template ~= whole then return end
    seen[k] = { [side] = pair[side][1].numbers, [other] = pair.numbers }
  end
  local places = names.places({ [side] = whole, [other] = template }, seen, self.known)
  if not places then return end
  local rule = { places = { places }, pairs = found, templates = { [side] = { whole }, [other] = { whole_template } },
    [side] = { names.filled(whole, places[side]) }, also = { left = {}, right = {} } }
  local pattern = names.filled(template, places[other])
  local letter = ("." .. pattern .. "."):find ".E." and "M" or "E"
  rule[other] = { (pattern:gsub("@", letter)) }
  rule.each = { side = other, letter = letter, count = #found[1][other] }
  self:take(rule)
end

-- --- tensors whose values are others by a number

local function rounded(x) return tonumber(("%.6g"):format(x)) end

---The factor and the term that make `b` of `a`, by what is known of both as a whole.
---@return number|nil factor, number|nil term
local function affine(a, b)
  if table.concat(a.shape, ",") ~= table.concat(b.shape, ",") then return nil end
  local of_a, of_b = a.tensor:stats(), b.tensor:stats()
  if not (of_a.mean and of_b.mean) or of_a.std == 0 and of_b.std ~= 0 then return nil end
  local factor = of_a.std == 0 and 1 or of_b.std / of_a.std
  if math.abs(factor - 1) < 1e-4 then
    local term = rounded(of_b.mean - of_a.mean)
    local near = math.floor(term * 2 + 0.5) / 2
    if math.abs(term - near) < 1e-4 * math.max(1, math.abs(of_a.mean)) then term = near end
    return 1, term
  end
  if math.abs(of_b.mean - of_a.mean * factor) > 1e-4 * of_b.std then return nil end
  return rounded(factor), 0
end

---@param is_fine fun(rule: InferredRule): boolean
function State:match_affine(is_fine)
  local list = {}
  for _, left in pairs(self.left.by_template) do
    for _, right in pairs(self.right.by_template) do
      local a, b = left[1], right[1]
      local is_close = not a.rule and not b.rule and #left == #right and a.numel == b.numel and a.dtype:find "float"
        and b.dtype:find "float"
      local factor, term = nil, nil
      if is_close and self:may_pair(a, b) then factor, term = affine(a, b) end
      if factor then
        local seen = {}
        for i, item in ipairs(left) do
          local other = right[i]
          if other then seen[i] = { left = item.numbers, right = other.numbers } end
        end
        local templates = { left = a.template, right = b.template }
        local places = names.places(templates, seen, self.known)
        local rule = places and { left = { names.filled(a.template, places.left) }, right = { names.filled(b.template, places.right) },
          templates = { left = { a.template }, right = { b.template } }, places = { places }, pairs = {}, divisor = places.divisor,
          affine = { factor, term }, also = { left = {}, right = {} } }
        for i, item in ipairs(rule and left or {}) do rule.pairs[i] = { left = { item }, right = { right[i] } } end
        if rule then list[#list + 1] = { rule = rule, score = self:score(templates) } end
      end
    end
  end
  table.sort(list, function(x, y)
    if x.score ~= y.score then return x.score > y.score end
    return x.rule.left[1] .. x.rule.right[1] < y.rule.left[1] .. y.rule.right[1]
  end)
  for _, one in ipairs(list) do
    if is_free(one.rule) and is_fine(one.rule) then self:take(one.rule) end
  end
end

-- --- further names of the same tensor

---The free items of a template that are what a rule writes on that side: as a pattern with the rule's letters.
---@param rule InferredRule
---@param side Side
---@param part integer   of the rule's keys on that side
---@return { rule: InferredRule, items: Item[], pattern: string, part: integer, score: number }|nil
function State:copies_of(rule, side, part, template)
  local items, seen, chosen = self[side].by_template[template], {}, {}
  for _, item in ipairs(items) do
    local of
    for _, pair in ipairs(not item.rule and rule.pairs or {}) do
      local own = pair[side][part]
      local is_near = not self:is_counted(item) or own.numbers[1] == item.numbers[1]
      if not of and is_near and content.same(own, item) then of = own end
    end
    if of then
      seen[#seen + 1], chosen[#chosen + 1] = { left = of.numbers, right = item.numbers }, item
    end
  end
  if #chosen == 0 or #chosen < #rule.pairs then return nil end
  local own = rule.templates[side][part]
  local places = names.places({ left = own, right = template }, seen, { [""] = true })
  if not places then return nil end
  local letters, renamed = (rule.places[part] or rule.places[1])[side], {}
  for k, place in ipairs(places.left) do
    if type(place) ~= type(letters[k]) then return nil end
    renamed[place] = letters[k]
  end
  for k, place in ipairs(places.right) do
    if type(place) == "string" then places.right[k] = renamed[place] end
  end
  local count = 0
  for _, item in ipairs(items) do
    if names.right_numbers({ left = places.right, right = {} }, item.numbers) then count = count + 1 end
  end
  return count == #chosen and { rule = rule, items = chosen, part = part, pattern = names.filled(template, places.right),
    score = names.likeness(own, template) } or nil
end

---Adds the free items of a side that are what a rule writes there.
---@param side Side
function State:match_copies(side)
  local groups = {}
  for _, rule in ipairs(self.rules) do
    for part = 1, rule.each and 0 or #rule[side] do
      for template in pairs(self[side].by_template) do groups[#groups + 1] = self:copies_of(rule, side, part, template) end
    end
  end
  table.sort(groups, function(a, b) return a.score > b.score or a.score == b.score and a.pattern < b.pattern end)
  for _, one in ipairs(groups) do
    local are_free = true
    for _, item in ipairs(one.items) do are_free = are_free and not item.rule end
    if are_free then
      for _, item in ipairs(one.items) do item.rule = one.rule end
      table.insert(one.rule.also[side], { one.pattern, one.part })
    end
  end
end

-- --- all of it

---@param left Inventory
---@param right Inventory
---@param is_affine fun(rule: InferredRule): boolean   whether a factor and a term give the values
---@return InferredRule[]
function match.rules(left, right, is_affine)
  local state = setmetatable({ left = left, right = right, known = {}, rules = {}, classes = content.classes(left, right) }, State)
  state:match_one_to_one(true)
  for _, side in ipairs { "left", "right" } do state:match_parts(side, false) end
  for _, side in ipairs { "left", "right" } do state:match_stacks(side) end
  state:match_siblings()
  state:match_one_to_one(false)
  state:match_siblings()
  for _, side in ipairs { "left", "right" } do state:match_parts(side, true) end
  state:match_affine(is_affine)
  for _, side in ipairs { "left", "right" } do state:match_copies(side) end
  return state.rules
end

return match
