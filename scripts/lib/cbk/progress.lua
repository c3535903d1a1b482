-- The progress of a commit on stderr: a line that is redrawn on a terminal, otherwise a plain line every few seconds.

local cbk = require "cbk"
local shortened = require "cbk.shortened"

local progress = {}

local PLAIN_SECONDS = 5 -- between lines without a terminal
local DRAW_SECONDS = 0.1

---"1:05", "2:03:04"
---@param seconds number
function progress.format_time(seconds)
  seconds = math.ceil(seconds)
  local minutes = math.floor(seconds / 60)
  if minutes < 60 then return ("%d:%02d"):format(minutes, seconds % 60) end
  return ("%d:%02d:%02d"):format(math.floor(minutes / 60), minutes % 60, seconds % 60)
end

---One line about a state of progress, at most `width` columns.
---@param p { done: integer, total: integer, seconds: number, key: string }
---@param width integer
function progress.line(p, width)
  local percent = p.total > 0 and math.floor(100 * p.done / p.total) or 100
  local rate = p.seconds > 0 and math.floor(p.done / p.seconds) or 0
  local text = ("%3d%%"):format(percent)
  local parts = { ("%s of %s"):format(cbk.format_size(p.done), cbk.format_size(p.total)) }
  if rate > 0 then
    parts[2], parts[3] = cbk.format_size(rate) .. "/s", progress.format_time((p.total - p.done) / rate) .. " left"
  end
  for _, part in ipairs(parts) do -- a narrow terminal shows only the first ones
    if #text + 2 + #part > width then return text end
    text = text .. "  " .. part
  end
  local room = width - #text - 2
  local key = room < 8 and "" or shortened(cbk.shown(p.key), room)
  return key == "" and text or text .. "  " .. key
end

local function draw_on_terminal()
  local last = -1
  return function(p)
    local finished = p.done >= p.total
    if not finished and p.seconds - last < DRAW_SECONDS then return end
    last = p.seconds
    cbk.terminal.progress(finished and "" or progress.line(p, (cbk.terminal.width "stderr" or 80) - 1))
  end
end

local function print_lines()
  local last = 0
  return function(p)
    if p.seconds - last < PLAIN_SECONDS then return end
    last = p.seconds
    io.stderr:write(progress.line(p, 120), "\n")
  end
end

---A function for `commit{ progress = … }`.
function progress.display()
  return cbk.terminal.is_tty "stderr" and draw_on_terminal() or print_lines()
end

---A function to call with what was read, which shows how much that is, or with nothing at the end. Ranks show what all of them have read.
---@param total integer   bytes
---@return fun(key?: string, bytes?: integer)
function progress.reading(total)
  local display, done, clock = progress.display(), 0, cbk.clock()
  return function(key, bytes)
    done = key and done + bytes or total
    display { done = math.min(done + cbk.team_done(done), total), total = total, seconds = cbk.clock() - clock, key = key or "" }
  end
end

return progress
