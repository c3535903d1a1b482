-- Wraps text to the terminal's width, between words.

local cbk = require "cbk"

local wrap = {}

--- The indent of continuation lines: the last column of a table (after two spaces) if that is in the left half, else
--- `deeper` more than the first line's.
local function hanging(line, width, deeper)
  local indent = #line:match "^ *" + deeper
  for stop in line:gmatch "%S  +()%S" do
    local column = cbk.terminal.columns(line:sub(1, stop - 1))
    if column <= width / 2 then indent = column end
  end
  return (" "):rep(indent)
end

--- Stands for a space that must not be broken; the text has no control characters.
local NO_BREAK = "\1"

--- A number stays with its unit: "4 B", "1.2 GiB", "12 %".
local function with_units(line) return (line:gsub("(%d) ([KMGTP]?i?[B%%])%f[^%w%%]", "%1" .. NO_BREAK .. "%2")) end

local function add_line(out, line, width, deeper)
  if cbk.terminal.columns(line) <= width then
    out[#out + 1] = line
    return
  end
  local indent, current, has_word = hanging(line, width, deeper), "", false
  for gap, word in with_units(line):gmatch "( *)([^ ]+)" do
    word = word:gsub(NO_BREAK, " ")
    if has_word and cbk.terminal.columns(current .. gap .. word) > width then
      out[#out + 1] = current
      current = indent .. word
    else
      current = current .. gap .. word
    end
    has_word = true
  end
  out[#out + 1] = current
end

---The text with lines of at most `width` columns. Only a single longer word exceeds it.
---@param text string
---@param width? integer   nil: the text is unchanged
---@param deeper? integer  extra indent of continuation lines, except in tables
---@return string
function wrap.text(text, width, deeper)
  if not width then return text end
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do add_line(out, line, width, deeper or 0) end
  return table.concat(out, "\n")
end

---The same for prose: the lines of a paragraph are joined first. Indented lines stay separate.
---@param text string
---@param width integer
function wrap.prose(text, width)
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do
    local last = out[#out] or ""
    local goes_on = line:find "^%S" and last:find "^%S" and not last:find ":$"
    if goes_on then out[#out] = last .. " " .. line else out[#out + 1] = line end
  end
  return wrap.text(table.concat(out, "\n"), width)
end

return wrap
