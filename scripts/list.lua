-- cbk list: which models convert between which formats.

local cbk = require "cbk"
local cli = require "cbk.cli"
local converters = require "cbk.converters"

local parser = cli.parser("list", "Lists the models and the formats between which they convert.")
parser:argument("model", "one model (default: all)"):args "?"
parser:flag("--hide-notes", "leave out the last column")
cli.options(parser, "json")
parser:option("--converter", "a converter file of your own")
local args = parser:parse()

converters.load(args.converter)
local name = args.model
if name == "all" then name = nil end
if name and not converters.catalogue.find(name) then
  local near = converters.catalogue.nearest(name, converters.catalogue.names())
  cbk.fail("model", ("there is no model '%s'; %s"):format(name,
    #near > 0 and "did you mean " .. table.concat(near, " or ") .. "?" or "`cbk list` names them all"))
end

local rows = converters.catalogue.rows(name)
if args.json then
  local list = cbk.list()
  for i, row in ipairs(rows) do
    if args.hide_notes then row.note = nil end
    list[i] = cbk.dict(row)
  end
  cli.print_json(list)
else
  for _, line in ipairs(converters.table_of(rows, args.hide_notes)) do print(line) end
end
