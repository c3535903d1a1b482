-- Nested tables of tensors: batches, results of steps, arguments of closures. Objects of classes are not searched.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local ordered_map = require "cstorch.ordered_map"

local nested = {}

local MOST = 100 -- levels

local is_tensor = cbk.compute.is_tensor

---Fails if tables are nested without end.
---@param depth integer
function nested.check_depth(depth)
  if depth < MOST then return end
  errors.raise("value", "tables are nested more than %d deep, or one contains itself", MOST)
end

---Whether a value is a table that is searched for tensors.
---@param value any
---@return boolean
function nested.is(value)
  if type(value) ~= "table" then return false end
  local metatable = getmetatable(value)
  return type(metatable) ~= "table" or metatable.class == nil
end

---Iterates over keys and values, also of a list with holes.
---@param map table
---@return fun(...): any, any
function nested.entries(map)
  if getmetatable(map) and ordered_map.is(map) then return ordered_map.items(map) end
  return pairs(map)
end

---Calls `visit` with each tensor.
---@param value any
---@param visit fun(t: cstorch.Tensor)
---@param depth? integer   of `value`, for itself
function nested.each(value, visit, depth)
  if is_tensor(value) then return visit(value) end
  if not nested.is(value) then return end
  depth = depth or 0
  nested.check_depth(depth)
  for _, item in nested.entries(value) do nested.each(item, visit, depth + 1) end
end

---Copies of the tables with `f(tensor)` in the place of each tensor.
---@param value any
---@param f fun(t: cstorch.Tensor): any
---@param depth? integer   of `value`, for itself
---@return any
function nested.map(value, f, depth)
  if is_tensor(value) then return f(value) end
  if not nested.is(value) then return value end
  depth = depth or 0
  nested.check_depth(depth)
  local metatable = getmetatable(value)
  local is_ordered = metatable and ordered_map.is(value)
  local copy = is_ordered and ordered_map.new() or {}
  for key, item in nested.entries(value) do copy[key] = nested.map(item, f, depth + 1) end
  return metatable and not is_ordered and setmetatable(copy, metatable) or copy
end

return nested
