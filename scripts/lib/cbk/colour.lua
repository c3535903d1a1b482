-- Colours for terminals, if the user wants them.

local cbk = require "cbk"

local colour = {}

---Whether a stream is a terminal with colours. NO_COLOR and TERM=dumb turn them off. What starts several processes gives them terminals,
---wherever their output goes.
---@param stream? "stdout"|"stderr"
---@return boolean
function colour.enabled(stream)
  local disabled = os.getenv "NO_COLOR"
  local is_alone = select(2, cbk.team_place()) == 1
  return is_alone and cbk.terminal.is_tty(stream or "stdout") and (disabled == nil or disabled == "") and os.getenv "TERM" ~= "dumb"
end

local CODES = { red = "31", green = "32", yellow = "33", blue = "34", magenta = "35", cyan = "36", dim = "2", bold = "1" }

---The text in a colour.
---@param name "red"|"green"|"yellow"|"blue"|"magenta"|"cyan"|"dim"|"bold"
---@param text string
function colour.text(name, text) return ("\27[%sm%s\27[0m"):format(CODES[name], text) end

return colour
