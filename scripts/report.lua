-- cbk report: write a page about a checkpoint, for a browser

local cbk = require "cbk"
local cli = require "cbk.cli"
local differences = require "cbk.page.differences"
local findings = require "cbk.page.findings"
local listing = require "cbk.listing"
local numbers = require "cbk.numbers"
local page = require "cbk.page"
local progress = require "cbk.progress"

local parser = cli.parser("report", "Write one HTML page about a checkpoint, with everything in it.", [[
The page has the tree of tensors with sizes, statistics and histograms, numbers by layer, findings, and
the differences to OTHER. It needs no network. Tensors are read once, in blocks.

examples:
  cbk report model.safetensors -o report.html
  cbk report new.mdl old.mdl -o report.html --key 'model.*']])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("other", "a checkpoint to compare with"):argname "OTHER":args "?"
parser:option("-o --output", "the page (default: report.html)"):argname "FILE":default "report.html"
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

local tensor_rows, total = {}, 0
for i = 1, #rows do
  local row = rows[i]
  if row.shape then
    tensor_rows[#tensor_rows + 1] = i
    if not row.tied_to and not args.no_stats then total = total + row.bytes end
    if other_rows then total = total + row.bytes end
  end
end
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

---@return string[] data, Finding[]
local function read()
  local out, found, bins = {}, {}, bins_of(#tensor_rows)
  for n, i in ipairs(tensor_rows) do
    local row = rows[i]
    local note, stats = note_of(row), nil
    if not note and not args.no_stats and not row.tied_to then
      stats = rows:value(i):stats { bins = bins }
      found[#found + 1] = findings.of_statistics(row.path, stats)
      show(row.path, row.bytes)
    end
    if row.problem then found[#found + 1] = { severity = "error", key = row.path, text = row.problem } end
    out[n] = page.row(row, stats, note)
  end
  return out, found
end

-- --- sections

local function first(list, of)
  local out = {}
  for i = 1, math.min(#list, MOST_ROWS) do out[i] = of(list[i]) end
  return out, math.max(0, #list - MOST_ROWS)
end

local function findings_section(list)
  if #list == 0 then
    return args.no_stats and "<p>Values were not read.</p>" or "<p>Every value is finite, and no tensor is 0 everywhere.</p>"
  end
  local cells, more = first(findings.folded(list), function(finding) return { finding.key, finding.severity, finding.text } end)
  return page.table { titles = { "tensor", "severity", "finding" }, rows = cells, more = more }
end

local function keys_html(title, keys)
  if #keys == 0 then return "" end
  local cells, more = first(differences.folded(keys), function(key) return { key } end)
  return page.table { titles = { ("%s (%s)"):format(title, numbers.grouped(#keys)) }, rows = cells, more = more }
end

local function differences_section(found)
  local parts = { ("<p>%s the same, %s different, %s only here, %s only in the other.</p>"):format(numbers.counted(found.same, "tensor"),
    numbers.grouped(#found.changed), numbers.grouped(#found.only_a), numbers.grouped(#found.only_b)) }
  if #found.changed > 0 then
    local cells, more = first(found.changed, function(one) return { one.key, one.text } end)
    parts[#parts + 1] = page.table { titles = { "tensor", "difference" }, rows = cells, more = more }
  end
  parts[#parts + 1] = keys_html("only in " .. args.file, found.only_a)
  parts[#parts + 1] = keys_html("only in " .. args.other, found.only_b)
  return table.concat(parts, "\n")
end

-- --- the page

local data, found = read()
local sections = { { title = "Findings", html = findings_section(found) } }
local compared
if other_rows then
  compared = differences.find(rows, other_rows, show)
  sections[2] = { title = "Differences to " .. cbk.fs.basename(args.other), html = differences_section(compared) }
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
  cli.print_json(cbk.dict { { "written", true }, { "page", args.output }, { "tensors", #data }, { "findings", #found } })
else
  print(cbk.shown(args.output))
end
