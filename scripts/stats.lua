-- cbk stats: print statistics of each tensor

local cbk = require "cbk"
local cli = require "cbk.cli"
local extents = require "cbk.extents"
local key_part = require "cbk.cli.key_part"
local near_keys = require "cbk.cli.near_keys"
local numbers = require "cbk.numbers"
local progress = require "cbk.progress"
local real_values = require "cbk.cli.real_values"
local small_items = require "cbk.small_items"
local state_stats = require "cbk.state_stats"
local stats_table = require "cbk.stats_table"
local team = require "cbk.team"
local tensor_filter = require "cbk.cli.tensor_filter"

local SORTS = { "key", "size", "norm", "std", "mean", "min", "max", "nan", "inf", "zeros", "subnormal" }

local parser = cli.parser("stats", "Print statistics of each tensor, read once.", [[
NaN and infinities are counted and left out of the rest. std is that of the population, norm the
root of the sum of squares, subnormal the share of numbers other than 0 that are below the least
normal number of their dtype.

Quantiles are exact for up to 4,096 elements, for floats of up to 16 bits, and for integers with up
to 65,536 different values. Others are within 1 % of the value (below 1e-38: within 1e-40), and their
share is within 1.6 %; where many numbers are alike, such as weights near 1, the tensor is read twice
for that. Float64 numbers beyond 3.4e38 are not distinguished from each other unless there are many.
A quantile is a float64 number, so that integers from 2^53 up are rounded.

The states of an optimizer come last, each summed up over all parameters; --all lists each
one, and so do --key, --shape, --dtype, --sort and --top. Tied tensors are read once. Quantised tensors
of a GGUF file are decoded. Tensors of complex numbers have no statistics and are left out, with a
warning.

examples:
  cbk stats model.safetensors --sort norm --top 10
  cbk stats training.mdl --key 'optimizer.state.*.exp_avg_sq'
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
parser:flag("--all", "list each state of an optimizer, with the name of its parameter")
parser:flag("--csv", "print comma-separated values, with all columns")
cli.input_options(parser)
cli.options(parser, "no-progress-bar", "json")
local args = parser:parse()
if args.csv and args.json then cli.usage_error("stats", "--csv and --json exclude each other") end

local SHARES, BINS = args.quantiles or (args.json and { 0.01, 0.5, 0.99 }) or {}, args.json and (args.bins or 32) or nil

-- --- reading

local function is_readable(row) return row.shape ~= nil and not row.problem end
local function is_complex(row) return row.type:find "^complex" ~= nil end

--- How many values cannot be read, and why the first of them cannot.
local function unreadable(rows)
  local count, why = 0, nil
  for i = 1, #rows do
    local problem = rows[i].problem
    if problem then count, why = count + 1, why or problem end
  end
  return count, why
end

--- The numbers of the rows that have statistics, of those that the user wants, and whether the user wants none at all.
local function with_statistics(file, rows)
  local out, left_out = {}, 0
  for _, i in ipairs(tensor_filter.matching(rows, args, is_readable)) do
    if is_complex(rows[i]) then left_out = left_out + 1 else out[#out + 1] = i end
  end
  if left_out > 0 then
    cbk.warn(("'%s': %s of complex numbers %s left out: they have no order"):format(file, numbers.counted(left_out, "tensor"),
      left_out == 1 and "is" or "are"))
  end
  local unread, why = unreadable(rows)
  if unread > 0 then
    cbk.warn(("'%s': %s cannot be read and %s left out: %s"):format(file, numbers.counted(unread, "tensor"),
      unread == 1 and "is" or "are", why))
  end
  return out, #out + left_out + unread == 0
end

--- A part of a tensor, such as "w[0]", has its statistics elsewhere.
local function refuse_part(rows, text)
  if #key_part.find(rows, text) == 0 then return end
  cli.usage_error("stats", ("%s is a part of a tensor: `cbk show %s %s` prints its statistics"):format(cbk.quote(text),
    cbk.shown(args.file[1]), cbk.quote(text)))
end

--- No tensor of any file is chosen.
local function fail_empty()
  if not args.key or args.shape or args.dtype then cbk.fail("key", "no tensor is chosen; 'cbk ls' lists what there is") end
  local rows = cbk.leaf_rows(cli.open(args.file[1], args):raw_root())
  refuse_part(rows, args.key)
  local near = near_keys(rows, args.key)
  cbk.fail("key", ("no tensor matches --key %s%s"):format(cbk.quote(args.key), near ~= "" and near or "; 'cbk ls' lists what there is"))
end

--- A second file that does not exist may be meant as a key of the first.
local function refuse_key(tree, file)
  refuse_part(cbk.leaf_rows(tree), file)
  for _, key in ipairs { file, unpack(key_part.dotted(file)) } do
    if #cbk.leaf_rows(tree, key) > 0 then
      cli.usage_error("stats", ("there is no file %s; a key is chosen with --key %s"):format(cbk.quote(file), cbk.quote(key)))
    end
  end
end

--- The chosen tensors of all files, how many bytes they have, and the files.
local function choose()
  local chosen, total, opened, files, empty = {}, 0, {}, {}, {}
  for place, file in ipairs(args.file) do
    if place > 1 and not cbk.fs.exists(file) then refuse_key(cli.open(args.file[1], args):raw_root(), file) end
    local checkpoint = cli.open(file, args)
    opened[#opened + 1] = checkpoint
    for _, path in ipairs(checkpoint.files) do files[#files + 1] = path end
    local rows = cbk.leaf_rows(real_values(checkpoint, file, { args.key }), args.key):in_natural_order()
    local own, is_empty = with_statistics(file, rows)
    if is_empty then empty[#empty + 1] = file end
    for _, i in ipairs(own) do
      local row = rows[i]
      if not row.tied_to then total = total + row.bytes end
      chosen[#chosen + 1] = { file = file, checkpoint = checkpoint, rows = rows, index = i }
    end
  end
  if #chosen == 0 then fail_empty() end
  for _, file in ipairs(empty) do cbk.warn(("no tensor of '%s' is chosen"):format(file)) end
  small_items.check(#chosen, opened, 2100, "print their statistics", "choose some with --key")
  return chosen, total, files
end

local function bytes_read(one)
  local row = one.rows[one.index]
  return row.tied_to and 0 or row.bytes
end

---The statistics of a row. Those of tied tensors are known from the first of them.
local function stats_of(one, known, show)
  local row = one.rows[one.index]
  local stats = row.tied_to and known[one.rows][row.tied_to]
  if stats then return stats end
  stats = one.rows:value(one.index):stats { quantiles = SHARES, bins = BINS }
  show(row.path, bytes_read(one))
  return stats
end

---By file, the keys that others are tied to: false until they are read.
local function tied_keys(chosen)
  local out = {}
  for _, one in ipairs(chosen) do
    out[one.rows] = out[one.rows] or {}
    local tied_to = one.rows[one.index].tied_to
    if tied_to then out[one.rows][tied_to] = false end
  end
  return out
end

local function value_of(row, by)
  if by == "key" then return row.key end
  if by == "size" then return row.bytes end
  local value = row.stats[by]
  return value ~= nil and tonumber(value) or nil
end

---Reads the tensors; of each, what is printed and what it is sorted by.
---@param printed fun(row: StatsRow, checkpoint: Checkpoint): any
---@return { value: any, printed: any }[]
local function read(printed)
  local chosen, total, files = choose()
  local show = args.no_progress_bar and function() end or progress.reading(total)
  local known, out = tied_keys(chosen), {}
  local count = args.sort and #chosen or math.min(#chosen, args.top or #chosen)
  local stats_at = team.shared(count, function(n) return bytes_read(chosen[n]) end,
    function(n) return stats_of(chosen[n], known, show) end, files)
  for n = 1, count do
    local one = chosen[n]
    local row, stats, of_file = one.rows[one.index], stats_at(n), known[one.rows]
    if of_file[row.path] == false then of_file[row.path] = stats end
    local result = {
      file = one.file, key = row.path, dtype = row.type, encoding = row.encoding, shape = row.shape, bytes = row.bytes,
      tied_to = row.tied_to, stats = stats,
    }
    out[n] = { value = args.sort and value_of(result, args.sort), printed = printed(result, one.checkpoint) }
  end
  show()
  return tensor_filter.sorted(out, args, function(entry) return entry.value end)
end

-- --- results

local NUMBERS, COUNTS, is_whole, number_text = stats_table.NUMBERS, stats_table.COUNTS, stats_table.is_whole, stats_table.number_text

--- Untrusted text: neither a terminal obeys it, nor a spreadsheet, which takes what begins so for a formula.
local function csv_cell(text)
  text = cbk.shown(text):gsub("^[=+@-]", "'%0")
  return text:find '[",]' and '"' .. text:gsub('"', '""') .. '"' or text
end

local function print_csv_titles()
  local titles = { "file", "key", "dtype", "shape", "numel", "bytes" }
  for _, names in ipairs { NUMBERS, COUNTS } do
    for _, name in ipairs(names) do titles[#titles + 1] = name end
  end
  for _, share in ipairs(SHARES) do titles[#titles + 1] = ("q%g"):format(share) end
  print(table.concat(titles, ","))
end

---@param row StatsRow
local function csv_line(row)
  local stats = row.stats
  local cells = { csv_cell(row.file), csv_cell(row.key), row.encoding or row.dtype, csv_cell(extents.joined(row.shape, ",")),
    numbers.whole_text(stats.numel), numbers.whole_text(row.bytes) }
  for _, name in ipairs(NUMBERS) do cells[#cells + 1] = number_text(stats[name], row, 17) end
  for _, name in ipairs(COUNTS) do cells[#cells + 1] = numbers.whole_text(stats[name]) end
  for i in ipairs(SHARES) do cells[#cells + 1] = number_text(stats.quantiles[i], row, 17) end
  return table.concat(cells, ",")
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
  out.encoding, out.tied_to = row.encoding, row.tied_to
  return out
end

---The lines of the table: the states of optimizers last, summed up unless the user chose tensors.
---@param options StatsTableOptions
local function table_lines(options)
  local columns, cells, known, order = stats_table.columns(options), {}, {}, {}
  local is_chosen = args.all or args.key or args.shape or args.dtype or args.sort or args.top
  local function states_of(checkpoint)
    if not known[checkpoint] then
      known[checkpoint] = state_stats.new(checkpoint:raw_root())
      order[#order + 1] = known[checkpoint]
    end
    return known[checkpoint]
  end
  local function printed(row, checkpoint)
    local states = states_of(checkpoint)
    if not is_chosen and states:add(row) then return nil end
    row.parameter_key = states:named(row.key)
    return stats_table.cells(columns, row)
  end
  for _, one in ipairs(read(printed)) do cells[#cells + 1] = one.printed end
  local has_sums = false
  for _, states in ipairs(order) do
    for _, row in ipairs(states:rows()) do
      cells[#cells + 1], has_sums = stats_table.cells(columns, row), true
    end
  end
  local lines = stats_table.of_cells(columns, cells, options)
  if has_sums then lines[#lines + 1] = "(states of optimizers are summed up; --all lists them)" end
  return lines
end

io.stdout:setvbuf("full", 65536)
collectgarbage("setpause", 110) -- many rows are kept until the last one is read
if args.json then
  local rows = read(function(row) return cli.as_json(json_row(row)) end)
  cli.print_json_object { { "tensors", count = #rows, item = function(i) return rows[i].printed end } }
elseif args.csv then
  local rows = read(csv_line)
  print_csv_titles()
  for _, row in ipairs(rows) do print(row.printed) end
else
  local options = { shares = SHARES, files = #args.file > 1, sort = args.sort, width = cli.columns() }
  for _, line in ipairs(table_lines(options)) do print(line) end
end
