-- Byte pair encoding: joins the symbols of a word, the pair that was learned first before the others.

local cbk = require "cbk"

local bpe = {}

local PAIR = 2 ^ 26  -- more than the largest id that a merge has
local PLACE = 2 ^ 26 -- more than a word has symbols

---@class Bpe
---@field ranks table<number, integer>   left id * PAIR + right id → the pair's place in the list of merges, from 0
---@field joined integer[]               by that place: the id that the two become
local Bpe = {}
Bpe.__index = Bpe

--- The two parts of a merge: "a b", or { "a", "b" }.
local function parts_of(merge)
  if type(merge) == "string" then return merge:match "^(.+) (.+)$" end
  return merge[1], merge[2]
end

---@param merges any                     a list, in the order in which they were learned
---@param vocab table<string, integer>   token → id
---@return Bpe
function bpe.new(merges, vocab)
  local self = setmetatable({ ranks = {}, joined = {} }, Bpe)
  local rank = 0
  for _, merge in cbk.items(merges) do
    local left, right = parts_of(merge)
    local whole = left and right and left .. right
    for _, part in ipairs { left or "", right or "", whole or "" } do
      if not vocab[part] then
        cbk.fail("format", ("merge %d, %s, needs the token %s, which the vocabulary lacks"):format(rank, cbk.json(merge), cbk.quote(part)))
      end
    end
    local largest = math.max(vocab[left], vocab[right], vocab[whole])
    if largest >= PAIR then
      cbk.fail("unsupported", ("merge %d, %s, has the id %d; expected one below %d"):format(rank, cbk.json(merge), largest, PAIR))
    end
    self.ranks[vocab[left] * PAIR + vocab[right]] = rank
    self.joined[rank] = vocab[whole]
    rank = rank + 1
  end
  return self
end

-- --- a heap of numbers, the least first

local function push(heap, number)
  local at = #heap + 1
  while at > 1 do
    local parent = math.floor(at / 2)
    if heap[parent] <= number then break end
    heap[at] = heap[parent]
    at = parent
  end
  heap[at] = number
end

local function pop(heap)
  local least, last, count = heap[1], heap[#heap], #heap - 1
  heap[count + 1] = nil
  if count == 0 then return least end
  local at = 1
  while 2 * at <= count do
    local child = 2 * at
    if child < count and heap[child + 1] < heap[child] then child = child + 1 end
    if heap[child] >= last then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = last
  return least
end

-- --- joining

---Joins pairs of ids until no pair is in the list of merges. Of equal pairs the first is joined first.
---@param ids integer[]   of the symbols of a word; changed
---@return integer[] ids
function Bpe:join(ids)
  local count, ranks, joined = #ids, self.ranks, self.joined
  local following, preceding, heap = {}, {}, {}
  for i = 1, count do following[i], preceding[i] = i + 1, i - 1 end
  local function offer(i)
    local j = i >= 1 and following[i]
    local rank = j and j <= count and ranks[ids[i] * PAIR + ids[j]]
    if rank then push(heap, rank * PLACE + i) end
  end
  for i = 1, count - 1 do offer(i) end
  while heap[1] do
    local entry = pop(heap)
    local rank, i = math.floor(entry / PLACE), entry % PLACE
    local j = ids[i] and following[i]
    -- the symbols may have become others since the pair was offered
    if j and j <= count and ranks[ids[i] * PAIR + ids[j]] == rank then
      ids[i], ids[j] = joined[rank], false
      following[i] = following[j]
      if following[j] <= count then preceding[following[j]] = i end
      offer(preceding[i])
      offer(i)
    end
  end
  local out = {}
  for i = 1, count do
    if ids[i] then out[#out + 1] = ids[i] end
  end
  return out
end

return bpe
