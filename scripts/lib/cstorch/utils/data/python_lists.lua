-- Lists as Python writes them: the Model Zoo's preprocessing has them in the fields of its CSV files.

local unicode = require "cbk.tokens.unicode"

local python_lists = {}

---The numbers of a list such as "[0, 12, 3]", or one number.
---@param text string
---@return integer[]|nil
function python_lists.numbers(text)
  local inner, out = text:match "^%s*%[(.*)%]%s*$" or text, {}
  if inner:find "^%s*$" then return text ~= inner and out or nil end
  for word in (inner .. ","):gmatch "([^,]*)," do
    local number = tonumber((word:match "^%s*(.-)%s*$"))
    if not number or number ~= math.floor(number) or math.abs(number) >= 2 ^ 53 then return nil end
    out[#out + 1] = number
  end
  return out
end

local ESCAPES = { n = "\n", r = "\r", t = "\t", ["\\"] = "\\", ["'"] = "'", ['"'] = '"' }
local DIGITS = { x = 2, u = 4, U = 8 } -- hexadecimal ones of a code point, by the letter behind the backslash

--- The characters of a text of Python; nil if it has another escape.
local function unescaped(text)
  local is_known = true
  local out = text:gsub("\\(.)(%x*)", function(letter, digits)
    local count = DIGITS[letter]
    local code = count and #digits >= count and tonumber(digits:sub(1, count), 16)
    if code and code < 0x110000 then return unicode.char(code) .. digits:sub(count + 1) end
    is_known = is_known and ESCAPES[letter] ~= nil
    return (ESCAPES[letter] or "") .. digits
  end)
  return is_known and out or nil
end

---The texts of a list such as "['[CLS]', 'a', "don't"]".
---@param text string
---@return string[]|nil
function python_lists.texts(text)
  local at, out = text:match "^%s*%[%s*()", {}
  if not at then return nil end
  while text:sub(at, at) ~= "]" do
    local quote = text:match("^['\"]", at)
    if not quote then return nil end
    local close = at
    repeat
      close = text:find("[\\" .. quote .. "]", close + 1)
      local is_escape = close and text:sub(close, close) == "\\"
      if is_escape then close = close + 1 end
    until not is_escape
    local word = close and text:sub(at + 1, close - 1)
    if word and word:find("\\", 1, true) then word = unescaped(word) end
    if not word then return nil end
    out[#out + 1] = word
    at = text:match("^%s*,%s*()", close + 1) or text:match("^%s*()%]", close + 1)
    if not at then return nil end
  end
  return text:find("^%]%s*$", at) and out or nil
end

return python_lists
