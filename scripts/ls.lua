-- cbk ls: list what is in a checkpoint

local cbk = require "cbk"
local cli = require "cbk.cli"
local dequantised = require "cbk.dequantised"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local listing = require "cbk.listing"
local near_keys = require "cbk.cli.near_keys"
local optimizer_table = require "cbk.optimizer_table"
local optimizers = require "cbk.optimizers"
local parts = require "cbk.parts"
local quantised = require "cbk.quantised"
local shell_word = require "cbk.cli.shell_word"
local tensor_filter = require "cbk.cli.tensor_filter"
local paint = require "cbk.cli.paint"

local parser = cli.parser("ls", "List what is in a checkpoint. Only headers are read.", [[
Layers that differ only in their number are folded: layers.{0..31}. A tensor with
'= KEY' behind it is tied to that one.

GLOB matches whole keys: '*' matches any text (dots too), '?' one character, [a-z],
{a,b}; a plain name also means everything below it.

examples:
  cbk ls model.safetensors
  cbk ls model.mdl model.transformer_decoder.layers.0
  cbk ls --flat pytorch_model.bin '*.bias'
  cbk ls model.safetensors --shape '*,4096' --sort size --top 10]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("glob", "only keys that match"):argname "GLOB":args "?"
cli.key_option(parser, "glob")
parser:flag("--flat", "print one line per value, with its whole key")
parser:flag("--all", "print the tree without folding")
tensor_filter.options(parser, { "key", "size", beyond = "'cbk stats' sorts by values" })
cli.input_options(parser)
cli.options(parser, "json")
local args = parser:parse()

local checkpoint = cli.open(args.file, args)
local rows = cbk.leaf_rows(checkpoint:raw_root(), args.glob)
if args.glob and #rows == 0 then
  local near = near_keys(cbk.leaf_rows(checkpoint:raw_root()), args.glob)
  cbk.fail("key", ("no key of '%s' matches %s%s"):format(args.file, cbk.quote(args.glob), near))
end

-- of the whole checkpoint, as scales may be beside what the glob chooses
local stored = args.glob and cbk.leaf_rows(checkpoint:raw_root()) or rows -- all rows
local weights = quantised.find_in_rows(stored, quantised.config_beside(args.file))
local weight_of = {}
for _, weight in ipairs(weights.weights) do weight_of[weight.key] = weight end

local function value_of(i, by)
  if by == "key" then return rows:path(i) end
  return rows[i].bytes
end

rows = rows:in_natural_order()
local is_filtered = args.shape or args.dtype
local is_chosen = is_filtered or args.sort or args.top
if is_chosen then rows = rows:choose(tensor_filter.sorted(tensor_filter.matching(rows, args), args, value_of)) end

local function json_row(i)
  local row = rows[i]
  local out = cbk.dict { { "key", row.path }, { "kind", row.role or row.type } }
  if row.problem then out.problem = row.problem end
  if not row.shape then
    if not row.problem then listing.set_json_value(out, rows:raw(i), listing.value_text) end
    return out
  end
  out.dtype, out.shape, out.bytes = row.type, cbk.list(row.shape), row.bytes
  out.encoding = row.encoding
  local weight = weight_of[row.path]
  if weight then
    local shape = dequantised.shape(weights, stored, weight)
    out.weight = cbk.dict { { "name", weight.name }, { "method", weight.method }, { "shape", shape and cbk.list(shape) or cbk.null } }
  end
  local storage = rows:value(i):storage()
  if storage and storage.file then
    out.file, out.offset = storage.file, storage.position
  end
  out.tied_to, out.shares_storage_with = row.tied_to, row.shares
  return out
end

if args.json then
  local totals, part = rows:totals(), parts.of(checkpoint)
  totals.dtypes, totals.objects = cbk.list(totals.dtypes), nil
  local fields = { { "path", checkpoint.path }, { "format", checkpoint.format }, { "version", checkpoint.version },
    { "files", cbk.list(checkpoint.files) }, { "part", part and parts.text(part) or cbk.null }, { "totals", totals } }
  local origin = listing.origin(checkpoint)
  if origin then fields[#fields + 1] = { "provenance", origin } end
  if weights:is_quantised() then fields[#fields + 1] = { "quantised", weights:as_json() } end
  fields[#fields + 1] = { "entries", count = #rows, item = json_row }
  return cli.print_json_object(fields)
end

local MOST_PARAMETERS = 3 -- that are named

---Prints whose states the listed numbers are, where a tree has shown states by their numbers.
---@param found Optimizer[]
local function print_parameters(found, print_line)
  local seen, lines = {}, {}
  for i = 1, #found > 0 and #rows or 0 do
    local optimizer, part = optimizer_table.part_of(found, rows:path(i))
    local path = part == "state" and optimizer_table.state_path(optimizer)
    local number = path and tonumber(rows:path(i):match("^%d+%f[.%z]", #path + 2))
    local name = number and optimizer.names[number]
    if name and not seen[name] then
      seen[name], lines[#lines + 1] = true, ("%s.%d is the state of %s"):format(fold.shown(path), number, fold.shown(name))
      if #lines > MOST_PARAMETERS then
        return print_line(("`cbk ls %s %s` shows whose states these are"):format(shell_word(args.file), shell_word(path)))
      end
    end
  end
  for _, line in ipairs(lines) do print_line(line) end
end

io.stdout:setvbuf("full", 65536)
local print_line = cli.printer(paint.ls)
local summary = weights:summary()
print_line(cbk.shown(checkpoint.path) .. "  " .. listing.format_text(checkpoint) .. (summary and ", " .. cbk.shown(summary) or ""))
local origin = listing.origin(checkpoint)
if origin then print_line(listing.origin_text(origin)) end
if args.flat or args.sort or args.top then
  listing.flat(rows, print_line, cli.columns())
else
  local found = optimizers.find(checkpoint:raw_root())
  local has_tables = not (args.all or is_filtered)
  local chosen = has_tables and optimizer_table.at_key(found, args.glob or "") or {}
  if has_tables and #chosen == 0 and args.glob then chosen = optimizer_table.whole_in(found, rows, stored) end
  local others = #chosen == 0 and rows or optimizer_table.others(rows, found)
  if #others > 0 or #chosen == 0 then listing.tree(others, print_line, cli.columns(), { unfolded = args.all }) end
  for _, one in ipairs(chosen) do optimizer_table.print(one.optimizer, print_line, cli.columns(), one.part) end
  if #chosen == 0 then print_parameters(found, print_line) end
end
print_line(listing.totals_text(rows:totals()))

---Prints the weights that the listed codes are.
local function print_weights()
  local entries = {}
  for i = 1, next(weight_of) and #rows or 0 do
    local weight = weight_of[rows:path(i)]
    local shape = weight and dequantised.shape(weights, stored, weight)
    if weight then entries[#entries + 1] = { path = weight.name, signature = ("%s  %s"):format(shape and extents.shape(shape) or "",
      weight.method) } end
  end
  if #entries == 0 then return end
  print_line("quantised weights:")
  for _, group in ipairs(fold.groups(entries)) do
    local count = #group.members
    print_line(("  %s  %s%s"):format(group.name, count > 1 and count .. " × " or "", group.members[1].signature))
  end
end
print_weights()
