-- Texts of checkpoints and configs in Lua source. They are untrusted: whatever they contain, they stay a string, a field or a comment.

local cbk = require "cbk"
local naming = require "cbk.naming"

local source = {}

local KEYWORDS = naming.set [[and break do else elseif end false for function goto if in local nil not or repeat return then true until
  while]]

local function is_name(text) return type(text) == "string" and text:find "^[%a_][%w_]*$" ~= nil and not KEYWORDS[text] end

---A string literal in which every character is visible.
---@param text string
---@return string
function source.text(text) return cbk.shown((("%q"):format(text):gsub("\\\n", "\\n"))) end

---@param number number
---@return string
function source.number(number)
  if number ~= number then return "0 / 0" end
  if number == math.huge or number == -math.huge then return number > 0 and "1 / 0" or "-1 / 0" end
  local text = ("%.9g"):format(number)
  return tonumber(text) == number and text or ("%.17g"):format(number)
end

---The literal of a string, number or boolean; nil for others.
---@return string|nil
function source.plain(value)
  if type(value) == "string" then return source.text(value) end
  if type(value) == "number" then return source.number(value) end
  return type(value) == "boolean" and tostring(value) or nil
end

---The text before '=' in a table: a name, or a value in brackets.
---@param key string|number
---@return string
function source.key(key) return is_name(key) and key or ("[%s]"):format(source.plain(key)) end

---A field of an expression.
---@param expression string
---@param name string|number
---@return string
function source.field(expression, name)
  return is_name(name) and expression .. "." .. name or ("%s[%s]"):format(expression, source.plain(name))
end

---A text that is safe after '--'.
---@param text string
---@return string
function source.comment(text) return cbk.shown(text) end

return source
