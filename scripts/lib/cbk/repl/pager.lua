-- Shows long results in a pager: $PAGER, else less. PAGER=cat prints them directly.

local cbk = require "cbk"

local pager = {}

local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

--- The number of terminal lines that a text takes; its colour codes take none.
local function height_of(text, width)
  local lines = 0
  for line in (text .. "\n"):gmatch "(.-)\n" do
    local columns = cbk.terminal.columns((line:gsub("\27%[[%d;]*m", "")))
    lines = lines + math.max(1, math.ceil(columns / width))
  end
  return lines
end

---The program, or nil if there is none.
---@return string|nil
function pager.program()
  local wanted = os.getenv "PAGER"
  if wanted == "cat" or wanted == "" or os.getenv "TERM" == "dumb" then return nil end
  if wanted then return wanted end
  return os.execute "command -v less >/dev/null 2>&1" == 0 and "less -R" or nil
end

---Prints a text, through a pager if it is longer than the terminal.
---@param text string
function pager.print(text)
  local height = cbk.terminal.is_tty "stdin" and cbk.terminal.height "stdout"
  local program = height and height_of(text, cbk.terminal.width "stdout" or 80) >= height and pager.program()
  if not program then
    print(text)
    return
  end
  io.stdout:flush()
  local folder = cbk.fs.temp_dir() -- with a pipe, the session would end if the pager ends early
  local path = cbk.fs.join(folder, "result")
  cbk.fs.write(path, text .. "\n")
  -- The file has no name while it is read: nothing is left when the terminal is closed.
  local status = os.execute(("{ rm -rf %s; %s; } < %s"):format(quoted(folder), program, quoted(path)))
  cbk.fs.remove(folder, { recursive = true })
  if status ~= 0 then print(text) end
end

return pager
