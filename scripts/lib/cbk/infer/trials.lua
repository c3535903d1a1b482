-- Tries actions on the tensors of a rule, and takes the first that converts left to right and right to left.

local choices = require "cbk.infer.choices"
local content = require "cbk.infer.content"
local expression = require "cbk.infer.expression"
local heads = require "converters.vocabulary.heads"
local head_words = require "cbk.infer.heads"
local placed = require "cbk.placed"

local trials = {}

local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end

local SMALL = 65536 -- elements; for larger tensors, a few rows are compared first

---Whether two tensors have the same bits, in the coarser of their dtypes.
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

---Whether an action converts the left to the right, and the right to the left.
---@param choice Choice
---@param trial Trial
---@param left Item[]
---@param right Item[]
---@param is_forward? boolean   only left to right
local function fits(choice, trial, left, right, is_forward)
  local fine, result = pcall(function()
    local each = trial.rule.each
    local is_left_list, is_right_list = #left > 1 or each and each.side == "left" or false,
      #right > 1 or each and each.side == "right" or false
    local action = expression.value(choice.text)
    if not action then return is_made(left[1].tensor, right, false) end
    local function at(side)
      return { left = trial.configs.left or {}, right = trial.configs.right or {}, side = side, key = "", warn = function() end }
    end
    if not is_made(action.forward(value_of(left, is_left_list), at "left"), right, is_right_list) then return false end
    return choice.is_lossy or is_forward or is_made(action.backward(value_of(right, is_right_list), at "right"), left, is_left_list)
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

---Items in another order, or, where each pattern of a rule has several keys, blocks of them.
---@generic T
---@param items T[]
---@param order integer[]
---@return T[]
function trials.ordered(items, order)
  local out, size = {}, #items / #order
  for _, k in ipairs(order) do
    for i = 1, size do out[#out + 1] = items[(k - 1) * size + i] end
  end
  return out
end
local ordered = trials.ordered

---The pair with the smallest tensors, which is compared first.
local function smallest(rule)
  local out = rule.pairs[1]
  for _, pair in ipairs(rule.pairs) do
    if pair.left[1].numel < out.left[1].numel then out = pair end
  end
  return out
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
  out.text = ('layouts.cast("%s", "%s"%s)'):format(left.dtype, right.dtype, choice.text == "nil" and "" or ", " .. choice.text)
  return out
end

---The module with an item's linear or norm: "layers.#.self_attn".
---@param item Item
---@return string
function trials.module(item) return item.template:match "^(.*)%.[^.]+%.[^.]+$" or "" end

---The action of a vector with equal elements. Norms of queries and keys have rotary rows if the queries and keys have them. Other vectors
---of queries and keys, such as biases, may or may not have them.
---@param left Item
---@param item Item   of the right
---@param choice Choice   that fits
---@param rotary? Choice
---@return Choice
local function of_constant(left, item, choice, has_config, rotary)
  local is_norm = item.key:find "norm" and item.key:gsub("norm", " "):find "%f[%a][qk]%f[%A]"
  local function is_of_queries(one) return head_words.has_word(one, "q", "k", "qn", "kn", "query", "key") end
  if rotary and not is_norm and (is_of_queries(left) or is_of_queries(item)) then
    return { text = "evidence.only_equal()" }
  end
  if not is_norm or not rotary then return choice.text:find "rotary" and { text = "nil" } or choice end
  return has_config and { text = "actions.rotary.vector", has_config = true } or rotary
end

---A choice limited to one number of the right config, if other actions would give the same result with it.
---@param choice Choice   that fits
---@param trial Trial
---@return Choice
local function with_number(choice, trial)
  local right = trial.configs.right
  local what, number_of, number
  local is_rotated = choice.text:find "rotary" and not choice.text:find "rotary = false" or choice.text:find "grouped"
  if choice.text == "nil" then
    for _, which in ipairs { "queries", "keys" } do
      local one = { text = "actions.rotary." .. which }
      is_rotated = is_rotated or fits(one, trial, trial.left, trial.right)
    end
  end
  if #trial.left + #trial.right > 2 and not choice.assumes then
    local fine, count = pcall(heads.keys, right)
    if fine and count == 1 then what, number_of, number = "key heads", "heads.keys", 1 end
  end
  if is_rotated and right.rotary_dim == 2 then
    what, number_of, number = "rotary_dim", "function(config) return config.rotary_dim end", 2
  end
  if not what then return choice end
  return { text = ("evidence.only_with(%q, %s, %d, %s)"):format(what, number_of, number, choice.text), has_config = true,
    assumes = choice.assumes }
end

---Where the tensors of a pair are, if they are large and in files.
---@param left Item[]
---@param right Item[]
---@return string|nil
local function place_of(left, right)
  local list = {}
  for _, items in ipairs { left, right } do
    for _, item in ipairs(items) do list[#list + 1] = item.tensor end
  end
  return left[1].numel > SMALL and placed.all_at(list) or nil
end

---The action of a rule; nil if no known action fits.
---@param rule InferredRule
---@param configs { left: Dict|nil, right: Dict|nil }
---@param has_config boolean
---@param rotary? table<string, Choice>   for rotary rows, by module
---@return Choice|nil choice   with the order of the keys of the side that has several
function trials.find(rule, configs, has_config, rotary)
  local pair = smallest(rule)
  local trial = { rule = rule, left = pair.left, right = pair.right, configs = configs, has_config = has_config }
  local many = #rule.left > 1 and "left" or #rule.right > 1 and "right" or nil
  local orders = many and #rule[many] <= 4 and permutations_of(#rule[many]) or { false }
  if rule.like and rule.like.order then table.insert(orders, 1, rule.like.order) end
  local function sides(one, order)
    return many == "left" and order and ordered(one.left, order) or one.left,
      many == "right" and order and ordered(one.right, order) or one.right
  end
  local function fits_others(choice, order)
    local seen = {}
    for _, other in ipairs(rule.pairs) do
      local left, right = sides(other, order)
      local place = place_of(left, right)
      local is_known = place and seen[place]
      if place then seen[place] = true end
      if other ~= pair and not is_known and not fits(choice, trial, left, right, true) then return false end
      for _, items in ipairs { left, right } do
        for _, item in ipairs(items) do item.on_read(item.key, item.tensor:nbytes()) end
      end
    end
    return true
  end
  for _, order in ipairs(orders) do
    local left, right = sides(pair, order)
    local own = { rule = rule, left = left, right = right, configs = configs, has_config = has_config }
    local list = choices.of(own)
    if rule.like and rule.like.choice then -- the weights' action, even if all elements are equal
      table.insert(list, 1, rule.like.choice)
    end
    for _, choice in ipairs(list) do
      if fits(choice, trial, left, right) and fits_others(choice, order) then
        if #pair.left + #pair.right == 2 and not rule.like and content.is_constant(left[1]) then
          choice = of_constant(left[1], right[1], choice, has_config, (rotary or {})[trials.module(right[1])])
        elseif has_config and not rule.each and choice ~= (rule.like and rule.like.choice) then
          choice = with_number(choice, own)
        end
        return choice, order or nil
      end
    end
  end
end

---Whether an action gives the same result as a rule's own, so that a weight and its bias can share it.
---@param rule InferredRule   with its own choice
---@param choice Choice
---@param configs { left: Dict|nil, right: Dict|nil }
function trials.also_fits(rule, choice, configs)
  local trial = { rule = rule, configs = configs }
  for _, pair in ipairs(rule.pairs) do
    local left = #pair.left > 1 and rule.order and ordered(pair.left, rule.order) or pair.left
    local right = #pair.right > 1 and rule.order and ordered(pair.right, rule.order) or pair.right
    if not fits(choice, trial, left, right) then return false end
  end
  return true
end

---Whether a rule's factor and term give its values.
---@param rule InferredRule
function trials.is_affine(rule) return trials.find(rule, {}, false) ~= nil end

return trials
