-- Trailing keyword tables: checks a call's keywords against those that the function declares.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local nested = require "cstorch.nested"
local ordered_map = require "cstorch.ordered_map"

local keywords = {}

--- The kinds of cbk's maps; checkpoints of torch have ordered ones.
local DICTS = { dict = true, ordereddict = true, counter = true, defaultdict = true }

local function sentinel(name) return setmetatable({}, { __tostring = function() return name end }) end

--- Declares a keyword that a call must give.
keywords.REQUIRED = sentinel "REQUIRED"
--- Declares a keyword that is nil when a call does not give it.
keywords.OPTIONAL = sentinel "OPTIONAL"
--- Takes back a keyword that the base class declares.
keywords.REMOVED = sentinel "REMOVED"
--- In a list of tags: the groups without tags.
keywords.UNTAGGED = sentinel "UNTAGGED"

---cbk's containers as plain tables, deeply; tables are copied, null is absent (in a list: UNTAGGED). Objects stay as they are. A counter
---becomes an ordered map, as its integer keys are no positions.
---@param value any
---@param depth? integer   of `value`, for itself
---@return any
function keywords.plain(value, depth)
  depth = depth or 0
  nested.check_depth(depth)
  if value == cbk.null then return nil end
  local kind = type(value)
  if kind == "table" then
    if getmetatable(value) ~= nil and not ordered_map.is(value) then return value end
  elseif kind == "userdata" then
    kind = cbk.kind(value)
    if kind == "counter" then return ordered_map.new(value) end
    if not DICTS[kind] and kind ~= "list" and kind ~= "tuple" then return value end
  else
    return value
  end
  local copy = {}
  for key, item in ordered_map.items(value) do
    if type(key) == "number" and item == cbk.null then item = keywords.UNTAGGED end
    copy[key] = keywords.plain(item, depth + 1)
  end
  return copy
end

---Whether `value` can be a keyword table or a state dict: a plain table, an ordered map, or a dict of cbk.
---@param value any
---@return boolean
function keywords.is_map(value)
  if type(value) == "userdata" then return DICTS[cbk.kind(value)] or false end
  return type(value) == "table" and (getmetatable(value) == nil or ordered_map.is(value))
end

---The mistakes in a call's keywords.
---@param declared table<string, any>
---@param given table<string, any>
---@return string[] unknown, string[] missing   sorted
function keywords.mistakes(declared, given)
  local unknown, missing = {}, {}
  for name in pairs(given) do
    if declared[name] == nil then unknown[#unknown + 1] = type(name) == "string" and name or tostring(name) end
  end
  for name, default in pairs(declared) do
    if default == keywords.REQUIRED and given[name] == nil then missing[#missing + 1] = name end
  end
  table.sort(unknown)
  table.sort(missing)
  return unknown, missing
end

---The declared names, sorted.
---@param declared table<string, any>
---@return string[]
function keywords.names(declared)
  local names = {}
  for name in pairs(declared) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- A new table with the entries of a keyword table; null is absent, containers of cbk are plain tables.
local function entries(given)
  local own = {}
  for name, value in ordered_map.items(given) do
    if value ~= cbk.null then own[name] = type(value) == "userdata" and keywords.plain(value) or value end
  end
  return own
end

---@param is_own? boolean   `what` is a class of the user's own, which may declare the keyword
local function refuse_unknown(what, name, value, declared, is_own)
  local known = keywords.names(declared)
  local suggestion = errors.suggestion(name, known)
  if is_own and suggestion == "" and name:find "^[%a_][%w_]*$" then
    local default = type(value) == "table" and "{}" or type(value) == "userdata" and "cstorch.OPTIONAL" or errors.show(value)
    errors.raise("type", "%s: unknown keyword '%s'; declare it: :subclass(\"%s\", { %s = %s })", what, name, what, name, default)
  end
  errors.raise("type", "%s: unknown keyword '%s'%s (known: %s)", what, name, suggestion, known[1] and table.concat(known, ", ") or "none")
end

---A new table: `given` with the defaults filled in. Unknown and missing names are type errors. Plain tables in it stay the same ones.
---@param what string     the function, for messages
---@param declared table<string, any>
---@param given? table
---@param is_own? boolean   it is a class of the user's own
---@return table
function keywords.complete(what, declared, given, is_own)
  if given == nil then given = {} end
  local is_map = keywords.is_map(given)
  errors.check(is_map, "type", "%s: expected a keyword table such as { name = value }, found %s", what, errors.show(given))
  given = entries(given)
  local unknown, missing = keywords.mistakes(declared, given)
  if unknown[1] then refuse_unknown(what, unknown[1], given[unknown[1]], declared, is_own) end
  if missing[1] then errors.raise("type", "%s: keyword '%s' is missing; it has no default", what, missing[1]) end
  for name, default in pairs(declared) do
    if given[name] == nil and default ~= keywords.OPTIONAL then given[name] = keywords.plain(default) end
  end
  return given
end

---Raises an error when `options` has any: for functions that take none, as Lua ignores arguments that are too many.
---@param what string   the function, for messages
---@param options any
---@param is_own? boolean   it is a class of the user's own
function keywords.none(what, options, is_own)
  if options ~= nil then keywords.complete(what, {}, options, is_own) end
end

return keywords
