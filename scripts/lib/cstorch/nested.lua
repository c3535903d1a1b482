-- Nested tables of tensors: batches, results of steps, arguments of closures. Objects of classes are left alone.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local ordered_map = require "cstorch.ordered_map"

local nested = {}

local MOST = 100 -- levels

---Raises an error for tables in tables without end.
---@param depth integer
function nested.check_depth(depth)
  errors.check(depth < MOST, "value", "tables are nested more than %d deep, or one contains itself", MOST)
end

---Whether it is a table that is looked into.
---@param value any
---@return boolean
function nested.is(value)
  local metatable = type(value) == "table" and getmetatable(value)
  return type(value) == "table" and (type(metatable) ~= "table" or metatable.class == nil)
end

---Iterates over keys and values, also of a list with holes.
---@param map table
---@return fun(...): any, any
function nested.entries(map)
  if ordered_map.is(map) then return ordered_map.items(map) end
  return pairs(map)
end

local function is_inner(value, depth)
  local is_one = nested.is(value)
  if is_one then nested.check_depth(depth) end
  return is_one
end

---Calls `visit` with each tensor.
---@param value any
---@param visit fun(t: cstorch.Tensor)
---@param depth? integer   of `value`, for itself
function nested.each(value, visit, depth)
  depth = depth or 0
  if cbk.compute.is_tensor(value) then
    visit(value)
  elseif is_inner(value, depth) then
    for _, item in nested.entries(value) do nested.each(item, visit, depth + 1) end
  end
end

---Copies of the tables with `f(tensor)` in the place of each tensor.
---@param value any
---@param f fun(t: cstorch.Tensor): any
---@param depth? integer   of `value`, for itself
---@return any
function nested.map(value, f, depth)
  depth = depth or 0
  if cbk.compute.is_tensor(value) then return f(value) end
  if not is_inner(value, depth) then return value end
  local is_ordered = ordered_map.is(value)
  local copy = is_ordered and ordered_map.new() or {}
  for key, item in nested.entries(value) do copy[key] = nested.map(item, f, depth + 1) end
  return is_ordered and copy or setmetatable(copy, getmetatable(value))
end

return nested
