-- Inferred rules as the converter writes them: names, action, further names, numbers.

local assumptions = require "cbk.infer.assumptions"
local content = require "cbk.infer.content"
local names = require "cbk.infer.names"
local source = require "cbk.infer.source"
local trials = require "cbk.infer.trials"

local rows = {}

local function ordered(list, order) return order and trials.ordered(list, order) or list end

---Adds further names of a rule's tensors, and a check that these tensors are equal, because a larger model's may not be.
---@param row Row
---@param rule InferredRule
---@param side Side
---@param order integer[]|nil   of the rule's keys, if the row has another order
---@param left_name fun(text: string): string
local function add_copies(row, rule, side, order, left_name)
  local own = row[side]
  local function name(text) return side == "left" and left_name(text) or text end
  for i, one in ipairs(rule.also[side]) do
    local pattern, part = name(one[1]), one[2]
    for k, original in ipairs(order or {}) do
      if original == one[2] then part = k break end
    end
    local value = #own == 1 and "t" or ("t[%d]"):format(part)
    local is_plain = #own == 1 and not one.is_transposed
    row.also[side][i] = { pattern = pattern, make = not is_plain
      and ("function(_, t) return %s%s end"):format(value, one.is_transposed and ":transpose(0, 1)" or "") or nil }
    row.checks[#row.checks + 1] = ("rules.refuse.%s(%s, %s, evidence.differs_from(%s, %s%s)),"):format(side, source.text(pattern),
      source.text(("it is another name of '%s' in the pair, and has other values here"):format(own[part])),
      source.text(names.catching(name(one.template), one.places)), source.text(names.format(name(one.original), one.letters)),
      one.is_transposed and ", true" or "")
    if one.is_by_name then row.note = "by name: " .. source.text(pattern) .. " has the same values as others" end
  end
end

---The list of keys of a rule, and their number: from the config, else from an extent of the checkpoint if one shows it.
---@param rule InferredRule
---@param left_name fun(text: string): string
---@return { side: Side, letter: string, text: string }
local function each_of(rule, left_name)
  local each, dim = rule.each, rule.choice.each_dim
  if not dim or each.text:find "at%." then return each end
  local owns, digits = {}, nil
  for i, template in ipairs(rule.templates[each.side]) do
    if each.side == "left" then template = left_name(template) end
    digits = names.digits(template, each.place)
    owns[i] = source.text(names.around(template, each.places, each.place))
  end
  local own = #owns == 1 and owns[1] or ("{ %s }"):format(table.concat(owns, ", "))
  local text = ("counts.counted(%q, %s, %d%s)"):format(each.side, own, dim, digits > 1 and ", " .. digits or "")
  return { side = each.side, letter = each.letter, text = text }
end

---@param rule InferredRule
---@param left_name fun(text: string): string   returns a pattern of the left without its part's name
---@param numbers string|nil   the name of the table with the numbers of the pair's configs
---@return Row
function rows.rule(rule, left_name, numbers)
  local many = #rule.left > 1 and "left" or #rule.right > 1 and "right" or nil
  local first = rule.pairs[1]
  local function in_order(side)
    return function(items) return many == side and ordered(items, rule.order) or items end
  end
  local choice = assumptions.guarded(trials.with_cast(rule.choice, first.left[1], first.right[1]), rule,
    { left = in_order "left", right = in_order "right" }, numbers)
  local row = { options = {}, also = { left = {}, right = {} }, checks = {}, action = choice.text ~= "nil" and choice.text or nil,
    order = first.left[1].order }
  if rule.each then
    row.each = each_of(rule, left_name)
    if choice.text:find "layouts.joined" and not row.each.text:find "at%." then
      row.note = ("always %d, as in the pair: nothing else shows where one of them ends"):format(rule.each.count)
    end
  end
  for _, side in ipairs { "left", "right" } do
    row[side] = {}
    for i, pattern in ipairs(many == side and ordered(rule[side], rule.order) or rule[side]) do
      row[side][i] = side == "left" and left_name(pattern) or pattern
    end
    add_copies(row, rule, side, many == side and rule.order or nil, left_name)
  end
  if rule.divisor then
    row.options[#row.options + 1] = ("number = { forward = function(n) return n / %d end, backward = function(n) return n * %d end }")
      :format(rule.divisor, rule.divisor)
  end
  if rule.offset then
    row.options[#row.options + 1] = ("number = counts.shifted(%d)"):format(rule.offset)
  end
  if rule.is_by_name then row.note = "by name: these tensors have the same values as others" end
  if rule.choice.is_lossy then row.note = "the way back may round" end
  if rule.affine and content.is_constant(rule.pairs[1].left[1]) then
    row.note = "by name: each is one number everywhere, so what is computed is a guess; trained weights tell it"
  end
  return row
end

return rows
