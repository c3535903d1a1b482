-- Writes scripts/lib/cbk/tokens/unicode_ranges.lua from Unicode's tables, which Debian's package unicode-data has:
-- lua5.1 tests/unicode_ranges.lua /usr/share/unicode

local folder = arg[1] or "/usr/share/unicode"

--- The code points of each class.
local members = { L = {}, N = {}, joining = {} }

local range_first
for line in io.lines(folder .. "/UnicodeData.txt") do
  local code, name, category, combining = line:match "^(%x+);([^;]*);(%a)%a;(%d+);"
  code = tonumber(code, 16)
  local first = range_first or code
  range_first = name:find ", First>$" and code or nil
  for one = first, range_first and first - 1 or code do
    if members[category] then members[category][one] = true end
    if combining ~= "0" then members.joining[one] = true end
  end
end
for line in io.lines(folder .. "/DerivedNormalizationProps.txt") do
  local first, last = line:match "^(%x+)%.*(%x*)%s*; NFC_QC; [NM]"
  for code = tonumber(first or "1", 16), first and tonumber(last ~= "" and last or first, 16) or 0 do members.joining[code] = true end
end

--- The ranges { first, last } of a class.
local function ranges_of(class)
  local list = {}
  for code = 0, 0x10ffff do
    if members[class][code] then
      local before = list[#list]
      if before and before[2] + 1 == code then before[2] = code else list[#list + 1] = { code, code } end
    end
  end
  return list
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

local file = assert(io.open("scripts/lib/cbk/tokens/unicode_ranges.lua", "w"))
file:write [[
-- Ranges of code points, Unicode 15.0: the classes L (letters) and N (numbers), and those that NFC may join with others, replace or move.
-- Two numbers for each: how many code points lie between it and the range before, and how many it has. Written by
-- tests/unicode_ranges.lua.

return {
]]
for _, class in ipairs { "L", "N", "joining" } do file:write(("  %s = [[\n    %s]],\n"):format(class, packed(ranges_of(class)))) end
file:write "}\n"
file:close()
