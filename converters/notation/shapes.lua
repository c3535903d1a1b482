-- Types of table fields and function arguments in converters. A shape describes a type, and the mistake in a value.

local cbk = require "cbk"
local naming = require "cbk.naming"
local position = require "converters.notation.position"

local shapes = {}

---@class Shape
---@field says string   the type, in messages
---@field what? string  the name of an argument of this type
---@field is_optional? boolean
---@field mistake fun(value: any, name: string): string|nil, string|nil   the mistake in the value of that name, and its field

---A value in a message; of a table only that it is one.
local function shown(value)
  local kind = type(value)
  if kind == "string" then return "'" .. value .. "'" end
  if kind == "number" or kind == "boolean" then return tostring(value) end
  return value == nil and "nothing" or value == cbk.null and "null" or "a " .. kind
end

shapes.shown = shown

local function must_be(says, value, name) return ("%s must be %s, not %s"):format(name, says, shown(value)) end

-- --- one value

---@param holds fun(value: any): any
---@return Shape
function shapes.of(says, holds)
  return { says = says, mistake = function(value, name) return not holds(value) and must_be(says, value, name) or nil end }
end

local function of_type(says, kind) return shapes.of(says, function(value) return type(value) == kind end) end

shapes.any = shapes.of("a value", function(value) return value ~= nil end)
shapes.flag, shapes.func, shapes.table = of_type("true or false", "boolean"), of_type("a function", "function"), of_type("a table", "table")
shapes.text = shapes.of("a string", function(value) return type(value) == "string" and value ~= "" end)
shapes.file_name = shapes.of("the name of a file or folder, without its folder, and not hidden", function(value)
  return type(value) == "string" and value ~= "" and not value:find "[/%z]" and not value:find "^%."
end)
shapes.further_json = shapes.of("the name of a JSON file in the folder, besides config.json and an index", function(value)
  return not shapes.file_name.mistake(value) and value:find "%.json$" and value ~= "config.json" and not value:find "%.index%.json$"
end)
shapes.number = of_type("a number", "number")
shapes.finite = shapes.of("a finite number", function(value)
  return type(value) == "number" and value == value and math.abs(value) < math.huge
end)
shapes.index = shapes.of("a whole number of at least 0", function(value)
  return type(value) == "number" and value >= 0 and value % 1 == 0 and value < math.huge
end)
shapes.dtype = { says = "a dtype, such as \"float32\"", mistake = function(value, name)
  if type(value) ~= "string" or not pcall(cbk.dtype, value) then
    return ("%s must be a dtype, such as \"float32\", not %s"):format(name, shown(value))
  end
end }
shapes.size = shapes.of("a whole number of at least 1", function(value)
  return type(value) == "number" and value >= 1 and value % 1 == 0 and value < math.huge
end)

---The same type under another name, which says what it is for.
---@param says string
---@param one Shape
function shapes.named(says, one) return { says = says, what = says, mistake = one.mistake } end

---@param list any[]
function shapes.one_of(list)
  local known, words = {}, {}
  for i, value in ipairs(list) do known[value], words[i] = true, shown(value) end
  return shapes.of("one of " .. table.concat(words, ", "), function(value) return known[value] end)
end

---@param ... Shape   a wrong table gets the mistake of the last one
function shapes.either(...)
  local list, words = { ... }, {}
  for i, one in ipairs(list) do words[i] = one.says end
  local says = table.concat(words, " or ")
  return { says = says, mistake = function(value, name)
    local mistake
    for _, one in ipairs(list) do
      mistake = one.mistake(value, name)
      if not mistake then return nil end
    end
    return type(value) == "table" and mistake or must_be(says, value, name)
  end }
end

---@param one Shape
---@return Shape   of an optional argument
function shapes.maybe(one)
  return { says = one.says, what = one.what, is_optional = true, mistake = function(value, name)
    if value ~= nil then return one.mistake(value, name) end
  end }
end

-- --- tables

