-- cbk diff: compare two checkpoints

local cbk = require "cbk"
local cli = require "cbk.cli"
local diff = require "cbk.diff"
local fold = require "cbk.fold"
local folder = require "cbk.check.folder"
local naming = require "cbk.naming"
local numbers = require "cbk.numbers"
local optimizers = require "cbk.optimizers"
local progress = require "cbk.progress"
local renamed = require "cbk.diff.renamed"
local tables = require "cbk.diff.tables"
local tensor_filter = require "cbk.cli.tensor_filter"
local text_table = require "cbk.text_table"
local values = require "cbk.diff.values"
local real_values = require "cbk.cli.real_values"
local paint = require "cbk.cli.paint"

local parser = cli.parser("diff", "Compare two checkpoints of any formats: keys, shapes, dtypes, values.", [[
Values are compared by their dotted keys; tensors that only one side has are then compared by content,
and those with the same content are listed as renamed. Constant tensors, such as norms of ones, count
as renamed only if their names agree from the layer number on. With --model, one of them is converted to the
format of the other first, in memory; tensors that are not of the model are on one side only. If both have
one format, the models inside are compared, without the dicts and prefixes that trainers put around them.

The order of keys and the kinds of containers (dict or OrderedDict, tensor or parameter) are not
compared, since not every format has them. Elements agree when |a - b| <= T + R * |b|, or when both are
NaN. Tensors that differ most come first; layers that are alike are one line. max rel is the largest
|a - b| / max(|a|, |b|), rel norm the norm of a - b over that of b. NaN or infinity beside another
number is a difference of inf: such a tensor comes first, and --all and --json have inf for max abs and
max rel. The tables count these elements below the line ('NaN in B only: 1') and leave out inf; rel norm
and cosine are those of the other elements. A line of several layers has the largest finite number of each
measure, and 'most in' is the layer that differs most. Tensors are read in blocks; memory stays small.

The configs of two folders (config.json, or the YAML file) are compared field by field, too: 1 and 1.0
are the same, and so are null, the default of the model's class and an absent field. With --model,
--keys-only, --key, --shape or --dtype, configs are not compared.

--key, --shape and --dtype choose tensors that match on at least one side.

--logits runs both models, each in its own format, on the same random tokens, and compares what they
compute: does a converted checkpoint still compute the same? Each model is recognised by the config
beside it. The largest difference may be 0.001 of the largest logit, or R of it with --rtol. If it is
more, the first place is named where hidden states part. All decoders are computed, in float32; weights
are read one by one, when they are needed.

Exit status: 0 the same, 1 different, 2 an error.

examples:
  cbk diff model.bin model.safetensors
  cbk diff old.mdl new.mdl --rtol 1e-3 --ignore-dtype
  cbk diff llama-folder model.mdl --model llama --ignore-dtype --key '*.layers.0.*'
  cbk diff llama-folder converted/model.mdl --logits]])
