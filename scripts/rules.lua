-- cbk rules: check the tables of a converter

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local covered = require "cbk.recognise.covered"
local errors = require "cbk.errors"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local check = require "converters.authoring.check"
local check_config = require "converters.authoring.check_config"
local coverage = require "converters.authoring.coverage"
local family_files = require "converters.engine.family_files"
local own_config = require "converters.conversion.own_config"
local position = require "converters.notation.position"
local tables = require "converters.authoring.tables"
local round_trip = require "cbk.round_trip"
local trip_report = require "cbk.round_trip.report"
local rules = require "converters.engine.rules"

local parser = cli.parser("rules", [[
Check the tables of a converter. Report rules that no key reaches, two rules for one target,
letters and choices that do not correspond, and keys that are converted in one direction only
without a reason. With keys or a checkpoint, also report keys without a rule, and rules without a key.
With --round-trip, convert there and back, and report what changes. With --logits, also run the
models of both sides, and report whether they compute the same.]], [[
The file is a Lua program. It runs in a sandbox: it has tables, arithmetic and the functions of
converters, and can neither open files nor start programs. With --no-sandbox it has all your
rights, and may require modules of its own; use that only for a file that you trust.

--round-trip converts the checkpoint to the other format and back, in memory, and compares every
tensor bit for bit, ties, and the fields of the config. The config is the one beside the checkpoint if
--config names no other. It repeats that with random weights of other sizes: from the model's class, or
with other extents for the tensors of the checkpoint. Without a checkpoint, only random weights are
tried.

--logits does all that, and runs the model before the conversion and the one after it on the same
random tokens, each in its own layout. It reports how far their logits differ, and where their
hidden states part. Differences above 0.001 of the largest logit are a finding. It finds what a
round trip cannot: rows in another order, scales, fields with another meaning. All decoders are
computed, in float32; weights are read one by one, when they are needed.

Exit status: 0 clean, 1 findings, 2 wrong usage.

examples:
  cbk rules mine.lua
  cbk rules mine.lua model.safetensors.index.json --config config.json
  cbk rules mine.lua model.safetensors --config config.json --round-trip
  cbk rules mine.lua model.safetensors --config config.json --logits
  cbk rules llama --one-way]])
parser:argument("file", "the converter's file, or the name of a model of cbk"):argname "FILE"
parser:argument("checkpoint", "a checkpoint whose keys are checked against the rules"):argname("CHECKPOINT"):args "?"
parser:option("--keys", "a text file of keys to check, one per line"):argname "FILE"
parser:option("--model", "only this model of the file"):argname "NAME"
parser:option("--config", "the config of the keys: selects the table, and decides conditions of rules"):argname "FILE"
parser:flag("--no-sandbox", "run the file with all your rights")
parser:flag("--one-way", "list all keys that are converted in one direction only, and why")
parser:flag("--round-trip", "convert there and back, and report what changes")
parser:flag("--logits", "convert, and compare what both models compute")
cli.input_options(parser)
cli.options(parser, "json")
local args = parser:parse()
args.round_trip = args.round_trip or args.logits
if args.keys and args.checkpoint then cli.usage_error("rules", "--keys and a checkpoint cannot be combined") end
if args.config and not (args.keys or args.checkpoint or args.round_trip) then
  cli.usage_error("rules", "--config needs --keys, a checkpoint or --round-trip")
end
if args.keys and args.round_trip then
  local option = args.logits and "--logits" or "--round-trip"
  cli.usage_error("rules", option .. " needs tensors: name the checkpoint instead of --keys")
end

-- --- what to look at

--- The file, and whether it is one of cbk's own. A folder may have a model's name: checkpoints are in such folders.
local function file_of(name)
  if cbk.fs.exists(name) and not cbk.fs.is_dir(name) then return name end
  local own = converters.catalogue.file_of(name)
  if own then
    args.model = args.model or name:lower()
    return own, true
  end
  cbk.fail("usage", ("'%s' is neither a file nor a model; %s"):format(name, converter_list.advice(name, converters.catalogue.names())))
end

converters.load()
local path, is_bundled = file_of(args.file)
local findings = {} -- { where, kind, text }

