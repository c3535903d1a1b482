-- Ordered maps: tables that keep the order in which their keys came, for state dicts and optimizer state.

local cbk = require "cbk"
local errors = require "cstorch.errors"

local ordered_map = {}

local items_of_cbk = cbk.items

---Puts a key that has no value at the end of the order. One that had a value before is in it still.
local function append(keys, key)
  for i, known in ipairs(keys) do
    if known == key then
      table.remove(keys, i)
      break
    end
  end
  keys[#keys + 1] = key
end

local function assign(map, key, value)
  if value == nil then return end
  local meta = getmetatable(map)
  if meta.is_known[key] then append(meta.keys, key) else meta.keys[#meta.keys + 1] = key end
  meta.is_known[key] = true
  rawset(map, key, value)
end

---An empty map, or one with the entries of `source` in their order. The entries are the table's own: `pairs` finds them in any order.
---@param source? table
---@return table
function ordered_map.new(source)
  local map = setmetatable({}, { __newindex = assign, keys = {}, is_known = {} })
  if source then
    for key, value in ordered_map.items(source) do map[key] = value end
  end
  return map
end

---@return boolean
function ordered_map.is(value)
  local meta = type(value) == "table" and getmetatable(value)
  return meta and meta.__newindex == assign or false
end

---Iterates over the keys and values of an ordered map in their order; also over a list, a plain table (names sorted) and cbk's containers.
---The map may change meanwhile: entries removed are skipped, entries added are not visited. A key without a place in an order is an error.
---@param map table
---@return fun(): any, any
function ordered_map.items(map)
  if not ordered_map.is(map) then return errors.of_cbk(items_of_cbk, map) end
  local keys, i = {}, 0
  for position, key in ipairs(getmetatable(map).keys) do keys[position] = key end
  return function()
    local key
    repeat
      i = i + 1
      key = keys[i]
      if key == nil then return nil end
    until map[key] ~= nil
    return key, map[key]
  end
end

---@return any[]
function ordered_map.keys(map)
  local keys = {}
  for key in ordered_map.items(map) do keys[#keys + 1] = key end
  return keys
end

--- Scripts iterate over all maps with one function.
cbk.items = ordered_map.items

return ordered_map
