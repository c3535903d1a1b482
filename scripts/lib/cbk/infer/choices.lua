-- The actions that may have happened to the tensors of a rule, the usual ones first.

local cbk = require "cbk"

local choices = {}

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
    local text = 'actions.pair("reshape", function(t, at) return t:reshape %s end, function(t, at) return t:reshape %s end)'
    return add { text = text:format(reshaped(a, b, "left"), reshaped(b, a, "right")) }
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
    local forward = ("function(t, at) return t:permute(%s):reshape %s end"):format(literal(order), reshaped(permuted, b, "left"))
    local backward = ("function(t, at) return t:reshape(%s):permute %s end"):format(literal(back), literal(inverse))
    add { text = ('actions.pair("flat", %s, %s)'):format(forward, backward) }
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
  if same_list(a.shape, b.shape) and (#a.shape == 1 or #a.shape == 2) then
    for _, size in ipairs(divisors(a.shape[1])) do
      local whole = size == a.shape[1]
      for _, inner in ipairs(divisors(size)) do
        local text = whole and ("swapped_rows(%d)"):format(inner) or ("swapped_rows(%d, %d)"):format(inner, size)
        if inner < size then add { text = text, needs = { "swapped_rows" } } end
      end
    end
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
  local list = {}
  for i, n in ipairs(rows) do list[i] = ("%d"):format(n / unit) end
  local shares = table.concat(list, ", ")
  if shares == ("1, "):rep(count - 1) .. "1" then add { text = ("actions.split(%d)"):format(count) } end
  local function fused(more) add { text = ("fused { per = { %s }%s }"):format(shares, more), needs = { "fused" } } end
  fused ""
  fused ", transposed = true"
  local columns = {}
  for i, item in ipairs(trial.right) do columns[i] = item.shape[2] end
  local width = #columns == count and greatest_common(columns)
  for i, n in ipairs(width and columns or {}) do columns[i] = ("%d"):format(n / width) end
  if width then add { text = ("fused { per = { %s }, columns = true }"):format(table.concat(columns, ", ")), needs = { "fused" } } end
  local sizes = divisors(unit)
  for _, groups in ipairs(sizes) do
    if trial.has_config then fused(", groups = " .. groups) end
  end
  for _, size in ipairs(sizes) do fused(", size = " .. size) end
  each_rotation(unit, function(size, dim) fused((", rotary = { %d, %d }"):format(size, dim)) end)
  each_rotation(unit, function(size, dim) fused((", size = %d, rotary = { %d, %d }"):format(size, size, dim)) end)
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

local function reversed(choice)
  local needs = { "reversed", unpack(choice.needs or {}) }
  return { text = ("reversed(%s)"):format(choice.text), needs = needs, has_config = choice.has_config }
end

---@param trial Trial
---@return Choice[]
function choices.of(trial)
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

return choices
