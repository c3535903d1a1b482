-- The letters that stand for bytes in byte-level vocabularies, as of GPT-2: printable characters for themselves, others from U+0100 on.

local unicode = require "cbk.tokens.unicode"

local byte_letters = { of_byte = {}, of_letter = {} } ---@type { of_byte: table<integer, string>, of_letter: table<string, string> }

local function is_printable(byte) return byte >= 33 and byte <= 126 or byte >= 161 and byte <= 172 or byte >= 174 end

local others = 0
for byte = 0, 255 do
  local code = byte
  if not is_printable(byte) then
    code, others = 256 + others, others + 1
  end
  byte_letters.of_byte[byte] = unicode.char(code)
  byte_letters.of_letter[unicode.char(code)] = string.char(byte)
end

local ANY_LETTER = "[%z\1-\127\194-\244][\128-\191]*"

---The letters of a text's bytes.
---@param text string
---@return string
function byte_letters.write(text)
  return (text:gsub(".", function(char) return byte_letters.of_byte[char:byte()] end))
end

---The bytes that letters stand for; other characters are themselves.
---@param letters string
---@return string
function byte_letters.read(letters) return (letters:gsub(ANY_LETTER, byte_letters.of_letter)) end

byte_letters.ANY_LETTER = ANY_LETTER

return byte_letters
