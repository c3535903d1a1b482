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

---Whether a line is a command, which is continued by a backslash so that it can be copied. A table's line may begin with one, too.
local function is_command(line)
  local program = line:match "^ +([%w-]+) " or line:match "^ +%$ ([%w-]+) "
  if line:find "^convert  +cbk " then return true end -- of `cbk identify`
  return (program == "cbk" or program == "mpirun" or program == "srun") and not line:find "%S  +%S"
end

local function add_line(out, line, width, deeper)
  if cbk.terminal.columns(line) <= width then
    out[#out + 1] = line
    return
  end
  local continued = ""
  if is_command(line) then
    continued, width, deeper = " \\", width - 2, 2
    line = line:gsub("( %-[%w_-]+) ([^- ])", "%1" .. NO_BREAK .. "%2") -- an option stays with its value
  end
  local indent, current, has_word = hanging(line, width, deeper), "", false
  for gap, word in with_units(line):gmatch "( *)([^ ]+)" do
    word = word:gsub(NO_BREAK, " ")
    if has_word and cbk.terminal.columns(current .. gap .. word) > width then
      out[#out + 1] = current .. continued
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

local ITEM = "^%- " -- of a list

---Whether a line continues the one before it: in a paragraph, or below an item of a list.
local function continues(line, last)
  if line:find(ITEM) then return false end
  if last:find(ITEM) then return line:find "^  %S" ~= nil end
  return line:find "^%S" ~= nil and last:find "^%S" ~= nil
end

---The same for prose: the lines of a paragraph, and of an item of a list ("- "), are joined first. Other indented lines stay separate.
---@param text string
---@param width integer
function wrap.prose(text, width)
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do
    local last = out[#out] or ""
    if continues(line, last) then out[#out] = last .. " " .. line:match "^ *(.*)$" else out[#out + 1] = line end
  end
  for i, line in ipairs(out) do out[i] = wrap.text(line, width, line:find(ITEM) and 2 or 0) end
  return table.concat(out, "\n")
end

return wrap
