-- cbk report: write a page about a checkpoint, or about a run

local cbk = require "cbk"
local check = require "cbk.check"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local diff = require "cbk.diff"
local errors = require "cbk.errors"
local findings = require "cbk.check.findings"
local fold = require "cbk.fold"
local folder = require "cbk.check.folder"
local leftovers = require "cbk.check.leftovers"
local listing = require "cbk.listing"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local page = require "cbk.page"
local progress = require "cbk.progress"
local optimizer_table = require "cbk.optimizer_table"
local optimizers = require "cbk.optimizers"
local record = require "cbk.training.record"
local renamed = require "cbk.diff.renamed"
local run_report = require "cbk.training.report"
local small_items = require "cbk.small_items"
local tables = require "cbk.diff.tables"
local tensor_filter = require "cbk.cli.tensor_filter"
local training = require "cbk.page.training"
local real_values = require "cbk.cli.real_values"

local parser = cli.parser("report", "Write one HTML page about a checkpoint or a training run.", [[
The page has the tree of tensors with sizes, statistics and histograms, numbers by layer, the findings
of 'cbk check', and the differences to OTHER as 'cbk diff' finds them; with --model, through a converter.
It needs no network. Each tensor is read once, and once more to be compared; memory stays small.

Of the folder of a run of 'cbk train', the page has its curves, evaluations, checkpoints and configuration,
and what went wrong; no checkpoint is read. Name one of its checkpoints for a page about that.

examples:
  cbk report model.safetensors -o report.html
  cbk report new.mdl old.mdl -o report.html --key 'model.*'
  cbk report llama-folder model.mdl --model llama
  cbk report model_dir]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one; the folder of a run"):argname "FILE"
parser:argument("other", "a checkpoint to compare with"):argname "OTHER":args "?"
parser:option("-o --output", "the page"):argname "FILE":default "report.html"
parser:option("--key", "only tensors whose key matches the glob; a plain name also means everything below it"):argname "GLOB"
parser:flag("--no-stats", "read no tensor of FILE: sizes and shapes only")
parser:flag("--ignore-dtype", "compare the values of tensors of different dtypes")
parser:option("--model", "compare in one format, converted in memory: the model, as `cbk list` names it, or 'auto'"):argname "NAME"
cli.format_options(parser, { from = "with --model: the format of FILE, hf or cs-X.Y (default: detected)",
  to = "with --model: the format of OTHER (default: detected)" })
parser:option("--config", "the config of FILE (default: the one beside it)"):argname "CONFIG"
cli.converter_options(parser)
cli.input_options(parser)
cli.dry_run_option(parser)
cli.options(parser, "overwrite", "no-progress-bar", "quiet", "json")
local args = parser:parse()
if args.model and not args.other then cli.usage_error("report", "--model is for the comparison with OTHER; give OTHER") end
for _, name in ipairs { "src_fmt", "tgt_fmt" } do
  if args[name] and not args.model then
    cli.usage_error("report", ("%s needs --model NAME (or --model auto)"):format(cli.typed_format(name)))
  end
end
cli.confine(args, cbk.fs.dirname(args.output))

local function write_page(html, members)
  if not args.dry_run then cbk.fs.write(args.output, html, { overwrite = args.overwrite }) end
  if args.json then
    cli.print_json(cbk.dict { { "written", not args.dry_run }, { "page", args.output }, unpack(members) })
  else
    print(args.dry_run and cli.saved_text(args, "The page", cbk.shown(args.output)) or cbk.shown(args.output))
  end
end

--- What the page of a run has a use for. Other options are about checkpoints.
local FOR_RUNS = { file = true, output = true, overwrite = true, dry_run = true, no_progress_bar = true, quiet = true, json = true }

if record.is_run(args.file) then
  for _, name in ipairs(naming.sorted(args)) do
    local is_given = type(args[name]) ~= "table" or next(args[name]) ~= nil
    if is_given and not FOR_RUNS[name] then
      local option = name == "other" and "OTHER" or "--" .. name:gsub("_", "-")
      cli.usage_error("report", ("%s is the folder of a run, for which %s has no meaning; name one of its checkpoints")
        :format(cbk.quote(args.file), option))
    end
  end
  cli.check_output(args.output, {}, args)
  local of_run = run_report.page(args.file, record.facts(args.file))
  write_page(of_run.html, { { "steps", of_run.steps }, { "findings", of_run.findings } })
  return
end
converters.load(args.converter, args.sandbox)

local MOST_TENSORS = 200000  -- of a page that a browser can open
local MOST_ROWS = 500        -- of a table
local BINS = { { 5000, 32 }, { 20000, 16 } } -- of up to so many tensors; a page of more has no histograms

local checkpoint = cli.open(args.file, args)
small_items.check(small_items.count { checkpoint }, { checkpoint }, 2100, "make a page of them", "take a part with `cbk copy --include`")
local rows = cbk.leaf_rows(real_values(checkpoint, args.file, { args.key }), args.key)
local other = args.other and cli.open(args.other, args)
cli.check_output(args.output, { args.file, args.other }, args)

--- The trees that are compared, and what was converted for that.
local function sides()
  if not args.model then return (real_values(checkpoint, args.file)), (real_values(other, args.other)) end
  local through = require "cbk.diff.through" -- with all converters, which take time and memory
  local options = { model = args.model ~= "auto" and args.model or nil, src_fmt = args.src_fmt, tgt_fmt = args.tgt_fmt,
    converter = args.converter, sandbox = args.sandbox }
  local a, b, what = through.trees({ path = args.file, checkpoint = checkpoint, config = args.config },
    { path = args.other, checkpoint = other }, options)
  return a, b, what
end

local root_a, root_b, converted, rows_a, rows_b
if other then
  root_a, root_b, converted = sides()
  rows_a, rows_b = cbk.leaf_rows(root_a), cbk.leaf_rows(root_b)
end

-- --- reading

local tensor_rows, total = {}, args.no_stats and 0 or rows:totals().stored
for i = 1, #rows do
  if rows[i].shape then tensor_rows[#tensor_rows + 1] = i end
end
if other then total = total + rows_a:totals().bytes + rows_b:totals().bytes end
if #tensor_rows == 0 then
  cbk.fail("key", ("'%s' has no tensor%s"):format(cbk.shown(args.file), args.key and " that matches --key" or ""))
end
if #tensor_rows > MOST_TENSORS then
  cbk.fail("value", ("%s are too many for a page, which has at most %s; choose some with --key"):format(
    numbers.counted(#tensor_rows, "tensor"), numbers.grouped(MOST_TENSORS)))
end

local show = cli.has_progress(args) and progress.reading(total) or function() end

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

local bins, texts = bins_of(#tensor_rows), {} -- of the tensors that were read, by their rows

--- Statistics of a tensor that was just checked: its bytes are still in memory.
local function read_statistics(key, bytes)
  local i = rows:find(key)
  local row = i and rows[i]
  if row and row.shape and not note_of(row) and not texts[i] then
    local value = rows:value(i)
    local fine, stats = pcall(value.stats, value, { bins = bins })
    if not fine and (type(stats) ~= "table" or stats.code ~= "format") then error(stats, 0) end
    texts[i] = page.row(row, fine and stats or nil, not fine and errors.text(stats) or nil)
  end
  show(key, bytes)
end

---@return string[] data
local function data_of_rows()
  local out = {}
  for n, i in ipairs(tensor_rows) do out[n] = texts[i] or page.row(rows[i], nil, note_of(rows[i])) end
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

local CHECK_FOLDER = { advice = "`cbk check` of the folder checks it, too" }

local function findings_section()
  local found, entries = findings.new(), {}
  local is_chosen_key = function(key) return rows:find(key) ~= nil end
  local options = { reading = cli.reading(args), opened = checkpoint, dtypes = {}, without_values = args.no_stats, config = args.config,
    is_chosen = args.key and is_chosen_key or nil }
  local subject = check.open(args.file, options, found)
  leftovers.check({ subject }, found)
  for _, one in ipairs(folder.beside(args.file, subject, options.reading)) do
    found:add("not-checked", one.file, nil, one.reason or "it is not in this page", not one.reason and CHECK_FOLDER or nil)
  end
  check.values(subject, options, found, read_statistics)
  for _, one in ipairs(found:sorted()) do
    if is_chosen(one) then
      local signature = table.concat({ one.severity, one.rule.id, one.text, one.key and "" or #entries }, "\0")
      entries[#entries + 1] = { path = one.key or "", signature = signature, finding = one }
    end
  end
  local worst = entries[1] and entries[1].finding -- they are sorted
  if worst and worst.severity == "error" then
    local key = worst.key and ": " .. fold.shown(worst.key) or ""
    cbk.warn(("the page shows errors, such as %s%s: %s"):format(cbk.fs.basename(worst.file), key, worst.text))
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

---@param one DifferenceTable
local function table_html(one)
  local titles, right, shown = {}, {}, {}
  for c, column in ipairs(one.columns) do
    local has_text = c == 1
    for _, cells in ipairs(one.rows) do has_text = has_text or cells[c] ~= "" end
    if has_text then
      shown[#shown + 1], titles[#titles + 1] = c, column.title
      right[#titles] = column.right
    end
  end
  local cells, more = first(one.rows, function(row)
    local out = {}
    for i, c in ipairs(shown) do out[i] = row[c] end
    return out
  end)
  local title = ("<h3>%s (%s)</h3>"):format(page.text(one.title), numbers.grouped(one.count))
  local remark = one.remark and ('<p class="quiet">%s</p>'):format(page.text(one.remark)) or ""
  return title .. page.table { titles = titles, right = right, rows = cells, more = more } .. remark
end

local function differences_section()
  local options = { rtol = 0, atol = 0, ignore_dtype = args.ignore_dtype }
  local result = diff.compare(rows_a, rows_b, options, {
    files = diff.files(checkpoint, other),
    row = tensor_filter.wanted({ key = args.key }, converted ~= nil), without_other_names = converted ~= nil, order = "rel", on_read = show,
  })
  local parts = { converted and ("<p>Compared %s.</p>"):format(page.text(converted)) or "" }
  parts[2] = ("<p>A is %s, B is %s.</p>"):format(page.text(args.file), page.text(args.other))
  parts[3] = ("<p>%s the same, %s different, %s renamed, %s only here, %s only in the other.</p>"):format(
    numbers.counted(result.same, "value"), numbers.grouped(#result.different), numbers.grouped(#result.renamed),
    numbers.grouped(#result.only_a), numbers.grouped(#result.only_b))
  for _, one in ipairs(tables.of(result, diff.MOST_KEPT, optimizers.find(root_a), options)) do parts[#parts + 1] = table_html(one) end
  if #result.different > diff.MOST_KEPT then
    parts[#parts + 1] = ('<p class="quiet">and %s</p>'):format(numbers.counted(#result.different - diff.MOST_KEPT, "more difference"))
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

collectgarbage("setpause", 110) -- a text is kept for each tensor
local findings_html, finding_count = findings_section()
collectgarbage() -- before as much is read again
cbk.trim_memory()
local data = data_of_rows()
local found = optimizers.find(checkpoint:raw_root())
local sections = { { title = "Findings", html = findings_html } }
for _, one in ipairs(training.sections(rows, found)) do sections[#sections + 1] = one end
if other then
  sections[#sections + 1] = { title = "Differences to " .. cbk.fs.basename(cbk.fs.absolute(args.other)), html = differences_section() }
end
local totals = rows:totals()
local dtypes = {}
for i, dtype in ipairs(totals.dtypes) do dtypes[i] = dtype.dtype end
local remark
if not args.no_stats and not bins then
  remark = ("A page of more than %s tensors has no histograms; --key chooses some."):format(numbers.grouped(BINS[#BINS][1]))
end
local cards = { { "tensors", numbers.grouped(totals.tensors) }, { "elements", numbers.grouped(totals.numel) },
  { "bytes", cbk.format_size(totals.stored) }, { "dtypes", table.concat(dtypes, ", ") } }
for _, card in ipairs(training.cards(rows, found)) do cards[#cards + 1] = card end
local states = {}
for i, optimizer in ipairs(found) do states[i] = optimizer_table.state_path(optimizer) end
local html = page.html {
  title = cbk.fs.basename(cbk.fs.absolute(args.file)),
  subtitle = ("%s, %s"):format(cbk.fs.absolute(args.file), listing.format_text(checkpoint)),
  cards = cards, sections = sections,
  tensors = { rows = data, states = states, remark = remark, names = optimizer_table.names_in(checkpoint:raw_root()) },
}
write_page(html, { { "tensors", #data }, { "findings", finding_count } })
