-- What a sandbox sees of the library's tables: all of plain ones, of objects what is shown, of modules what is not hidden.

local naming = require "cbk.naming"

local visible = {}

---@class Visible
---@field names? table<string, true>    the only names that the sandbox sees
---@field hidden? table<string, true>   names that it does not see
---@field is_plain? boolean             it sees all of it as plain data; the metatable only computes some values

local limits = setmetatable({}, { __mode = "k" })  -- by table or metatable: Visible
local modules = setmetatable({}, { __mode = "k" }) -- tables that are no values

---Limits what the sandbox sees of all objects with a metatable.
---@param metatable table
---@param names string   separated by spaces
function visible.show(metatable, names) limits[metatable] = { names = naming.set(names) } end

---Shows all of the objects with a metatable: they are data, of which the metatable computes some.
---@param metatable table
function visible.show_data(metatable) limits[metatable] = { is_plain = true } end

---Hides some names of a module.
---@param module table
---@param names table<string, true>
function visible.hide(module, names) limits[module] = { hidden = names } end

---Whether something is said of objects with a metatable.
function visible.is_shown(metatable) return limits[metatable] ~= nil end

---Of an object with a metatable of which nothing is said, all is hidden.
---@param original table
---@param name any
---@return boolean
function visible.is_hidden(original, name)
  local limit = limits[original] or limits[getmetatable(original)]
  if limit then return limit.names and not limit.names[name] or limit.hidden and limit.hidden[name] or false end
  return getmetatable(original) ~= nil and not modules[original]
end

---@param value any
function visible.is_module(value) return modules[value] == true end

---Whether a value is a table of data, or a module: no object with methods.
---@param value any
function visible.is_plain(value)
  if type(value) ~= "table" then return false end
  local metatable = getmetatable(value)
  return metatable == nil or modules[value] or limits[metatable] ~= nil and limits[metatable].is_plain == true
end

---Marks a module, and the tables of functions and constants in it.
---@param module table
function visible.mark_module(module)
  if modules[module] then return end
  modules[module] = true
  for _, inner in next, module do
    if type(inner) == "table" and getmetatable(inner) ~= nil and not limits[getmetatable(inner)] then visible.mark_module(inner) end
  end
end

return visible
