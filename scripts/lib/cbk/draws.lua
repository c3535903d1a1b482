-- Random numbers that follow from a few whole numbers alone: a sample draws the same ones in a resumed run, and by any worker.

---@class Draws
---@field private state integer   64 bits
local Draws = {}
Draws.__index = Draws

local draws = {}

local STEP = 0x9e3779b97f4a7c15ULL

--- The finalizer of SplitMix64.
local function mixed(z)
  z = bit.bxor(z, bit.rshift(z, 30)) * 0xbf58476d1ce4e5b9ULL
  z = bit.bxor(z, bit.rshift(z, 27)) * 0x94d049bb133111ebULL
  return bit.bxor(z, bit.rshift(z, 31))
end

---@param ... integer   from 0, below 2^53
---@return Draws
function draws.of(...)
  local state = 0ULL
  for i = 1, select("#", ...) do state = mixed(state + STEP + (select(i, ...))) end
  return setmetatable({ state = state }, Draws)
end

---A number from 0, below 1.
---@return number
function Draws:unit()
  self.state = self.state + STEP
  return tonumber(bit.rshift(mixed(self.state), 11)) / 2 ^ 53
end

---A whole number from 0, below a limit.
---@param limit integer
---@return integer
function Draws:below(limit) return math.floor(self:unit() * limit) end

---Brings a list into a random order.
---@param list any[]
---@return any[]   the same list
function Draws:shuffle(list)
  for i = #list, 2, -1 do
    local j = self:below(i) + 1
    list[i], list[j] = list[j], list[i]
  end
  return list
end

return draws
