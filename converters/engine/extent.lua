-- An extent of a tensor as a model class writes it: a number, or a text over config fields with + - * / and parentheses, such as
-- "num_heads * head_dim". A text is never run as a program.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"

local extent = {}

---@alias Extent integer|string

local NAME = "[%a_][%w_.]*"

---@param values table<string, any>
---@param name string   a field, also of a section ("vision_config.hidden_size"), or an entry of a field's map
---                     ("extra_attention_params.num_kv_groups")
function extent.value_of(values, name)
  local value = values[name]
  if value ~= nil or not name:find(".", 1, true) then return value end
  value = values
  for part in name:gmatch "[^.]+" do
    local is_map = type(value) == "table" or kinds.is_dict(value)
    if not is_map then return nil end
    value = value[part]
  end
  return value
end

---The config fields that an extent names.
---@param written Extent
function extent.names_in(written) return tostring(written):gmatch(NAME) end

local OPERATORS = {
  ["+"] = function(a, b) return a + b end, ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end, ["/"] = function(a, b) return a / b end,
}

---@alias ExtentFormula fun(values: table<string, any>): number|nil   nil if a field is not a number

---@param left ExtentFormula
---@param right ExtentFormula
---@return ExtentFormula
local function joined(operator, left, right)
  return function(values)
    local a, b = left(values), right(values)
    return a and b and operator(a, b)
  end
end

---@param name string
---@return ExtentFormula
local function field(name)
  return function(values)
    local value = extent.value_of(values, name)
    return type(value) == "number" and value or nil
  end
end

---The grammar: sum = product {(+ | -) product}; product = factor {(* | /) factor}; factor = number | field | "(" sum ")".
---@param text string
---@return ExtentFormula
local function parse(text)
  local position, sum = 1, nil

  local function take(pattern)
    local found, rest = text:match("^ *(" .. pattern .. ")()", position)
    position = rest or position
    return found
  end

  local function factor()
    local number = take "%d+"
    if number then return function() return tonumber(number) end end
    local name = take(NAME)
    if name then return field(name) end
    local inner = take "%(" and sum()
    return inner and take "%)" and inner or error(nil)
  end

  local function chain(operators, operand)
    local left = operand()
    local operator = take(operators)
    while operator do
      left = joined(OPERATORS[operator], left, operand())
      operator = take(operators)
    end
    return left
  end

  sum = function() return chain("[+-]", function() return chain("[*/]", factor) end) end
  local result = sum()
  return text:find("^ *$", position) and result or error(nil)
end

local parsed = {} -- by text

---@param text string   "3 * hidden_size"
---@return ExtentFormula
local function formula(text)
  if not parsed[text] then
    local fine, result = pcall(parse, text)
    if not fine then
      cbk.fail("converter",
        ("'%s' is not an extent; write a number, or numbers and config fields with + - * / and parentheses"):format(text))
    end
    parsed[text] = result
  end
  return parsed[text]
end

---The value of an extent.
---@param written Extent
---@param values table<string, any>
---@param is_default? fun(name: string): boolean   whether the config lacks a field, so that its value is the default
---@return integer
function extent.value(written, values, is_default)
  if type(written) == "number" then return written end
  local result = formula(written)(values)
  if result and result >= 0 and result % 1 == 0 and result < 2 ^ 53 then return result end
  local width, count = written:match("^(" .. NAME .. ") / (" .. NAME .. ")$")
  if result and width then
    local whole, parts = extent.value_of(values, width), extent.value_of(values, count)
    fields.refuse(count, parts, ("a divisor of %s (%s)"):format(width, fields.shown(whole)), is_default and is_default(count)
      and (" (%s is the default, as the config has no '%s')"):format(fields.shown(parts), count) or "correct one of them")
  end
  local named = {}
  for name in extent.names_in(written) do
    local value = extent.value_of(values, name)
    if value == nil then fields.lack(name, ", which shapes of tensors depend on") end
    named[#named + 1] = ("%s=%s"):format(name, fields.shown(value))
  end
  cbk.fail("config", ("the config gives no whole number for %s: %s"):format(written, table.concat(named, ", ")))
end

---Whether an extent can be computed from these values.
---@param texts table<string, string>   extents that the class derives
---@param written Extent
---@return boolean
function extent.knows(values, texts, written)
  for name in extent.names_in(written) do
    local text = texts[name]
    if text and not extent.knows(values, texts, text) or not text and extent.value_of(values, name) == nil then return false end
  end
  return true
end

return extent
