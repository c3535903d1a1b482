-- Texts in lower case: the letters of Latin, Greek, Cyrillic and Armenian. Others stay as they are.

local unicode = require "cbk.tokens.unicode"

local lower_case = {}

--- Ranges of capital letters: first, last, and how far away the small ones are; "even" and "odd": each second one, before its small one.
local RANGES = {
  { 0xc0, 0xd6, 32 }, { 0xd8, 0xde, 32 }, { 0x100, 0x12e, "even" }, { 0x132, 0x136, "even" }, { 0x139, 0x147, "odd" },
  { 0x14a, 0x176, "even" }, { 0x178, 0x178, -121 }, { 0x179, 0x17d, "odd" }, { 0x1cd, 0x1db, "odd" }, { 0x1de, 0x1ee, "even" },
  { 0x1f8, 0x21e, "even" }, { 0x222, 0x232, "even" }, { 0x386, 0x386, 38 }, { 0x388, 0x38a, 37 }, { 0x38c, 0x38c, 64 },
  { 0x38e, 0x38f, 63 }, { 0x391, 0x3a1, 32 }, { 0x3a3, 0x3ab, 32 }, { 0x400, 0x40f, 80 }, { 0x410, 0x42f, 32 },
  { 0x460, 0x480, "even" }, { 0x48a, 0x4be, "even" }, { 0x4c0, 0x4c0, 15 }, { 0x4c1, 0x4cd, "odd" }, { 0x4d0, 0x52e, "even" },
  { 0x531, 0x556, 48 }, { 0x1e00, 0x1e94, "even" }, { 0x1ea0, 0x1efe, "even" },
}

local SMALL = {}
for _, range in ipairs(RANGES) do
  local first, last, away = unpack(range)
  for code = first, last, type(away) == "string" and 2 or 1 do
    SMALL[unicode.char(code)] = unicode.char(code + (type(away) == "string" and 1 or away))
  end
end

---@param text string
---@return string
function lower_case.of(text)
  local out = text:lower()
  if not out:find "[\195-\225]" then return out end
  return (out:gsub("[\195-\225][\128-\191]+", SMALL))
end

return lower_case