local function add(kind, text, where, title) findings[#findings + 1] = { kind = kind, text = text, where = where, table = title } end

local function load_models()
  local is_sandboxed = not (is_bundled or args.no_sandbox)
  cli.confine { sandbox = is_sandboxed }
  local fine, models = pcall(family_files.read, path, is_sandboxed)
  if fine then return models end
  add("broken", errors.text(models), path)
  return {}
end

local models = load_models()
local list = tables.of(models, args.model)
if args.model and #list == 0 and #models > 0 then
  local known = {}
  for i, model in ipairs(models) do known[i] = model.model end
  cli.usage_error("rules", ("--model %s: the file has no such model; it has %s"):format(args.model, table.concat(known, ", ")))
end

-- --- findings of the tables alone; a rule that several tables share is reported once

local reported, one_way, looked, excused = {}, {}, {}, {}

local function add_once(kind, text, where, title)
  if reported[kind .. where] then return end
  reported[kind .. where] = true
  add(kind, text, where, title)
end

local function add_rules(found, title)
  for _, finding in ipairs(found) do
    add_once(finding.kind, ("%s: %s"):format(rules.text(finding.rule), finding.text), position.of(finding.rule), title)
  end
end

for _, one in ipairs(list) do
  if not looked[one.keys] and not one.inside then
    looked[one.keys] = true
    local found, single, is_read_only = check.keys(one.keys)
    excused[#excused + 1] = { one.keys, is_read_only }
    add_rules(found, one.title)
    for _, single_one in ipairs(single) do
      one_way[#one_way + 1] = { table = one, side = single_one.side, pattern = single_one.pattern, text = single_one.text,
        where = position.of(single_one.rule) }
    end
  end
  if one.config and not looked[one.config] and not one.inside then
    looked[one.config] = true
    for _, finding in ipairs(check_config.table(one.own, one.model.classes, not converters.catalogue.file_of(one.model.model))) do
      local has_place = finding.rule and finding.rule.origin
      add(finding.kind, finding.text, has_place and position.of(finding.rule) or one.title, one.title)
    end
  end
end

add_rules(check.read_only(excused))
for _, model in ipairs(models) do
  for _, converter in ipairs(model) do add_rules(check.parts(converter.components or {}), model.model) end
  for _, found in ipairs { check_config.history(model), check_config.classes(model) } do
    for _, finding in ipairs(found) do add(finding.kind, finding.text, path) end
  end
end

-- --- coverage

local config = covered.config(args, list)
local keys, input = covered.keys(args, list, config)
local best, why
if keys then best, why = coverage.best(list, keys, config) end
local readings = { best }
if why then add("coverage", "the table of these keys cannot read this config: " .. why, args.config) end

local function titles(reading)
  local one = reading.tables[1]
  local held = one.held and " of " .. one.held or ""
  return ("%s%s, %s"):format(one.model.model, held, tables.direction(one, reading.side))
end

for _, reading in ipairs(readings) do
  if #reading.unmatched > 0 then
    local named, beyond = naming.folded(reading.unmatched, 20), coverage.beyond(reading)
    add("coverage", ("%d of %d keys fit no rule: %s%s"):format(#reading.unmatched, #keys, named, beyond and "; " .. beyond or ""),
      titles(reading))
  end
  for _, one in ipairs(reading.beside) do
    local text = "'%s' is read-only and never written, but these keys have it together with '%s'; to write both, "
      .. "add also_%s = '%s' to that rule"
    add("coverage", text:format(one.key, one.other, reading.side, one.rule[reading.side][1]), position.of(one.rule), titles(reading))
  end
  if #reading.refused > 0 then
    local text = ("%s refused: %s"):format(numbers.counted(#reading.refused, "key"), naming.folded(reading.refused, 20))
    add("coverage", text, titles(reading))
  end
end

---What `convert` refuses: weights that are missing, shapes that the config contradicts.
---@param one Table
local function is_converted(one)
  local is_own = one.own.without_config or catalogue.has_own_layout(one.converter)
  return config ~= nil or is_own and not own_config.is_needed(one.own)
end

local has_refusal = false -- of the given checkpoint
if input and input.quantised then add("coverage", "`cbk convert` refuses this: " .. input.quantised, args.checkpoint) end
if input and not input.quantised and best and not why and is_converted(best.tables[1]) and #best.unmatched + #best.refused == 0 then
  local one = best.tables[1]
  local refusal, doubts = coverage.refusal(one, best.side, input.config or config, input.source, input)
  has_refusal = refusal ~= nil
  if refusal then add("coverage", "`cbk convert` refuses this: " .. refusal, titles(best)) end
  for _, doubt in ipairs(doubts or {}) do add("coverage", "`cbk convert` warns: " .. doubt, titles(best)) end
end

-- --- there and back

---What a command can try: a checkpoint that the table of its keys converts, or random weights.
---@return RoundTripReport[]
local function trips()
  if not args.round_trip then return {} end
  if not input then return round_trip.of_tables(list, config, args.logits) end
  local is_fit = best and not (why or input.quantised or has_refusal) and #best.unmatched + #best.refused == 0
  return is_fit and round_trip.of_checkpoint(best.tables[1], best.side, input.config or config, input, args.logits) or {}
end

local reports = trips()
for _, finding in ipairs(trip_report.findings(reports, path, args.logits)) do findings[#findings + 1] = finding end

-- --- output

---The tables that the file itself has, and their rules.
local function counts()
  local tables_count, rule_count, seen = 0, 0, {}
  for _, one in ipairs(list) do
    if not one.inside then
      tables_count = tables_count + 1
      if not seen[one.keys] then rule_count = rule_count + #one.keys end
      seen[one.keys] = true
    end
  end
  return tables_count, rule_count
end

local table_count, rule_count = counts()

local function as_json()
  local function objects(rows)
    local out = cbk.list()
    for i, row in ipairs(rows) do out[i] = cbk.dict(row) end
    return out
  end
  local single, readings_of_keys = {}, {}
  for i, row in ipairs(one_way) do
    single[i] = { table = row.table.title, side = row.side, pattern = row.pattern, why = row.text, where = row.where }
  end
  for i, reading in ipairs(readings) do
    local idle = cbk.list()
    for k, rule in ipairs(reading.idle) do idle[k] = rules.text(rule) end
    readings_of_keys[i] = { reading = titles(reading), keys = #keys, matched = reading.matched, unmatched = cbk.list(reading.unmatched),
      refused = cbk.list(reading.refused), idle_rules = idle }
  end
  cli.print_json(cbk.dict {
    { "file", path }, { "models", #models }, { "tables", table_count }, { "rules", rule_count }, { "findings", objects(findings) },
    { "one_way", objects(single) }, { "coverage", objects(readings_of_keys) }, { "round_trips", objects(trip_report.rows(reports)) },
  })
end

local print_line = cli.printer()

--- Texts come out of a file that nobody needs to trust.
local function say(text) print_line(cbk.shown(text)) end

local function as_text()
  local function count(n, what) return ("%d %s%s"):format(n, what, n == 1 and "" or "s") end
  if #list > 0 then
    say(("%s: %s, %s"):format(position.file(path), count(table_count, "table"), count(rule_count, "rule")))
  end
  if args.config_is_found then say("config: " .. args.config) end
  for _, finding in ipairs(findings) do say(("%s: %s: %s"):format(finding.where, finding.kind, finding.text)) end
  if args.one_way then
    local last
    for _, row in ipairs(one_way) do
      if row.table ~= last then say(("one way, %s"):format(row.table.title)) end
      last = row.table
      say(("  %s '%s': %s (%s)"):format(row.side == "left" and "left " or "right", row.pattern, row.text, row.where))
    end
  elseif #one_way > 0 then
    say(("%s meant to be converted in one direction only; --one-way lists %s"):format(
      #one_way == 1 and "1 key is" or #one_way .. " keys are", #one_way == 1 and "it with the reason" or "them with the reasons"))
  end
  for _, reading in ipairs(readings) do
    say(("%s: %d of %d keys fit; %s"):format(titles(reading), reading.matched, #keys, #reading.idle == 0 and "every rule has a key"
      or count(#reading.idle, "rule") .. " without a key:"))
    for _, rule in ipairs(reading.idle) do say(("  %s (%s)"):format(rules.text(rule), position.of(rule))) end
  end
  for _, line in ipairs(trip_report.lines(reports)) do say(line) end
  print(#findings == 0 and "clean" or count(#findings, "finding"))
end

if args.json then as_json() else as_text() end
os.exit(#findings == 0 and 0 or 1)
