-- Records of CSV files, and the lists of Python that the Model Zoo's preprocessing writes into their fields.

local unicode = require "cbk.tokens.unicode"

local csv = {}

---Whether a text has a quote that no other one closes.
---@param text string
---@return boolean
function csv.is_open(text)
  local is_open, at = false, text:find('"', 1, true)
  while at do
    is_open, at = not is_open, text:find('"', at + 1, true)
  end
  return is_open
end

---The fields of a record.
---@param record string   with or without the end of its line
---@return string[]|nil, string|nil problem
function csv.fields(record)
  local out, at, size = {}, 1, #record:gsub("[\r\n]+$", "")
  repeat
    if record:byte(at) == 34 then
      local parts, from = {}, at + 1
      while true do
        local close = record:find('"', from, true)
        if not close then return nil, "a quote is not closed" end
        parts[#parts + 1] = record:sub(from, close - 1)
        if record:byte(close + 1) ~= 34 then
          at = close + 1
          break
        end
        parts[#parts + 1], from = '"', close + 2
      end
      if at <= size and record:byte(at) ~= 44 then return nil, "a quoted field has text after it" end
      out[#out + 1] = table.concat(parts)
    else
      local comma = record:find(",", at, true)
      local last = comma and comma <= size and comma - 1 or size
      out[#out + 1] = record:sub(at, last)
      at = last + 1
    end
    at = at + 1
  until at > size + 1
  return out
end

---The numbers of a list such as "[0, 12, 3]", or one number.
---@param text string
---@return integer[]|nil
function csv.numbers(text)
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
local DIGITS = { x = 2, u = 4, U = 8 } -- of a code point

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
function csv.texts(text)
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

return csv
