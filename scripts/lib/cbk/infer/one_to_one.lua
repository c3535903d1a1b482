-- Rules for one tensor and one tensor, for all numbers of layers and experts: by content, or, where several tensors have the same, by the
-- rules found before and the names.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"

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
  for _, value in ipairs(order) do rules_from(state, templates, groups[value], add, depth + 1) end
end

---What was seen of each pair of templates.
---@param is_certain boolean   only content that is of one tensor on the left
---@return { templates: table, seen: Seen[], likeness: number, distance: integer }[]
local function seen_pairs(state, is_certain)
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
  for _, class in ipairs(state.classes) do
    for _, a in ipairs((not is_certain or #class.left == 1) and class.left or {}) do
      for _, b in ipairs(class.right) do
        local is_wanted = is_certain or not a.rule and not b.rule and state:may_pair(a, b)
        if is_wanted then add(a, b) end
      end
    end
  end
  return out
end

---@param state MatchState
---@param is_certain boolean   only content that is of one tensor on the left
function one_to_one.match(state, is_certain)
  local list, seen = {}, seen_pairs(state, is_certain)
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
    rules_from(state, one.templates, one.seen, function(rule)
      rule.is_by_name = not is_certain
      list[#list + 1] = { rule = rule, score = state:score(one.templates) }
    end)
  end
  state:take_best(list)
end

return one_to_one
