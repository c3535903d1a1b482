-- Shortens a key that is too long for its place: its end is kept, because it says more than its beginning.

local cbk = require "cbk"

---@param text string    as returned by `cbk.shown`
---@param width integer  columns of a terminal
---@return string
local function shortened(text, width)
  local most_bytes = 4 * width -- of that many characters
  if #text <= most_bytes and cbk.terminal.columns(text) <= width then return text end
  local tail = text:sub(-most_bytes):gsub("^[\128-\191]+", "") -- no half characters
  while cbk.terminal.columns(tail) > width - 1 do tail = tail:gsub("^.[\128-\191]*", "", 1) end
  return "…" .. tail
end

return shortened
