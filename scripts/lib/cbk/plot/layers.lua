-- One number for each layer: how the norm of a weight changes from the first layer to the last.

local cbk = require "cbk"
local figure = require "cbk.plot.figure"
local fold = require "cbk.fold"
local histogram = require "cbk.plot.histogram"
local layer_places = require "cbk.layer_places"
local scale = require "cbk.plot.scale"
local shortened = require "cbk.shortened"

local layers = {}

---@class LayerSeries  tensors with keys that differ only in the number of the layer
---@field name string
---@field layers integer[]
---@field values number[]   NaN if a layer has none
---@field is_bad boolean[]   whether the tensor has NaN or infinities, which its number leaves out

---@class LayersPlot
---@field title string
---@field of string
---@field series LayerSeries[]
---@field bad string[]   the keys of tensors with NaN or infinities

---Whether a key has the number of a layer.
---@param key string
function layers.is_numbered(key) return #layer_places.of(key) > 0 end

---The place in keys of one outline whose numbers are those of layers: the one with most numbers. A layer has many experts.
---@param keys string[]
---@return integer
local function layer_place(keys)
  local counts, seen, is_expert, best = {}, {}, {}, 1
  for _, key in ipairs(keys) do
    for i, place in ipairs(layer_places.of(key)) do
      counts[i], seen[i], is_expert[i] = counts[i] or 0, seen[i] or {}, layer_places.is_expert(place)
      if not seen[i][place.digits] then seen[i][place.digits], counts[i] = true, counts[i] + 1 end
    end
  end
  for i, count in ipairs(counts) do
    if not is_expert[i] and (is_expert[best] or count > counts[best]) then best = i end
  end
  return best
end

---The keys with '*' in place of the number of the layer, and that number.
---@param keys string[]
---@return table<string, string> names, table<string, integer> numbers   by key
function layers.split(keys)
  local outlines, names, numbers = {}, {}, {}
  for _, key in ipairs(keys) do
    if layers.is_numbered(key) then
      local id = layer_places.outline(key, "#")
      outlines[id] = outlines[id] or {}
      table.insert(outlines[id], key)
    end
  end
  for _, alike in pairs(outlines) do
    local at = layer_place(alike)
    for _, key in ipairs(alike) do
      local place = layer_places.of(key)[at]
      names[key], numbers[key] = place.before .. "*" .. place.behind, tonumber(place.digits)
    end
  end
  return names, numbers
end

