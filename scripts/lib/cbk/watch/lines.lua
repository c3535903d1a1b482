-- The lines of `cbk watch`: columns of fixed widths, because a line is printed before the next checkpoint exists.

local cbk = require "cbk"
local colour = require "cbk.colour"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local optimizer_table = require "cbk.optimizer_table"
local robust = require "cbk.check.robust"
local shortened = require "cbk.shortened"
local wrap = require "cbk.wrap"

local lines = {}

local GAP, INDENT = "  ", "    "
local FAR = 10       -- times the median of how far tensors moved
local LEAST = 4      -- tensors, so that a median says something
local LEAST_KEY = 16 -- columns of a key

local function number_text(number) return number and ("%.4g"):format(number) or "" end

local function broken_text(m)
  if m.nan + m.inf == 0 then return "0" end
  return m.inf == 0 and numbers.grouped(m.nan) or ("%s/%s"):format(numbers.grouped(m.nan), numbers.grouped(m.inf))
end

---A loss scale, which is nearly always a power of two, in six columns.
local function scale_text(text)
  local scale = tonumber(text)
  if not scale then return text or "" end
  local mantissa, exponent = math.frexp(scale)
  if scale % 1 == 0 and scale < 1e6 then return ("%.0f"):format(scale) end
  return mantissa == 0.5 and ("2^%d"):format(exponent - 1) or ("%.2g"):format(scale)
end

---@class WatchColumn
---@field title string
---@field width integer
---@field text fun(one: WatchedCheckpoint, m: Measured): string
---@field least? integer   columns of the terminal for it

---@type WatchColumn[]
local COLUMNS = {
  { title = "step", width = 8, text = function(one) return ("%.0f"):format(one.step) end },
  { title = "time", width = 11, text = function(one) return os.date("%m-%d %H:%M", one.time) --[[@as string]] end },
  { title = "tensors", width = 7, text = function(_, m) return numbers.grouped(m.tensors) end },
  { title = "size", width = 10, least = 92, text = function(_, m) return cbk.format_size(m.bytes) end },
  { title = "norm", width = 9, text = function(_, m) return number_text(m.norm) end },
  { title = "moved", width = 8, text = function(_, m) return m.moved and ("%.3g"):format(m.moved) or "" end },
  { title = "NaN/inf", width = 7, text = function(_, m) return broken_text(m) end },
  { title = "lr", width = 8, text = function(_, m)
    local first = m.learning_rates[1]
    return first and (tonumber(first) and ("%.3g"):format(tonumber(first)) or first) or ""
  end },
  { title = "scale", width = 6, text = function(_, m) return scale_text(m.loss_scale) end },
}

