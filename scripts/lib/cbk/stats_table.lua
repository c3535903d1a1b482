-- Statistics of tensors as a table for a terminal.

local cbk = require "cbk"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local numbers = require "cbk.numbers"
local text_table = require "cbk.text_table"

local stats_table = {}

---@class StatsRow
---@field file string
---@field key string
---@field dtype string      of the elements that are read
---@field encoding string|nil   of quantised blocks: "Q4_K"
---@field shape integer[]|nil
---@field of_tensors string|nil   "30 tensors", which the row sums up
---@field parameter_key string|nil   the key of an optimizer's state with its parameter
---@field bytes integer
---@field tied_to string|nil
---@field stats table       of `Tensor:stats`

stats_table.NUMBERS = { "min", "max", "mean", "std", "norm" }
stats_table.COUNTS = { "nan", "inf", "zeros", "subnormal" }

-- The priority of columns if not all of them fit.
local WEIGHTS = { min = 7, max = 7, mean = 7, std = 8, norm = 6, nan = 9, inf = 9, zeros = 2, subnormal = 2 }

local ASKED = 100 -- of a column that the user has asked for

---Whether the elements of a row are integers.
---@param row StatsRow
function stats_table.is_whole(row) return not cbk.dtype(row.dtype).floating end

---A number of a row; integers have all their digits.
---@param row StatsRow
---@param digits integer
function stats_table.number_text(value, row, digits)
  if value == nil then return "" end
  local is_exact = type(value) ~= "number" or value % 1 == 0 and math.abs(value) < 2 ^ 53
  if stats_table.is_whole(row) and is_exact then return numbers.whole_text(value) end
  return (("%%.%dg"):format(digits)):format(value)
end

local function share_text(count, row) return count > 0 and numbers.percent(count, row.stats.numel) or "" end

---@class StatsTableOptions
---@field shares? number[]    the shares of the quantiles
---@field files? boolean      rows have the name of their file
---@field width? integer      of the terminal
---@field sort? string        the column that rows are sorted by: it is always shown

local function key_text(row, options)
  local key = fold.shown(row.parameter_key or row.key) .. (row.tied_to and " = " .. fold.shown(row.tied_to) or "")
  return options.files and cbk.shown(row.file) .. ": " .. key or key
end

---The columns of the table; `text` gives a row's cell.
---@param options StatsTableOptions
function stats_table.columns(options)
  local columns = {
    { title = "key", text = function(row) return key_text(row, options) end },
    { title = "dtype", weight = 3, text = function(row) return row.encoding or row.dtype end },
    { title = "shape", weight = 4, text = function(row) return row.of_tensors or extents.shape(row.shape) end },
  }
  local function add(title, weight, text)
    columns[#columns + 1] = { title = title, right = true, weight = title == options.sort and math.huge or weight, text = text }
  end
  for _, name in ipairs(stats_table.NUMBERS) do
    add(name, WEIGHTS[name], function(row) return stats_table.number_text(row.stats[name], row, 4) end)
  end
  for i, share in ipairs(options.shares or {}) do
    add(("q%g"):format(share), ASKED, function(row) return stats_table.number_text(row.stats.quantiles[i], row, 4) end)
  end
  for _, name in ipairs(stats_table.COUNTS) do
    add(name, WEIGHTS[name], function(row) return share_text(row.stats[name], row) end)
  end
  return columns
end

---@param row StatsRow
---@return string[]
function stats_table.cells(columns, row)
  local out = {}
  for c, column in ipairs(columns) do out[c] = column.text(row) end
  return out
end

---@param cells string[][]   of each row
---@param options StatsTableOptions
---@return string[]
function stats_table.of_cells(columns, cells, options)
  local lines, left_out = text_table.lines(columns, cells, options.width)
  if #left_out > 0 then lines[#lines + 1] = ("(too narrow for: %s)"):format(table.concat(left_out, ", ")) end
  return lines
end

---@param rows StatsRow[]
---@param options StatsTableOptions
---@return string[]
function stats_table.lines(rows, options)
  local columns, cells = stats_table.columns(options), {}
  for i, row in ipairs(rows) do cells[i] = stats_table.cells(columns, row) end
  return stats_table.of_cells(columns, cells, options)
end

return stats_table
