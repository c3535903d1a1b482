-- Tables that fit the terminal: the least important columns are left out, then the first column is shortened.

local cbk = require "cbk"
local shortened = require "cbk.shortened"

local text_table = {}

local NARROWEST = 12    -- of a shortened first column
local FIRST_SHARE = 0.4 -- of the terminal, reserved for the first column, which names the row
local GAP = 2
local WIDEST = 400   -- of a column if there is no limit: one long key must not widen all lines

---@class TextColumn
---@field title string
---@field right? boolean     aligned to the right
---@field weight? integer    priority; columns with the largest weights are shown first
---@field is_below? boolean   in a terminal, its texts are lines of their own, below the row
---@field share? number      of the first column: the part of the terminal that is reserved for it

local function column_widths(columns, rows)
  local widths = {}
  for c, column in ipairs(columns) do
    widths[c] = cbk.terminal.columns(column.title)
    for _, cells in ipairs(rows) do widths[c] = math.max(widths[c], cbk.terminal.columns(cells[c])) end
  end
  return widths
end

local function has_text(rows, c)
  for _, cells in ipairs(rows) do
    if cells[c] ~= "" then return true end
  end
  return false
end

--- The columns that fit beside `first` columns of the first one (false if that does not fit), and their total width. Columns without text
--- are left out.
local function fitting(columns, rows, widths, limit, first)
  local order, shown, total = {}, { true }, first
  for c = 2, #columns do
    if has_text(rows, c) and not (columns[c].is_below and limit < math.huge) then order[#order + 1] = c end
  end
  table.sort(order, function(a, b)
    if columns[a].weight ~= columns[b].weight then return columns[a].weight > columns[b].weight end
    return a < b
  end)
  local is_room = true
  for _, c in ipairs(order) do
    is_room = is_room and total + GAP + widths[c] <= limit
    shown[c] = is_room
    if is_room then total = total + GAP + widths[c] end
  end
  return shown, total
end

---The lines of a table: titles, then a line for each row. Columns without any text are left out.
---@param columns TextColumn[]
---@param rows string[][]
---@param limit? integer   columns of the terminal; without it, nothing is left out
---@return string[] lines
---@return string[] left_out   titles of columns with text that do not fit
function text_table.lines(columns, rows, limit)
  limit = limit or math.huge
  local widths = column_widths(columns, rows)
  local first = math.min(widths[1], math.max(NARROWEST, math.floor((columns[1].share or FIRST_SHARE) * limit)))
  local shown, total = fitting(columns, rows, widths, limit, first)
  widths[1] = math.max(first, math.min(widths[1], limit - total + first))
  local is_cut = limit < math.huge
  for c, width in ipairs(is_cut and {} or widths) do widths[c] = math.min(width, WIDEST) end
  local titles, left_out, out = {}, {}, {}
  for c, column in ipairs(columns) do
    titles[c] = column.title
    if shown[c] == false then left_out[#left_out + 1] = column.title end
  end
  for i = 0, #rows do
    local cells, pieces = i == 0 and titles or rows[i], {}
    for c, column in ipairs(columns) do
      if shown[c] then
        local text = c == 1 and is_cut and shortened(cells[c], widths[c]) or cells[c]
        local padding = (" "):rep(widths[c] - cbk.terminal.columns(text))
        pieces[#pieces + 1] = column.right and padding .. text or text .. padding
      end
    end
    out[#out + 1] = table.concat(pieces, (" "):rep(GAP)):match "^(.*%S)" or ""
    for c, column in ipairs(i > 0 and is_cut and columns or {}) do
      if column.is_below and cells[c] ~= "" then out[#out + 1] = "    " .. cells[c] end
    end
  end
  return out, left_out
end

return text_table
