-- cbk show: values of a checkpoint, one by one

local cbk = require "cbk"
local cli = require "cbk.cli"
local extents = require "cbk.extents"
local inspect = require "cbk.inspect"
local listing = require "cbk.listing"
local ties = require "cbk.ties"

local parser = cli.parser("show", "Show values of a checkpoint, one by one.", [[
For a tensor: what it is, where its bytes lie, what shares them, statistics, and elements from
its edges. The statistics read the whole tensor, in blocks; the rest reads a few elements.

--dataloader tells where a run that loads the checkpoint goes on in its data: how many samples
each worker skips, and whose state it takes. FILE may also be the folder in which releases 1.8
and 1.9 kept such states.

examples:
  cbk show model.safetensors lm_head.weight
  cbk show model.mdl 'model.*.bias' --no-stats
  cbk show training.mdl optimizer.param_groups
  cbk show --dataloader training.mdl --workers 8 --batch-size 32]])
parser:argument("file", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "FILE"
parser:argument("key", "a key, or a glob over whole keys"):argname "KEY":args "*"
parser:flag("--no-stats", "do not read whole tensors")
parser:flag("--dataloader", "where the data loader of a run resumes")
parser:option("--workers", "--dataloader: tasks of that run (default: as many as there are states)"):argname("N"):convert(cli.whole_number)
parser:option("--batch-size", "--dataloader: samples of one batch, to count batches too"):argname("N"):convert(cli.whole_number)
parser:option("--seed", "--dataloader: what that run shuffles with; leave it out if it does not"):argname("N"):convert(cli.whole_number)
cli.input_options(parser)
cli.options(parser, "json")
local args = parser:parse()

if args.dataloader then return require("cbk.dataloader_report").show(args) end
if #args.key == 0 then cli.usage_error("show", "a key is needed; '*' means all") end

local TENSORS = { tensor = true, parameter = true, ndarray = true, np_scalar = true }

local checkpoint = cli.open(args.file, args)
local root = checkpoint.root

local function is_tensor(value) return type(value) == "userdata" and TENSORS[cbk.kind(value)] ~= nil end

local function is_tree(value)
  if type(value) ~= "userdata" then return false end
  local kind = cbk.kind(value)
  return kind:find "dict" ~= nil or kind == "list" or kind == "tuple"
end

--- What stands for `key`, several values where they have one path; an unknown key is an error with the nearest ones.
---@return { key: string, value: any }[]
local function expand(key)
  local exact, found, all = {}, {}, {}
  local is_glob, matches = pcall(cbk.glob, key)
  for path, value in cbk.leaves(root) do
    all[#all + 1] = path
    if path == key then exact[#exact + 1] = { key = path, value = value } end
    if is_glob and matches(path) then found[#found + 1] = { key = path, value = value } end
  end
  if #exact > 0 then return exact end
  local tree = cbk.find(root, key)
  if tree ~= nil then return { { key = key, value = tree } } end
  if #found > 0 then return found end
  if not is_glob then error(matches, 0) end
  local near = cbk.nearest(key, all, 3)
  local hint = #near > 0 and "; did you mean " .. table.concat(near, " or ") .. "?" or ""
  cbk.fail("key", ("there is no %s in '%s'%s"):format(cbk.quote(key), args.file, hint))
end

local sharing = ties.finder(root)

local function some(found)
  local shown = {}
  for i = 1, math.min(#found.names, 5) do shown[i] = cbk.shown(found.names[i]) end
  local more = found.count > #shown and (" and %d more"):format(found.count - #shown) or ""
  return table.concat(shown, ", ") .. more
end

local function can_have_stats(tensor) return not args.no_stats and not tensor.dtype:find "^complex" end

local function is_whole(tensor) return not cbk.dtype(tensor.dtype).floating end

local function stats_text(tensor)
  local stats, parts = tensor:stats(), {}
  for _, name in ipairs { "min", "max" } do
    local number = stats[name]
    parts[#parts + 1] = number and ("%s %s"):format(name, is_whole(tensor) and listing.whole_text(number) or ("%.6g"):format(number))
  end
  for _, name in ipairs { "mean", "std" } do
    parts[#parts + 1] = stats[name] and (is_whole(tensor) and "%s %.10g" or "%s %.6g"):format(name, stats[name])
  end
  if #parts == 0 then parts[1] = "no finite elements" end
  for _, name in ipairs { "nan", "inf", "zeros" } do
    if stats[name] > 0 then
      parts[#parts + 1] = ("%s %s (%s)"):format(name, listing.grouped(stats[name]), listing.percent(stats[name], stats.numel))
    end
  end
  return table.concat(parts, ", ")
end

local function json_stats(tensor)
  local stats, out = tensor:stats(), cbk.dict()
  local bound = is_whole(tensor) and listing.json_whole or listing.json_number
  local texts = { min = bound, max = bound, mean = listing.json_number, std = listing.json_number }
  for _, name in ipairs { "inf", "max", "mean", "min", "nan", "numel", "std", "zeros" } do
    local number = stats[name]
    if number == nil then out[name] = cbk.null else out[name] = (texts[name] or listing.json_whole)(number) end
  end
  return out
end

local function show_tensor(key, tensor)
  print(cbk.shown(key))
  local what = tensor.role == "tensor" and "" or " " .. tensor.role
  if tensor.requires_grad then what = what .. ", requires grad" end
  print(("  %s %s%s"):format(tensor.dtype, extents.shape(tensor:shape()), what))
  print(("  %s, %s (%s)"):format(listing.counted(tensor:numel(), "element"), listing.counted(tensor:nbytes(), "byte"),
    cbk.format_size(tensor:nbytes())))
  local storage = tensor:storage()
  if storage and storage.file then print(("  in %s at byte %s"):format(cbk.shown(storage.file), listing.grouped(storage.position))) end
  local tied, other = sharing(key, tensor)
  if tied.count > 0 then print("  tied to " .. some(tied)) end
  if other.count > 0 then print("  shares its storage with " .. some(other)) end
  local problem = tensor:problem()
  if problem then return print("  " .. problem) end
  if tensor:numel() > 0 and can_have_stats(tensor) then print("  " .. stats_text(tensor)) end
  local grid = inspect.text(tensor):match "\n(.*)$"
  if grid then print(grid) end
end

local function show(key, value)
  if is_tensor(value) then return show_tensor(key, value) end
  print(("%s  %s"):format(cbk.shown(key), cbk.kind(value)))
  if is_tree(value) and cbk.tensors(value)() then
    for _, line in ipairs(listing.tree(cbk.leaf_rows(value))) do print("  " .. line) end
    return
  end
  print("  " .. inspect.text(value, { text = 4000, lines = 200 }):gsub("\n", "\n  "))
end

local function json_of(key, value)
  if not is_tensor(value) then
    local out = cbk.dict { { "key", key }, { "kind", cbk.kind(value) } }
    listing.set_json_value(out, value, inspect.text)
    return out
  end
  local out = cbk.dict { { "key", key }, { "kind", value.role }, { "dtype", value.dtype }, { "shape", cbk.list(value:shape()) },
    { "numel", value:numel() }, { "bytes", value:nbytes() }, { "requires_grad", value.requires_grad } }
  local storage = value:storage()
  if storage and storage.file then
    out.file, out.offset = storage.file, storage.position
  end
  local tied, other = sharing(key, value)
  out.tied_to, out.shares_storage_with = cbk.list(tied.names), cbk.list(other.names)
  if tied.count > #tied.names then out.tied_to_count = tied.count end
  if other.count > #other.names then out.shares_storage_with_count = other.count end
  out.problem = value:problem()
  if not out.problem and can_have_stats(value) then out.stats = json_stats(value) end
  return out
end

local entries = {}
for _, key in ipairs(args.key) do
  for _, entry in ipairs(expand(key)) do entries[#entries + 1] = entry end
end
if args.json then
  local list = cbk.list()
  for i, entry in ipairs(entries) do list[i] = json_of(entry.key, entry.value) end
  cli.print_json(list)
  return
end
for i, entry in ipairs(entries) do
  if i > 1 then print() end
  show(entry.key, entry.value)
end
