-- Text as code points, and the classes of Unicode that patterns of tokenizers name.

local ranges = require "cbk.tokens.unicode_ranges"

local unicode = {}

-- --- classes

--- The bounds of a class: first, last + 1, first, …
local function bounds_of(packed)
  local bounds, at = {}, 0
  for gap, length in packed:gmatch "(%d+) (%d+)" do
    at = at + tonumber(gap)
    bounds[#bounds + 1] = at
    at = at + tonumber(length)
    bounds[#bounds + 1] = at
  end
  return bounds
end

--- A table of booleans by code point, filled as they are asked for.
local function class_of(packed)
  local bounds
  return setmetatable({}, { __index = function(known, code)
    bounds = bounds or bounds_of(packed)
    local low, high = 0, #bounds -- the number of bounds that are not above it
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if bounds[middle] <= code then low = middle else high = middle - 1 end
    end
    known[code] = low % 2 == 1
    return known[code]
  end })
end

local SPACES = "9 5 18 1 100 1 26 1 5599 1 2431 11 29 2 5 1 47 1 4000 1" -- White_Space, packed as the ranges

---Whether a code point is of a class: `classes.L[code]`. L: letters, N: numbers, s: white space; joining: those that NFC may join with
---others, replace or move.
---@type table<string, table<integer, boolean>>
unicode.classes = { L = class_of(ranges.L), N = class_of(ranges.N), s = class_of(SPACES), joining = class_of(ranges.joining) }

-- --- UTF-8

---@class CodePoints
---@field n integer
---@field [integer] integer    from 1
---@field starts integer[]     where each begins in the text; the one after the last, too

local LEAST = { 0, 0x80, 0x800, 0x10000 } -- of a code point of so many bytes

local function length_of(byte)
  if byte < 0x80 then return 1 end
  if byte >= 0xc2 and byte < 0xe0 then return 2 end
  if byte >= 0xe0 and byte < 0xf0 then return 3 end
  if byte >= 0xf0 and byte < 0xf5 then return 4 end
end

local function is_code_point(code, length)
  return code >= LEAST[length] and code < 0x110000 and not (code >= 0xd800 and code < 0xe000)
end

--- The code point at a byte, and its length; nil at the end of the text.
local function decode(text, at, byte)
  local length = length_of(byte)
  if length == 1 then return byte, 1 end
  if not length then return nil end
  local code = byte % 2 ^ (7 - length)
  for i = at + 1, at + length - 1 do
    local next_byte = text:byte(i)
    if not next_byte or next_byte < 0x80 or next_byte >= 0xc0 then return nil end
    code = code * 64 + next_byte - 0x80
  end
  if is_code_point(code, length) then return code, length end
end

---@param text string
---@return CodePoints? points   nil where a byte is no UTF-8
---@return integer? bad         that byte, from 1
function unicode.points(text)
  local points, starts, n, at = {}, {}, 0, 1
  while at <= #text do
    local code, length = decode(text, at, text:byte(at))
    if not code then return nil, at end
    n = n + 1
    points[n], starts[n] = code, at
    at = at + length
  end
  starts[n + 1] = at
  points.n, points.starts = n, starts
  return points
end

---The length of a text without the beginning of a character at its end.
---@param text string
---@return integer
function unicode.whole_length(text)
  for back = 1, math.min(3, #text) do
    local byte = text:byte(-back)
    if byte >= 0xc0 then
      local length = length_of(byte)
      return length and length > back and #text - back or #text
    elseif byte < 0x80 then
      return #text
    end
  end
  return #text
end

---The UTF-8 of a code point.
---@param code integer
---@return string
function unicode.char(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xc0 + math.floor(code / 64), 0x80 + code % 64) end
  if code < 0x10000 then
    return string.char(0xe0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
  end
  return string.char(0xf0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64, 0x80 + math.floor(code / 64) % 64,
    0x80 + code % 64)
end

return unicode
