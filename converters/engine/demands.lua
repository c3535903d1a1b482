-- What a config field must be, as its rule says with `is`: what computes with it, or loops over it, may rely on that. A '?' behind
-- the word: or null.

local naming = require "converters.engine.naming"

local demands = {}

local MOST = 2 ^ 53

---@class Demand
---@field holds fun(value: any): boolean
---@field says string       what it is, in messages
---@field needed? boolean   without it, and without a default, no model is described
---@field null? boolean     null says as much as nothing
---@field plain? fun(value: any): any   the same, as rules and functions know it
---@field number? boolean   a text that programs read as a number holds too, as YAML's 1e-5 is to some

local function whole(most)
  return function(value) return type(value) == "number" and value % 1 == 0 and value >= 1 and value <= most end
end

local size = { holds = whole(MOST), says = "a whole number of at least 1", needed = true }

---@param holds fun(value: number): boolean
local function number(says, holds) return { holds = holds, says = says, number = true, null = true } end

---@type table<string, Demand>
local known = {
  size = size, width = size, heads = size, inner = size,
  count = { holds = size.holds, says = size.says },
  depth = { holds = whole(1e5), says = "a whole number from 1 to 100000", needed = true },
  number = number("a number", function() return true end),
  positive = number("a number above 0", function(value) return value > 0 end),
  rate = number("a number from 0 to 1", function(value) return value >= 0 and value <= 1 end),
  boolean = { -- 1 and 0 are these to the programs that read a config (fields.same)
    holds = function(value) return type(value) == "boolean" or value == 1 or value == 0 end, says = "true or false",
    plain = function(value) return value == true or value == 1 end,
  },
  text = { holds = function(value) return type(value) == "string" end, says = "a text", null = true },
}

demands.is_size = size.holds
demands.size = size.says

---@param word string
---@return Demand|nil
---@return boolean may_be_null
function demands.find(word)
  local name, mark = word:match "^(%l+)(%??)$"
  local demand = known[name]
  return demand, demand ~= nil and (mark == "?" or demand.null == true)
end

---@return string[]
function demands.words() return naming.sorted(known) end

---Whether the value is a text that programs read as a number.
---@param demand Demand
function demands.is_quoted(demand, value) return demand.number and type(value) == "string" and tonumber(value) ~= nil end

---@param demand Demand
---@param value any      not null
---@param kind string    cbk.kind of it
function demands.holds(demand, value, kind)
  if not demand.number then return demand.holds(value) end
  local read = (kind == "int" or kind == "float" or kind == "str") and tonumber(tostring(value))
  return read ~= nil and read ~= false and read == read and math.abs(read) < math.huge and demand.holds(read)
end

return demands
