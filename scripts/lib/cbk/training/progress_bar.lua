-- The line of a run in a terminal: its step, the losses so far as ticks, its speed, and the time left.

local cbk = require "cbk"
local progress = require "cbk.progress"

---@class TrainingBar
---@field first integer     steps done before
---@field last integer
---@field private cells { sum: number, count: integer }[]   losses in the order of steps; each cell has as many, but the last one
---@field private width integer                             losses of a whole cell
---@field private loss number                               of the last step
---@field private started number                            by cbk.clock()
---@field private drawn number                              when the line was drawn last
local Bar = {}
Bar.__index = Bar

local progress_bar = {}

local TICKS, MOST = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" }, 24
local PAUSE = 0.1 -- seconds between two lines

---@param first integer
---@param last integer
---@return TrainingBar
function progress_bar.new(first, last)
  return setmetatable({ first = first, last = last, cells = {}, width = 1, drawn = -math.huge, started = cbk.clock() }, Bar)
end

---Joins each two neighbours, so that a long run needs no more memory than a short one.
---@param self TrainingBar
local function join(self)
  local joined = {}
  for i = 1, #self.cells, 2 do
    local a, b = self.cells[i], self.cells[i + 1]
    joined[#joined + 1] = b and { sum = a.sum + b.sum, count = a.count + b.count } or a
  end
  self.cells, self.width = joined, 2 * self.width
end

---@param loss number
function Bar:add(loss)
  local cell = self.cells[#self.cells]
  if not cell or cell.count == self.width then
    if #self.cells == MOST then join(self) end
    cell = { sum = 0, count = 0 }
    self.cells[#self.cells + 1] = cell
  end
  cell.sum, cell.count, self.loss = cell.sum + loss, cell.count + 1, loss
end

---A tick for each cell: its mean, from the least to the largest. A mean that is no number has the highest.
---@return string
function Bar:ticks()
  local means, low, high = {}, math.huge, -math.huge
  for i, cell in ipairs(self.cells) do
    means[i] = cell.sum / cell.count
    if means[i] == means[i] then low, high = math.min(low, means[i]), math.max(high, means[i]) end
  end
  for i, mean in ipairs(means) do
    local place = high > low and (mean - low) / (high - low) or 0
    local is_number = mean == mean and place == place
    means[i] = TICKS[is_number and math.floor(math.max(0, math.min(1, place)) * (#TICKS - 1) + 0.5) + 1 or #TICKS]
  end
  return table.concat(means)
end

---The line after a step.
---@param step integer
---@param samples integer   of this run so far
---@param seconds number    since it began
---@return string
function Bar:line(step, samples, seconds)
  local left = progress.format_time((self.last - step) * seconds / (step - self.first))
  return ("step %d of %d  loss %.4f %s  %.3g samples/s  %s left"):format(step, self.last, self.loss, self:ticks(), samples / seconds, left)
end

---Draws the line, unless it was drawn a moment ago; removes it after the last step.
---@param step integer
---@param samples integer
function Bar:draw(step, samples)
  local now = cbk.clock()
  if step < self.last and now - self.drawn < PAUSE then return end
  self.drawn = now
  cbk.terminal.progress(step == self.last and "" or self:line(step, samples, now - self.started))
end

return progress_bar
