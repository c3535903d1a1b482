-- What can happen to tensors between two layouts, as the source text that a converter has for it. What is tried on the tensors is
-- what is written.

local cbk = require "cbk"
local content = require "cbk.infer.content"

local vocabulary = {}

---The modules that an inferred converter may use, in the order of its file.
vocabulary.modules = {
  { "cbk", "cbk" }, { "rules", "converters.engine.rules" }, { "fields", "converters.engine.fields" },
  { "actions", "converters.vocabulary.actions" }, { "heads", "converters.vocabulary.heads" },
  { "rotary", "converters.vocabulary.rotary" }, { "values", "converters.vocabulary.values" },
}

-- --- definitions that a file gets if it uses them

---@type table<string, { needs?: string[], text: string }>
vocabulary.definitions = {
  reversed = { text = [[
---An action for the other direction.
local function reversed(action) return actions.pair(action.name, action.backward, action.forward) end]] },

  cast = { text = [[
---The left has one dtype, the right another; with an action as well, that one first.
local function cast(left, right, action)
  local function all(value, dtype)
    if type(value) ~= "table" then return value:to(dtype) end
    local out = {}
    for i, one in ipairs(value) do out[i] = one:to(dtype) end
    return out
  end
  return actions.pair("cast", function(value, at)
    if action then value = action.forward(value, at) end
    return all(value, right)
  end, function(value, at)
    if action then value = action.backward(all(value, right), at) end
    return all(value, left)
  end, { parts = action and action.parts or nil })
end]] },

  plus = { text = [[
---The right is the left and a number.
local function plus(term)
  return actions.pair("plus", function(t) return t + term end, function(t) return t - term end, { parts = 1 })
end]] },

  times = { text = [[
---The right is the left times a number.
local function times(factor)
  return actions.pair("times", function(t) return t * factor end, function(t) return t / factor end, { parts = 1 })
end]] },

  rotary_rows = { text = [[
---Heads of `size` rows: the first `dim` of each from two halves into pairs, or back.
local function interleaved(t, size, dim, to_pairs)
  local shape = t:shape()
  local count = shape[1] / size
  local view = t:reshape { count, size, t:numel() / shape[1] }
  local halves = to_pairs and { count, 2, dim / 2, -1 } or { count, dim / 2, 2, -1 }
  local rows = view:slice(1, 0, dim):reshape(halves):permute({ 0, 2, 1, 3 }):reshape { count, dim, -1 }
  if dim < size then rows = cbk.cat({ rows, view:slice(1, dim, size) }, 1) end
  return rows:reshape(shape)
end

local function rotary_rows(size, dim)
  return actions.pair("rotary rows", function(t) return interleaved(t, size, dim, true) end,
    function(t) return interleaved(t, size, dim, false) end)
end]] },

  fused = { needs = { "rotary_rows" }, text = [[
---One tensor on the left, several on the right, by rows (columns with `transposed`). `per` has the share of each part. Without `groups`
---and `size` the parts are below each other. With one of these they alternate, in that many groups or in heads of that many rows.
---`rotary`: size and rotated rows of a head, of the first two parts.
local function fused(options)
  local per, all, dim = options.per, 0, options.rotary
  for _, share in ipairs(per) do all = all + share end
  local function turned(t) return options.transposed and t:dim() == 2 and t:transpose(0, 1) or t end
  local function rotated(t, i, to_pairs) return dim and i < 3 and interleaved(t, dim[1], dim[2], to_pairs) or t end
  local function groups_of(rows) return options.groups or options.size and rows / (all * options.size) or 1 end
  return actions.pair("fused", function(t)
    t = turned(t)
    local shape, out, from = t:shape(), {}, 0
    local groups = groups_of(shape[1])
    local rows = shape[1] / groups / all
    if rows % 1 ~= 0 then cbk.fail("shape", ("%d rows do not split into %d parts"):format(shape[1], groups * all)) end
    local view = t:reshape { groups, shape[1] / groups, t:numel() / shape[1] }
    for i, share in ipairs(per) do
      local part = view:slice(1, from * rows, (from + share) * rows)
      out[i] = rotated(part:reshape(#shape == 1 and { -1 } or { groups * share * rows, shape[2] }), i, true)
      from = from + share
    end
    return out
  end, function(parts)
    local rows, views, shape = 0, {}, parts[1]:shape()
    for _, part in ipairs(parts) do rows = rows + part:shape()[1] end
    local groups = groups_of(rows)
    for i, part in ipairs(parts) do
      views[i] = rotated(part, i, false):reshape { groups, part:shape()[1] / groups, part:numel() / part:shape()[1] }
    end
    return turned(cbk.cat(views, 1):reshape(#shape == 1 and { -1 } or { rows, shape[2] }))
  end, { parts = #per })
end]] },

  stacked_rotary = { text = [[
---One Linear with q, k and v below each other; queries and keys have interleaved rows on the right.
local stacked_rotary = actions.pair("stacked qkv + rotary", function(t, at)
  local q, k, v = unpack(actions.qkv.stacked.forward(t, at))
  return { actions.rotary.queries.forward(q, at), actions.rotary.keys.forward(k, at), v }
end, function(parts, at)
  local q, k, v = unpack(parts)
  return actions.qkv.stacked.backward({ actions.rotary.queries.backward(q, at), actions.rotary.keys.backward(k, at), v }, at)
end, { parts = 3 })]] },

  first_row_last = { text = [[
---The first row of the left is the last one of the right. `dims`: of the left, with leading dims of 1.
local function first_row_last(dims)
  return actions.pair("first row last", function(t)
    local shape = t:shape()
    t = t:reshape { shape[dims - 1], shape[dims] }
    return cbk.cat({ t:slice(0, 1, shape[dims - 1]), t:slice(0, 0, 1) }, 0)
  end, function(t)
    local rows, shape = t:shape()[1], { t:shape()[1], t:shape()[2] }
    for _ = 3, dims do table.insert(shape, 1, 1) end
    return cbk.cat({ t:slice(0, rows - 1, rows), t:slice(0, 0, rows - 1) }, 0):reshape(shape)
  end)
end]] },

  stacked = { text = [[
---Several tensors on the left are one on the right, in a dimension of its own.
local function stacked(dim, transposed)
  local function turned(t) return transposed and t:transpose(0, 1) or t end
  return actions.pair("stacked", function(parts)
    local out = {}
    for i, part in ipairs(parts) do out[i] = turned(part) end
    return cbk.stack(out, dim)
  end, function(t)
    local out = {}
    for i = 1, t:shape()[dim + 1] do out[i] = turned(t:select(dim, i - 1)) end
    return out
  end)
end]] },

  joined = { text = [[
---Several tensors on the left are one on the right, one behind the other in a dimension; `count` of them.
local function joined(dim, count)
  return actions.pair("joined", function(parts) return cbk.cat(parts, dim) end, function(t, at)
    return t:split(t:shape()[dim + 1] / count(at), dim)
  end)
end]] },
}

-- … for config fields.
vocabulary.definitions.in_map = { text = [[
---Fields of the left that are entries of a map on the right: { num_experts = "num_local_experts" }.
local function in_map(entries)
  return {
    forward = function(_, at)
      local map = cbk.dict()
      for entry, field in pairs(entries) do map[entry] = cbk.raw(at.from, field) end
      return map
    end,
    backward = function(map, at)
      for entry, field in pairs(entries) do at:set(field, cbk.raw(map, entry)) end
    end,
  }
end]] }
vocabulary.definitions.times_field = { text = [[
---The right is the left times another field.
local function times_field(of_left, of_right)
  return {
    forward = function(value, at) return value * at.from[of_left] end,
    backward = function(value, at) return value / at.from[of_right] end,
  }
end]] }

local function with_needs(wanted, out)
  for _, name in ipairs(wanted) do
    with_needs(vocabulary.definitions[name].needs or {}, out)
    if not out[name] then
      out[name] = true
      out[#out + 1] = vocabulary.definitions[name].text
    end
  end
  return out
end

---The texts of some definitions, with what they need.
---@param wanted string[]
---@return string[]
function vocabulary.texts(wanted) return with_needs(wanted, {}) end

local prelude

---An expression as what it gives in a converter's file.
---@param choice Choice
---@return Action
function vocabulary.evaluate(choice)
  if not prelude then
    prelude = {}
    for i, module in ipairs(vocabulary.modules) do prelude[i] = ('local %s = require "%s"'):format(module[1], module[2]) end
    prelude = table.concat(prelude, "\n") .. "\n"
  end
  local text = prelude .. table.concat(vocabulary.texts(choice.needs or {}), "\n") .. "\nreturn " .. choice.text
  return assert(loadstring(text, "=" .. choice.text))()
end

-- --- what there is to try

---@class Choice   An action as a converter has it.
---@field text string      an expression; "nil" is a plain copy
---@field needs? string[]  definitions
---@field is_lossy? boolean   the way back may round
---@field has_config? boolean   it reads the right config
---@field order? integer[]    of the right's keys

---@class Trial    What is known of the tensors of a rule.
---@field rule InferredRule
---@field left Item[]
---@field right Item[]
---@field has_config boolean   the right config counts heads as the Model Zoo's do
---@field configs { left: Dict, right: Dict }

local function divisors(n)
  local out = {}
  for i = n, 2, -1 do
    if n % i == 0 then out[#out + 1] = i end
  end
  return out
end

---Sizes of heads, and of the rotated part of each, the usual ones first.
local function each_rotation(rows, add)
  for _, size in ipairs(divisors(rows)) do
    if size % 2 == 0 and size <= 1024 then
      for _, dim in ipairs { size, size / 2, size / 4 } do
        if dim % 2 == 0 and dim > 2 then add(size, dim) end
      end
    end
  end
end

local function same_list(a, b) return table.concat(a, ",") == table.concat(b, ",") end

---An expression for an extent: of the config that is read in that direction, or the number itself.
---@param trial Trial
---@param side Side   that is read
local function extent(trial, n, side)
  if n == 1 then return "1" end
  local found
  local function look(map, path, depth)
    for key, value in cbk.items(map) do
      local is_name = type(key) == "string" and key:find "^[%a_][%w_]*$"
      local kind = is_name and not found and cbk.kind(map, key)
      if kind and value == n then found = path .. "." .. key end
      if kind == "list" and value[1] == n then found = ("%s.%s[1]"):format(path, key) end
      if kind == "dict" and depth < 2 then look(value, path .. "." .. key, depth + 1) end
    end
  end
  if trial.configs[side] then look(trial.configs[side], "at." .. side, 1) end
  return found or tostring(n)
end

---Reshapes: leading dims of 1, and permuted dims that the right has as one.
---@param trial Trial
---@param add fun(choice: Choice)
local function add_shapes(trial, add)
  local a, b = trial.left[1].shape, trial.right[1].shape
  if same_list(a, b) and #a < 3 then return end
  local function literal(list) return #list == 0 and "{}" or "{ " .. table.concat(list, ", ") .. " }" end
  local function squeezed(list)
    local out = {}
    for _, n in ipairs(list) do out[#out + 1] = n ~= 1 and n or nil end
    return out
  end
  ---The shape `to` of a tensor `from`, with one free extent.
  local function reshaped(from, to, side)
    local out, is_free = {}, true
    for i, n in ipairs(to) do
      if n == 1 then
        out[i] = "1"
      elseif i == 1 and from[1] == n and #squeezed(to) > 1 then
        out[i] = "t:shape()[1]"
      elseif is_free then
        out[i], is_free = "-1", false
      else
        out[i] = extent(trial, n, side)
      end
    end
    return literal(out)
  end
  if same_list(squeezed(a), squeezed(b)) and not same_list(a, b) then
    return add { text = ('actions.pair("reshape", function(t, at) return t:reshape %s end, function(t, at) return t:reshape %s end)'):format(
      reshaped(a, b, "left"), reshaped(b, a, "right")) }
  end
  local function try(order)
    local permuted, back, inverse = {}, {}, {}
    for i, dim in ipairs(order) do permuted[i], inverse[dim + 1] = a[dim + 1], i - 1 end
    local is_free = true
    for i, n in ipairs(permuted) do
      if i == 1 and n == b[1] then
        back[i] = "t:shape()[1]"
      else
        back[i] = extent(trial, n, "right")
        if back[i] == tostring(n) and n ~= 1 and is_free then back[i], is_free = "-1", false end
      end
    end
    add { text = ('actions.pair("flat", function(t, at) return t:permute(%s):reshape %s end, function(t, at) return t:reshape(%s):permute %s end)')
      :format(literal(order), reshaped(permuted, b, "left"), literal(back), literal(inverse)) }
  end
  local function permutations(list, from)
    if from > #list then return try { unpack(list) } end
    for i = from, #list do
      list[from], list[i] = list[i], list[from]
      permutations(list, from + 1)
      list[from], list[i] = list[i], list[from]
    end
  end
  local dims = {}
  for i = 1, #a do dims[i] = i - 1 end
  if #a > 2 and #a <= 5 then permutations(dims, 1) end
end

local function has_word(item, ...)
  for word in item.key:gmatch "%a+" do
    for _, one in ipairs { ... } do
      if word == one then return true end
    end
  end
end

---One key on each side.
---@param trial Trial
---@param add fun(choice: Choice)
local function one_to_one(trial, add)
  local a, b = trial.left[1], trial.right[1]
  local affine = trial.rule.affine
  if affine then
    local factor, term = unpack(affine)
    return add(factor == 1 and { text = ("plus(%.9g)"):format(term), needs = { "plus" }, is_lossy = true }
      or { text = ("times(%.9g)"):format(factor), needs = { "times" }, is_lossy = true })
  end
  if same_list(a.shape, b.shape) then add { text = "nil" } end
  if #a.shape == 2 then add { text = "actions.transpose" } end
  if same_list(a.shape, b.shape) and #a.shape < 3 then
    if trial.has_config then
      local both = { "queries", "keys" }
      if has_word(b, "k", "key") then both = { "keys", "queries" } end
      if #a.shape == 1 then table.insert(both, has_word(b, "norm") and 1 or 3, "vector") end
      for _, which in ipairs(both) do add { text = "actions.rotary." .. which, has_config = true } end
    end
    each_rotation(a.shape[1] or 1, function(size, dim)
      add { text = ("rotary_rows(%d, %d)"):format(size, dim), needs = { "rotary_rows" } }
      add { text = ("reversed(rotary_rows(%d, %d))"):format(size, dim), needs = { "rotary_rows", "reversed" } }
    end)
  end
  if #b.shape == 2 and #a.shape >= 2 then
    add { text = ("first_row_last(%d)"):format(#a.shape), needs = { "first_row_last" } }
  end
  if #a.shape == 2 and #b.shape > 2 then
    add { text = ("reversed(first_row_last(%d))"):format(#b.shape), needs = { "first_row_last", "reversed" } }
  end
  add_shapes(trial, add)
end

local function greatest_common(list)
  local out = 0
  for _, n in ipairs(list) do
    while n ~= 0 do out, n = n, out % n end
  end
  return out
end

---One key on the left, several on the right.
---@param trial Trial
---@param add fun(choice: Choice)
local function one_to_many(trial, add)
  local count, rows = #trial.right, {}
  for i, item in ipairs(trial.right) do rows[i] = item.shape[1] end
  if count == 3 and trial.has_config then
    for _, text in ipairs { "actions.qkv.stacked", "actions.qkv.conv1d", "actions.qkv.grouped(heads.keys)",
      "actions.qkv.grouped(heads.keys, { rotary = false })" } do add { text = text, has_config = true } end
    add { text = "stacked_rotary", needs = { "stacked_rotary" }, has_config = true }
  end
  local unit = greatest_common(rows)
  local function shares(of)
    local out = {}
    for i, n in ipairs(rows) do out[i] = ("%d"):format(n / of) end
    return table.concat(out, ", ")
  end
  if unit == rows[1] and shares(unit) == ("1, "):rep(count - 1) .. "1" then add { text = ("actions.split(%d)"):format(count) } end
  local function fused(more, of) add { text = ("fused { per = { %s }%s }"):format(shares(of or unit), more), needs = { "fused" } } end
  fused ""
  fused ", transposed = true"
  local sizes = divisors(unit)
  for _, groups in ipairs(sizes) do
    if trial.has_config then fused(", groups = " .. groups) end
  end
  for _, size in ipairs(sizes) do fused(", size = " .. size, size) end
  each_rotation(unit, function(size, dim) fused((", rotary = { %d, %d }"):format(size, dim)) end)
  each_rotation(unit, function(size, dim) fused((", size = %d, rotary = { %d, %d }"):format(size, size, dim), size) end)
end

---Like keys on the left, one on the right.
---@param trial Trial
---@param add fun(choice: Choice)
local function stack(trial, add)
  for dim = 0, #trial.right[1].shape - 1 do
    add { text = ("stacked(%d)"):format(dim), needs = { "stacked" } }
    add { text = ("stacked(%d, true)"):format(dim), needs = { "stacked" } }
    add { text = ("joined(%d, %s)"):format(dim, trial.rule.each.text), needs = { "joined" } }
  end
end

-- --- trying them

local SMALL = 65536 -- elements; of larger tensors, a few rows are compared first

local function same_values(made, wanted)
  if type(made) ~= "userdata" or not same_list(made:shape(), wanted:shape()) then return false end
  local dtype = content.common(made.dtype, wanted.dtype)
  if not dtype then return false end
  if made.dtype ~= dtype then made = made:to(dtype) end
  if wanted.dtype ~= dtype then wanted = wanted:to(dtype) end
  if made:numel() > SMALL and made:dim() > 0 then
    local last = made:shape()[1]
    for _, at in ipairs { 1, math.floor(last / 3) } do
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
    if not same_values(list[i], item.tensor) then return false end
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
    local action = vocabulary.evaluate(choice)
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

local function reversed(choice)
  local needs = { "reversed", unpack(choice.needs or {}) }
  return { text = ("reversed(%s)"):format(choice.text), needs = needs, has_config = choice.has_config }
end

local function ordered(items, order)
  local out = {}
  for i, k in ipairs(order) do out[i] = items[k] end
  return out
end

---@param trial Trial
---@return Choice[]
local function choices_of(trial)
  local out, each = {}, trial.rule.each
  local function add(choice) out[#out + 1] = choice end
  local function turned(make)
    local other = { rule = trial.rule, left = trial.right, right = trial.left, has_config = trial.has_config,
      configs = { left = trial.configs.right, right = trial.configs.left } }
    make(other, function(choice) add(reversed(choice)) end)
  end
  if each then
    if each.side == "left" then stack(trial, add) else turned(stack) end
  elseif #trial.left > 1 then
    turned(one_to_many)
  elseif #trial.right > 1 then
    one_to_many(trial, add)
  else
    one_to_one(trial, add)
  end
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
function vocabulary.with_cast(choice, left, right)
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
function vocabulary.find(rule, configs, has_config)
  local pair = smallest(rule)
  local trial = { rule = rule, left = pair.left, right = pair.right, configs = configs, has_config = has_config }
  local many = not rule.each and (#pair.left > 1 and "left" or #pair.right > 1 and "right") or nil
  local list = choices_of(trial)
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
function vocabulary.is_affine(rule) return vocabulary.find(rule, {}, false) ~= nil end

-- --- tensors that one side makes of its config

---Whether a field of a config has a value; its name.
local function field_with(config, value)
  for name, own in cbk.items(config or cbk.dict()) do
    if type(name) == "string" and own == value then return name end
  end
end

local function number(x) return ("%.17g"):format(x) end

---A function that makes a tensor that the other side lacks: a buffer, or one number everywhere.
---@param item Item
---@param configs { left: Dict|nil, right: Dict|nil }
---@param rows? Tensor   of the rule that will write it
---@return string|nil text   an expression
function vocabulary.maker(item, configs, rows)
  local shape, list = item.shape, {}
  local n = shape[#shape]
  local function add(text) list[#list + 1] = text end
  if #shape == 0 and item.dtype == "float32" then add(("actions.buffer.scalar(%s)"):format(number(item.tensor:item()))) end
  if #shape == 4 and shape[1] == 1 and shape[2] == 1 and shape[3] == n then
    local field = field_with(configs.right, n)
    if field then add(("actions.buffer.causal_mask %q"):format(field)) end
    add(('function() return cbk.tril({ 1, 1, %d, %d }, { dtype = "%s" }) end'):format(n, n, item.dtype))
  end
  if #shape == 2 and shape[1] == 1 and item.dtype == "int64" and rows and rows:shape()[1] >= n then
    local field = field_with(configs.left, n)
    if field then add(("actions.buffer.positions %q"):format(field)) end
  end
  if #shape == 1 and item.dtype == "float32" then
    for _, base in ipairs { 10000, configs.left and configs.left.rope_theta or nil } do
      if type(base) == "number" then add(("actions.rotary.frequencies(%s)"):format(number(base))) end
    end
  end
  if #shape == 2 and n == 1 then add "actions.buffer.alibi_slopes" end
  if item.numel > 1 and item.numel < 2 ^ 24 or #shape > 0 then
    local stats = item.tensor:stats()
    local is_one = stats.min and stats.min == stats.max and stats.nan + stats.inf == 0
    local extents = {}
    for i, extent_of in ipairs(shape) do
      local field = extent_of > 1 and configs.right and field_with(configs.right, extent_of)
      extents[i] = field and "at.right." .. field or tostring(extent_of)
    end
    if is_one then
      add(('function(at) return cbk.full({ %s }, %s, { dtype = "%s" }) end'):format(table.concat(extents, ", "),
        number(tonumber(stats.min)), item.dtype))
    end
  end
  for _, text in ipairs(list) do
    local fine, made = pcall(function()
      local make = vocabulary.evaluate { text = text }
      return make({ left = configs.left or {}, right = configs.right or {}, side = "left", key = item.key }, rows)
    end)
    if fine and made and same_values(made, item.tensor) then return text end
  end
end

return vocabulary
