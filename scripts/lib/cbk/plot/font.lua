-- Letters of 5 x 8 pixels, for pictures without fonts. Each row is five bits, the leftmost is 16.

local font = { WIDTH = 5, HEIGHT = 8, STEP = 6 }

local ROWS = {
  A = "0e 11 11 1f 11 11 11", B = "1e 11 11 1e 11 11 1e", C = "0e 11 10 10 10 11 0e", D = "1c 12 11 11 11 12 1c",
  E = "1f 10 10 1e 10 10 1f", F = "1f 10 10 1e 10 10 10", G = "0e 11 10 17 11 11 0f", H = "11 11 11 1f 11 11 11",
  I = "0e 04 04 04 04 04 0e", J = "07 02 02 02 02 12 0c", K = "11 12 14 18 14 12 11", L = "10 10 10 10 10 10 1f",
  M = "11 1b 15 15 11 11 11", N = "11 11 19 15 13 11 11", O = "0e 11 11 11 11 11 0e", P = "1e 11 11 1e 10 10 10",
  Q = "0e 11 11 11 15 12 0d", R = "1e 11 11 1e 14 12 11", S = "0f 10 10 0e 01 01 1e", T = "1f 04 04 04 04 04 04",
  U = "11 11 11 11 11 11 0e", V = "11 11 11 11 11 0a 04", W = "11 11 11 15 15 15 0a", X = "11 11 0a 04 0a 11 11",
  Y = "11 11 0a 04 04 04 04", Z = "1f 01 02 04 08 10 1f",
  a = "00 00 0e 01 0f 11 0f", b = "10 10 16 19 11 11 1e", c = "00 00 0e 11 10 11 0e", d = "01 01 0d 13 11 11 0f",
  e = "00 00 0e 11 1f 10 0e", f = "06 09 08 1c 08 08 08", g = "00 00 0f 11 11 0f 01 0e", h = "10 10 16 19 11 11 11",
  i = "04 00 0c 04 04 04 0e", j = "02 00 06 02 02 02 12 0c", k = "10 10 12 14 18 14 12", l = "0c 04 04 04 04 04 0e",
  m = "00 00 1a 15 15 11 11", n = "00 00 16 19 11 11 11", o = "00 00 0e 11 11 11 0e", p = "00 00 1e 11 11 1e 10 10",
  q = "00 00 0f 11 11 0f 01 01", r = "00 00 16 19 10 10 10", s = "00 00 0f 10 0e 01 1e", t = "08 08 1c 08 08 09 06",
  u = "00 00 11 11 11 13 0d", v = "00 00 11 11 11 0a 04", w = "00 00 11 11 15 15 0a", x = "00 00 11 0a 04 0a 11",
  y = "00 00 11 11 11 0f 01 0e", z = "00 00 1f 02 04 08 1f",
  ["0"] = "0e 11 13 15 19 11 0e", ["1"] = "04 0c 04 04 04 04 0e", ["2"] = "0e 11 01 02 04 08 1f", ["3"] = "1f 02 04 02 01 11 0e",
  ["4"] = "02 06 0a 12 1f 02 02", ["5"] = "1f 10 1e 01 01 11 0e", ["6"] = "06 08 10 1e 11 11 0e", ["7"] = "1f 01 02 04 08 08 08",
  ["8"] = "0e 11 11 0e 11 11 0e", ["9"] = "0e 11 11 0f 01 02 0c",
  [" "] = "", ["."] = "00 00 00 00 00 0c 0c", [","] = "00 00 00 00 0c 04 08", [":"] = "00 0c 0c 00 0c 0c", [";"] = "00 0c 0c 00 0c 04 08",
  ["-"] = "00 00 00 1f", ["_"] = "00 00 00 00 00 00 1f", ["+"] = "00 04 04 1f 04 04", ["/"] = "00 01 02 04 08 10",
  ["\\"] = "00 10 08 04 02 01", ["*"] = "00 04 15 0e 15 04", ["("] = "02 04 08 08 08 04 02", [")"] = "08 04 02 02 02 04 08",
  ["["] = "0e 08 08 08 08 08 0e", ["]"] = "0e 02 02 02 02 02 0e", ["{"] = "02 04 04 08 04 04 02", ["}"] = "08 04 04 02 04 04 08",
  ["="] = "00 00 1f 00 1f", ["%"] = "18 19 02 04 08 13 03", ["<"] = "02 04 08 10 08 04 02", [">"] = "08 04 02 01 02 04 08",
  ["!"] = "04 04 04 04 00 00 04", ["?"] = "0e 11 01 02 04 00 04", ["#"] = "0a 0a 1f 0a 1f 0a 0a", ["@"] = "0e 11 01 0d 15 15 0e",
  ["&"] = "0c 12 14 08 15 12 0d", ["'"] = "0c 04 08", ['"'] = "0a 0a 0a", ["|"] = "04 04 04 04 04 04 04", ["^"] = "04 0a 11",
  ["~"] = "00 00 08 15 02", ["`"] = "08 04 02", ["$"] = "04 0f 14 0e 05 1e 04",
  unknown = "1f 11 11 11 11 11 1f",
}

local glyphs = {}
for letter, rows in pairs(ROWS) do
  local glyph = {}
  for row in rows:gmatch "%x+" do glyph[#glyph + 1] = tonumber(row, 16) end
  glyphs[letter] = glyph
end

---Calls `visit` with each pixel of a line of text, from 0. Characters other than ASCII are boxes.
---@param text string
---@param visit fun(x: integer, y: integer)
function font.pixels(text, visit)
  local left = 0
  for character in text:gmatch "[%z\1-\127\192-\255][\128-\191]*" do
    for y, row in ipairs(glyphs[character] or glyphs.unknown) do
      for x = 0, font.WIDTH - 1 do
        if math.floor(row / 2 ^ (font.WIDTH - 1 - x)) % 2 == 1 then visit(left + x, y - 1) end
      end
    end
    left = left + font.STEP
  end
end

---The number of characters in a line of text.
---@param text string
function font.length(text) return select(2, text:gsub("[%z\1-\127\192-\255][\128-\191]*", "")) end

return font
