-- Parses whole numbers like Python's int(): with surrounding space, a sign, and `_` between digits.

local cbk = require "cbk"

---@param text string
---@param is_wide? boolean   also accepts numbers from 2^53 on, as values of `cbk.int`
---@return number|Value|nil
---@return string? problem   if there is no number: "is not a whole number"
return function(text, is_wide)
  local sign, digits = text:match "^[%s\28-\31]*([+-]?)([%d_]+)[%s\28-\31]*$"
  if not digits or digits:find "^_" or digits:find "_$" or digits:find "__" then return nil, "is not a whole number" end
  digits = digits:gsub("_", "")
  local number = tonumber(digits, 10)
  if number >= 2 ^ 53 then -- perhaps rounded
    if not is_wide then return nil, "is not below 2^53" end
    return cbk.int((sign == "-" and "-" or "") .. digits:gsub("^0+", ""))
  end
  return sign == "-" and -number or number
end
