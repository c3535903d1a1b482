-- The differences of two checkpoints as tables: tensors of the model with layers folded, an optimizer's states one line each,
-- hyper-parameters, other values.

local cbk = require "cbk"
local diff = require "cbk.diff"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local optimizer_table = require "cbk.optimizer_table"
local shortened = require "cbk.shortened"
local unpaired = require "cbk.unpaired"
local values = require "cbk.diff.values"

local tables = {}

local WIDEST_NAME = 32 -- of a parameter in which a state differs most

---@class DifferenceTable
---@field title string
---@field count integer          differences in it
---@field columns TextColumn[]
---@field rows string[][]
---@field remark string|nil      the largest difference, for people

---@class OneDifference
---@field key string             with the other side's, if that differs
---@field path string            the key of A
---@field d ValueDifference

---@param result Comparison
---@param most integer
---@return OneDifference[]
local function first_differences(result, most, options)
  local out = {}
  for n = 1, math.min(most, #result.different) do
    local d, key, other_key = diff.at(result, n, options)
    out[n] = { key = other_key and ("%s -> %s"):format(key, other_key) or key, path = key, d = d }
  end
  return out
end

-- --- measures

local function measure_text(number)
  return type(number) == "number" and number < math.huge and ("%.3g"):format(number) or type(number) ~= "number" and tostring(number) or ""
end

---The largest finite measure of some differences.
local function largest(members, name)
  local most
  for _, one in ipairs(members) do
    local number = one.d[name]
    if type(number) == "number" and number < math.huge and (not most or number > most) then most = number end
    if type(number) ~= "number" and number ~= nil then return tostring(number) end -- an integer beyond 2^53
  end
  return most and measure_text(most) or ""
end

local function sum(members, name)
  local total = 0
  for _, one in ipairs(members) do total = total + (one.d[name] or 0) end
  return total
end

local IS_TENSOR = { values = true, shape = true, dtype = true }

---The two values as texts. A tensor may be a single number, such as a loss scale.
local function value_texts(d)
  if d.what == "values" then return values.pair_texts(d.largest[1].a, d.largest[1].b) end
  if d.a == d.b then return d.text, "" end -- elements smaller than a byte, which are not compared
  return d.short_a or d.a, d.short_b or d.b
end

---What measures do not say: NaN and infinities, other shapes and dtypes, and a value that is a tensor on one side alone.
local function note_of(members)
  local first = members[1].d
  if first.what == "shape" or first.what == "dtype" then return first.text end
  local notes = { unpaired { nan_a = sum(members, "nan_a"), nan_b = sum(members, "nan_b"), infinite = sum(members, "infinite") } }
  if notes[1] == "" then notes[1] = nil end
  for _, one in ipairs(members) do
    if not IS_TENSOR[one.d.what] then
      notes[#notes + 1] = ("%s in A, %s in B"):format(value_texts(one.d))
      break
    end
  end
  return table.concat(notes, "; ")
end

---The numbers of a key at the places where its group has several: "3" of "h.3.w" in "h.{0..11}.w".
local function place_in(name, key)
  local pattern = name:gsub("[%^%$%(%)%%%.%[%]%*%+%-%?]", "%%%0"):gsub("{[^}]*}", "(%%d+)")
  return table.concat({ key:match("^" .. pattern .. "$") }, ".")
end

---The least of the cosines.
local function cosine_text(members)
  local least
  for _, one in ipairs(members) do
    if one.d.cosine and (not least or one.d.cosine < least) then least = one.d.cosine end
  end
  return least and ("%.6g"):format(least) or ""
end

local function measures(members, place)
  local different, numel = sum(members, "different"), sum(members, "numel")
  return { #members > 1 and numbers.grouped(#members) or "", largest(members, "max_rel"), largest(members, "rel_norm"), place,
    note_of(members), largest(members, "max_abs"), numel > 0 and numbers.percent(different, numel) or "", cosine_text(members) }
end

local SORTED = { rel = "rel norm", abs = "max abs", cosine = "cosine", elements = "differ" } -- the column of an order

---@param order string|nil   that the user has asked for: its column is always shown
local function measured_columns(title, order)
  local columns = { { title = title, share = 0.55 }, { title = "tensors", weight = 8, right = true },
    { title = "max rel", weight = 9, right = true },
    { title = "rel norm", weight = 10, right = true }, { title = "most in", weight = 7 }, { title = "note", weight = 11, is_below = true },
    { title = "max abs", weight = 6, right = true }, { title = "differ", weight = 5, right = true },
    { title = "cosine", weight = 4, right = true } }
  for _, column in ipairs(columns) do
    if order and column.title == SORTED[order] then column.weight = math.huge end
  end
  return columns
end

---"largest: KEY[2, 3]: 0.1 in A, 0.2 in B", of the tensor that differs most.
local function remark_of(list)
  for _, one in ipairs(list) do
    local place = one.d.largest and one.d.largest[1]
    if place then
      local a, b = values.pair_texts(place.a, place.b)
      local position = #place.position > 0 and extents.shape(place.position) or ""
      return ("largest in %s%s: %s in A, %s in B"):format(fold.shown(one.path), position, a, b)
    end
  end
end

-- --- tables

---@param list OneDifference[]
---@param order string|nil   of diff.orders
---@return DifferenceTable
local function tensor_table(title, list, order)
  local entries, rows = {}, {}
  for n, one in ipairs(list) do
    local d = one.d
    entries[n] = { path = one.key, signature = table.concat({ d.what, d.shape or d.text, d.dtype or "" }, "\0"), key = one.key, d = d }
  end
  for n, group in ipairs(fold.groups(entries)) do
    local is_one = #group.members == 1
    rows[n] = { is_one and fold.shown(group.members[1].key) or group.name,
      unpack(measures(group.members, is_one and "" or place_in(group.name, group.members[1].key))) }
  end
  return { title = title, count = #list, columns = measured_columns("tensor", order), rows = rows, remark = remark_of(list) }
end

---One line for each state: "exp_avg", most in the parameter of that name.
---@param optimizer Optimizer
---@param list OneDifference[]
---@param order string|nil   of diff.orders
---@return DifferenceTable
local function states_table(optimizer, list, order)
  local path = optimizer_table.state_path(optimizer)
  local slots, by_slot, rows = {}, {}, {}
  for _, one in ipairs(list) do
    local slot, parameter = optimizer_table.slot_of(optimizer, one.path)
    if not by_slot[slot] then by_slot[slot], slots[#slots + 1] = {}, slot end
    table.insert(by_slot[slot], { d = one.d, parameter = parameter })
  end
  for n, slot in ipairs(slots) do
    local members = by_slot[slot]
    rows[n] = { slot, unpack(measures(members, shortened(fold.shown(members[1].parameter), WIDEST_NAME))) }
  end
  local columns = measured_columns("state", order)
  columns[5].weight = 8.5 -- "most in"
  return { title = "different states, " .. path, count = #list, columns = columns, rows = rows }
end

local function value_table(title, list, prefix)
  local entries, rows = {}, {}
  for n, one in ipairs(list) do
    entries[n] = { path = one.key:sub(#prefix + 1), signature = one.d.what .. one.d.text, d = one.d }
  end
  for n, group in ipairs(fold.groups(entries)) do
    local a, b = value_texts(group.members[1].d)
    rows[n] = { group.name, cbk.shown(a), cbk.shown(b) }
  end
  local columns = { { title = "key" }, { title = "A", weight = 2 }, { title = "B", weight = 1 } }
  return { title = title, count = #list, columns = columns, rows = rows }
end

---The first differences as tables, the model's first.
---@param result Comparison
---@param most integer         differences
---@param optimizers Optimizer[]   of A
---@param options DiffOptions   also `sort`
---@return DifferenceTable[]
function tables.of(result, most, optimizers, options)
  local tensors, others, parts, out = {}, {}, {}, {}
  for _, one in ipairs(first_differences(result, most, options)) do
    local optimizer, part = optimizer_table.part_of(optimizers, one.path)
    local is_number = one.d.what == "values" and one.d.numel == 1 and #one.d.largest == 1
    local list = IS_TENSOR[one.d.what] and not is_number and tensors or others
    if optimizer then
      parts[optimizer] = parts[optimizer] or { state = {}, param_groups = {} }
      list = parts[optimizer][part]
    end
    list[#list + 1] = one
  end
  if #tensors > 0 then out[1] = tensor_table("different tensors", tensors, options.sort) end
  for _, optimizer in ipairs(optimizers) do
    local own = parts[optimizer] or { state = {}, param_groups = {} }
    if #own.state > 0 then out[#out + 1] = states_table(optimizer, own.state, options.sort) end
    local path = optimizer_table.groups_path(optimizer)
    if #own.param_groups > 0 then out[#out + 1] = value_table("different hyper-parameters, " .. path, own.param_groups, path .. ".") end
  end
  if #others > 0 then out[#out + 1] = value_table("different values", others, "") end
  return out
end

return tables
