-- A matrix as coloured blocks, or as shaded blocks on a terminal without colours.

local figure = require "cbk.plot.figure"
local numbers = require "cbk.numbers"
local scale = require "cbk.plot.scale"

local heat_map = {}

---@class HeatMapPlot
---@field title string
---@field of string         the statistic of a block, such as "rms"
---@field height integer    of the matrix
---@field width integer
---@field rows integer      of blocks
---@field columns integer
---@field values number[]   of the blocks, row by row; NaN if no element is finite
---@field nan integer[]
---@field inf integer[]
---@field remarks string[]   where elements are not finite

local SHADES, ASCII = { " ", "░", "▒", "▓", "█" }, { " ", ".", ":", "-", "=", "+", "*", "#", "%", "@" }

--- The first row or column of a block.
local function begin_of(block, count, extent) return math.floor(block * extent / count) end

local function is_diverging(plot) return plot.of == "mean" end

--- A function that returns the place of a block's value on the scale, "bad" if elements are not finite, and nil for a block without value.
--- Also the two ends of the scale.
local function placed(plot, is_log)
  local low, high = scale.range(plot.values)
  if not low then return function(i) return plot.nan[i] + plot.inf[i] > 0 and "bad" or nil end end
  if is_diverging(plot) then
    high = math.max(math.abs(low), math.abs(high))
    low = -high
  end
  if is_log then -- 0 has the lowest place
    low = math.huge
    for _, value in ipairs(plot.values) do
      if value > 0 then low = math.min(low, value) end
    end
    if low == math.huge then low, high = 1, 1 end
  end
  local place = scale.place(low, high, is_log)
  return function(i)
    if plot.nan[i] + plot.inf[i] > 0 then return "bad" end
    local value = plot.values[i]
    if value ~= value then return nil end
    return is_log and value <= 0 and 0 or place(value)
  end, low, high
end

---The meaning of the colours.
local function legend(plot, low, high, is_log)
  if not low then return "no finite elements" end
  return ("%s of blocks from %s to %s%s"):format(plot.of, scale.text(low), scale.text(high), is_log and " (log)" or "")
end

local LISTED = 5