parser:argument("a", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "A"
parser:argument("b", "the other one"):argname "B"
local function tolerance(name)
  return function(text)
    local number = tonumber(text)
    if number and number >= 0 then return number end
    return nil, ("%s '%s': expected a number of at least 0"):format(name, text)
  end
end
parser:option("--rtol", "relative tolerance"):argname("R"):convert(tolerance "--rtol"):default "0"
parser:option("--atol", "absolute tolerance"):argname("T"):convert(tolerance "--atol"):default "0"
parser:option("--tensor_comparison_op", "equal, as without it, or close: --rtol 1e-5 --atol 1e-8")
  :hidden_name("--tensor-comparison-op"):choices({ "equal", "close" })
parser:flag("--keys-only", "compare keys, kinds, shapes and dtypes, and read no values")
parser:flag("--ignore-dtype", "compare the values of tensors of different dtypes")
parser:option("--key", "only keys that match the glob; a plain name also means everything below it"):argname "GLOB"
tensor_filter.options(parser, diff.orders)
parser:flag("--all", "list every difference on a line of its own, not the first 20 lines of each kind")
parser:option("--model", "compare in one format, converted in memory: the model, as `cbk list` names it, or 'auto'"):argname "NAME"
parser:flag("--logits", "compare what two models compute, not their values")
parser:option("--text", "with --logits: compute with the tokens of this text, or of this file (default: random tokens)"):argname "TEXT"
cli.format_options(parser, { from = "with --model: the format of A, hf or cs-X.Y (default: detected)",
  to = "with --model: the format of B (default: detected)" })
parser:option("--config", "with --model or --logits: the config of A (default: the one beside it)"):argname "FILE"
cli.converter_options(parser)
cli.input_options(parser)
cli.options(parser, "no-progress-bar", "json")

local CLOSE = { rtol = 1e-5, atol = 1e-8 } -- torch.allclose
local SAME, DIFFERENT, TROUBLE = 0, 1, 2
local LISTED = 20
local MOST_NAMES = 5 -- of files that are not compared
local MOST_FOLDED = 100000 -- keys, which are all in memory for that

-- --- what is compared

--- A filter that nothing passes must not look like equal checkpoints.
local function check_chosen(result, args)
  local count = result.same + #result.different + #result.renamed + #result.only_a + #result.only_b
  if count > 0 or not (args.key or args.shape or args.dtype) then return end
  cbk.fail("key", "no tensor of either side is chosen; 'cbk ls' lists what there is")
end

---A function that shows how much has been read.
local function new_progress(a, b, args)
  if args.no_progress_bar or args.json or args.keys_only then return function() end end
  local total = a:totals().bytes + b:totals().bytes
  return progress.reading(total)
end

---The differences between the configs of two folders; nil if they are not compared.
---@return FieldDifference[]|nil
local function differences_of_configs(a, b, args)
  if args.model or args.keys_only or args.key or args.shape or args.dtype then return nil end
  if not (cbk.fs.is_dir(args.a) and cbk.fs.is_dir(args.b)) then return nil end
  local configs = require "cbk.diff.configs" -- with all of cbk.recognise
  return configs.of_folders({ path = args.a, checkpoint = a }, { path = args.b, checkpoint = b })
end

---@return Comparison
local function compare(args)
  local a, b = cli.open(args.a, args), cli.open(args.b, args)
  local root_a, root_b, what
  if args.model then
    if args.model == "auto" then args.model = nil end
    local through = require "cbk.diff.through" -- with all converters, which take time and memory
    root_a, root_b, what = through.trees({ path = args.a, checkpoint = a, config = args.config }, { path = args.b, checkpoint = b }, args)
    cli.say(args, ("comparing %s"):format(what))
  else
    root_a, root_b = real_values(a, args.a, { args.key }), real_values(b, args.b, { args.key })
  end
  local rows_a, rows_b = cbk.leaf_rows(root_a), cbk.leaf_rows(root_b)
  local on_read = new_progress(rows_a, rows_b, args)
  local result = diff.compare(rows_a, rows_b, args, {
    files = diff.files(a, b),
    row = tensor_filter.wanted(args, what ~= nil), without_other_names = what ~= nil, order = args.sort or "rel", on_read = on_read,
  })
  on_read()
  check_chosen(result, args)
  result.through, result.optimizers = what, optimizers.find(root_a)
  result.config = differences_of_configs(a, b, args)
  result.not_compared = folder.names_beside({ { args.a, a }, { args.b, b } }, cli.reading(args))
  if result.config and #result.config > 0 then result.equal = false end
  return result
end

---@return LogitsDifference
local function compare_logits(args)
  local a, b = cli.open(args.a, args), cli.open(args.b, args)
  local result, what = require("cbk.diff.computed").compare({ path = args.a, checkpoint = a, config = args.config },
    { path = args.b, checkpoint = b }, args.rtol > 0 and args.rtol or nil, args.text)
  cli.say(args, ("comparing %s"):format(what))
  return result
end

-- --- results

local print_line = cli.printer(paint.diff)

---@param lines string[]
local function print_lines(title, count, lines, args)
  if count == 0 then return end
  print_line(("%s (%s):"):format(title, numbers.grouped(count)))
  local most = args.top or args.all and #lines or LISTED
  for i = 1, math.min(most, #lines) do print_line("  " .. lines[i]) end
  if #lines > most then
    local remedy = args.top and "a larger --top lists them" or "--all lists them"
    print_line(("  … and %s (%s)"):format(numbers.counted(#lines - most, "more line"), remedy))
  end
end

---Prints keys that only one side has, with layers on one line.
local function print_keys(title, rows, list, args)
  local lines, entries = {}, {}
  if args.all or #list > MOST_FOLDED then
    local shown = args.all and #list or math.min(#list, args.top or LISTED)
    for n = 1, shown do lines[n] = fold.shown(diff.key_of(rows, list[n])) end
    for n = shown + 1, #list do lines[n] = "" end
  else
    for n, i in ipairs(list) do entries[n] = { path = diff.key_of(rows, i) } end
    for n, group in ipairs(fold.groups(entries)) do lines[n] = group.name end
  end
  print_lines(title, #list, lines, args)
end

---Every difference in a line of its own.
local function print_all(result, args)
  local lines = {}
  for n = 1, math.min(#result.different, args.top or math.huge) do
    local d, key, other_key = diff.at(result, n, args)
    if other_key then key = ("%s -> %s"):format(key, other_key) end
    lines[n] = ("%s: %s"):format(fold.shown(key), cbk.shown(d.text))
  end
  for n = #lines + 1, #result.different do lines[n] = "" end
  print_lines("different", #result.different, lines, args)
end

---@param one DifferenceTable
local function print_table(one, args)
  local columns = cli.columns()
  local count = math.min(#one.rows, args.top or args.all and #one.rows or LISTED)
  local lines, left_out = text_table.lines(one.columns, { unpack(one.rows, 1, count) }, columns and columns - 2)
  print_line(("%s (%s):"):format(one.title, numbers.grouped(one.count)))
  for _, line in ipairs(lines) do print_line("  " .. line) end
  if count < #one.rows then
    print_line(("  … and %s (%s)"):format(numbers.counted(#one.rows - count, "more line"),
      args.top and "a larger --top lists them" or "--all lists them"))
  end
  if #left_out > 0 then print_line(("  (too narrow for: %s)"):format(table.concat(left_out, ", "))) end
  if one.remark then print_line("  " .. one.remark) end
end

local function print_different(result, args)
  if args.all then return print_all(result, args) end
  local count = #result.different
  local shown = count <= diff.MOST_KEPT and count or args.top or LISTED
  for _, one in ipairs(tables.of(result, shown, result.optimizers, args)) do print_table(one, args) end
  if shown < count then print_line(("… and %s (--all lists them)"):format(numbers.counted(count - shown, "more difference"))) end
end

local function renamed_lines(list, args)
  if not args.all then return renamed.lines(list) end
  local lines = {}
  for i, pair in ipairs(list) do lines[i] = ("%s -> %s"):format(fold.shown(pair.a), fold.shown(pair.b)) end
  return lines
end

---Where the sides have no name in common: the model in whose formats they can be compared, if both are of one.
local function advise_model(args)
  local function model_of(path)
    local fine, found = pcall(function() return require("cbk.recognise").checkpoint(path, cbk.open(path, cli.reading(args))) end)
    return fine and found.model or nil, fine and found.format or nil, fine and found.contents.taken[1] or nil
  end
  require("cbk.converters").load()
  local a, format_a, around_a = model_of(args.a)
  local b, format_b, around_b = model_of(args.b)
  if a and a == b and format_a ~= format_b then
    print_line(("no name is in both: A is in %s, B in %s; compare them with --model %s"):format(format_a, format_b, a))
  elseif a and a == b and (around_a or around_b) then
    print_line(("no name is in both: the names in %s begin with '%s'; compare the models inside with --model %s"):format(
      around_a and "A" or "B", around_a or around_b, a))
  elseif a or b then
    print_line(("no name is in both: A is %s, B is %s"):format(a and "of " .. a or "of no known model", b and "of " .. b
      or "of no known model"))
  end
end

local function print_text(result, args)
  print_keys("only in " .. cbk.shown(args.a), result.a, result.only_a, args)
  print_keys("only in " .. cbk.shown(args.b), result.b, result.only_b, args)
  print_lines("renamed, with the same content", #result.renamed, renamed_lines(result.renamed, args), args)
  print_different(result, args)
  if result.config and #result.config > 0 then print_table(require("cbk.diff.configs").table(result.config), args) end
  local compared = args.keys_only and " (without values)" or ""
  print_line(result.equal and ("the same: %s%s"):format(numbers.counted(result.same, "value"), compared)
    or ("%s the same%s"):format(numbers.counted(result.same, "value"), compared))
  if #result.not_compared > 0 then print_line("not compared: " .. naming.listed(result.not_compared, MOST_NAMES)) end
  local has_common = result.same > 0
  for _, i in ipairs(result.different) do has_common = has_common or not result.other_key[i] end
  local is_apart = #result.only_a > 0 and #result.only_b > 0 and not has_common
  if is_apart and not (args.model or args.key) then advise_model(args) end
end

--- A complex number is a list of its parts.
local function json_of_element(value)
  if type(value) == "table" then return cbk.list { numbers.json_number(value[1]), numbers.json_number(value[2]) } end
  return type(value) == "number" and numbers.json_number(value) or values.element_text(value)
end

local function json_of(d, key, other_key)
  local entry = cbk.dict { { "key", key }, { "what", d.what } }
  if other_key then entry.renamed = other_key end
  if d.what == "values" then
    entry.different, entry.numel, entry.first = d.different, d.numel, cbk.list(d.first)
    entry.nan_a, entry.nan_b, entry.infinite = d.nan_a, d.nan_b, d.infinite
    for _, name in ipairs { "max_abs", "max_rel", "rel_norm", "cosine" } do
      if d[name] then entry[name] = numbers.json_number(d[name]) end
    end
    entry.largest = cbk.list()
    for i, one in ipairs(d.largest) do
      local element = cbk.dict { position = cbk.list(one.position) }
      element.a, element.b = json_of_element(one.a), json_of_element(one.b)
      entry.largest[i] = element
    end
  else
    entry.a, entry.b = d.a, d.b
  end
  return entry
end

local function print_json(result, args)
  local function keys(name, rows, list)
    return { name, count = #list, item = function(i) return diff.key_of(rows, list[i]) end }
  end
  local members = { { "equal", result.equal }, { "same", result.same }, keys("only_a", result.a, result.only_a),
    keys("only_b", result.b, result.only_b),
    { "renamed", count = #result.renamed, item = function(i) return cbk.dict(result.renamed[i]) end },
    { "different", count = #result.different, item = function(n) return json_of(diff.at(result, n, args)) end } }
  if result.config then
    members[#members + 1] = { "config", count = #result.config, item = function(n)
      local one, entry = result.config[n], cbk.dict()
      entry.field, entry.a, entry.b = one.field, one.a, one.b
      return entry
    end }
  end
  if #result.not_compared > 0 then members[#members + 1] = { "not_compared", cbk.list(result.not_compared) } end
  if result.through then table.insert(members, 1, { "through", result.through }) end
  cli.print_json_object(members)
end

---@param result LogitsDifference
local function print_logits(result, args)
  local logits = require "cbk.logits"
  if args.json then return cli.print_json(cbk.dict { { "equal", result.is_same }, { "logits", logits.row(result) } }) end
  print_line(logits.text(result))
  print_line(result.is_same and "the same" or "different")
end

---What is wrong with the options, or nil.
---@return string|nil
local function misuse(args)
  local function option(name) return name:find "_fmt$" and cli.typed_format(name) or "--" .. name:gsub("_", "-") end
  for _, name in ipairs { "model", "src_fmt", "tgt_fmt", "converter", "key", "shape", "dtype", "keys_only", "top", "sort", "all",
    "tensor_comparison_op" } do
    if args.logits and args[name] then return ("--logits and %s cannot be combined"):format(option(name)) end
  end
  if args.text and not args.logits then return "--text needs --logits" end
  for _, name in ipairs { "src_fmt", "tgt_fmt", "config", "converter" } do
    if args[name] and not (args.model or name == "config" and args.logits) then
      return ("%s needs --model NAME (or --model auto)"):format(option(name))
    end
  end
end

-- Trouble has an exit code of its own.
local args = parser:parse()
for name, number in pairs(args.tensor_comparison_op == "close" and CLOSE or {}) do
  if args[name] == 0 then args[name] = number end
end
local problem = misuse(args)
if problem then cli.usage_error("diff", problem) end
cli.confine(args)
local ok, result = pcall(args.logits and compare_logits or compare, args)
if not ok then
  if type(result) == "table" and result.code ~= "interrupted" then result.exit_code = TROUBLE end
  error(result, 0)
end
if args.logits then print_logits(result, args) elseif args.json then print_json(result, args) else print_text(result, args) end
if not io.stdout:flush() then os.exit(TROUBLE) end
return (result.equal or result.is_same) and SAME or DIFFERENT
