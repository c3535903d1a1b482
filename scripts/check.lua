-- cbk check: find what is wrong with checkpoints

local cbk = require "cbk"
local check = require "cbk.check"
local cli = require "cbk.cli"
local converters = require "cbk.converters"
local findings = require "cbk.check.findings"
local folder = require "cbk.check.folder"
local leftovers = require "cbk.check.leftovers"
local numbers = require "cbk.numbers"
local progress = require "cbk.progress"
local rules = require "cbk.check.rules"
local sarif = require "cbk.check.sarif"
local paint = require "cbk.cli.paint"

local ids, lines = {}, {}
for i, rule in ipairs(rules.list) do
  ids[i], lines[i] = rule.id, ("  %-21s%s: %s"):format(rule.id, rule.severity, rule.text)
end

local parser = cli.parser("check", "Find what is wrong with checkpoints: values, layers, shapes, shards, checksums, pickles.", [[
Reads every tensor once. Errors are NaN and infinities, damage, missing weights and shapes that the
config contradicts, shards that do not fit their index, and pickles that name more than plain data.
Warnings are constant weights, weights unlike those of the other layers, rows of zeros, layers with the
same content, gaps in their numbers, tied weights that differ, leftover files, and numbers that --for
DTYPE cannot hold. Notes, such as rows of an embedding that were never trained, may be as they should
be. Each finding ends with the name of its rule, which --only and --skip take; they are listed below. Weights
are compared with those of other layers if there are at least 6 layers.

The config is the one beside the checkpoint, as 'cbk identify' finds it. Of a folder with several
checkpoints, or with the parts of a model in folders of their own, each one is checked. States of an
optimizer, of a schedule and of random numbers in files beside the model are checked, too.

Exit status: 0 no error and no warning, 1 some, 2 a file cannot be opened at all.

examples:
  cbk check model.safetensors
  cbk check llama-folder --for float16 --for float8_e4m3fn
  cbk check model.safetensors --skip untrained-rows --skip duplicate
  cbk check model.mdl --only layer-outlier
  cbk check --sarif checkpoints/*.mdl > findings.sarif

rules:
]] .. table.concat(lines, "\n"))
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one; may be repeated"):argname "FILE":args "+"
parser:option("--for", "also check that the numbers fit this dtype, such as float16; may be repeated"):target "dtypes"
  :argname("DTYPE"):count("*"):convert(function(text)
    local name, problem = cli.dtype(text == "float8" and "float8_e4m3fn" or text)
    if not name then return nil, problem end
    if cbk.dtype(name).floating then return name end
    return nil, ("--for '%s': expected a floating dtype, such as float16, bfloat16 or float8_e4m3fn"):format(text)
  end)
parser:option("--config", "the config (default: the one beside the checkpoint); with one FILE only"):argname "CONFIG"
cli.candidates(parser:option("--only", "report findings of this rule alone; may be repeated"):argname("RULE"):count("*")
  :convert(rules.named), ids)
cli.candidates(parser:option("--skip", "report no findings of this rule; may be repeated"):argname("RULE"):count("*")
  :convert(rules.named), ids)
parser:flag("--no-values", "read no tensors: check names, shapes, shards and pickles only")
parser:flag("--all", "list every finding, not the first 20 of each kind")
parser:flag("--sarif", "print SARIF 2.1.0, for code hosts and editors")
cli.converter_options(parser)
cli.input_options(parser)
cli.options(parser, "no-progress-bar", "json")
local args = parser:parse()
if args.sarif and args.json then cli.usage_error("check", "--sarif and --json exclude each other") end
if args.config and #args.file > 1 then cli.usage_error("check", "--config is the config of one checkpoint; give one FILE") end
cli.confine(args)
local FINDINGS, TROUBLE = 1, 2
local is_loaded, problem = pcall(converters.load, args.converter, args.sandbox)
if not is_loaded then
  if type(problem) == "table" and problem.code ~= "interrupted" then problem.exit_code = TROUBLE end
  error(problem, 0)
end

local found, failures, subjects, total = findings.new { only = args.only, skip = args.skip }, {}, {}, 0

---@param config string|nil
---@return CheckOptions
local function options_with(config)
  return { reading = cli.reading(args), config = config, dtypes = args.dtypes or {}, without_values = args.no_values, folders = {},
    without_sizes = not found:wants(rules.OF_SIZES) }
end

local options, options_beside = options_with(args.config), options_with(nil)

---@param subject CheckSubject
local function add(subject) subjects[#subjects + 1], total = subject, total + subject.bytes end

---What is in a folder beside its checkpoint: the states of a training are checked, too.
---@param path string
---@param subject CheckSubject   of the folder
local function open_beside(path, subject)
  for _, one in ipairs(folder.beside(path, subject, options.reading)) do
    if one.reason then
      found:add("not-checked", one.file, nil, one.reason)
    else
      add(check.open(one.file, options_beside, found))
    end
  end
end

---@param file string
---@param is_inside? boolean   of a folder that was named
local function open(file, is_inside)
  local both = not is_inside and folder.of_both_formats(file)
  if both then
    for _, path in ipairs(both) do open(path, true) end
    return
  end
  local fine, subject = pcall(check.open, file, options, found)
  if fine then
    add(subject)
    return open_beside(file, subject)
  end
  if type(subject) ~= "table" or subject.code == "interrupted" or not subject.problem then error(subject, 0) end
  local inner = not is_inside and folder.checkpoints(file, subject, args.allow_external)
  for _, path in ipairs(inner or {}) do open(path, true) end
  if not inner then failures[#failures + 1] = { file = file, problem = subject } end
end

for _, file in ipairs(args.file) do open(file) end
leftovers.check(subjects, found)
local is_quiet = args.no_progress_bar or args.json or args.sarif or args.no_values
local show = is_quiet and function() end or progress.reading(total)
for _, subject in ipairs(subjects) do check.values(subject, options, found, show) end
show()

-- --- results

---@param one Finding
local function as_json(one)
  local out = cbk.dict { { "rule", one.rule.id }, { "severity", one.severity }, { "file", one.file } }
  for _, field in ipairs { "key", "parameter", "text", "advice" } do out[field] = one[field] end
  return out
end

---@param subject CheckSubject
local function file_as_json(subject)
  local of = subject.of or {}
  local out = cbk.dict { { "file", subject.path }, { "tensors", subject.tensors }, { "bytes", subject.bytes } }
  out.format, out.model, out.config, out.quantised = subject.format, of.name, of.config, subject.quantised
  return out
end

local counts = found:counts()
local status = #failures > 0 and TROUBLE or counts.error + counts.warning > 0 and FINDINGS or 0

if args.sarif then
  cli.print_json(sarif.log(found, failures))
elseif args.json then
  local sorted = found:sorted()
  cli.print_json_object {
    { "findings", count = #sorted, item = function(i) return as_json(sorted[i]) end }, { "errors", counts.error },
    { "warnings", counts.warning }, { "notes", counts.note }, { "left_out", found:left_out() },
    { "files", count = #subjects, item = function(i) return file_as_json(subjects[i]) end },
  }
else
  local print_line = cli.printer(paint.check)
  for _, line in ipairs(found:lines(args.all)) do print_line(line) end
  local tensors = 0
  for _, subject in ipairs(subjects) do tensors = tensors + subject.tensors end
  if #subjects > 0 then
    local without = args.no_values and " (without values)" or ""
    if #args.only > 0 then without = without .. (" (only %s)"):format(table.concat(args.only, ", ")) end
    if #args.skip > 0 then without = without .. (" (without %s)"):format(table.concat(args.skip, ", ")) end
    print_line(("%s%s: %s in %s, %s"):format(found:counts_text() or "clean", without, numbers.counted(tensors, "tensor"),
      numbers.counted(#subjects, "checkpoint"), cbk.format_size(total)))
  end
end
for _, failure in ipairs(failures) do cli.print_error(args, failure.problem) end
if not io.stdout:flush() then os.exit(TROUBLE) end
return status
