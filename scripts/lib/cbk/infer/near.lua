-- Pairs of templates that may belong together, if there are too many to compare each with each: those at the same place of their
-- checkpoints, and those with the same words. So time and memory stay proportional to the size of the checkpoint.

local names = require "cbk.infer.names"

local near = {}

local MOST_PAIRS = 4096 -- up to this number, all are compared
local MOST_EACH = 4     -- templates of the right for one of the left, if there are more pairs than that
local MOST_ALIKE = 2    -- of these, found by words

---@class NearIndex   Templates of the right.
---@field list string[]
---@field has table<string, boolean>
---@field by_bag table<string, integer[]>     those with the same words
---@field by_word table<string, integer[]>

---@param list string[]
---@return NearIndex
local function index_of(list)
  local out = { list = list, has = {}, by_bag = {}, by_word = {} }
  local function note(map, id, i)
    map[id] = map[id] or {}
    table.insert(map[id], i)
  end
  for i, template in ipairs(list) do
    local words, bag = names.words(template)
    out.has[template] = true
    note(out.by_bag, bag, i)
    for word in pairs(words) do note(out.by_word, word, i) end
  end
  return out
end

---The index of the first number of a rising list that is at least `n`.
local function first_from(list, n)
  local low, high = 1, #list + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if list[middle] < n then low = middle + 1 else high = middle end
  end
  return low
end

---Calls `visit` with the templates of the right that one of the left may belong to.
---@param index NearIndex
---@param template string
---@param place number   its place among those of the left, scaled to the right
---@param visit fun(other: string)
local function each_near(index, template, place, visit)
  local seen, count = {}, 0
  local function add(i)
    local other = index.list[i]
    if not other or seen[other] or count == MOST_EACH then return end
    seen[other], count = true, count + 1
    visit(other)
  end
  if index.has[template] then
    seen[template], count = true, 1
    visit(template)
  end
  local words, bag = names.words(template)
  local same = index.by_bag[bag] or {}
  local at = first_from(same, place)
  add(same[at])
  add(place)
  add(same[at - 1])
  local rare = {}
  for word in pairs(words) do
    local list = index.by_word[word]
    if list and #list <= MOST_ALIKE then rare[#rare + 1] = word end
  end
  table.sort(rare)
  for _, word in ipairs(rare) do
    for _, i in ipairs(index.by_word[word]) do add(i) end
  end
  add(place + 1)
  add(place - 1)
end

---Calls `visit` with pairs of templates that may belong together: all of them, if there are not too many.
---@param left string[]    in the order of the checkpoint
---@param right string[]
---@param visit fun(left: string, right: string)
function near.pairs(left, right, visit)
  if #left * #right <= MOST_PAIRS then
    for _, one in ipairs(left) do
      for _, other in ipairs(right) do visit(one, other) end
    end
    return
  end
  local index = index_of(right)
  for i, one in ipairs(left) do
    local place = math.floor((i - 1) * #right / #left) + 1
    each_near(index, one, place, function(other) visit(one, other) end)
  end
end

---The most pairs that `near.pairs` visits.
---@param left integer
---@param right integer
function near.count(left, right) return math.min(left * right, math.max(MOST_PAIRS, left * MOST_EACH)) end

return near
