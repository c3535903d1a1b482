-- cbk schedule: the learning rate and other schedules of a whole run, without running it

local cbk = require "cbk"
local cli = require "cbk.cli"
local config_file = require "cbk.cli.config_file"
local converters = require "cbk.converters"
local curves = require "cbk.plot.curves"
local numbers = require "cbk.numbers"
local params = require "cbk.training.params"
local rates = require "cbk.training.rates"
local stages = require "cbk.training.stages"
local text_table = require "cbk.text_table"

local parser = cli.parser("schedule", "Show learning rate, weight decay, loss scale and checkpoints of a run, without running it.", [[
It prints the values of some steps and draws those that change. Groups of parameters with the same values share a
column. The loss scale is the one of a run whose gradients never overflow. Neither data nor weights are needed.

examples:
  cbk schedule params.yaml
  cbk schedule params.yaml --steps 2000 --rows 20
  cbk schedule params.yaml -o rates.svg]])
parser:argument("params", "params.yaml"):argname "PARAMS"
converters.model_option(parser, "that of the file")
parser:option("--steps", "the length of the run (default: that of the file)"):argname("N"):convert(cli.whole_number("--steps", 1, 31))
parser:option("--rows", "print so many steps (default: 11)"):argname("N"):default(11):convert(cli.whole_number("--rows", 2))
parser:option("-o --output", "write a picture instead: FILE.svg or FILE.png"):argname "FILE"
parser:flag("--ascii", "draw with ASCII characters only")
cli.options(parser, "json", "overwrite")
cli.dry_run_option(parser)
local args = parser:parse()

local suffix = args.output and (args.output:lower():match "%.(%w+)$" or "")
if args.output and suffix ~= "svg" and suffix ~= "png" then
  cli.usage_error("schedule", ("-o %s: expected a name that ends with .svg or .png"):format(cbk.quote(args.output)))
end
if args.output and args.json then cli.usage_error("schedule", "--output and --json exclude each other") end
if args.output then cli.check_output(args.output, { args.params }, args) end
converters.load()

config_file.check_run(args.params)
local given = params.load(args.params, args.model)
local found = rates.of(given, { steps = args.steps, all = args.json })

---@param one ScheduledSeries
local function title(one)
  local is_alone = true
  for _, other in ipairs(found.series) do is_alone = is_alone and (other == one or other.name ~= one.name) end
  if is_alone then return one.name end
  return ("%s (group%s %s)"):format(one.name, #one.groups > 1 and "s" or "", table.concat(one.groups, ","))
end

---@param one ScheduledSeries
local function changes(one)
  for _, value in ipairs(one.values) do
    if value ~= one.values[1] then return true end
  end
  return false
end

---@return Curve[]
local function changing()
  local out = {}
  for _, one in ipairs(found.series) do
    if changes(one) then out[#out + 1] = { name = title(one), steps = found.at, values = one.values } end
  end
  return out
end

--- The places of steps with about the same distance, the first and the last among them.
local function some_places()
  local out, all = {}, #found.at
  local count = math.min(args.rows, all)
  for i = 0, count - 1 do out[i + 1] = count == 1 and 1 or 1 + math.floor(i * (all - 1) / (count - 1) + 0.5) end
  return out
end

local function print_table()
  local columns, rows = { { title = "step", right = true } }, {}
  for i, one in ipairs(found.series) do columns[i + 1] = { title = title(one), right = true } end
  for r, place in ipairs(some_places()) do
    rows[r] = { ("%d"):format(found.at[place]) }
    for i, one in ipairs(found.series) do rows[r][i + 1] = ("%.6g"):format(one.values[place]) end
  end
  for _, line in ipairs(text_table.lines(columns, rows, cli.columns())) do print(line) end
end

---The steps with something that happens every so many steps, and at the last one.
---@param every integer|nil   nil, 0: never
---@return List
local function steps_of(every)
  local out = cbk.list()
  if not every or every == 0 then return out end
  for step = every, found.steps, every do out[#out + 1] = step end
  if out[#out] ~= found.steps then out[#out + 1] = found.steps end
  return out
end

--- "every 903 steps and at the last one"
local function cadence(every, what)
  if not every or every == 0 then return ("%s: none"):format(what) end
  local count = math.ceil(found.steps / every)
  local last = found.steps % every ~= 0 and ", and at the last step" or ""
  local often = every == 1 and "every step" or ("every %d steps"):format(every)
  return ("%s: %s, %s%s"):format(what, numbers.grouped(count), often, last)
end

local function evaluation_cadence()
  return (given.fit.val_dataloader or {})[1] and stages.cadence(given.init.loop.eval_frequency, found.steps) or nil
end

if args.json then
  local list = cbk.list()
  for i, one in ipairs(found.series) do
    local values = cbk.list()
    for k, value in ipairs(one.values) do values[k] = numbers.json_number(value) end
    list[i] = cbk.dict { { "name", one.name }, { "groups", cbk.list(one.groups) }, { "values", values } }
  end
  cli.print_json(cbk.dict { { "steps", found.steps }, { "series", list }, { "checkpoints", steps_of(given.init.checkpoint.steps) },
    { "evaluations", steps_of(evaluation_cadence()) } })
elseif args.output then
  local picture = curves.figure(args.params, changing(), { width = 800, height = 260 })
  if not args.dry_run then cbk.fs.write(args.output, picture[suffix](picture), { overwrite = args.overwrite }) end
  print(args.dry_run and cli.saved_text(args, "The picture", cbk.shown(args.output)) or cbk.shown(args.output))
else
  print(("%s: %s"):format(cbk.shown(args.params), numbers.counted(found.steps, "step")))
  print(cadence(given.init.checkpoint.steps, "checkpoints"))
  print(cadence(evaluation_cadence(), "evaluations"))
  print()
  print_table()
  print()
  for _, line in ipairs(curves.lines(changing(), { width = cli.width(), ascii = args.ascii })) do print(line) end
end
