-- Compares two trees of leaves by key, then by content, and ranks the differences.

local cbk = require "cbk"
local errors = require "cbk.errors"
local renamed = require "cbk.diff.renamed"
local team = require "cbk.team"
local values = require "cbk.diff.values"

local diff = {}

---@class Comparison
---@field a LeafRows
---@field b LeafRows
---@field in_b fun(i: integer): integer|nil  the row of `b` for one of `a`
---@field other_key table<integer, integer>  rows of `b` with other keys that are compared with rows of `a`
---@field only_a integer[]      rows of `a`
---@field only_b integer[]      rows of `b`
---@field renamed { a: string, b: string }[]   the same content under another key
---@field different integer[]   rows of `a`: first differences that are not in elements, then the largest
---@field tensors table<integer, ValueDifference>  the first differences of tensors; finding them takes a while
---@field measures table<integer, number>           for tensors with different values, the measure that they are sorted by
---@field same integer
---@field equal boolean

---Where and how two rows differ; nil if they are equal.
local function compare_rows(a, i, b, k, options)
  return errors.within(function() return cbk.quote(a:path(i)) end, values.compare, a:raw(i), b:raw(k), options)
end

---The rows that were not matched.
local function without(list, is_taken)
  local out = {}
  for _, i in ipairs(list) do
    if not is_taken[i] then out[#out + 1] = i end
  end
  return out
end

---The measure of a difference for each order. NaN and infinities are the largest.
local BY = {
  rel = function(d) return d.rel_norm ~= d.rel_norm and math.huge or d.rel_norm or d.max_rel end,
  abs = function(d) return tonumber(tostring(d.max_abs):match "^[^UL]+") or d.max_abs end,
  cosine = function(d) return d.cosine and -d.cosine or math.huge end,
  elements = function(d) return d.different / d.numel end,
}
---@type string[]
diff.orders = { "rel", "abs", "cosine", "elements", "key", least = "cosine: the least alike first" }

---Differences that are kept with their texts and positions. Others are computed again when they are shown.
---@type integer
diff.MOST_KEPT = 10000
local OF_TENSORS = { values = true, shape = true, dtype = true }

---Keeps the difference of a row.
---@param result Comparison
---@param i integer   row of `a`
---@param d ValueDifference
---@param order string   of diff.orders
local function keep(result, i, d, order)
  if OF_TENSORS[d.what] and result.kept < diff.MOST_KEPT then result.tensors[i], result.kept = d, result.kept + 1 end
  if d.what ~= "values" or not BY[order] then return end
  local is_infinite = type(d.max_abs) == "number" and d.max_abs == math.huge
  result.measures[i] = is_infinite and math.huge or BY[order](d)
end

---Compares rows with their counterparts, and keeps the differences.
---@param result Comparison
---@param list integer[]   rows of `a`
local function compare_all(result, list, options, wanted)
  local function bytes(n) return result.a[list[n]].bytes or 0 end
  local difference_of = team.shared(#list, bytes, function(n)
    local i = list[n]
    local difference = compare_rows(result.a, i, result.b, result.in_b(i), options)
    wanted.on_read(result.a:path(i), 2 * bytes(n))
    return difference
  end, wanted.files)
  for n, i in ipairs(list) do
    local difference = difference_of(n)
    if difference then
      result.different[#result.different + 1] = i
      keep(result, i, difference, wanted.order)
    else
      result.same = result.same + 1
    end
  end
end

---Pairs keys that only one side has: first by content, then other tensors with the same pattern of names, which are compared.
local function take_renamed(result, options, wanted)
  local a, b = result.a, result.b
  local function is_wanted(i, k) return wanted.row(a, i) or wanted.row(b, k) end
  local of_a = renamed.pairs(a, result.only_a, b, result.only_b, wanted)
  local taken_a, taken_b, same, known = {}, {}, {}, {}
  for i, k in pairs(of_a) do
    taken_a[i], taken_b[k] = true, true
    known[#known + 1] = { a = a:path(i), b = b:path(k) }
    if is_wanted(i, k) then same[i] = k end
  end
  local left_a, left_b = without(result.only_a, taken_a), without(result.only_b, taken_b)
  for i, k in pairs(renamed.alike(known, a, left_a, b, left_b)) do
    taken_a[i], taken_b[k] = true, true
    if is_wanted(i, k) then
      result.other_key[i] = k
      local difference = compare_rows(a, i, b, k, options)
      if difference then
        result.different[#result.different + 1] = i
        keep(result, i, difference, wanted.order)
      else
        same[i] = k
      end
    end
  end
  for _, i in ipairs(result.only_a) do
    if same[i] then result.renamed[#result.renamed + 1] = { a = a:path(i), b = b:path(same[i]) } end
  end
  table.sort(result.different)
  result.only_a, result.only_b = without(result.only_a, taken_a), without(result.only_b, taken_b)
end

---Keeps only the wanted rows among those that only one side has.
local function choose_only(result, wanted)
  for _, side in ipairs { "a", "b" } do
    local left = {}
    for _, i in ipairs(result["only_" .. side]) do
      if wanted.row(result[side], i) then left[#left + 1] = i end
    end
    result["only_" .. side] = left
  end
end

---Removes names of tied tensors that the other side has under another name.
local function drop_other_names(result)
  local is_matched = {}
  for i = 1, #result.a do
    if result.in_b(i) then is_matched[result.a:path(i)] = true end
  end
  for _, side in ipairs { "a", "b" } do
    local left = {}
    for _, i in ipairs(result["only_" .. side]) do
      if not renamed.is_other_name(result[side], i, is_matched) then left[#left + 1] = i end
    end
    result["only_" .. side] = left
  end
end

---@param result Comparison
---@param order string   of diff.orders
local function rank(result, order)
  if not BY[order] then return end
  local place, value = {}, result.measures
  for n, i in ipairs(result.different) do place[i] = n end
  table.sort(result.different, function(i, k)
    if value[i] == value[k] then return place[i] < place[k] end
    if value[i] == nil or value[k] == nil then return value[i] == nil end
    return value[i] > value[k]
  end)
end

---The files of two checkpoints.
---@param a Checkpoint
---@param b Checkpoint
---@return string[]
function diff.files(a, b)
  local out = {}
  for _, checkpoint in ipairs { a, b } do
    for _, path in ipairs(checkpoint.files) do out[#out + 1] = path end
  end
  return out
end

---@class DiffWanted
---@field row fun(rows: LeafRows, i: integer): boolean   whether a row is compared with its counterpart
---@field without_other_names? boolean                   names of tied tensors may be missing
---@field order string
---@field files string[]   of both
---@field on_read fun(key: string, bytes: integer)

---@param a LeafRows
---@param b LeafRows
---@param options DiffOptions
---@param wanted DiffWanted
---@return Comparison
function diff.compare(a, b, options, wanted)
  options.known = options.known or {}
  local in_b, in_a = values.matcher(a, b), values.matcher(b, a)
  local result = { a = a, b = b, other_key = {}, only_a = {}, only_b = {}, renamed = {}, different = {}, tensors = {}, measures = {},
    kept = 0, same = 0 }
  result.in_b = function(i) return result.other_key[i] or in_b(i) end
  local compared = {} -- rows of `a`
  for i = 1, #a do
    local k = in_b(i)
    if not k then
      table.insert(result.only_a, i)
    elseif wanted.row(a, i) or wanted.row(b, k) then
      compared[#compared + 1] = i
    end
  end
  compare_all(result, compared, options, wanted)
  for k = 1, #b do
    if not in_a(k) then table.insert(result.only_b, k) end
  end
  if wanted.without_other_names then drop_other_names(result) end
  if #result.only_a > 0 and #result.only_b > 0 and not options.keys_only then take_renamed(result, options, wanted) end
  choose_only(result, wanted)
  rank(result, wanted.order)
  result.equal = #result.only_a + #result.only_b + #result.renamed + #result.different == 0
  return result
end

---The `n`th difference, with its key.
---@param result Comparison
---@param n integer
---@param options DiffOptions
---@return ValueDifference difference, string key
---@return string|nil other_key   the key in B, if it differs
function diff.at(result, n, options)
  local i = result.different[n]
  local k = result.other_key[i]
  return result.tensors[i] or compare_rows(result.a, i, result.b, result.in_b(i), options), diff.key_of(result.a, i),
    k and result.b:path(k)
end

---A row's key: "a.b", or "a.b (2)" for the second row with this key.
---@param rows LeafRows
---@param i integer
---@return string
function diff.key_of(rows, i)
  local earlier = rows:earlier(i)
  return earlier == 0 and rows:path(i) or ("%s (%d)"):format(rows:path(i), earlier + 1)
end

return diff