--- The numbers of elements that are not finite: "8 NaN and 1 infinite"; nil if all are finite.
local function bad_text(nan, inf)
  if nan == 0 and inf == 0 then return nil end
  local parts = {}
  if nan > 0 then parts[1] = numbers.grouped(nan) .. " NaN" end
  if inf > 0 then parts[#parts + 1] = numbers.grouped(inf) .. " infinite" end
  return table.concat(parts, " and ")
end

local function extent_text(word, first, last)
  return first == last and ("%s %d"):format(word, first) or ("%ss %d to %d"):format(word, first, last)
end

--- The columns of a row of blocks that are not finite, from the first to the last.
local function bad_columns(plot, row)
  local first, last
  for column = 0, plot.columns - 1 do
    local i = row * plot.columns + column + 1
    if plot.nan[i] + plot.inf[i] > 0 then first, last = first or column, column end
  end
  if first then return begin_of(first, plot.columns, plot.width), begin_of(last + 1, plot.columns, plot.width) - 1 end
end

--- Adds the rows with elements that are not finite in one row of blocks. Consecutive rows are reported as one.
local function add_rows(plot, row, matrix, out)
  local first_column, last_column = bad_columns(plot, row)
  if not first_column then return end
  local begin, stop = begin_of(row, plot.rows, plot.height), begin_of(row + 1, plot.rows, plot.height)
  local lines = matrix:slice(0, begin, stop):grid { rows = 4096, columns = 1 }
  local i = 1
  while i <= lines.rows do
    local nan, inf, last = lines.nan[i], lines.inf[i], i
    while nan + inf > 0 and last < lines.rows and lines.nan[last + 1] + lines.inf[last + 1] > 0 do
      last = last + 1
      nan, inf = nan + lines.nan[last], inf + lines.inf[last]
    end
    if nan + inf > 0 then
      out[#out + 1] = ("%s in %s, %s"):format(bad_text(nan, inf),
        extent_text("row", begin + begin_of(i - 1, lines.rows, stop - begin), begin + begin_of(last, lines.rows, stop - begin) - 1),
        extent_text("column", first_column, last_column))
    end
    i = last + 1
  end
end

---Where elements are not finite: "64 NaN in row 17, columns 0 to 63". Reads the affected rows of blocks again.
---@param plot HeatMapPlot
---@param matrix Tensor
---@return string[]
function heat_map.remarks(plot, matrix)
  local out, row = {}, 0
  while row < plot.rows and #out <= LISTED do
    add_rows(plot, row, matrix, out)
    row = row + 1
  end
  if #out <= LISTED then return out end
  local all = {}
  for i = 1, LISTED do all[i] = out[i] end
  all[LISTED + 1] = "and in more rows"
  return all
end

local function colour_of(plot, place)
  if place == "bad" then return scale.BAD end
  return place and scale.colour(place, is_diverging(plot)) or scale.NONE
end

--- A line of the picture for two rows of blocks: the first is the upper half of each cell.
local function coloured_line(plot, place, row)
  local parts = {}
  for column = 1, plot.columns do
    local upper = scale.terminal_colour(colour_of(plot, place(row * plot.columns + column)))
    if row + 1 < plot.rows then
      local lower = scale.terminal_colour(colour_of(plot, place((row + 1) * plot.columns + column)))
      parts[column] = ("\27[38;5;%d;48;5;%dm▀"):format(upper, lower)
    else
      parts[column] = ("\27[38;5;%dm▀"):format(upper)
    end
  end
  return table.concat(parts) .. "\27[0m"
end

local function shaded_line(plot, place, row, shades)
  local parts = {}
  for column = 1, plot.columns do
    local at = place(row * plot.columns + column)
    parts[column] = at == "bad" and "!" or at and shades[math.min(#shades, math.floor(at * #shades) + 1)] or "?"
  end
  return (table.concat(parts):gsub(" +$", ""))
end

---Lines for a terminal; with colours, a line has two rows of blocks.
---@param plot HeatMapPlot
---@param options { ascii: boolean, colour: boolean, log: boolean }
---@return string[]
function heat_map.lines(plot, options)
  local place, low, high = placed(plot, options.log)
  local label, out = #tostring(math.max(plot.height - 1, 0)), {}
  local with_colours = options.colour and not options.ascii
  for row = 0, plot.rows - 1, with_colours and 2 or 1 do
    local cells = with_colours and coloured_line(plot, place, row) or shaded_line(plot, place, row, options.ascii and ASCII or SHADES)
    out[#out + 1] = ("%" .. label .. "d |%s"):format(begin_of(row, plot.rows, plot.height), cells)
  end
  local last = tostring(plot.width - 1)
  out[#out + 1] = (" "):rep(label + 2) .. "0" .. (plot.columns > #last + 1 and (" "):rep(plot.columns - #last - 1) .. last or "")
  out[#out + 1] = legend(plot, low, high, options.log)
  for _, line in ipairs(plot.remarks) do out[#out + 1] = "! " .. line end
  return out
end

local MARGIN, GREY = 20, { 120, 120, 120 }

--- The scale as a strip of colours.
local function draw_legend(out, plot, y, text)
  local steps = 60
  for i = 0, steps - 1 do out:rect(MARGIN + i * 2, y + 2, 2, 12, scale.colour(i / (steps - 1), is_diverging(plot))) end
  out:text(MARGIN + 2 * steps + 10, y, figure.fitting(text, out.width - 2 * MARGIN - 2 * steps - 10), "start", GREY)
end

--- Draws the blocks. All blocks of one colour are one shape; neighbours with one colour are one rectangle.
local function draw_blocks(out, plot, place, at)
  local by_colour, order = {}, {}
  for row = 0, plot.rows - 1 do
    local last_name, rect
    for column = 0, plot.columns - 1 do
      local colour = colour_of(plot, place(row * plot.columns + column + 1))
      local name = table.concat(colour, " ")
      if not by_colour[name] then
        by_colour[name] = { colour = colour, list = {} }
        order[#order + 1] = by_colour[name]
      end
      if name == last_name then
        rect[3] = rect[3] + at.across
      else
        rect = { at.x + column * at.across, at.y + row * at.down, at.across, at.down }
        table.insert(by_colour[name].list, rect)
      end
      last_name = name
    end
  end
  for _, group in ipairs(order) do out:rects(group.list, group.colour) end
end

---@param plot HeatMapPlot
---@param options { width: integer, height: integer, log: boolean }
---@return Figure
function heat_map.figure(plot, options)
  local out = figure.new(options.width, options.height)
  local place, low, high = placed(plot, options.log)
  local wide, remarks = options.width - 2 * MARGIN, plot.remarks
  out:text(MARGIN, 12, figure.fitting(plot.title, wide))
  draw_legend(out, plot, 12 + figure.LINE, legend(plot, low, high, options.log))
  local top = 20 + 2 * figure.LINE
  local bottom = options.height - 16 - #remarks * figure.LINE
  local across, down = wide / plot.columns, (bottom - top) / plot.rows
  draw_blocks(out, plot, place, { x = MARGIN, y = top, across = across, down = down })
  for i, line in ipairs(remarks) do out:text(MARGIN, bottom + 8 + (i - 1) * figure.LINE, figure.fitting(line, wide), "start", scale.BAD) end
  return out
end

return heat_map
