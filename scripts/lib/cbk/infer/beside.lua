-- Rules for tensors that belong to others: the bias of a weight, a tensor that is a multiple of another one or differs by a constant,
-- further names of the same tensor.

local content = require "cbk.infer.content"
local names = require "cbk.infer.names"
local naming = require "cbk.naming"
local near = require "cbk.infer.near"
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
  for i = 1, #state.rules do -- rules that are added meanwhile have no siblings
    local rule = state.rules[i]
    local other = not rule.each and sibling_rule(state, rule)
    if other then state:take(other) end
  end
end

-- --- tensors that differ by a factor or a term

local function rounded(x) return tonumber(("%.6g"):format(x)) end

---@return { mean: number|nil, std: number|nil }
local function stats_of(item)
  if not item.stats then
    local stats = item.tensor:stats()
    item.stats = { mean = stats.mean, std = stats.std }
  end
  return item.stats
end

---The factor and the term that turn `a` into `b`, from the statistics of both.
---@return number|nil factor, number|nil term
local function affine(a, b)
  local of_a, of_b = stats_of(a), stats_of(b)
  if not (of_a.mean and of_b.mean) or of_a.std == 0 and of_b.std ~= 0 then return nil end
  local factor = of_a.std == 0 and 1 or of_b.std / of_a.std
  if math.abs(factor - 1) < 1e-4 then
    local term = rounded(of_b.mean - of_a.mean)
    local round = math.floor(term * 2 + 0.5) / 2
    if math.abs(term - round) < 1e-4 * math.max(1, math.abs(of_a.mean)) then term = round end
    return 1, term
  end
  if math.abs(of_b.mean - of_a.mean * factor) > 1e-4 * of_b.std then return nil end
  return rounded(factor), 0
end

