-- The kinds of values that config fields have, as model classes name them. Code that computes with a value, or loops over it, relies on
-- its kind.

local cbk = require "cbk"
local naming = require "cbk.naming"

local field_kinds = {}

local MOST = 2 ^ 53

---@class FieldKinds   What `class.kinds` has.
---@field size any       A size of tensors, such as a width or a number of heads: a whole number of at least 1. A Model Zoo config must
---                      have it.
---@field depth any      A number of layers or experts: a whole number from 1 to 100,000. A Model Zoo config must have it.
---@field length any     The length of a sequence: a whole number of at least 1.
---@field number any     Any number.
---@field positive any   A number above 0, such as an epsilon.
---@field rate any       A number from 0 to 1, such as a dropout rate.
---@field boolean any    true or false. 1 and 0 count as these.
---@field text any       A string, such as the name of an activation.
---@field choice any     A string, where null is not the default but means none, such as no positions or no activation.
---@field bias any       true or false: whether some tensors have biases. If a config leaves it out, the checkpoint decides.
---@field norm any       The Model Zoo's name for the type of a layer norm.
---@field any any        A value of any kind, such as a map.
---@field free any       A value of any kind that does not change what a trained model computes, such as the initializer's range.

---@class FieldKind
---@field holds fun(value: any): boolean
---@field says string        what such a value is, in messages
---@field most? number        larger numbers are not exact in Lua
---@field needed? boolean    a Model Zoo config must have it
---@field null? boolean      null counts as absent
---@field plain? fun(value: any): any   normalises a value
---@field number? boolean    also accepts a number as text: some YAML parsers read 1e-5 as text

local function whole(most)
  return function(value) return type(value) == "number" and value % 1 == 0 and value >= 1 and value <= most end
end

---@param holds fun(value: number): boolean
local function number(says, holds) return { holds = holds, says = says, number = true, null = true } end

---@type table<string, FieldKind>
local known = {
  size = { holds = whole(MOST), says = "a whole number of at least 1", needed = true, most = MOST },
  length = { holds = whole(MOST), says = "a whole number of at least 1", most = MOST }, -- of a sequence
  depth = { holds = whole(1e5), says = "a whole number from 1 to 100000", needed = true },
  number = number("a number", function() return true end),
  positive = number("a number above 0", function(value) return value > 0 end),
  rate = number("a number from 0 to 1", function(value) return value >= 0 and value <= 1 end),
  boolean = { -- 1 and 0 are these to the programs that read a config (fields.same)
    holds = function(value) return type(value) == "boolean" or value == 1 or value == 0 end, says = "true or false",
    plain = function(value) return value == true or value == 1 end,
  },
  text = { holds = function(value) return type(value) == "string" end, says = "a string", null = true },
  choice = { holds = function(value) return type(value) == "string" end, says = "a string (null means none)" },
}

---The names of all kinds.
---@return string[]
function field_kinds.names() return naming.sorted(known) end

field_kinds.is_size = known.size.holds
field_kinds.size = known.size.says

---@param kind FieldKind
local function holds(kind, value, value_kind)
  if not kind.number then return kind.holds(value) end
  local read = (value_kind == "int" or value_kind == "float" or value_kind == "str") and tonumber(tostring(value))
  return read ~= nil and read ~= false and read == read and math.abs(read) < math.huge and kind.holds(read)
end

---The expectation for an error message. A number too large for Lua is shown inexactly, so the message names the limit.
---@param kind FieldKind
local function wanted(kind, value, value_kind)
  local is_number = value_kind == "int" or value_kind == "float"
  local read = is_number and tonumber((tostring(value):gsub("LL$", "")))
  local is_too_large = kind.most and read and read >= kind.most
  return is_too_large and "a whole number up to 2^53" or kind.says
end

---What a value must be, if it is invalid; nil if it is valid. Null is valid if the kind allows it, if the field is free, or if its default
---is absent or false.
---@param field ClassField|nil
---@param value any
---@param value_kind string   cbk.kind of it
---@return string|nil
function field_kinds.mistake(field, value, value_kind)
  local kind = field and known[field.kind]
  if not kind then return nil end
  if value == cbk.null then return not (kind.null or field.free or not field.default) and kind.says or nil end
  return not holds(kind, value, value_kind) and wanted(kind, value, value_kind) or nil
end

---What the values of a field are; nil if they may be anything.
---@param field ClassField|nil
---@return string|nil
function field_kinds.says(field)
  local kind = field and known[field.kind]
  return kind and kind.says
end

---Normalises a value: in a boolean field, 1 becomes true.
---@param field ClassField|nil
function field_kinds.plain(field, value)
  local kind = field and known[field.kind]
  if not (kind and kind.plain) or value == nil or value == cbk.null then return value end
  return kind.plain(value)
end

---The number that a text contains, if the field is a number; else the normalised value.
---@param field ClassField
function field_kinds.read(field, value)
  local kind = known[field.kind]
  if kind and kind.number then return tonumber(tostring(value)) end
  return field_kinds.plain(field, value)
end

---Whether the value is a text that programs read as a number.
---@param field ClassField|nil
function field_kinds.is_quoted(field, value)
  local kind = field and known[field.kind]
  return kind and kind.number and type(value) == "string" and tonumber(value) ~= nil
end

---Whether a Model Zoo config must have the field, although its class has a default.
---@param field ClassField|nil
function field_kinds.is_needed(field)
  local kind = field and known[field.kind]
  return kind ~= nil and kind.needed == true and field.default ~= nil
end

return field_kinds
