-- Kinds of values of fields in a params.yaml.

local kinds = require "converters.engine.kinds"

local field_kinds = {}

---@class TrainingKind
---@field expected string
---@field fits fun(value: any, written: string): boolean   `written`: "int" or "float" of a number
---@field read? fun(value: any, written: string): any        what is kept of it; default: the value

---@class TrainingField
---@field kind? TrainingKind     of a value
---@field section? table<string, TrainingField>
---@field ignored? string        what it would do; the field has no effect here
---@field null? any              what null means; default: the same as a field that is left out

---@param expected string
---@param fits fun(value: any, written: string): boolean
---@return TrainingField
function field_kinds.kind(expected, fits) return { kind = { expected = expected, fits = fits } } end

---@param what string   it would do
---@return TrainingField
function field_kinds.ignored(what) return { ignored = what } end

---One value that is emulated.
---@return TrainingField
function field_kinds.only(value) return field_kinds.kind(tostring(value), function(given) return given == value end) end

---Whether a value is a list of texts that is not empty.
function field_kinds.is_texts(value)
  if not kinds.is_list(value) then return false end
  for i = 1, #value do
    if type(value[i]) ~= "string" then return false end
  end
  return #value > 0
end

local kind, is_texts = field_kinds.kind, field_kinds.is_texts

local function is_whole(value) return type(value) == "number" and value == math.floor(value) and math.abs(value) < 2 ^ 53 end
local function is_text(value) return type(value) == "string" and value ~= "" end

field_kinds.integer = kind("a whole number", is_whole)
field_kinds.whole = kind("a whole number from 0", function(value) return is_whole(value) and value >= 0 end)
field_kinds.count = kind("a whole number from 1", function(value) return is_whole(value) and value >= 1 end)
field_kinds.steps = kind("a whole number from 1, below 2^31", function(value) return is_whole(value) and value >= 1 and value < 2 ^ 31 end)
field_kinds.flag = kind("true or false", function(value) return type(value) == "boolean" end)
field_kinds.text = kind("a text", is_text)
field_kinds.texts = kind("a text or a list of texts", function(value) return is_text(value) or is_texts(value) end)

return field_kinds