---@param entries { key: string, value: number|nil, is_bad: boolean }[]
---@param options { title: string, of: string }
---@return LayersPlot
function layers.plot(entries, options)
  local by_name, series, bad, keys = {}, {}, {}, {}
  for i, entry in ipairs(entries) do keys[i] = entry.key end
  local names, layer_of = layers.split(keys)
  for _, entry in ipairs(entries) do
    local name, layer = names[entry.key], layer_of[entry.key]
    if name then
      local one = by_name[name]
      if not one then
        one = { name = name, found = {} }
        by_name[name] = one
        series[#series + 1] = one
      end
      table.insert(one.found, { layer, entry.value or 0 / 0, entry.is_bad })
      if entry.is_bad then bad[#bad + 1] = entry.key end
    end
  end
  for _, one in ipairs(series) do
    table.sort(one.found, function(a, b) return a[1] < b[1] end)
    one.layers, one.values, one.is_bad = {}, {}, {}
    for i, found in ipairs(one.found) do one.layers[i], one.values[i], one.is_bad[i] = found[1], found[2], found[3] end
    one.found = nil
  end
  return { title = options.title, of = options.of, series = series, bad = bad }
end

local function is_finite(value) return value == value and math.abs(value) < math.huge end

--- A logarithmic scale has no place for what is not above 0.
local function has_place(value, is_log) return is_finite(value) and not (is_log and value <= 0) end

---Where numbers that have a place are between the least and the largest: from 0 to 1.
---@param values number[]
---@param is_log? boolean
---@return (fun(number: number): number)|nil place, number|nil low, number|nil high   nil if there are none
local function places(values, is_log)
  local shown = {}
  for _, value in ipairs(values) do shown[#shown + 1] = has_place(value, is_log) and value or nil end
  local low, high = scale.range(shown)
  if not low then return nil end
  return scale.place(low, high, is_log), low, high
end

--- What is written instead of the range where no number can be drawn.
local function no_range(values, is_log) return is_log and scale.range(values) and "none above 0" or "no values" end

--- What a plot of these series leaves out or marks.
local function remarks(plot, series, is_log, shapes)
  local out = {}
  for _, one in ipairs(series) do
    for _, value in ipairs(one.values) do
      if is_log and value <= 0 then
        out[1] = ("(no %s for numbers that are not above 0: the scale is logarithmic)"):format(shapes)
      end
    end
  end
  local bad = plot.bad[1] and fold.shown(plot.bad[1])
  if bad then out[#out + 1] = "! NaN or infinities in " .. (#plot.bad == 1 and bad or ("%d tensors, such as %s"):format(#plot.bad, bad)) end
  return out
end

-- --- the terminal

local TICKS, ASCII = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" }, { "_", ".", "-", "=", "+", "*", "#", "@" }

---A cell for each of these layers: its number, NaN for a bad tensor, false for a layer that the series lacks or that has no number.
local function cells_of(one, numbers)
  local at, out = {}, {}
  for i, layer in ipairs(one.layers) do at[layer] = i end
  for k, layer in ipairs(numbers) do
    local i = at[layer]
    local value = i and one.values[i]
    out[k] = i and one.is_bad[i] and 0 / 0 or value == value and value or false
  end
  return out
end

---Cells as one tick each, or as `count` ticks that each show the largest of several neighbours; blank without a number to show.
local function ticks(cells, place, count, options)
  local marks, out = options.ascii and ASCII or TICKS, {}
  for i = 0, count - 1 do
    local largest, is_bad = nil, false
    for k = math.floor(i * #cells / count) + 1, math.floor((i + 1) * #cells / count) do
      local value = cells[k]
      is_bad = is_bad or value and not is_finite(value)
      if value and has_place(value, options.log) then largest = math.max(largest or value, value) end
    end
    out[i + 1] = is_bad and "!" or largest and marks[math.min(#marks, math.floor(place(largest) * #marks) + 1)] or " "
  end
  return table.concat(out)
end

local LABELLED = { 5, 10, 20, 50, 100, 200, 500, 1000 } -- layers between the numbers of an axis

---The numbers of layers above their ticks: "0    5    10".
---@param numbers integer[]   of the layers
---@param count integer       ticks
local function layer_axis(numbers, count)
  local step, out = LABELLED[#LABELLED], ""
  for i = #LABELLED, 1, -1 do
    if LABELLED[i] / #numbers * count >= 5 then step = LABELLED[i] end
  end
  for i, number in ipairs(numbers) do
    local at = math.floor((i - 1) / #numbers * count)
    if (i == 1 or number % step == 0) and (at == 0 or at > #out) then out = out .. (" "):rep(at - #out) .. number end
  end
  return out
end

---A function that draws bars to both sides of a zero.
---@param low number    below 0
---@param high number
---@param room integer   columns
local function two_sided(low, high, room, options)
  local left = math.max(1, math.floor((room - 1) * -low / (math.max(0, high) - low)))
  local right = room - 1 - left
  local block, zero = options.ascii and "#" or "█", options.ascii and "|" or "│"
  return function(value)
    local count = value < 0 and math.abs(value) < math.huge and math.max(1, math.floor(value / low * left + 0.5)) or 0
    return (" "):rep(left - count) .. block:rep(count) .. zero
      .. histogram.bar(value > 0 and value < math.huge and value / high or 0, right, options.ascii)
  end
end

---One series: a bar for each layer.
local function bars(plot, options)
  local one = plot.series[1]
  local place, low, high = places(one.values, options.log)
  local out, texts, widest, label = { fold.shown(one.name) }, {}, 0, 0
  for i, value in ipairs(one.values) do
    texts[i] = scale.text(value) .. (one.is_bad[i] and " !" or #plot.bad > 0 and "  " or "")
    widest, label = math.max(widest, #texts[i]), math.max(label, #tostring(one.layers[i]))
  end
  local room = math.max(8, options.width - widest - label - 4)
  local function share_of(value)
    if not place or not has_place(value, options.log) then return 0 end
    if options.log then return 1 / room + (1 - 1 / room) * place(value) end -- the least has a bar, too
    return high > 0 and math.max(0, value / high) or 0
  end
  local draw = low and low < 0 and two_sided(low, high, room, options)
    or function(value) return histogram.bar(share_of(value), room, options.ascii) end
  for i, value in ipairs(one.values) do
    out[i + 1] = (("%" .. label .. "d  %" .. widest .. "s  %s"):format(one.layers[i], texts[i], draw(value)):gsub(" +$", ""))
  end
  return out
end

local RANGE = 20 -- columns of "0.00123 to 0.00456"
local LEAST_NAME = 24

--- The numbers of all layers of a plot, ascending.
local function all_layers(plot)
  local out, known = {}, {}
  for _, one in ipairs(plot.series) do
    for _, layer in ipairs(one.layers) do
      if not known[layer] then out[#out + 1] = layer end
      known[layer] = true
    end
  end
  table.sort(out)
  return out
end

local function padded(text, width) return text .. (" "):rep(width - cbk.terminal.columns(text)) end

---Several series: the ticks of each in a line, a cell for each layer, below the numbers of the layers. Where names leave no room for
---them, they have a line of their own.
---@param plot LayersPlot
---@param options { width: integer, ascii: boolean, log: boolean|nil }
local function sparklines(plot, options)
  local out, name_width, numbers = {}, 0, all_layers(plot)
  for _, one in ipairs(plot.series) do name_width = math.max(name_width, cbk.terminal.columns(fold.shown(one.name))) end
  local beside = options.width - RANGE - 4
  local is_apart = #numbers > beside - math.min(name_width, LEAST_NAME)
  local room = math.min(#numbers, math.max(8, is_apart and beside or beside - 8))
  name_width = is_apart and 0 or math.max(8, math.min(name_width, beside - room))
  local indent = is_apart and "  " or (" "):rep(name_width + 2)
  out[1] = indent .. layer_axis(numbers, room)
  for _, one in ipairs(plot.series) do
    local place, low, high = places(one.values, options.log)
    local range = low and ("%s to %s"):format(scale.text(low), scale.text(high)) or no_range(one.values, options.log)
    local name = fold.shown(one.name)
    if is_apart then out[#out + 1] = name else name = padded(shortened(name, name_width), name_width) end
    local drawn = ticks(cells_of(one, numbers), place, room, options)
    out[#out + 1] = ("%s  %s  %s"):format(is_apart and "" or name, drawn, range)
  end
  return out
end

---@param plot LayersPlot
---@param options { width: integer, ascii: boolean, log: boolean|nil }
---@return string[]
function layers.lines(plot, options)
  local out = #plot.series == 1 and bars(plot, options) or sparklines(plot, options)
  for _, line in ipairs(remarks(plot, plot.series, options.log, "bars")) do out[#out + 1] = line end
  return out
end

-- --- pictures

local MARGIN, GREY, MOST = 20, { 120, 120, 120 }, 12
local COLOURS = { { 31, 119, 180 }, { 214, 39, 40 }, { 44, 160, 44 }, { 255, 127, 14 }, { 148, 103, 189 }, { 140, 86, 75 },
  { 227, 119, 194 }, { 23, 190, 207 }, { 188, 189, 34 }, { 0, 0, 0 }, { 127, 127, 127 }, { 0, 0, 139 } }

--- Draws the lines of a series, with gaps at values that have no place.
local function draw_series(out, one, colour, x_of, y_of, is_log)
  local points = {}
  for i = 1, #one.values + 1 do
    local value = one.values[i]
    if value and has_place(value, is_log) then
      points[#points + 1] = { x_of(one.layers[i]), y_of(value) }
      out:rect(x_of(one.layers[i]) - 2, y_of(value) - 2, 5, 5, colour)
    else
      if #points > 1 then out:line(points, colour) end
      points = {}
    end
  end
end

---The first series of a plot as lines, with their names below.
---@param plot LayersPlot
---@param options { width: integer, height: integer, log: boolean|nil }
---@return Figure
function layers.figure(plot, options)
  local out, wide = figure.new(options.width, options.height), options.width - 2 * MARGIN
  local shown, all, numbers_of_layers = {}, {}, {}
  for i = 1, math.min(MOST, #plot.series) do
    shown[i] = plot.series[i]
    for k, value in ipairs(shown[i].values) do all[#all + 1], numbers_of_layers[#numbers_of_layers + 1] = value, shown[i].layers[k] end
  end
  local notes = remarks(plot, shown, options.log, "points")
  if #plot.series > #shown then table.insert(notes, 1, ("and %d more"):format(#plot.series - #shown)) end
  out:text(MARGIN, 12, figure.fitting(plot.title, wide))
  local top = 30 + figure.LINE
  local bottom = options.height - (#shown + #notes + 1) * figure.LINE - 30
  local up, low, high = places(all, options.log)
  if not up then
    out:text(options.width / 2, top, no_range(all, options.log), "middle", GREY)
    return out
  end
  local first, last = scale.range(numbers_of_layers)
  local axis = MARGIN + math.max(figure.text_width(scale.text(low)), figure.text_width(scale.text(high))) + 8
  local across = scale.place(first, last)
  local function x_of(layer) return axis + (first < last and across(layer) or 0.5) * (options.width - MARGIN - axis) end
  local function y_of(value) return bottom - (low < high and up(value) or 0.5) * (bottom - top) end
  out:rect(axis, top, 1, bottom - top, GREY)
  out:rect(axis, bottom, options.width - MARGIN - axis, 1, GREY)
  out:text(axis - 8, top - 7, scale.text(high), "end")
  out:text(axis - 8, bottom - 9, scale.text(low), "end")
  out:text(x_of(first), bottom + 8, tostring(first), "middle")
  if last > first then out:text(x_of(last), bottom + 8, tostring(last), "end") end
  out:text((axis + options.width) / 2, bottom + 8, "layer", "middle", GREY)
  for i, one in ipairs(shown) do
    draw_series(out, one, COLOURS[i], x_of, y_of, options.log)
    local y = bottom + 12 + i * figure.LINE
    out:rect(MARGIN, y + 2, 12, 12, COLOURS[i])
    out:text(MARGIN + 20, y, figure.fitting(fold.shown(one.name), wide - 20))
  end
  for i, note in ipairs(notes) do
    out:text(MARGIN, bottom + 12 + (#shown + i) * figure.LINE, figure.fitting(note, wide), "start", GREY)
  end
  return out
end

return layers
