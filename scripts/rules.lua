-- cbk rules: check the tables of a converter

local cbk = require "cbk"
local catalogue = require "converters.engine.catalogue"
local cli = require "cbk.cli"
local dequantised = require "cbk.dequantised"
local errors = require "cbk.errors"
local names = require "cbk.recognise.names"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local quantised = require "cbk.quantised"
local composite = require "cbk.converters.composite"
local converters = require "cbk.converters"
local converter_list = require "cbk.converters.list"
local check = require "converters.authoring.check"
local check_config = require "converters.authoring.check_config"
local coverage = require "converters.authoring.coverage"
local family_files = require "converters.engine.family_files"
local contents = require "converters.conversion.contents"
local own_config = require "converters.conversion.own_config"
local position = require "converters.notation.position"
local kinds = require "converters.engine.kinds"
local tables = require "converters.authoring.tables"
local rules = require "converters.engine.rules"

local parser = cli.parser("rules", [[
Check the tables of a converter. Report rules that no key reaches, two rules for one target,
letters and choices that do not correspond, and keys that are converted in one direction only
without a reason. With keys or a checkpoint, also report keys without a rule, and rules without a key.]], [[
The file is a Lua program. It runs in a sandbox: it has tables, arithmetic and the functions of
converters, and can neither open files nor start programs. With --no-sandbox it has all your
rights, and may require modules of its own; use that only for a file that you trust.

Exit code: 0 clean, 1 findings, 2 wrong usage.

examples:
  cbk rules mine.lua
  cbk rules mine.lua model.safetensors.index.json --config config.json
  cbk rules llama --one-way]])
parser:argument("file", "the converter's file, or the name of a model of cbk"):argname "FILE"
parser:argument("checkpoint", "a checkpoint whose keys are checked against the rules"):argname("CHECKPOINT"):args "?"
parser:option("--keys", "a text file of keys to check, one per line"):argname "FILE"
parser:option("--model", "only this model of the file"):argname "NAME"
parser:option("--config", "the config of the keys: selects the table, and decides conditions of rules"):argname "FILE"
parser:flag("--no-sandbox", "run the file with all your rights")
parser:flag("--one-way", "list all keys that are converted in one direction only, and why")
cli.input_options(parser)
cli.options(parser, "json")
local args = parser:parse()
if args.keys and args.checkpoint then cli.usage_error("rules", "--keys and a checkpoint cannot be combined") end
if args.config and not (args.keys or args.checkpoint) then cli.usage_error("rules", "--config needs --keys or a checkpoint") end

-- --- what to look at

