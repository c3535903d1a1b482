-- Whole numbers as Python's int() reads them from text: space around them, a sign, `_` between digits.

---@param text string
---@return number|nil   nil: not a whole number, or one beyond 2^53
return function(text)
  local sign, digits = text:match "^[%s\28-\31]*([+-]?)([%d_]+)[%s\28-\31]*$"
  if not digits or digits:find "^_" or digits:find "_$" or digits:find "__" then return nil end
  local number = tonumber((digits:gsub("_", "")), 10)
  if not number or number > 2 ^ 53 then return nil end
  return sign == "-" and -number or number
end
