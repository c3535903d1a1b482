-- Colours of results in a terminal. They are put into lines that are broken already, so that no width changes.

local colour = require "cbk.colour"
local naming = require "cbk.naming"

local paint = {}

local SEVERITIES = { error = "red", warning = "yellow", note = "cyan", clean = "green" }
local DTYPES = naming.set [[float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 uint16 uint32 uint64
  bool complex64 complex128]]

---A painter for each line of a text.
---@param of fun(line: string): string
local function by_line(of) return function(text) return (text:gsub("[^\n]+", of)) end end

---`ls`: dtypes, and what tensors are tied to.
paint.ls = by_line(function(line)
  line = line:gsub("  (%l[%w_]+)%f[%s%z]", function(word) return DTYPES[word] and "  " .. colour.text("cyan", word) or nil end)
  return (line:gsub("  (%d[%d,]* tensors?)%f[^%a]", function(words) return "  " .. colour.text("dim", words) end))
end)

---`check`: the severity of each finding.
paint.check = by_line(function(line)
  return (line:gsub("^%l+", function(word) return SEVERITIES[word] and colour.text(SEVERITIES[word], word) or nil end))
end)

---`diff`: titles of tables, and what is not a number.
paint.diff = by_line(function(line)
  if line:find "^%S.*%):$" then return colour.text("bold", line) end
  if line:find "^the same" then return colour.text("green", line) end
  return (line:gsub("NaN in [AB] only: [%d,]+", function(words) return colour.text("red", words) end))
end)

return paint
