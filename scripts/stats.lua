-- cbk stats: what the values of each tensor are like

local cbk = require "cbk"
local cli = require "cbk.cli"
local numbers = require "cbk.numbers"
local progress = require "cbk.progress"
local stats_table = require "cbk.stats_table"
local tensor_filter = require "cbk.cli.tensor_filter"

local SORTS = { "key", "size", "norm", "std", "mean", "min", "max", "nan", "inf", "zeros", "subnormal" }

local parser = cli.parser("stats", "Print statistics of each tensor, read once.", [[
NaN and infinities are counted and left out of the rest. std is that of the population, norm the
root of the sum of squares, subnormal the share of numbers other than 0 that are below the least
normal number of their dtype. Quantiles of more than 4,096 elements of float16 and wider floats
are within 1 % of the value, unless they are float64 numbers outside of float32's range; others
are exact.

Tied tensors are read once. Tensors of complex numbers have no statistics and are left out.

examples:
  cbk stats model.safetensors --sort norm --top 10
  cbk stats model.mdl --key 'model.*.weight' --shape '*,4096' --quantiles 0.01,0.5,0.99
  cbk stats --csv old.mdl new.mdl > stats.csv]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one; may be repeated"):argname "FILE":args "+"
parser:option("--key", "only tensors whose key matches the glob; a plain name also means everything below it"):argname "GLOB"
tensor_filter.options(parser, SORTS)
parser:option("--quantiles", "shares from 0 to 1; also shown in the table (default for --json: 0.01,0.5,0.99)"):argname("LIST")
  :convert(function(text)
    local out = {}
    for share in (text .. ","):gmatch "%s*([^,]*)%s*," do
      local number = tonumber(share)
      if not number or number < 0 or number > 1 then
        return nil, ("--quantiles '%s': expected numbers from 0 to 1, such as 0.01,0.5,0.99"):format(text)
      end
      out[#out + 1] = number
    end
    return out
  end)
parser:option("--bins", "of the histograms of --json (default: 32)"):argname("N"):convert(cli.whole_number("--bins", 1))
parser:flag("--csv", "print comma-separated values, with all columns")
cli.input_options(parser)
cli.options(parser, "no-progress-bar", "json")
local args = parser:parse()
if args.csv and args.json then cli.usage_error("stats", "--csv and --json exclude each other") end

local SHARES, BINS = args.quantiles or (args.json and { 0.01, 0.5, 0.99 }) or {}, args.json and (args.bins or 32) or nil

-- --- reading

local function has_statistics(row) return row.shape ~= nil and not row.problem and not row.type:find "^complex" end

--- A function that shows how much has been read.
local function new_progress(total)
  if args.no_progress_bar then return function() end end
  local display, done, clock = progress.display(), 0, cbk.clock()
  return function(key, bytes)
    done = done + bytes
    display { done = done, total = total, seconds = cbk.clock() - clock, key = key }
  end
end

--- The chosen tensors of all files, and how many bytes they have.
local function choose()
  local chosen, total = {}, 0
  for _, file in ipairs(args.file) do
    local rows = cbk.leaf_rows(cli.open(file, args):raw_root(), args.key)
    local matching = tensor_filter.matching(rows, args, has_statistics)
    if #matching == 0 then cbk.warn(("no tensor of '%s' is chosen"):format(file)) end
    for _, i in ipairs(matching) do
      local row = rows[i]
      if not row.tied_to then total = total + row.bytes end
      chosen[#chosen + 1] = { file = file, rows = rows, index = i, row = row }
    end
  end
  if #chosen == 0 then cbk.fail("key", "no tensor is chosen; 'cbk ls' lists what there is") end
  return chosen, total
end

---@return StatsRow[]
local function read()
  local chosen, total = choose()
  local show, known, out = new_progress(total), {}, {}
  for n, one in ipairs(chosen) do
    local row = one.row
    local of_file = known[one.rows] or {}
    known[one.rows] = of_file
    local stats = row.tied_to and of_file[row.tied_to] or one.rows:value(one.index):stats { quantiles = SHARES, bins = BINS }
    of_file[row.path] = stats
    out[n] = {
      file = one.file, key = row.path, dtype = row.type, shape = row.shape, bytes = row.bytes, tied_to = row.tied_to, stats = stats,
    }
    if not row.tied_to then show(row.path, row.bytes) end
  end
  return out
end

local function value_of(row, by)
  if by == "key" then return row.key end
  if by == "size" then return row.bytes end
  local value = row.stats[by]
  return value ~= nil and tonumber(value) or nil
end

-- --- results

local NUMBERS, COUNTS, is_whole, number_text = stats_table.NUMBERS, stats_table.COUNTS, stats_table.is_whole, stats_table.number_text

local function csv_cell(text) return text:find '[",\r\n]' and '"' .. text:gsub('"', '""') .. '"' or text end

local function print_csv(rows)
  local titles = { "file", "key", "dtype", "shape", "numel", "bytes" }
  for _, names in ipairs { NUMBERS, COUNTS } do
    for _, name in ipairs(names) do titles[#titles + 1] = name end
  end
  for _, share in ipairs(SHARES) do titles[#titles + 1] = ("q%g"):format(share) end
  print(table.concat(titles, ","))
  for _, row in ipairs(rows) do
    local stats = row.stats
    local cells = { csv_cell(row.file), csv_cell(row.key), row.dtype, csv_cell(table.concat(row.shape, ",")),
      numbers.whole_text(stats.numel), numbers.whole_text(row.bytes) }
    for _, name in ipairs(NUMBERS) do cells[#cells + 1] = number_text(stats[name], row, 17) end
    for _, name in ipairs(COUNTS) do cells[#cells + 1] = numbers.whole_text(stats[name]) end
    for i in ipairs(SHARES) do cells[#cells + 1] = number_text(stats.quantiles[i], row, 17) end
    print(table.concat(cells, ","))
  end
end

local function or_null(value) if value == nil then return cbk.null end return value end

local function json_row(row)
  local stats, quantiles = row.stats, cbk.dict()
  for i, share in ipairs(SHARES) do quantiles[("%.15g"):format(share)] = or_null(stats.quantiles[i]) end
  local bound = is_whole(row) and numbers.json_whole or numbers.json_number
  local out = cbk.dict { { "file", row.file }, { "key", row.key }, { "dtype", row.dtype }, { "shape", cbk.list(row.shape) } }
  for _, name in ipairs { "min", "max" } do out[name] = stats[name] ~= nil and bound(stats[name]) or cbk.null end
  for _, name in ipairs { "mean", "std", "norm" } do out[name] = stats[name] ~= nil and numbers.json_number(stats[name]) or cbk.null end
  for _, name in ipairs { "zeros", "nan", "inf", "subnormal", "numel" } do out[name] = numbers.json_whole(stats[name]) end
  out.quantiles = quantiles
  out.histogram = cbk.dict { { "edges", cbk.list(stats.histogram.edges) }, { "counts", cbk.list(stats.histogram.counts) } }
  if row.tied_to then out.tied_to = row.tied_to end
  return out
end

io.stdout:setvbuf("full", 65536)
local rows = tensor_filter.sorted(read(), args, value_of)
if args.json then
  cli.print_json_object { { "tensors", count = #rows, item = function(i) return json_row(rows[i]) end } }
elseif args.csv then
  print_csv(rows)
else
  local width = tonumber(os.getenv "COLUMNS") or cbk.terminal.width "stdout"
  local lines = stats_table.lines(rows, { shares = SHARES, files = #args.file > 1, width = width })
  for _, line in ipairs(lines) do print(line) end
end
