-- Tries actions on the tensors of a rule, and takes the first that makes the right of the left, and the left of the right.

local choices = require "cbk.infer.choices"
local content = require "cbk.infer.content"
local definitions = require "cbk.infer.definitions"

local trials = {}

local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end

local SMALL = 65536 -- elements; of larger tensors, a few rows are compared first

---Whether a tensor has the bits of another, in the coarser of their dtypes.
---@param made any
---@param wanted Tensor
function trials.same_values(made, wanted)
  if type(made) ~= "userdata" or not same_list(made:shape(), wanted:shape()) then return false end
  local dtype = content.common(made.dtype, wanted.dtype)
  if not dtype then return false end
  if made.dtype ~= dtype then made = made:to(dtype) end
  if wanted.dtype ~= dtype then wanted = wanted:to(dtype) end
  if made:numel() > SMALL and made:dim() > 0 then
    local last = made:shape()[1]
    for _, at in ipairs { math.min(1, last - 1), math.floor(last / 3) } do
      if not made:slice(0, at, at + 1):compare(wanted:slice(0, at, at + 1)).same_bits then return false end
    end
  end
  return made:compare(wanted).same_bits
end

---@param items Item[]
---@param is_list boolean
local function value_of(items, is_list)
  if not is_list then return items[1].tensor end
  local out = {}
  for i, item in ipairs(items) do out[i] = item.tensor end
  return out
end

---@param is_list boolean
---@param items Item[]
local function is_made(made, items, is_list)
  local list = is_list and made or { made }
  if type(list) ~= "table" or #list ~= #items then return false end
  for i, item in ipairs(items) do
    if not trials.same_values(list[i], item.tensor) then return false end
  end
  return true
end

---Whether an action makes the right of the left, and the left of the right.
---@param choice Choice
---@param trial Trial
---@param left Item[]
---@param right Item[]
local function fits(choice, trial, left, right)
  local fine, result = pcall(function()
    local each = trial.rule.each
    local is_left_list, is_right_list = #left > 1 or each and each.side == "left" or false,
      #right > 1 or each and each.side == "right" or false
    local action = definitions.evaluate(choice)
    if not action then return is_made(left[1].tensor, right, false) end
    local function at(side) return { left = trial.configs.left or {}, right = trial.configs.right or {}, side = side } end
    if not is_made(action.forward(value_of(left, is_left_list), at "left"), right, is_right_list) then return false end
    return choice.is_lossy or is_made(action.backward(value_of(right, is_right_list), at "right"), left, is_left_list)
  end)
  if not fine and type(result) == "table" and result.code == "interrupted" then error(result, 0) end
  return fine and result
end

local function permutations_of(count)
  local out = {}
  local function go(list, from)
    if from > #list then
      out[#out + 1] = { unpack(list) }
      return
    end
    for i = from, #list do
      list[from], list[i] = list[i], list[from]
      go(list, from + 1)
      list[from], list[i] = list[i], list[from]
    end
  end
  local list = {}
  for i = 1, count do list[i] = i end
  go(list, 1)
  return out
end

local function ordered(items, order)
  local out = {}
  for i, k in ipairs(order) do out[i] = items[k] end
  return out
end

---The pair whose tensors are compared first.
local function smallest(rule)
  local out = rule.pairs[1]
  for _, pair in ipairs(rule.pairs) do
    if pair.left[1].numel < out.left[1].numel then out = pair end
  end
  return out
end

---Whether any order of an item's elements is the same.
local function is_constant(item)
  local stats = item.tensor:stats()
  return stats.min ~= nil and stats.min == stats.max and stats.nan == 0
end

---A choice with casts, if the dtypes of both sides differ.
---@param choice Choice
---@param left Item
---@param right Item
---@return Choice
function trials.with_cast(choice, left, right)
  if left.dtype == right.dtype then return choice end
  local out = {}
  for name, value in pairs(choice) do out[name] = value end
  out.text = ('cast("%s", "%s"%s)'):format(left.dtype, right.dtype, choice.text == "nil" and "" or ", " .. choice.text)
  out.needs = { "cast", unpack(choice.needs or {}) }
  return out
end

---The action of a rule; nil if none of the vocabulary does it.
---@param rule InferredRule
---@param configs { left: Dict|nil, right: Dict|nil }
---@param has_config boolean
---@return Choice|nil choice   with the order of the keys of the side that has several
function trials.find(rule, configs, has_config)
  local pair = smallest(rule)
  local trial = { rule = rule, left = pair.left, right = pair.right, configs = configs, has_config = has_config }
  local many = not rule.each and (#pair.left > 1 and "left" or #pair.right > 1 and "right") or nil
  local list = choices.of(trial)
  if rule.like and rule.like.choice then -- the weights' action, also where all elements are the same
    table.insert(list, 1, rule.like.choice)
  end
  local orders = many and #pair[many] <= 4 and permutations_of(#pair[many]) or { false }
  if rule.like and rule.like.order then table.insert(orders, 1, rule.like.order) end
  for _, order in ipairs(orders) do
    local left = many == "left" and order and ordered(pair.left, order) or pair.left
    local right = many == "right" and order and ordered(pair.right, order) or pair.right
    for _, choice in ipairs(list) do
      local one = { rule = rule, left = left, right = right, configs = configs, has_config = has_config }
      if fits(choice, one, left, right) then
        if choice.text:find "rotary" and not rule.like and is_constant(left[1]) then choice = { text = "nil" } end
        return choice, order or nil
      end
    end
  end
end

---Whether a rule's factor and term give its values.
---@param rule InferredRule
function trials.is_affine(rule) return trials.find(rule, {}, false) ~= nil end

return trials
