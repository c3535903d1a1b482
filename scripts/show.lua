-- cbk show: print values of a checkpoint, with statistics

local cbk = require "cbk"
local cli = require "cbk.cli"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local inspect = require "cbk.inspect"
local key_part = require "cbk.cli.key_part"
local listing = require "cbk.listing"
local naming = require "cbk.naming"
local near_keys = require "cbk.cli.near_keys"
local numbers = require "cbk.numbers"
local optimizer_table = require "cbk.optimizer_table"
local optimizers = require "cbk.optimizers"
local real_values = require "cbk.cli.real_values"

local parser = cli.parser("show", "Print values of a checkpoint: dtype, shape, place, statistics and elements.", [[
For a tensor: dtype and shape, where its bytes are, what shares them, statistics, and elements from
its edges. The statistics read the whole tensor, in blocks; the rest reads a few elements. A part of a tensor
is written as in NumPy, and only that is read: 'KEY[5, 9]', '*.weight[0:3, ::2]', 'KEY[..., -1]'; positions count from 0.

--dataloader shows where a run that loads the checkpoint resumes in its data: how many samples
each worker skips, and from which worker's state. FILE may also be the folder in which releases 1.8
and 1.9 kept such states.

examples:
  cbk show model.safetensors lm_head.weight
  cbk show model.safetensors 'lm_head.weight[0:3, :]'
  cbk show model.mdl 'model.*.bias' --no-stats
  cbk show training.mdl optimizer.param_groups
  cbk show --dataloader training.mdl --workers 8 --batch-size 32]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("key", "a key, a glob over whole keys, or either with [PART]"):argname "KEY":args "*"
cli.key_option(parser, "key", true)
parser:flag("--no-stats", "do not read whole tensors")
parser:flag("--dataloader", "print where the data loader of a run resumes")
parser:option("--workers", "with --dataloader: tasks of that run (default: one per state)"):argname("N")
  :convert(cli.whole_number "--workers")
parser:option("--batch-size", "with --dataloader: samples per batch, to print batches too"):argname("N")
  :convert(cli.whole_number "--batch-size")
parser:option("--seed", "with --dataloader: the seed of that run, if it shuffles"):argname("N"):convert(cli.whole_number "--seed")
cli.input_options(parser)
cli.options(parser, "json")
local args = parser:parse()

for _, name in ipairs { "workers", "batch_size", "seed" } do
  if args[name] and not args.dataloader then cli.usage_error("show", ("--%s needs --dataloader"):format(name:gsub("_", "-"))) end
end
if args.dataloader then return require("cbk.upgrade.dataloader_report").show(args) end
if #args.key == 0 then cli.usage_error("show", "a key is needed; '*' means all") end

local checkpoint = cli.open(args.file, args)
local root, dequantised = real_values(checkpoint, args.file, args.key)

local is_tensor = require("cbk.tensor_kinds").is_tensor

local function is_tree(value)
  if type(value) ~= "userdata" then return false end
  local kind = cbk.kind(value)
  return kind:find "dict" ~= nil or kind == "list" or kind == "tuple"
end

local rows = cbk.leaf_rows(root)

---What `key` means is added to `shown`, several rows where they have one path.
---@param key string
---@param shown (integer|{ key: string, tree: any }|TensorPart)[]  rows, containers, parts
---@return boolean found
local function add(key, shown)
  local before = #shown
  local row = rows:find(key)
  while row do
    shown[#shown + 1] = row
    row = rows:find(key, #shown - before)
  end
  if #shown > before then return true end
  local tree = cbk.find(root, key)
  if tree ~= nil then
    shown[#shown + 1] = { key = key, tree = tree }
    return true
  end
  for _, part in ipairs(key_part.find(rows, key)) do shown[#shown + 1] = part end
  if #shown > before then return true end
  local is_glob, matches = pcall(cbk.glob, key)
  if not is_glob then error(matches, 0) end
  for i = 1, #rows do
    if matches(rows:path(i)) then shown[#shown + 1] = i end
  end
  return #shown > before
end

local function expand(key, shown)
  if add(key, shown) then return end
  for _, dotted in ipairs(key_part.dotted(key)) do
    if add(dotted, shown) then return end
  end
  local is_glob = (key_part.parse(key) or key):find "[*?%[{]"
  if is_glob then cbk.fail("key", ("no key of '%s' matches %s%s"):format(args.file, cbk.quote(key), near_keys(rows, key))) end
  cbk.fail("key", ("there is no %s in '%s'%s"):format(cbk.quote(key), args.file, near_keys(rows, key)))
end

local MOST_TIES = 100 -- names that are given of as many as there are

local function can_have_stats(tensor) return not args.no_stats and not tensor.dtype:find "^complex" end

local function is_whole(tensor) return not cbk.dtype(tensor.dtype).floating end

local function stats_text(tensor)
  local stats, parts = tensor:stats(), {}
  for _, name in ipairs { "min", "max" } do
    local number = stats[name]
    parts[#parts + 1] = number and ("%s %s"):format(name, is_whole(tensor) and numbers.whole_text(number) or ("%.6g"):format(number))
  end
  for _, name in ipairs { "mean", "std" } do
    parts[#parts + 1] = stats[name] and (is_whole(tensor) and "%s %.10g" or "%s %.6g"):format(name, stats[name])
  end
  if #parts == 0 then parts[1] = "no finite elements" end
  for _, name in ipairs { "nan", "inf", "zeros" } do
    if stats[name] > 0 then
      parts[#parts + 1] = ("%s %s (%s)"):format(name, numbers.grouped(stats[name]), numbers.percent(stats[name], stats.numel))
    end
  end
  return table.concat(parts, ", ")
end

local function json_stats(tensor)
  local stats, out = tensor:stats(), cbk.dict()
  local bound = is_whole(tensor) and numbers.json_whole or numbers.json_number
  local texts = { min = bound, max = bound, mean = numbers.json_number, std = numbers.json_number }
  for _, name in ipairs { "inf", "max", "mean", "min", "nan", "numel", "std", "zeros" } do
    local number = stats[name]
    if number == nil then out[name] = cbk.null else out[name] = (texts[name] or numbers.json_whole)(number) end
  end
  return out
end

local print_line = cli.printer()

local FLOAT_DIGITS, DOUBLE_DIGITS = 9, 17 -- which tell two float32, or two float64, apart

---Prints the elements; a number with all its digits.
---@param tensor Tensor
---@param edge? integer   elements at each end of a dimension
local function print_elements(tensor, edge)
  if tensor.dtype:find "^complex" then
    return print_line "  complex numbers are not printed; `cbk export FILE KEY -o KEY.npy` writes them"
  end
  if #tensor:shape() == 0 and cbk.dtype(tensor.dtype).floating then
    local digits = tensor.dtype == "float64" and DOUBLE_DIGITS or FLOAT_DIGITS
    return print("  " .. inspect.text(tensor:item(), { digits = digits }))
  end
  local grid = inspect.text(tensor, { columns = cli.columns(), edge = edge }):match "\n(.*)$"
  if grid then print(grid) end
end

local function show_tensor(row)
  local tensor = rows:value(row)
  print_line(fold.shown(rows:path(row)))
  local what = tensor.role == "tensor" and "" or " " .. tensor.role
  if tensor.requires_grad then what = what .. ", requires grad" end
  local storage = tensor:storage() or {}
  print_line(("  %s %s%s"):format(storage.encoding or tensor.dtype, extents.shape(tensor:shape()), what))
  print_line(("  %s, %s (%s)"):format(numbers.counted(tensor:numel(), "element"), numbers.counted(tensor:nbytes(), "byte"),
    cbk.format_size(tensor:nbytes())))
  if storage.encoding then print_line(("  decoded to %s from blocks of the type %s"):format(tensor.dtype, storage.encoding)) end
  local codes = dequantised[rows:path(row)]
  if codes then print_line(("  computed from the codes in %s (%s)"):format(fold.shown(codes.key), codes.method)) end
  if storage.file then print_line(("  in %s at byte %s"):format(cbk.shown(storage.file), numbers.grouped(storage.position))) end
  local tied, tied_count, sharing, sharing_count = rows:ties(row, MOST_TIES)
  tied.count, sharing.count = tied_count, sharing_count
  if tied_count > 0 then print_line("  tied to " .. cbk.shown(naming.listed(tied, 5))) end
  if sharing_count > 0 then print_line("  shares its storage with " .. cbk.shown(naming.listed(sharing, 5))) end
  local problem = tensor:problem()
  if problem then return print_line("  " .. problem) end
  if tensor:numel() > 0 and can_have_stats(tensor) then print_line("  " .. stats_text(tensor)) end
  print_elements(tensor)
end

---@param part TensorPart
local function show_part(part)
  local tensor = part.tensor
  print_line(("%s  %s %s"):format(fold.shown(part.key), tensor.dtype, extents.shape(tensor:shape())))
  local problem = tensor:problem()
  if problem then return print_line("  " .. problem) end
  if tensor:numel() > 1 and can_have_stats(tensor) then print_line("  " .. stats_text(tensor)) end
  print_elements(tensor, 8)
  local in_lua = key_part.in_lua(rows:value(part.row), part.ranges)
  if in_lua then print_line(('  in Lua: ckpt["%s"]%s'):format(fold.shown(rows:path(part.row)), in_lua)) end
end

---The optimizers at a key as tables, by the names of parameters, with what is beside them. The table of a part has the key as its title.
---@return boolean found
local function show_optimizers(key, title)
  local list = optimizers.find(checkpoint:raw_root())
  local chosen, width = optimizer_table.at_key(list, key), cli.columns()
  if #chosen == 0 then return false end
  if chosen[1].part then
    optimizer_table.print(chosen[1].optimizer, print_line, width, chosen[1].part)
    return true
  end
  print_line(title)
  local function print_inside(line) print_line("  " .. line) end
  local others = optimizer_table.others(cbk.leaf_rows(root, key), list)
  if #others > 0 then listing.tree(others, print_inside, width) end
  for _, one in ipairs(chosen) do optimizer_table.print(one.optimizer, print_inside, width and width - 2) end
  return true
end

local function show_value(key, value)
  local title = ("%s  %s"):format(fold.shown(key), cbk.kind(value))
  local has_tensors = is_tree(value) and cbk.tensors(value)() ~= nil
  if has_tensors and show_optimizers(key, title) then return end
  print_line(title)
  if has_tensors then return listing.tree(cbk.leaf_rows(value), function(line) print_line("  " .. line) end, cli.columns()) end
  local width = cli.columns()
  print("  " .. inspect.text(value, { text = 4000, lines = 200, columns = width and width - 2, in_keys = true }):gsub("\n", "\n  "))
end

local function json_of_tensor(row)
  local tensor = rows:value(row)
  local out = cbk.dict { { "key", rows:path(row) }, { "kind", tensor.role }, { "dtype", tensor.dtype },
    { "shape", cbk.list(tensor:shape()) }, { "numel", tensor:numel() }, { "bytes", tensor:nbytes() },
    { "requires_grad", tensor.requires_grad } }
  local storage = tensor:storage() or {}
  out.encoding = storage.encoding
  local codes = dequantised[rows:path(row)]
  if codes then out.codes, out.method = codes.key, codes.method end
  if storage.file then
    out.file, out.offset = storage.file, storage.position
  end
  local tied, tied_count, sharing, sharing_count = rows:ties(row, MOST_TIES)
  out.tied_to, out.shares_storage_with = cbk.list(tied), cbk.list(sharing)
  if tied_count > #tied then out.tied_to_count = tied_count end
  if sharing_count > #sharing then out.shares_storage_with_count = sharing_count end
  out.problem = tensor:problem()
  if not out.problem and can_have_stats(tensor) then out.stats = json_stats(tensor) end
  return out
end

local function json_of_part(part)
  local tensor = part.tensor
  local out = cbk.dict { { "key", part.key }, { "kind", tensor.role }, { "dtype", tensor.dtype }, { "shape", cbk.list(tensor:shape()) },
    { "numel", tensor:numel() }, { "bytes", tensor:nbytes() } }
  out.problem = tensor:problem()
  if not out.problem and can_have_stats(tensor) then out.stats = json_stats(tensor) end
  return out
end

local function json_of_value(key, value)
  local out = cbk.dict { { "key", key }, { "kind", cbk.kind(value) } }
  listing.set_json_value(out, value, inspect.text)
  return out
end

--- Calls one of the functions with what is shown.
local function with_shown(entry, on_tensor, on_value, on_part)
  if type(entry) == "table" and entry.tensor then return on_part(entry) end
  if type(entry) == "table" then return on_value(entry.key, entry.tree) end
  local value = rows:value(entry)
  if is_tensor(value) then return on_tensor(entry) end
  return on_value(rows:path(entry), value)
end

local shown = {}
for _, key in ipairs(args.key) do expand(key, shown) end
if args.json then
  return cli.print_json_list(#shown, function(i) return with_shown(shown[i], json_of_tensor, json_of_value, json_of_part) end)
end
for i, entry in ipairs(shown) do
  if i > 1 then print() end
  with_shown(entry, show_tensor, show_value, show_part)
end
