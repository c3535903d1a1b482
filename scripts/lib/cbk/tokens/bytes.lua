-- The tokenizer of bytes: ids 0 to 255 are the bytes of a text, 256 ends one.

local byte_letters = require "cbk.tokens.byte_letters"

local bytes = {}

---@class ByteTokenizer : Tokenizer
local Bytes = { name = "bytes", vocab_size = 257, end_of_text = 256 }
Bytes.__index = Bytes

---@param text string
---@return integer[]
function Bytes.encode(_, text)
  local ids = {}
  for first = 1, #text, 4096 do
    local part = { text:byte(first, math.min(#text, first + 4095)) }
    for i = 1, #part do ids[first + i - 1] = part[i] end
  end
  return ids
end

---Encodes a text that comes in pieces.
---@return fun(text: string, is_last: boolean): integer[]
function Bytes:encoder()
  return function(text) return self:encode(text) end
end

---@param ids integer[]
---@return string
function Bytes.decode(_, ids)
  local parts = {}
  for i, id in ipairs(ids) do parts[i] = id < 256 and string.char(id) or "" end
  return table.concat(parts)
end

---The name of an id in a vocabulary: a printable letter for each byte, as in that of GPT-2.
---@param id integer
---@return string
function Bytes.token(_, id) return byte_letters.of_byte[id] or "<|endoftext|>" end

---@return ByteTokenizer
function bytes.new() return setmetatable({}, Bytes) end

return bytes