---The free templates of a side, by the properties that a factor and a term do not change. Each list is in the checkpoint's order.
---@param inventory Inventory
---@return table<string, string[]>
local function free_by_form(inventory)
  local out, order = {}, {}
  for template, items in pairs(inventory.by_template) do
    if not items[1].rule and items[1].dtype:find "float" then order[#order + 1] = template end
  end
  table.sort(order, function(a, b) return inventory.by_template[a][1].order < inventory.by_template[b][1].order end)
  for _, template in ipairs(order) do
    local items = inventory.by_template[template]
    local id = ("%d %s"):format(#items, table.concat(items[1].shape, ","))
    out[id] = out[id] or {}
    table.insert(out[id], template)
  end
  return out
end

---@param templates { left: string, right: string }
---@param factor number
---@param term number
---@return InferredRule|nil
local function affine_rule(state, templates, factor, term)
  local left, right = state.left.by_template[templates.left], state.right.by_template[templates.right]
  local seen = {}
  for i, item in ipairs(left) do seen[i] = { left = item.numbers, right = right[i].numbers } end
  local places = state:places(templates, seen)
  local rule = places and { left = { names.pattern(templates.left, places.left) }, right = { names.pattern(templates.right, places.right) },
    templates = { left = { templates.left }, right = { templates.right } }, places = { places }, pairs = {}, divisor = places.divisor,
    offset = places.offset, affine = { factor, term }, also = { left = {}, right = {} } }
  for i, item in ipairs(rule and left or {}) do rule.pairs[i] = { left = { item }, right = { right[i] } } end
  return rule
end

---@param is_fine fun(rule: InferredRule): boolean
---@param state MatchState
function beside.affine(state, is_fine)
  local list, rights = {}, free_by_form(state.right)
  for form, lefts in pairs(free_by_form(state.left)) do
    near.pairs(lefts, rights[form] or {}, function(left, right)
      local a, b, factor, term = state.left.by_template[left][1], state.right.by_template[right][1], nil, nil
      if state:may_pair(a, b) then factor, term = affine(a, b) end
      local templates = { left = left, right = right }
      if factor then list[#list + 1] = { templates = templates, factor = factor, term = term, score = state:score(left, right) } end
    end)
  end
  table.sort(list, function(x, y)
    if x.score ~= y.score then return x.score > y.score end
    if x.templates.left ~= y.templates.left then return x.templates.left < y.templates.left end
    return x.templates.right < y.templates.right
  end)
  for _, one in ipairs(list) do
    local a, b = state.left.by_template[one.templates.left][1], state.right.by_template[one.templates.right][1]
    local rule = not a.rule and not b.rule and affine_rule(state, one.templates, one.factor, one.term)
    if rule and is_free(rule) and is_fine(rule) then state:take(rule) end
  end
end

-- --- further names of the same tensor

local NOT_EMPTY = names.known() -- copies are named after their own tensor, so usual words mean nothing
NOT_EMPTY:add("", "", 0)

---Whether constants may be further names. Only their names show it, so those in layers need the same last words.
local function may_be_constants(own, template)
  local function last(text) return ("." .. text):match "^.*[.#]([^.#]+%.[^.#]+)$" end
  return names.likeness(own, template) >= 0.6 and (not template:find "\1" or last(own) == last(template))
end

---How a tensor is a copy of another one: unchanged or transposed. Nil if it is not a copy.
---@param own Item
---@param item Item
---@return "same"|"transposed"|nil
local function copy_kind(own, item)
  if own.dtype ~= item.dtype or not content.same(own, item) then return nil end
  if trials.same_values(own.tensor, item.tensor) then return "same" end
  if #own.shape == 2 and trials.same_values(own.tensor:transpose(0, 1), item.tensor) then return "transposed" end
end

local MOST_ALIKE = 16 -- tensors of equal content that a tensor is compared with

local function content_id(item) return ("%s %d %s "):format(item.dtype, item.numel, tostring(content.sum(item, item.dtype))) end

---The free items of a template that duplicate tensors of a rule on that side, with a pattern in the rule's letters.
---@param rule InferredRule
---@param side Side
---@param part integer   the index among the rule's keys on that side
---@return { rule: InferredRule, items: Item[], pattern: string, part: integer, score: number }|nil
local function copies_of(state, rule, side, part, template)
  local items, seen, chosen, kind = state[side].by_template[template], {}, {}, nil
  local is_counted, owns = state:is_counted(items[1]), {}
  local function id_of(item) return content_id(item) .. (is_counted and item.numbers[1] or "") end
  for _, pair in ipairs(rule.pairs) do
    local own = pair[side][part]
    local id = id_of(own)
    owns[id] = owns[id] or {}
    table.insert(owns[id], own)
  end
  for _, item in ipairs(items) do
    local of
    local alike = not item.rule and owns[id_of(item)] or {}
    for i = 1, math.min(#alike, MOST_ALIKE) do
      local own_kind = not of and copy_kind(alike[i], item)
      if own_kind and (not kind or kind == own_kind) then of, kind = alike[i], own_kind end
    end
    if of then
      seen[#seen + 1], chosen[#chosen + 1] = { left = of.numbers, right = item.numbers }, item
    end
  end
  if #chosen == 0 or #chosen < #rule.pairs then return nil end
  local own, is_constant = rule.templates[side][part], content.is_constant(chosen[1])
  if is_constant and not may_be_constants(own, template) then return nil end
  local places = names.places({ left = own, right = template }, seen, NOT_EMPTY)
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

---Calls `visit` with each rule and each template with a free item of the same content as the rule's first tensor on a side.
---@param side Side
---@param visit fun(rule: InferredRule, part: integer, template: string)
local function each_candidate(state, side, visit)
  local templates, owners = {}, {}
  for _, template in ipairs(naming.sorted(state[side].by_template)) do
    local has = {}
    for _, item in ipairs(state[side].by_template[template]) do
      local id = not item.rule and content_id(item)
      if id and not has[id] then
        has[id], templates[id] = true, templates[id] or {}
        table.insert(templates[id], template)
      end
    end
  end
  for _, rule in ipairs(state.rules) do
    for part = 1, rule.each and 0 or #rule[side] do
      local id = content_id(rule.pairs[1][side][part])
      if templates[id] then
        owners[id] = owners[id] or {}
        table.insert(owners[id], { rule = rule, part = part })
      end
    end
  end
  for _, id in ipairs(naming.sorted(owners)) do
    local list, by_template = {}, {}
    for _, one in ipairs(owners[id]) do
      local template = one.rule.templates[side][one.part]
      if not by_template[template] then
        by_template[template], list[#list + 1] = {}, template
      end
      table.insert(by_template[template], one)
    end
    near.pairs(templates[id], list, function(template, own)
      for _, one in ipairs(by_template[own]) do visit(one.rule, one.part, template) end
    end)
  end
end

---Assigns unmatched tensors that duplicate a rule's output.
---@param side Side
---@param state MatchState
function beside.copies(state, side)
  local groups = {}
  each_candidate(state, side, function(rule, part, template) groups[#groups + 1] = copies_of(state, rule, side, part, template) end)
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
