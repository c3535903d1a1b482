-- Rules for tensors that belong to others: the bias of a weight, a tensor that is another one times or plus a number, further names of the
-- same tensor.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"
local State = require "cbk.infer.state"
local trials = require "cbk.infer.trials"

local beside = {}

local have_same_sum, is_free = State.have_same_sum, State.is_free

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
local function sibling_rule(state, rule)
  local out = { left = {}, right = {}, templates = { left = {}, right = {} }, places = rule.places, pairs = {}, like = rule,
    divisor = rule.divisor, offset = rule.offset, also = { left = {}, right = {} } }
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
        local other = state[side].by_key[sibling(item.key) or ""]
        if not other or other.rule then return nil end
        own[side][i] = other
      end
    end
    if not have_same_sum(own.left, own.right) then return nil end
    out.pairs[#out.pairs + 1] = own
  end
  return out
end

---@param state MatchState
function beside.siblings(state)
  for _, rule in ipairs { unpack(state.rules) } do
    local other = not rule.each and sibling_rule(state, rule)
    if other then state:take(other) end
  end
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
---@param state MatchState
function beside.affine(state, is_fine)
  local list = {}
  for _, left in pairs(state.left.by_template) do
    for _, right in pairs(state.right.by_template) do
      local a, b = left[1], right[1]
      local is_close = not a.rule and not b.rule and #left == #right and a.numel == b.numel and a.dtype:find "float"
        and b.dtype:find "float"
      local factor, term = nil, nil
      if is_close and state:may_pair(a, b) then factor, term = affine(a, b) end
      if factor then
        local seen = {}
        for i, item in ipairs(left) do
          local other = right[i]
          if other then seen[i] = { left = item.numbers, right = other.numbers } end
        end
        local templates = { left = a.template, right = b.template }
        local places = state:places(templates, seen)
        local rule = places and { left = { names.pattern(a.template, places.left) }, right = { names.pattern(b.template, places.right) },
          templates = { left = { a.template }, right = { b.template } }, places = { places }, pairs = {}, divisor = places.divisor,
          offset = places.offset,
          affine = { factor, term }, also = { left = {}, right = {} } }
        for i, item in ipairs(rule and left or {}) do rule.pairs[i] = { left = { item }, right = { right[i] } } end
        if rule then list[#list + 1] = { rule = rule, score = state:score(templates) } end
      end
    end
  end
  table.sort(list, function(x, y)
    if x.score ~= y.score then return x.score > y.score end
    return x.rule.left[1] .. x.rule.right[1] < y.rule.left[1] .. y.rule.right[1]
  end)
  for _, one in ipairs(list) do
    if is_free(one.rule) and is_fine(one.rule) then state:take(one.rule) end
  end
end

-- --- further names of the same tensor

---Whether constants may have one name more: where nothing but the names says so, those in layers need the same last words.
local function may_be_constants(own, template)
  local function last(text) return text:match "([^.#]+%.[^.#]+)$" end
  return names.likeness(own, template) >= 0.6 and (not template:find "\1" or last(own) == last(template))
end

---How a tensor is a further name of another one: as it is, or transposed.
---@param own Item
---@param item Item
---@return "same"|"transposed"|nil
local function copy_kind(own, item)
  if own.dtype ~= item.dtype or not content.same(own, item) then return nil end
  if trials.same_values(own.tensor, item.tensor) then return "same" end
  if #own.shape == 2 and trials.same_values(own.tensor:transpose(0, 1), item.tensor) then return "transposed" end
end

---The free items of a template that are what a rule writes on that side: as a pattern with the rule's letters.
---@param rule InferredRule
---@param side Side
---@param part integer   of the rule's keys on that side
---@return { rule: InferredRule, items: Item[], pattern: string, part: integer, score: number }|nil
local function copies_of(state, rule, side, part, template)
  local items, seen, chosen, kind = state[side].by_template[template], {}, {}, nil
  for _, item in ipairs(items) do
    local of
    for _, pair in ipairs(not item.rule and rule.pairs or {}) do
      local own = pair[side][part]
      local is_near = not state:is_counted(item) or own.numbers[1] == item.numbers[1]
      local own_kind = not of and is_near and copy_kind(own, item)
      if own_kind and (not kind or kind == own_kind) then of, kind = own, own_kind end
    end
    if of then
      seen[#seen + 1], chosen[#chosen + 1] = { left = of.numbers, right = item.numbers }, item
    end
  end
  if #chosen == 0 or #chosen < #rule.pairs then return nil end
  local own, is_constant = rule.templates[side][part], content.is_constant(chosen[1])
  if is_constant and not may_be_constants(own, template) then return nil end
  local places = names.places({ left = own, right = template }, seen, { [""] = 0 })
  if not places or places.offset or places.divisor then return nil end
  local letters, renamed = (rule.places[part] or rule.places[1])[side], {}
  for k, place in ipairs(places.left) do
    if type(place) ~= type(letters[k]) then return nil end
    renamed[place] = letters[k]
  end
  for k, place in ipairs(places.right) do
    if type(place) == "string" then places.right[k] = renamed[place] end
  end
  local in_copy, in_own = {}, {}
  for _, place in ipairs(places.right) do in_copy[#in_copy + 1] = type(place) == "string" and place or nil end
  for _, place in ipairs(letters) do in_own[#in_own + 1] = type(place) == "string" and place or nil end
  if table.concat(in_copy) ~= table.concat(in_own) then return nil end
  local count = 0
  for _, item in ipairs(items) do
    if names.right_numbers({ left = places.right, right = {} }, item.numbers) then count = count + 1 end
  end
  return count == #chosen and { rule = rule, items = chosen, [2] = part, [1] = names.pattern(template, places.right),
    template = template, places = places.right, original = own, letters = letters,
    is_transposed = kind == "transposed", is_by_name = is_constant, score = names.likeness(own, template) } or nil
end

---Adds the free items of a side that are what a rule writes there.
---@param side Side
---@param state MatchState
function beside.copies(state, side)
  local groups = {}
  for _, rule in ipairs(state.rules) do
    for part = 1, rule.each and 0 or #rule[side] do
      for template in pairs(state[side].by_template) do groups[#groups + 1] = copies_of(state, rule, side, part, template) end
    end
  end
  table.sort(groups, function(a, b) return a.score > b.score or a.score == b.score and a[1] < b[1] end)
  for _, one in ipairs(groups) do
    local are_free = true
    for _, item in ipairs(one.items) do are_free = are_free and not item.rule end
    if are_free then
      for _, item in ipairs(one.items) do item.rule = one.rule end
      table.insert(one.rule.also[side], one)
    end
  end
end

return beside