--- The file, and whether it is one of cbk's own. A folder may have a model's name: checkpoints are in such folders.
local function file_of(name)
  if cbk.fs.exists(name) and not cbk.fs.is_dir(name) then return name end
  local own = converters.catalogue.file_of(name)
  if own then
    args.model = args.model or name
    return own, true
  end
  local near = converter_list.nearest(name, converters.catalogue.names())
  cbk.fail("usage", ("'%s' is neither a file nor a model%s"):format(name,
    #near > 0 and "; did you mean " .. table.concat(near, " or ") .. "?" or "; `cbk list` lists the models"))
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

local MOST_TEXT = 2 ^ 28 -- of a list of keys
local MOST_KEYS = 150000 -- of a checkpoint; the largest models have 100,000

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

---The parts of a composite whose folders are in this one.
local function parts_in(folder)
  for _, one in ipairs(list) do
    local parts = one.converter.components
    local are_there = parts ~= nil
    for _, part in ipairs(parts or {}) do are_there = are_there and cbk.fs.is_dir(cbk.fs.join(folder, part.left)) end
    if are_there then return parts end
  end
end

---Reads piece by piece: Lua makes room for all that it is asked for.
---@return string|nil
local function text_of(file)
  local pieces, size = {}, 0
  repeat
    local piece = file:read(2 ^ 16)
    pieces[#pieces + 1], size = piece, size + #(piece or "")
  until not piece or size >= MOST_TEXT
  return (#pieces > 0 or file:read "*a" ~= nil) and table.concat(pieces) or nil
end

---Whether all tables are of layouts of a user's own, whose checkpoints are read as `cbk convert` does.
local function only_own_layouts()
  for _, one in ipairs(list) do
    if not catalogue.has_own_layout(one.converter) then return false end
  end
  return #list > 0
end

---The tensors of a checkpoint as the table of most of its keys reads them.
---@param checkpoint Checkpoint
---@return Dict
local function tensors_of_layout(checkpoint)
  local best, least
  for _, one in ipairs(list) do
    for _, side in ipairs { "left", "right" } do
      local strangers = contents.strangers(one.keys, side)
      local tensors = contents.of_layout(checkpoint.root, strangers).root
      local count = strangers(cbk.keys(tensors))
      if not least or count < least then best, least = tensors, count end
    end
  end
  return best
end

---@param config Dict|nil
---@return string[]|nil
---@return JobInput|nil   of a checkpoint, or of its parts
local function keys_to_cover(config)
  local parts = args.checkpoint and parts_in(args.checkpoint)
  if parts then
    local input = composite.open(args.checkpoint, parts, args)
    return names.keys_of(input.source), input
  elseif args.checkpoint then
    local checkpoint = cli.open(args.checkpoint, args)
    local count = #cbk.leaf_rows(checkpoint:raw_root())
    if count > MOST_KEYS then
      cbk.fail("value", ("'%s' has %d keys; at most %d can be compared with rules"):format(args.checkpoint, count, MOST_KEYS))
    end
    if only_own_layouts() then
      local tensors = tensors_of_layout(checkpoint)
      return cbk.keys(tensors), { source = tensors, deduplicated = converters.input(checkpoint).deduplicated,
        quantised = quantised.find(tensors, config):problem() }
    end
    local input = converters.input(checkpoint)
    local weights = quantised.find(kinds.is_dict(input.source, "model") and input.source.model or input.source, config)
    local fine, source, plain = pcall(dequantised.model, input.source, config, "cannot convert the checkpoint")
    if fine then input.source, input.config = source, plain else input.quantised = errors.text(source) end
    return (weights:names(names.keys_of(input.source))), input
  end
  if not args.keys then return nil end
  local file, why = io.open(args.keys, "rb") -- which may be a pipe
  local text = file and text_of(file)
  if not text then cbk.fail("io", ("cannot read the keys in '%s': %s"):format(args.keys, why or "it is not a text")) end
  if text:find("\0", 1, true) then
    cbk.fail("value", ("'%s' is not a text with one key per line; give a checkpoint without --keys"):format(args.keys))
  end
  local out = {}
  for line in (text .. "\n"):gmatch "(.-)\r?\n" do
    local key = line:match "^%s*([^#%s]%S*)"
    if key then out[#out + 1] = key end
  end
  if #out == 0 then cbk.fail("value", ("'%s' has no keys; write one per line"):format(args.keys)) end
  return out
end

local function config_of_keys()
  local parts = args.config and parts_in(args.config)
  return parts and composite.load_configs(args.config, parts, args) or args.config and cbk.config.load(args.config) or nil
end

local config = config_of_keys()
local keys, input = keys_to_cover(config)
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

if input and input.quantised then add("coverage", "`cbk convert` refuses this: " .. input.quantised, args.checkpoint) end
if input and not input.quantised and best and not why and is_converted(best.tables[1]) and #best.unmatched + #best.refused == 0 then
  local one = best.tables[1]
  local refusal, doubts = coverage.refusal(one, best.side, input.config or config, input.source, input)
  if refusal then add("coverage", "`cbk convert` refuses this: " .. refusal, titles(best)) end
  for _, doubt in ipairs(doubts or {}) do add("coverage", "`cbk convert` warns: " .. doubt, titles(best)) end
end

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
  local single, covered = {}, {}
  for i, row in ipairs(one_way) do
    single[i] = { table = row.table.title, side = row.side, pattern = row.pattern, why = row.text, where = row.where }
  end
  for i, reading in ipairs(readings) do
    local idle = cbk.list()
    for k, rule in ipairs(reading.idle) do idle[k] = rules.text(rule) end
    covered[i] = { reading = titles(reading), keys = #keys, matched = reading.matched, unmatched = cbk.list(reading.unmatched),
      refused = cbk.list(reading.refused), idle_rules = idle }
  end
  cli.print_json(cbk.dict {
    { "file", path }, { "models", #models }, { "tables", table_count }, { "rules", rule_count }, { "findings", objects(findings) },
    { "one_way", objects(single) }, { "coverage", objects(covered) },
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
  print(#findings == 0 and "clean" or count(#findings, "finding"))
end

if args.json then as_json() else as_text() end
os.exit(#findings == 0 and 0 or 1)
