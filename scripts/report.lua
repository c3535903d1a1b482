-- cbk report: write a page about a checkpoint, for a browser

local cbk = require "cbk"
local check = require "cbk.check"
local cli = require "cbk.cli"
local diff = require "cbk.diff"
local findings = require "cbk.check.findings"
local fold = require "cbk.fold"
local listing = require "cbk.listing"
local numbers = require "cbk.numbers"
local page = require "cbk.page"
local progress = require "cbk.progress"
local renamed = require "cbk.diff.renamed"

local parser = cli.parser("report", "Write one HTML page about a checkpoint, with everything in it.", [[
The page has the tree of tensors with sizes, statistics and histograms, numbers by layer, the findings
of 'cbk check', and the differences to OTHER as 'cbk diff' finds them. It needs no network. Tensors are
read in blocks; memory stays small.

examples:
  cbk report model.safetensors -o report.html
  cbk report new.mdl old.mdl -o report.html --key 'model.*']])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("other", "a checkpoint to compare with"):argname "OTHER":args "?"
parser:option("-o --output", "the page"):argname "FILE":default "report.html"
parser:option("--key", "only tensors whose key matches the glob; a plain name also means everything below it"):argname "GLOB"
parser:flag("--no-stats", "read no tensor of FILE: sizes and shapes only")
cli.input_options(parser)
cli.options(parser, "overwrite", "no-progress-bar", "quiet", "json")
local args = parser:parse()

local MOST_TENSORS = 200000  -- of a page that a browser can open
local MOST_ROWS = 500        -- of a table
local BINS = { { 5000, 32 }, { 20000, 16 } } -- of up to so many tensors; a page of more has no histograms

if not args.overwrite and cbk.fs.exists(args.output) then
  cbk.fail("exists", ("cannot write %s: it exists; add --overwrite or choose another name"):format(cbk.quote(args.output)))
end

local function open(path)
  local checkpoint = cli.open(path, args)
  return checkpoint, cbk.leaf_rows(checkpoint:raw_root(), args.key)
end

local checkpoint, rows = open(args.file)
local other_rows
if args.other then
  local _
  _, other_rows = open(args.other)
end

-- --- reading