---@param cell fun(column: WatchColumn): string
---@param width integer|nil   columns of the terminal
local function row_text(cell, width)
  local cells = {}
  for _, column in ipairs(COLUMNS) do
    if not width or width >= (column.least or 0) then
      local text = cell(column)
      cells[#cells + 1] = (" "):rep(column.width - cbk.terminal.columns(text)) .. text
    end
  end
  return (table.concat(cells, GAP):gsub("%s+$", ""))
end

---@param width integer|nil   columns of the terminal
---@return string
function lines.titles(width) return row_text(function(column) return column.title end, width) end

-- --- what changed

---"layers.{0..3}.w and 2 more", shortened to the room.
---@param keys string[]
---@param room integer|nil
---@param note? fun(key: string): string   behind the first group, of its first key
local function keys_text(keys, room, note)
  local entries = {}
  for i, key in ipairs(keys) do entries[i] = { path = key } end
  local first = fold.groups(entries)[1]
  local rest = #keys - #first.members
  local text = (note and note(first.members[1].path) or "") .. (rest > 0 and (" and %s more"):format(numbers.grouped(rest)) or "")
  local name = room and shortened(first.name, math.max(room - cbk.terminal.columns(text), LEAST_KEY)) or first.name
  return name .. text
end

---@param list MeasuredTensor[]
local function keys_of(list)
  local out, by_key = {}, {}
  for i, one in ipairs(list) do out[i], by_key[one.key] = one.key, one end
  return out, by_key
end

---@param title string
---@param list MeasuredTensor[]
local function changed_text(title, list, room)
  local keys, by_key = keys_of(list)
  return title .. keys_text(keys, room and room - #title, function(key)
    return (": %s -> %s"):format(by_key[key].before, by_key[key].after)
  end)
end

---@param m Measured
---@param room integer|nil
---@return string[]
local function changes(m, room)
  local out = {}
  local function add(title, keys) if #keys > 0 then out[#out + 1] = title .. keys_text(keys, room and room - #title) end end
  add("new: ", m.added)
  add("gone: ", m.removed)
  if #m.shapes > 0 then out[#out + 1] = changed_text("shape of ", m.shapes, room) end
  if #m.dtypes > 0 then out[#out + 1] = changed_text("dtype of ", m.dtypes, room) end
  return out
end

-- --- what is unusual

---Tensors that moved much farther than the others, the farthest first, and the median.
---@param m Measured
---@return MeasuredTensor[] far, number median
function lines.far(m)
  local far, moved = {}, {}
  for i, one in ipairs(m.moves) do moved[i] = one.moved end
  local median = #moved >= LEAST and robust.median(moved) or 0
  if median == 0 then return far, 0 end
  for _, one in ipairs(m.moves) do
    if one.moved > FAR * median then far[#far + 1] = one end
  end
  table.sort(far, function(a, b)
    if a.moved ~= b.moved then return a.moved > b.moved end
    return a.key < b.key
  end)
  return far, median
end

---At most three lines.
---@param m Measured
---@param room integer|nil
---@return { text: string, colour: string }[]
local function unusual(m, room)
  local out = {}
  if #m.broken > 0 then
    local keys, by_key = keys_of(m.broken)
    local title = "new NaN/inf: "
    out[1] = { colour = "red", text = title .. keys_text(keys, room and room - #title, function(key)
      return (" (%s)"):format(numbers.grouped(by_key[key].count))
    end) }
  end
  if m.unreadable.count > 0 then
    local text = ("%s cannot be read: %s"):format(numbers.counted(m.unreadable.count, "tensor"), cbk.shown(m.unreadable.why))
    out[#out + 1] = { colour = "red", text = text }
  end
  local far, median = lines.far(m)
  if #far > 0 then
    local keys, by_key = keys_of(far)
    local title = "moved far: "
    out[#out + 1] = { colour = "yellow", text = title .. keys_text(keys, room and room - #title, function(key)
      return (" %.3g, %.0f x the median"):format(by_key[key].moved, by_key[key].moved / median)
    end) }
  elseif m.moved == 0 and #m.broken == 0 and #m.added + #m.removed + #m.shapes + #m.dtypes == 0 then
    out[#out + 1] = { colour = "yellow", text = "no tensor of the model has changed" }
  end
  return out
end

-- --- lines

local function painted(text, name, has_colours) return has_colours and colour.text(name, text) or text end

---The lines about a checkpoint: one, with what changed behind it or below it, and what is unusual.
---@param one WatchedCheckpoint
---@param m Measured
---@param options { width: integer|nil, colours: boolean }
---@return string[]
function lines.of(one, m, options)
  local room = options.width and options.width - #INDENT
  local row, list = row_text(function(column) return column.text(one, m) end, options.width), changes(m, room)
  local behind = GAP .. table.concat(list, "; ")
  local is_behind = #list > 0 and options.width and cbk.terminal.columns(row .. behind) <= options.width
  local out = { painted(row, "red", options.colours and m.nan + m.inf > 0) .. (is_behind and behind or "") }
  for _, text in ipairs(is_behind and {} or list) do out[#out + 1] = INDENT .. text end
  for _, line in ipairs(unusual(m, room)) do
    for text in (wrap.text(INDENT .. line.text, options.width, 2) .. "\n"):gmatch "(.-)\n" do
      out[#out + 1] = painted(text, line.colour, options.colours)
    end
  end
  if #m.learning_rates > 1 and optimizer_table.values_text(m.learning_rates) ~= m.learning_rates[1] then
    table.insert(out, 2, INDENT .. "learning rates: " .. optimizer_table.values_text(m.learning_rates))
  end
  return out
end

---The line about a checkpoint that cannot be read.
---@param one WatchedCheckpoint
---@param problem string
---@param options { width: integer|nil, colours: boolean }
---@return string
function lines.problem(one, problem, options)
  local text = ("%8.0f%s%s%s"):format(one.step, GAP, os.date("%m-%d %H:%M", one.time), GAP)
  text = wrap.text(text .. cbk.shown(problem), options.width)
  return painted(text, "red", options.colours)
end

return lines
