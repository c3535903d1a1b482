-- The distribution of a tensor's elements.

local figure = require "cbk.plot.figure"
local numbers = require "cbk.numbers"
local scale = require "cbk.plot.scale"

local histogram = {}

---@class HistogramPlot
---@field key string
---@field dtype string
---@field shape integer[]
---@field stats table     of `Tensor:stats`, with a histogram

local EIGHTHS = { "▏", "▎", "▍", "▌", "▋", "▊", "▉" }

---A bar for a share of `width` columns. Shares above 0 are always visible.
---@param share number
---@param width integer
---@param is_ascii? boolean
function histogram.bar(share, width, is_ascii)
  if share <= 0 then return "" end
  if is_ascii then return ("#"):rep(math.max(1, math.floor(share * width + 0.5))) end
  local eighths = math.max(1, math.floor(share * width * 8 + 0.5))
  return ("█"):rep(math.floor(eighths / 8)) .. (EIGHTHS[eighths % 8] or "")
end

--- The length of a count's bar, as a share.
local function share_of(most, is_log)
  return function(count)
    if not is_log then return count / most end
    return math.log(1 + count) / math.log(1 + most)
  end
end

---"min -0.3  max 0.31  mean …", without statistics that a tensor lacks.
---@param plot HistogramPlot
function histogram.summary(plot)
  local stats, parts = plot.stats, {}
  for _, name in ipairs { "min", "max", "mean", "std", "norm" } do
    local value = stats[name]
    local text = type(value) == "number" and scale.text(value) or value ~= nil and numbers.whole_text(value)
    if text then parts[#parts + 1] = ("%s %s"):format(name, text) end
  end
  for _, name in ipairs { "nan", "inf", "zeros", "subnormal" } do
    if stats[name] > 0 then parts[#parts + 1] = ("%s %s"):format(name, numbers.grouped(stats[name])) end
  end
  return table.concat(parts, "  ")
end

local function most_of(counts)
  local most = 0
  for _, count in ipairs(counts) do most = math.max(most, count) end
  return most
end

---@param plot HistogramPlot
---@param options { width: integer, ascii: boolean, log: boolean }
---@return string[]
function histogram.lines(plot, options)
  local edges, counts, out = plot.stats.histogram.edges, plot.stats.histogram.counts, {}
  local labels, texts, label_width, text_width = {}, {}, 0, 0
  for i, count in ipairs(counts) do
    labels[i], texts[i] = scale.text(edges[i]), numbers.grouped(count)
    label_width, text_width = math.max(label_width, #labels[i]), math.max(text_width, #texts[i])
  end
  local room = math.max(8, options.width - label_width - text_width - 4)
  local share = share_of(most_of(counts), options.log)
  for i, count in ipairs(counts) do
    local bar = histogram.bar(share(count), room, options.ascii)
    out[i] = (("%" .. label_width .. "s  %" .. text_width .. "s  %s"):format(labels[i], texts[i], bar):gsub(" +$", ""))
  end
  if #counts > 0 then out[#out + 1] = ("%" .. label_width .. "s"):format(scale.text(edges[#edges])) end
  return out
end

local BLUE, GREY = { 59, 82, 139 }, { 120, 120, 120 }
local MARGIN = 20

---@param plot HistogramPlot
---@param options { width: integer, height: integer, log: boolean }
---@return Figure
function histogram.figure(plot, options)
  local out, edges, counts = figure.new(options.width, options.height), plot.stats.histogram.edges, plot.stats.histogram.counts
  local wide = options.width - 2 * MARGIN
  out:text(MARGIN, 12, figure.fitting(plot.title, wide))
  out:text(MARGIN, 12 + figure.LINE, figure.fitting(histogram.summary(plot), wide), "start", GREY)
  local top, bottom = 24 + 2 * figure.LINE, options.height - figure.LINE - 16
  if #counts == 0 then
    out:text(options.width / 2, (top + bottom) / 2, "no finite elements", "middle", GREY)
    return out
  end
  local share, most = share_of(most_of(counts), options.log), most_of(counts)
  local place = scale.place(edges[1], edges[#edges])
  local function x_of(number) return MARGIN + (#counts > 1 and place(number) or 0) * wide end
  for i, count in ipairs(counts) do
    local left = x_of(edges[i])
    local right = #counts > 1 and x_of(edges[i + 1]) or MARGIN + wide
    local high = share(count) * (bottom - top)
    if count > 0 then out:rect(left, bottom - math.max(1, high), math.max(1, right - left - 1), math.max(1, high), BLUE) end
  end
  out:rect(MARGIN, bottom, wide, 1, GREY)
  out:text(MARGIN, bottom + 8, scale.text(edges[1]))
  if #counts > 1 then out:text(MARGIN + wide, bottom + 8, scale.text(edges[#edges]), "end") end
  if edges[1] < 0 and edges[#edges] > 0 and place(0) > 0.15 and place(0) < 0.85 then out:text(x_of(0), bottom + 8, "0", "middle") end
  out:text(MARGIN, top - 8, ("%s%s"):format(numbers.grouped(most), options.log and " (log)" or ""), "start", GREY)
  return out
end

return histogram