local tensor_rows, total = {}, args.no_stats and 0 or rows:totals().stored -- which check reads, too
for i = 1, #rows do
  local row = rows[i]
  if row.shape then
    tensor_rows[#tensor_rows + 1] = i
    if not row.tied_to and not args.no_stats then total = total + row.bytes end
  end
end
if other_rows then total = total + rows:totals().bytes + other_rows:totals().bytes end
if #tensor_rows == 0 then
  cbk.fail("key", ("'%s' has no tensor%s"):format(cbk.shown(args.file), args.key and " that matches --key" or ""))
end
if #tensor_rows > MOST_TENSORS then
  cbk.fail("value", ("%s are too many for a page, which has at most %s; choose some with --key"):format(
    numbers.counted(#tensor_rows, "tensor"), numbers.grouped(MOST_TENSORS)))
end

local display, done, start = cli.has_progress(args) and progress.display(), 0, cbk.clock()
local function show(key, bytes)
  done = done + bytes
  if display then display { done = math.min(done, total), total = total, seconds = cbk.clock() - start, key = key } end
end

local function bins_of(count)
  for _, entry in ipairs(BINS) do
    if count <= entry[1] then return entry[2] end
  end
end

--- Why a tensor has no statistics; nil where it has.
local function note_of(row)
  if row.problem then return row.problem end
  if row.type:find "^complex" then return "complex numbers have no statistics" end
end

---@return string[] data
local function read()
  local out, bins = {}, bins_of(#tensor_rows)
  for n, i in ipairs(tensor_rows) do
    local row = rows[i]
    local note, stats = note_of(row), nil
    if not note and not args.no_stats and not row.tied_to then
      stats = rows:value(i):stats { bins = bins }
      show(row.path, row.bytes)
    end
    out[n] = page.row(row, stats, note)
  end
  return out
end

-- --- sections

local function first(list, of)
  local out = {}
  for i = 1, math.min(#list, MOST_ROWS) do out[i] = of(list[i]) end
  return out, math.max(0, #list - MOST_ROWS)
end

--- Whether a finding is about the file or about a tensor that --key chooses.
local function is_chosen(one)
  return not one.key or not args.key or cbk.glob(args.key, one.key) or cbk.glob(args.key .. ".*", one.key)
end

local function findings_section()
  local found, entries = findings.new(), {}
  local options = { reading = cli.reading(args), dtypes = {}, without_values = args.no_stats }
  check.values(check.open(args.file, options, found), options, found, show)
  for _, one in ipairs(found:sorted()) do
    if is_chosen(one) then
      local signature = table.concat({ one.severity, one.rule.id, one.text, one.key and "" or #entries }, "\0")
      entries[#entries + 1] = { path = one.key or "", signature = signature, finding = one }
    end
  end
  if #entries == 0 then return args.no_stats and "<p>None; values were not read.</p>" or "<p>None.</p>", 0 end
  local cells, more = first(fold.groups(entries), function(group)
    local one = group.members[1].finding
    local where = one.key and (#group.members > 1 and group.name or fold.shown(one.key)) or cbk.fs.basename(one.file)
    return { where, one.severity, one.text, one.advice }
  end)
  return page.table { titles = { "where", "severity", "finding", "what to try" }, rows = cells, more = more }, #entries
end

--- Keys that only one side has, like ones as one.
local function keys_html(title, of, list)
  if #list == 0 then return "" end
  local entries = {}
  for n, i in ipairs(list) do entries[n] = { path = diff.key_of(of, i) } end
  local cells, more = first(fold.groups(entries), function(group) return { group.name } end)
  return page.table { titles = { ("%s (%s)"):format(title, numbers.grouped(#list)) }, rows = cells, more = more }
end

local function differences_section()
  local options = { rtol = 0, atol = 0 }
  local result = diff.compare(rows, other_rows, options, { row = function() return true end, order = "rel", on_read = show })
  local parts = { ("<p>%s the same, %s different, %s renamed, %s only here, %s only in the other.</p>"):format(
    numbers.counted(result.same, "value"), numbers.grouped(#result.different), numbers.grouped(#result.renamed),
    numbers.grouped(#result.only_a), numbers.grouped(#result.only_b)) }
  if #result.different > 0 then
    local places = {}
    for n = 1, #result.different do places[n] = n end
    local cells, more = first(places, function(n)
      local difference, key = diff.at(result, n, options)
      return { fold.shown(key), difference.text }
    end)
    parts[#parts + 1] = page.table { titles = { "key", "difference" }, rows = cells, more = more }
  end
  if #result.renamed > 0 then
    local cells, more = first(renamed.lines(result.renamed), function(line) return { line } end)
    parts[#parts + 1] = page.table { titles = { "renamed, with the same content" }, rows = cells, more = more }
  end
  parts[#parts + 1] = keys_html("only in " .. args.file, result.a, result.only_a)
  parts[#parts + 1] = keys_html("only in " .. args.other, result.b, result.only_b)
  return table.concat(parts, "\n")
end

-- --- the page

local findings_html, finding_count = findings_section()
collectgarbage() -- before as much is read again
local data = read()
local sections = { { title = "Findings", html = findings_html } }
if other_rows then
  sections[2] = { title = "Differences to " .. cbk.fs.basename(cbk.fs.absolute(args.other)), html = differences_section() }
end
local totals = rows:totals()
local dtypes = {}
for i, dtype in ipairs(totals.dtypes) do dtypes[i] = dtype.dtype end
local remark
if not args.no_stats and not bins_of(#tensor_rows) then
  remark = ("A page of more than %s tensors has no histograms; --key chooses some."):format(numbers.grouped(BINS[#BINS][1]))
end
local html = page.html {
  title = cbk.fs.basename(cbk.fs.absolute(args.file)),
  subtitle = ("%s, %s"):format(cbk.fs.absolute(args.file), listing.format_text(checkpoint)),
  cards = { { "tensors", numbers.grouped(totals.tensors) }, { "elements", numbers.grouped(totals.numel) },
    { "bytes", cbk.format_size(totals.stored) }, { "dtypes", table.concat(dtypes, ", ") } },
  sections = sections, tensors = data, remark = remark,
}
cbk.fs.write(args.output, html, { overwrite = args.overwrite })
if args.json then
  cli.print_json(cbk.dict { { "written", true }, { "page", args.output }, { "tensors", #data }, { "findings", finding_count } })
else
  print(cbk.shown(args.output))
end
