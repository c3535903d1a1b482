-- Pictures of tensors, for `cbk plot` and the prompt's `:plot`. A tensor is read once, in blocks.

local cbk = require "cbk"
local heat_map = require "cbk.plot.heat_map"
local histogram = require "cbk.plot.histogram"

local plot = {}

---@param tensor Tensor
---@param options { title: string, bins: integer }
---@return HistogramPlot
function plot.histogram(tensor, options)
  return { title = options.title, dtype = tensor.dtype, shape = tensor:shape(), stats = tensor:stats { bins = options.bins } }
end

--- A tensor as a matrix: the first dim against all others; a tensor of one dim is one row.
local function as_matrix(tensor)
  local shape = tensor:shape()
  if #shape == 2 then return tensor end
  if #shape < 2 then return tensor:reshape { 1, tensor:numel() } end
  return tensor:reshape { shape[1], tensor:numel() / math.max(1, shape[1]) }
end

---@param tensor Tensor
---@param options { title: string, of: "rms"|"mean"|"min"|"max", rows: integer, columns: integer }
---@return HeatMapPlot
function plot.heat_map(tensor, options)
  if tensor:numel() == 0 then cbk.fail("shape", "cannot draw a tensor without elements") end
  local matrix = as_matrix(tensor)
  local grid = matrix:grid { rows = options.rows, columns = options.columns }
  local out = { title = options.title, of = options.of, height = matrix:shape()[1], width = matrix:shape()[2], rows = grid.rows,
    columns = grid.columns, values = grid[options.of], nan = grid.nan, inf = grid.inf }
  out.remarks = heat_map.remarks(out, matrix)
  return out
end

---Lines about a tensor for a terminal, for the prompt: a histogram, and the blocks of a matrix.
---@param tensor Tensor
---@param options { title: string, width: integer, colour: boolean }
---@return string[]
function plot.lines(tensor, options)
  local spread = plot.histogram(tensor, { title = options.title, bins = 16 })
  local out = { options.title, histogram.summary(spread) }
  for _, line in ipairs(histogram.lines(spread, options)) do out[#out + 1] = line end
  if tensor:dim() < 2 or tensor:numel() == 0 then return out end
  local columns = math.max(8, math.min(options.width - 12, 64))
  local blocks = plot.heat_map(tensor, { title = options.title, of = "rms", columns = columns, rows = 16 })
  for _, line in ipairs(heat_map.lines(blocks, options)) do out[#out + 1] = line end
  return out
end

return plot
