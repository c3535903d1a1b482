-- cbk list: list models, and the formats between which they convert

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local naming = require "cbk.naming"

local parser = cli.parser("list", "List the models and the formats between which they convert.", [[
With --src-fmt, the formats are those that a model can be converted to; with --tgt-fmt, those that it
can be converted from.

examples:
  cbk list
  cbk list llama --src-fmt hf]])
parser:argument("model", "one model (default: all)"):args "?"
cli.format_options(parser, { from = "only what reads this format: hf, cs-X.Y, cs-current", to = "only what writes this format" })
parser:flag("--all", "list every pair of formats that a table converts, with notes")
parser:flag("--hide-notes", "with --all: leave out the notes")
cli.options(parser, "json")
cli.converter_options(parser)
local args = parser:parse()

cli.confine(args)
converters.load(args.converter, args.sandbox)
local catalogue = converters.catalogue

---A mistyped name is an error that suggests others.
local function known(kind, name, names, nearest)
  for _, one in ipairs(names) do
    if one == name then return name end
  end
  local question = naming.question(nearest(name, names))
  cbk.fail(kind, ("there is no %s '%s'; %s"):format(kind, name, question or "`cbk list` names them all"))
end

---A format that some model has; what it means is for each model to say.
local function format_of(name)
  if name == "cs-auto" then cbk.fail("format", "cs-auto needs a checkpoint; name a format such as cs-2.4") end
  if name then known("format", catalogue.resolve(name), converter_list.formats(), converter_list.nearest_formats) end
  return name
end

local filter = { src = format_of(args.src_fmt), tgt = format_of(args.tgt_fmt) }
if args.model and args.model ~= "all" then
  local lower = args.model:lower() -- as the Model Zoo's own tool takes it
  filter.model = known("model", catalogue.find(lower) and lower or args.model, catalogue.names(), converter_list.nearest)
end

local rows = converter_list.rows(filter)
if #rows == 0 then cbk.fail("unsupported", converter_list.why_none(filter)) end
if args.json then
  local list = cbk.list()
  for i, row in ipairs(rows) do
    if args.hide_notes then row.note = nil end
    for _, name in ipairs { "src_formats", "tgt_formats" } do row[name] = cbk.list(row[name]) end
    list[i] = cbk.dict(row)
  end
  cli.print_json(list)
elseif args.all then
  for _, line in ipairs(converter_list.lines(rows, args.hide_notes)) do print(cbk.shown(line)) end
else
  for _, line in ipairs(converter_list.summary(rows, filter)) do print(cbk.shown(line)) end
  local seen = {}
  for _, row in ipairs(rows) do
    local path = catalogue.is_own(row.model) and not seen[row.model] and catalogue.file_of(row.model)
    seen[row.model] = true
    if path and path ~= args.converter then print(("  %s is your own: %s"):format(cbk.shown(row.model), cbk.shown(path))) end
  end
end