---A table with keys and values of one type each.
---@param key Shape
---@param value Shape
---@param says string
---@param is_filled? boolean   it needs at least one entry
---@return Shape
function shapes.map(key, value, says, is_filled)
  return { says = says, mistake = function(map, name)
    if type(map) ~= "table" then return must_be(says, map, name) end
    if is_filled and next(map) == nil then return ("%s is empty; it must be %s"):format(name, says) end
    for own_name, own in pairs(map) do
      if key.mistake(own_name, "") then return ("%s has %s; it must be %s"):format(name, shown(own_name), says) end
      local mistake, inside = value.mistake(own, ("%s.%s"):format(name, tostring(own_name)))
      if mistake then return mistake, inside end
    end
  end }
end

---@param value Shape
function shapes.list(value, says) return shapes.map(shapes.number, value, says, true) end

---A value for one side, or for each.
---@param value Shape
function shapes.sides(value)
  return shapes.map(shapes.one_of { "left", "right" }, value, ("of a side, left or right: { right = … }, each %s"):format(value.says))
end

---A table with named fields; false counts as absent.
---@param says string                     "a converter"
---@param fields table<string|1|2, Shape>
---@param needs? (string|integer)[]        the required ones
---@return Shape
function shapes.record(says, fields, needs)
  local out, names = { says = says, fields = fields }, {}
  for one in pairs(fields) do names[#names + 1] = type(one) == "string" and one or nil end
  table.sort(names)
  function out.mistake(value, name)
    if type(value) ~= "table" then return must_be(says, value, name) end
    for key, own in pairs(value) do
      local wanted = fields[key]
      if not wanted and type(key) == "number" then
        local as = #names == 2 and (": { %s = …, %s = … }"):format(unpack(names)) or ""
        return ("%s has %s without a name%s"):format(says, shown(own), as)
      end
      if not wanted then
        local near = cbk.nearest(tostring(key), names)[1]
        return ("%s has no '%s'; %s"):format(says, tostring(key), naming.question(near) or "known: " .. table.concat(names, ", ")), key
      end
      local path = type(key) == "number" and ("entry %d of %s"):format(key, name) or name == "" and key or name .. "." .. key
      local mistake, inside
      if own ~= false or type(key) == "number" then mistake, inside = wanted.mistake(own, path) end
      if mistake then return mistake, inside or type(key) == "string" and key or nil end
    end
    for _, key in ipairs(needs or {}) do
      local is_entry = type(key) == "number"
      if value[key] == nil or value[key] == false and not is_entry then
        return (name == "" and "" or name .. ": ") .. says .. " needs " .. (is_entry and "entry " .. key or "'" .. key .. "'")
      end
    end
  end
  return out
end

-- --- arguments

---"a pattern, the reason[, a function]"
local function in_words(wants)
  local out = ""
  for i, one in ipairs(wants) do
    local text = (i > 1 and ", " or "") .. one.says
    out = out .. (one.is_optional and "[" .. text .. "]" or text)
  end
  return out
end

---@class Signature: Shape[]   The arguments of a function.
---@field rest? Shape                       of any number of further ones
---@field together? fun(...): string|nil   the mistake in arguments that are valid one by one

---@param wants Signature
---@return string|nil
local function mistake_in(wants, ...)
  for i, one in ipairs(wants) do
    local mistake = one.mistake((select(i, ...)), one.what or "argument " .. i)
    if mistake then return mistake end
  end
  for i = #wants + 1, select("#", ...) do
    local value = select(i, ...)
    if wants.rest then
      local mistake = wants.rest.mistake(value, "argument " .. i)
      if mistake then return mistake end
    elseif value ~= nil then
      return ("argument %d is not expected"):format(i)
    end
  end
  return wants.together and wants.together(...)
end

---Wraps the functions of a library to check their arguments; mistakes are reported with the author's line.
---@param library table
---@param prefix string                      "actions"
---@param signatures table<string, Signature>  by dotted names
function shapes.guard(library, prefix, signatures)
  for path, wants in pairs(signatures) do
    local owner, name = library, path
    for inner, rest in path:gmatch "([%w_]+)%.([%w_]+)$" do owner, name = library[inner], rest end
    local make = owner[name]
    owner[name] = function(...)
      local mistake = mistake_in(wants, ...)
      if mistake then
        local file, line = position.here(3)
        position.fail(file, line, "%s.%s(%s): %s", prefix, path, in_words(wants), mistake)
      end
      return make(...)
    end
  end
end

return shapes
