-- cbk plot: draw a tensor, in the terminal or as a picture

local cbk = require "cbk"
local cli = require "cbk.cli"
local colour = require "cbk.colour"
local drawn = require "cbk.cli.drawn"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local heat_map = require "cbk.plot.heat_map"
local histogram = require "cbk.plot.histogram"
local layers = require "cbk.plot.layers"
local naming = require "cbk.naming"
local near_keys = require "cbk.cli.near_keys"
local numbers = require "cbk.numbers"
local plot = require "cbk.plot"
local progress = require "cbk.progress"
local real_values = require "cbk.cli.real_values"

local BLOCK_NUMBERS = { "rms", "mean", "min", "max" }
local LAYER_NUMBERS = { "norm", "std", "mean", "min", "max", "nan", "inf", "zeros", "subnormal" }

local parser = cli.parser("plot", "Draw a tensor: a histogram, a heat map, or a number by layer.", [[
A heat map shows a matrix as blocks; of more than two dims, the first one is beside all others. --by-layer draws all tensors whose
keys match and have a number as one of their parts. '!' marks blocks and layers with NaN or infinities. Of a part of a tensor, as in
'KEY[0:10]', only that is read; positions count from 0.

Without -o, the picture is drawn in the terminal, in colours unless NO_COLOR is set.

examples:
  cbk plot model.safetensors model.layers.0.mlp.up_proj.weight --heat-map
  cbk plot model.mdl '*.self_attn.*.weight' --by-layer -o norms.svg]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("key", "a key, a glob that matches one tensor (--by-layer: any number; default: all), or either with [PART]")
  :argname("KEY"):args "?"
cli.key_option(parser, "key")
parser:flag("--heat-map", "draw a matrix as blocks")
parser:flag("--by-layer", "draw a number of each layer")
cli.candidates(parser:option("--of", ("what a block shows: %s (default: rms); or a layer: %s (default: norm)"):format(
  table.concat(BLOCK_NUMBERS, ", "), table.concat(LAYER_NUMBERS, ", "))):argname "NUMBER", { "rms", unpack(LAYER_NUMBERS) })
parser:option("--bins", "of the histogram (default: 20; of a picture: 64)"):argname("N"):convert(cli.whole_number("--bins", 1))
parser:flag("--log", "a logarithmic scale: of the counts of a histogram, the colours of a heat map, the numbers of layers")
parser:option("-o --output", "write a picture: FILE.svg or FILE.png"):argname "FILE"
parser:option("--width", "columns of the terminal, or pixels of the picture (default: 960)"):argname("N")
  :convert(cli.whole_number("--width", 20))
parser:flag("--ascii", "draw with ASCII characters only, without colours")
cli.input_options(parser)
cli.dry_run_option(parser)
cli.options(parser, "overwrite", "no-progress-bar", "json")
local args = parser:parse()
if not args.key and args.by_layer then args.key = "*" end
if not args.key then cli.usage_error("plot", "missing argument KEY") end

local MOST_BINS, MOST_PIXELS = 2 ^ 16, 8192

local function is_one_of(list, name)
  for _, known in ipairs(list) do
    if known == name then return true end
  end
  return false
end

--- The suffix of --output: "svg" or "png".
local function check_arguments()
  if args.heat_map and args.by_layer then cli.usage_error("plot", "--heat-map and --by-layer exclude each other") end
  if args.output and args.json then cli.usage_error("plot", "--output and --json exclude each other") end
  local known = args.heat_map and BLOCK_NUMBERS or LAYER_NUMBERS
  if args.of and not (args.heat_map or args.by_layer) then cli.usage_error("plot", "--of needs --heat-map or --by-layer") end
  if args.of and not is_one_of(known, args.of) then
    cli.usage_error("plot", ("--of %s: expected one of %s"):format(cbk.quote(args.of), table.concat(known, ", ")))
  end
  if args.bins and (args.heat_map or args.by_layer) then cli.usage_error("plot", "--bins are those of a histogram") end
  if args.bins and args.bins > MOST_BINS then cli.usage_error("plot", ("--bins: expected at most %d"):format(MOST_BINS)) end
  if (args.width or 0) > MOST_PIXELS then cli.usage_error("plot", ("--width: expected at most %d"):format(MOST_PIXELS)) end
  if args.log and args.heat_map and args.of == "mean" then cli.usage_error("plot", "--log does not show a mean, which may be below 0") end
  local suffix = args.output and (args.output:lower():match "%.(%w+)$" or "")
  if args.output and suffix ~= "svg" and suffix ~= "png" then
    cli.usage_error("plot", ("-o %s: expected a name that ends with .svg or .png"):format(cbk.quote(args.output)))
  end
  return suffix
end
local suffix = check_arguments()
if args.output then cli.check_output(args.output, { args.file }, args) end

-- --- reading

local rows = cbk.leaf_rows((real_values(cli.open(args.file, args), args.file, { args.key })))

--- The tensor of the key, or the one that matches it.
local function one_tensor()
  local function advice_on(key) return layers.is_numbered(key) and "--by-layer draws them all" or "name one of them" end
  local one = drawn.one(rows, args.key, advice_on)
  if one then return one.tensor, one end
  local near = near_keys(rows, args.key)
  local advice = near ~= "" and near or "; 'cbk ls' lists them"
  cbk.fail("key", ("'%s' has no key %s%s"):format(cbk.shown(args.file), cbk.quote(args.key), advice))
end

local function title_of(one)
  return ("%s  %s %s"):format(fold.shown(one.key), one.row.type, extents.shape(one.tensor:shape()))
end

--- "; did you mean 'h.*.o_proj.weight'?" if layers have such a part in their keys, or one like it; else keys like it.
local function glob_like(key)
  local parts, first = {}, {}
  for i = 1, #rows do
    local path = rows:path(i)
    if layers.is_numbered(path) and drawn.is_fit(rows[i]) then
      if ("." .. path .. "."):find("." .. key .. ".", 1, true) then parts, first = { key }, { [key] = path } break end
      for part in path:gmatch "[^.]+" do
        if not first[part] then parts[#parts + 1], first[part] = part, path end
      end
    end
  end
  local near = cbk.nearest(key, parts, 1)[1]
  if not near then return near_keys(rows, key) end
  return naming.suggestion((first[near]:gsub("%f[%d]%d+", "*")))
end

--- { key, value, is_bad } of each tensor that matches and has a number in its key; tied ones are read once.
local function layer_entries(of)
  local chosen, total, out, known = {}, 0, {}, {}
  for _, one in ipairs(drawn.find(rows, args.key)) do
    if layers.is_numbered(one.key) and drawn.is_fit(one.row) then
      chosen[#chosen + 1] = one
      total = total + one.tensor:nbytes()
    end
  end
  if #chosen == 0 then
    cbk.fail("key", ("no tensor of '%s' matches %s with a number in its key%s"):format(cbk.shown(args.file), cbk.quote(args.key),
      glob_like(args.key)))
  end
  local show = cli.has_progress(args) and progress.reading(total) or function() end
  for n, one in ipairs(chosen) do
    local tied_to = not one.is_part and one.row.tied_to
    local stats = tied_to and known[tied_to] or one.tensor:stats()
    known[one.key] = stats
    local is_bad = of ~= "nan" and of ~= "inf" and tonumber(stats.nan) + tonumber(stats.inf) > 0
    out[n] = { key = one.key, value = stats[of] and tonumber(stats[of]), is_bad = is_bad }
    show(one.key, one.tensor:nbytes())
  end
  return out
end

-- --- drawing

local function print_lines(lines)
  for _, line in ipairs(lines) do print(line) end
end

---@class Drawing
---@field title string[]
---@field lines fun(options: table): string[]
---@field figure fun(options: table): Figure
---@field json fun(): Dict
---@field height integer   of a picture, for its width of 960

local function json_numbers(list)
  local out = {}
  for i, number in ipairs(list) do out[i] = numbers.json_number(number) end
  return cbk.list(out)
end

local function json_of_tensor(one, kind)
  local shape = cbk.list(one.tensor:shape())
  return cbk.dict { { "kind", kind }, { "key", one.key }, { "dtype", one.row.type }, { "shape", shape } }
end

local function draw_histogram()
  local tensor, one = one_tensor()
  local spread = plot.histogram(tensor, { title = title_of(one), bins = args.bins or (args.output and 64 or 20) })
  return {
    title = { spread.title, histogram.summary(spread) }, height = 480,
    lines = function(options) return histogram.lines(spread, options) end,
    figure = function(options) return histogram.figure(spread, options) end,
    json = function()
      local out = json_of_tensor(one, "histogram")
      out.edges, out.counts = cbk.list(spread.stats.histogram.edges), cbk.list(spread.stats.histogram.counts)
      return out
    end,
  }
end

local function draw_heat_map(width, with_colours)
  local tensor, one = one_tensor()
  local columns, most_rows = math.max(8, width - 12), with_colours and 64 or 32
  if args.output then columns, most_rows = 128, 128 end
  local blocks = plot.heat_map(tensor, { title = title_of(one), of = args.of or "rms", columns = columns, rows = most_rows })
  return {
    title = { blocks.title }, height = 960,
    lines = function(options) return heat_map.lines(blocks, options) end,
    figure = function(options) return heat_map.figure(blocks, options) end,
    json = function()
      local out = json_of_tensor(one, "heat-map")
      out.of, out.rows, out.columns = blocks.of, blocks.rows, blocks.columns
      out.values, out.nan, out.inf = json_numbers(blocks.values), cbk.list(blocks.nan), cbk.list(blocks.inf)
      out.remarks = cbk.list(blocks.remarks)
      return out
    end,
  }
end

local function draw_layers()
  local of = args.of or "norm"
  local title = ("%s by layer, %s%s"):format(of, cbk.shown(args.file), args.log and ", logarithmic scale" or "")
  local all = layers.plot(layer_entries(of), { title = title, of = of })
  return {
    title = { title }, height = 480 + 22 * math.min(#all.series, 12),
    lines = function(options) return layers.lines(all, options) end,
    figure = function(options) return layers.figure(all, options) end,
    json = function()
      local series = {}
      for i, one in ipairs(all.series) do
        series[i] = cbk.dict { { "name", one.name }, { "layers", cbk.list(one.layers) }, { "values", json_numbers(one.values) } }
      end
      return cbk.dict { { "kind", "layers" }, { "of", of }, { "series", cbk.list(series) } }
    end,
  }
end

local width = args.width or cli.columns() or 80
local with_colours = colour.enabled() and not args.ascii
local drawing = args.by_layer and draw_layers() or args.heat_map and draw_heat_map(width, with_colours) or draw_histogram()

if args.output then
  local pixels = args.width or 960
  local picture = drawing.figure { width = pixels, height = math.floor(drawing.height * math.max(pixels, 480) / 960), log = args.log }
  local bytes = suffix == "svg" and picture:svg() or picture:png()
  if not args.dry_run then cbk.fs.write(args.output, bytes, { overwrite = args.overwrite }) end
  print(args.dry_run and cli.saved_text(args, "The picture", cbk.shown(args.output)) or cbk.shown(args.output))
elseif args.json then
  cli.print_json(drawing.json())
else
  print_lines(drawing.title)
  print_lines(drawing.lines { width = width, ascii = args.ascii, colour = with_colours, log = args.log })
end
