-- A picture as a list of shapes, which is written as SVG or PNG. Colours are { red, green, blue }; (0, 0) is the upper left corner.

local cbk = require "cbk"
local font = require "cbk.plot.font"

local figure = {}

local SIZE = 2 -- scale of letters: pixels of the picture for each pixel of the font

---@class Figure
---@field width integer
---@field height integer
---@field shapes table[]
local Figure = {}
Figure.__index = Figure

local BLACK, WHITE = { 0, 0, 0 }, { 255, 255, 255 }

---@param width integer
---@param height integer
---@return Figure
function figure.new(width, height)
  local out = setmetatable({ width = width, height = height, shapes = {} }, Figure)
  out:rect(0, 0, width, height, WHITE)
  return out
end

function Figure:rect(x, y, width, height, colour)
  table.insert(self.shapes, { kind = "rect", x = x, y = y, width = width, height = height, colour = colour })
end

---Rectangles of one colour: { x, y, width, height } each.
---@param list number[][]
function Figure:rects(list, colour) table.insert(self.shapes, { kind = "rects", list = list, colour = colour }) end

---Adds a text, which may be untrusted. `anchor`: the part of the text that is at x.
---@param anchor? "start"|"middle"|"end"
function Figure:text(x, y, text, anchor, colour)
  table.insert(self.shapes, { kind = "text", x = x, y = y, text = cbk.shown(text), anchor = anchor or "start", colour = colour or BLACK })
end

---@param points { [1]: number, [2]: number }[]
function Figure:line(points, colour)
  table.insert(self.shapes, { kind = "line", points = points, colour = colour or BLACK })
end

---The width of a text in pixels.
---@param text string
function figure.text_width(text) return font.length(text) * font.STEP * SIZE end

figure.LINE = (font.HEIGHT + 3) * SIZE -- from one line of text to the next

---The end of a text, if the whole text is too wide.
---@param text string
---@param width integer
function figure.fitting(text, width)
  if figure.text_width(text) <= width then return text end
  local most = math.max(1, math.floor(width / font.STEP / SIZE) - 3)
  local first = font.length(text) - most
  return "..." .. text:gsub("[%z\1-\127\192-\255][\128-\191]*", "", first)
end

-- --- SVG

local ESCAPES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

---Text for XML and HTML, as content or within quotes.
---@param text string
function figure.escaped(text) return (text:gsub("[&<>\"']", ESCAPES)) end

local function hex(colour) return ("#%02x%02x%02x"):format(colour[1], colour[2], colour[3]) end

local function number(value) return (("%.2f"):format(value):gsub("%.?0+$", "")) end

local WRITERS = {
  rect = function(shape)
    return ('<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>'):format(number(shape.x), number(shape.y), number(shape.width),
      number(shape.height), hex(shape.colour))
  end,
  rects = function(shape)
    local parts = {}
    for i, rect in ipairs(shape.list) do
      parts[i] = ("M%s %sh%sv%sh-%sz"):format(number(rect[1]), number(rect[2]), number(rect[3]), number(rect[4]), number(rect[3]))
    end
    return ('<path fill="%s" d="%s"/>'):format(hex(shape.colour), table.concat(parts))
  end,
  text = function(shape)
    return ('<text x="%s" y="%s" text-anchor="%s" fill="%s">%s</text>'):format(number(shape.x), number(shape.y + 7 * SIZE), shape.anchor,
      hex(shape.colour), figure.escaped(shape.text))
  end,
  line = function(shape)
    local points = {}
    for i, point in ipairs(shape.points) do points[i] = number(point[1]) .. "," .. number(point[2]) end
    return ('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>'):format(table.concat(points, " "), hex(shape.colour))
  end,
}

---@return string
function Figure:svg()
  local out = { ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" '
    .. 'font-size="%d" shape-rendering="crispEdges">'):format(self.width, self.height, self.width, self.height, 9 * SIZE) }
  for _, shape in ipairs(self.shapes) do out[#out + 1] = WRITERS[shape.kind](shape) end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

-- --- PNG

local ffi = require "ffi"

---@class Canvas
---@field palette string[]
local Canvas = {}
Canvas.__index = Canvas

function Canvas:place_of(colour)
  local bytes = string.char(colour[1], colour[2], colour[3])
  local place = self.places[bytes]
  if not place then
    self.palette[#self.palette + 1] = bytes
    place = #self.palette - 1
    self.places[bytes] = place
  end
  return place
end

function Canvas:set(x, y, place)
  if x >= 0 and y >= 0 and x < self.width and y < self.height then self.pixels[y * self.width + x] = place end
end

local function rounded(value) return math.floor(value + 0.5) end

function Canvas:rect(x, y, width, height, place)
  local right, bottom = math.min(rounded(x + width), self.width), math.min(rounded(y + height), self.height)
  local left = math.max(0, rounded(x))
  for row = math.max(0, rounded(y)), bottom - 1 do
    if right > left then ffi.fill(self.pixels + row * self.width + left, right - left, place) end
  end
end

local PAINTERS = {
  rect = function(canvas, shape, place) canvas:rect(shape.x, shape.y, shape.width, shape.height, place) end,
  rects = function(canvas, shape, place)
    for _, rect in ipairs(shape.list) do canvas:rect(rect[1], rect[2], rect[3], rect[4], place) end
  end,
  text = function(canvas, shape, place)
    local share = ({ start = 0, middle = 0.5, ["end"] = 1 })[shape.anchor]
    local left = rounded(shape.x - share * figure.text_width(shape.text))
    font.pixels(shape.text, function(x, y) canvas:rect(left + x * SIZE, rounded(shape.y) + y * SIZE, SIZE, SIZE, place) end)
  end,
  line = function(canvas, shape, place)
    for i = 2, #shape.points do
      local a, b = shape.points[i - 1], shape.points[i]
      local steps = math.max(1, math.ceil(math.max(math.abs(b[1] - a[1]), math.abs(b[2] - a[2]))))
      for step = 0, steps do
        local x, y = rounded(a[1] + (b[1] - a[1]) * step / steps), rounded(a[2] + (b[2] - a[2]) * step / steps)
        canvas:set(x, y, place)
        canvas:set(x, y + 1, place)
      end
    end
  end,
}

---The bytes of a PNG file.
---@return string
function Figure:png()
  local canvas = setmetatable({ width = self.width, height = self.height, palette = {}, places = {},
    pixels = ffi.new("uint8_t[?]", self.width * self.height) }, Canvas)
  for _, shape in ipairs(self.shapes) do PAINTERS[shape.kind](canvas, shape, canvas:place_of(shape.colour)) end
  return cbk.png(self.width, self.height, table.concat(canvas.palette), ffi.string(canvas.pixels, self.width * self.height))
end

return figure
