-- Writes scripts/lib/cbk/tokens/unicode_ranges.lua from Unicode's table of characters, which Debian's package unicode-data has:
-- lua5.1 tests/unicode_ranges.lua /usr/share/unicode/UnicodeData.txt

local CLASSES = { "L", "N" }

--- The ranges { first, last } of each class.
local function read(path)
  local ranges, range_first = {}, nil
  for _, class in ipairs(CLASSES) do ranges[class] = {} end
  local function add(class, first, last)
    local list = ranges[class]
    if not list then return end
    local before = list[#list]
    if before and before[2] + 1 == first then before[2] = last else list[#list + 1] = { first, last } end
  end
  for line in io.lines(path) do
    local code, name, category = line:match "^(%x+);([^;]*);(%a%a)"
    code = tonumber(code, 16)
    if name:find ", First>$" then
      range_first = code
    else
      add(category:sub(1, 1), range_first or code, code)
      range_first = nil
    end
  end
  return ranges
end

--- Each range as two numbers: what lies between it and the one before, and its length.
local function packed(list)
  local words, lines, line, at = {}, {}, "", 0
  for _, range in ipairs(list) do
    words[#words + 1] = ("%d %d"):format(range[1] - at, range[2] - range[1] + 1)
    at = range[2] + 1
  end
  for _, word in ipairs(words) do
    if #line + #word > 130 then
      lines[#lines + 1] = line
      line = ""
    end
    line = line .. (line == "" and "" or " ") .. word
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n    ")
end

local ranges = read(arg[1] or "/usr/share/unicode/UnicodeData.txt")
local file = assert(io.open("scripts/lib/cbk/tokens/unicode_ranges.lua", "w"))
file:write [[
-- Ranges of code points in Unicode's classes L (letters) and N (numbers), version 15.0. Two numbers for each: how many code points lie
-- between it and the range before, and how many it has. Written by tests/unicode_ranges.lua.

return {
]]
for _, class in ipairs(CLASSES) do file:write(("  %s = [[\n    %s]],\n"):format(class, packed(ranges[class]))) end
file:write "}\n"
file:close()
