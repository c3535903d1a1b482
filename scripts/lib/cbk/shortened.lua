-- Shortens a key that is too long for its place: its end is kept, because it says more than its beginning. Of a state with its parameter,
-- "optimizer.state.5.exp_avg (of layers.3.weight)", the parameter is shortened,
-- or left out.

local cbk = require "cbk"

local LEAST = 8 -- columns of a parameter

---@param text string    as returned by `cbk.shown`
---@param width integer  columns of a terminal
---@return string
local function shortened(text, width)
  local most_bytes = 4 * width -- of that many characters
  if #text <= most_bytes and cbk.terminal.columns(text) <= width then return text end
  local state, parameter = text:match "^(%S+) %(of (%S+)%)$"
  if state then
    local rest = width - cbk.terminal.columns(state) - #" (of )"
    return rest < LEAST and shortened(state, width) or ("%s (of %s)"):format(state, shortened(parameter, rest))
  end
  local tail = text:sub(-most_bytes):gsub("^[\128-\191]+", "") -- no half characters
  while cbk.terminal.columns(tail) > width - 1 do tail = tail:gsub("^.[\128-\191]*", "", 1) end
  return "…" .. tail
end

return shortened
