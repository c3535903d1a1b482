-- Curves over steps: learning rates, losses. Each has a panel of its own, in a terminal and in a picture.

local figure = require "cbk.plot.figure"
local scale = require "cbk.plot.scale"

local curves = {}

---@class Curve
---@field name string
---@field steps number[]    ascending
---@field values number[]   one for each step; those that are NaN or infinite leave a gap

---@class CurveRange
---@field first number      step
---@field last number
---@field low number        value
---@field high number

local function is_finite(value) return value == value and math.abs(value) < math.huge end

---@param curve Curve
---@return CurveRange|nil   nil: no value is finite
local function range_of(curve)
  local low, high = scale.range(curve.values)
  return low and { first = curve.steps[1], last = curve.steps[#curve.steps], low = low, high = high }
end

local function step_text(step) return ("%d"):format(step) end

---Where a value is between two others: 0 to 1; in the middle if they are the same.
local function share(value, low, high) return high > low and (value - low) / (high - low) or 0.5 end

-- --- in a terminal

local BRAILLE = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } } -- by row and column of a cell
local HEIGHT = 8 -- rows of a panel

---UTF-8 of a character of the Braille block.
local function braille(dots) return string.char(0xE2, 0xA0 + math.floor(dots / 64), 0x80 + dots % 64) end

---The cells of a panel: which of their 2 x 4 dots are set.
---@param curve Curve
---@param range CurveRange
---@param width integer   cells
---@return table<integer, table<integer, integer>>   by row and column, from 0
local function cells_of(curve, range, width)
  local cells, before_x, before_y = {}, nil, nil
  local function set(x, y)
    local row, column = math.floor(y / 4), math.floor(x / 2)
    cells[row] = cells[row] or {}
    local dots, dot = cells[row][column] or 0, BRAILLE[y % 4 + 1][x % 2 + 1]
    if math.floor(dots / dot) % 2 == 0 then cells[row][column] = dots + dot end
  end
  for i, value in ipairs(curve.values) do
    if is_finite(value) then
      local x = math.floor(share(curve.steps[i], range.first, range.last) * (2 * width - 1) + 0.5)
      local y = math.floor((1 - share(value, range.low, range.high)) * (4 * HEIGHT - 1) + 0.5)
      local far = before_x and math.max(math.abs(x - before_x), math.abs(y - before_y), 1) or 1
      for k = 1, far do -- the line from the point before
        set(before_x and math.floor(before_x + (x - before_x) * k / far + 0.5) or x,
          before_y and math.floor(before_y + (y - before_y) * k / far + 0.5) or y)
      end
      before_x, before_y = x, y
    else
      before_x, before_y = nil, nil
    end
  end
  return cells
end

---@param curve Curve
---@param options { width: integer, ascii: boolean|nil }
---@return string[]
local function panel(curve, options)
  local range = range_of(curve)
  if not range then return { curve.name, "  no finite value" } end
  local high, low = scale.text(range.high), scale.text(range.low)
  local margin = math.max(#high, #low)
  local width = math.max(10, options.width - margin - 2)
  local cells, out = cells_of(curve, range, width), { curve.name }
  for row = 0, HEIGHT - 1 do
    local label = row == 0 and high or row == HEIGHT - 1 and low or ""
    local line = { (" "):rep(margin - #label), label, options.ascii and " |" or " │" }
    for column = 0, width - 1 do
      local dots = cells[row] and cells[row][column]
      line[#line + 1] = not dots and " " or options.ascii and "*" or braille(dots)
    end
    out[#out + 1] = (table.concat(line):gsub(" +$", ""))
  end
  local first, last = step_text(range.first), step_text(range.last)
  out[#out + 1] = (" "):rep(margin + 2) .. first .. (" "):rep(math.max(1, width - #first - #last)) .. last
  return out
end

---@param list Curve[]
---@param options { width: integer, ascii: boolean|nil }
---@return string[]
function curves.lines(list, options)
  local out = {}
  for _, curve in ipairs(list) do
    for _, line in ipairs(panel(curve, options)) do out[#out + 1] = line end
  end
  return out
end

-- --- pictures

local MARGIN, GREY, BLUE = 20, { 120, 120, 120 }, { 31, 119, 180 }

---@param out Figure
---@param curve Curve
---@param top number
---@param bottom number
local function draw_panel(out, curve, top, bottom)
  local range = range_of(curve)
  out:text(MARGIN, top - figure.LINE, figure.fitting(curve.name, out.width - 2 * MARGIN))
  if not range then
    out:text(out.width / 2, (top + bottom) / 2, "no finite value", "middle", GREY)
    return
  end
  local high, low = scale.text(range.high), scale.text(range.low)
  local left, right = MARGIN + math.max(figure.text_width(high), figure.text_width(low)) + 8, out.width - MARGIN
  out:rect(left, top, 1, bottom - top, GREY)
  out:rect(left, bottom, right - left, 1, GREY)
  out:text(left - 8, top, high, "end")
  out:text(left - 8, bottom - 14, low, "end")
  out:text(left, bottom + 6, step_text(range.first))
  out:text(right, bottom + 6, step_text(range.last), "end")
  local points = {}
  for i = 1, #curve.values + 1 do
    local value = curve.values[i]
    if value and is_finite(value) then
      points[#points + 1] = { left + share(curve.steps[i], range.first, range.last) * (right - left),
        bottom - share(value, range.low, range.high) * (bottom - top) }
    elseif points[1] then
      if points[2] then out:line(points, BLUE) else out:rect(points[1][1] - 2, points[1][2] - 2, 5, 5, BLUE) end
      points = {}
    end
  end
end

---@param title string
---@param list Curve[]
---@param options { width: integer, height: integer }   of a panel
---@return Figure
function curves.figure(title, list, options)
  local head = 12 + 2 * figure.LINE
  local out = figure.new(options.width, head + #list * options.height)
  out:text(MARGIN, 12, figure.fitting(title, options.width - 2 * MARGIN))
  for i, curve in ipairs(list) do
    local top = head + (i - 1) * options.height + figure.LINE
    draw_panel(out, curve, top, top + options.height - 3 * figure.LINE)
  end
  return out
end

return curves
