-- cbk diff: what differs between two checkpoints.

local cbk = require "cbk"
local cli = require "cbk.cli"
local extents = require "cbk.extents"
local listing = require "cbk.listing"

local parser = cli.parser("diff", "Compare two checkpoints of any formats: keys, shapes, dtypes, values.", [[
Values are compared by their dotted keys. The order of keys and the kinds of containers (dict or
OrderedDict, tensor or parameter) do not count, for not every format has them. Elements agree
when |a - b| <= T + R * |b|, or when both are NaN. Tensors are read in blocks, so that any size
takes little memory.

exit code: 0 the same, 1 different, 2 something went wrong

examples:
  cbk diff model.bin model.safetensors
  cbk diff old.mdl new.mdl --rtol 1e-3 --ignore-dtype]])
parser:argument("a", "a checkpoint, an index.json, a TensorFlow prefix or a folder with one"):argname "A"
parser:argument("b", "the other one"):argname "B"
local function tolerance(text)
  local number = tonumber(text)
  if not number or number < 0 or number ~= number then return nil, ("'%s' is not a tolerance"):format(text) end
  return number
end
parser:option("--rtol", "relative tolerance"):argname("R"):convert(tolerance):default "0"
parser:option("--atol", "absolute tolerance"):argname("T"):convert(tolerance):default "0"
parser:flag("--keys-only", "compare keys, kinds, shapes and dtypes, and read no values")
parser:flag("--ignore-dtype", "compare the values of tensors of different dtypes")
parser:flag("--all", "list every difference, not the first 20 of each kind")
cli.input_options(parser)
cli.options(parser, "json")

local SAME, DIFFERENT, TROUBLE = 0, 1, 2
local LISTED = 20
local TENSORS = { tensor = true, parameter = true, ndarray = true, np_scalar = true }

-- --- one value against the other; each gives nil or { what, text, … }

--- The position of element `index` (C order) in a shape.
local function position(index, shape)
  local out = {}
  for dim = #shape, 1, -1 do
    out[dim] = index % shape[dim]
    index = math.floor(index / shape[dim])
  end
  return out
end

local function number_text(number)
  if type(number) ~= "number" or number % 1 == 0 and number < 2 ^ 53 then return listing.whole_text(number) end
  return (("%.4g"):format(number))
end

local function compare_elements(a, b, args)
  local d = a:compare(b, { rtol = args.rtol, atol = args.atol })
  if d.different == 0 then return nil end
  local first = position(d.first, a:shape())
  local place = #first > 0 and ", first at " .. extents.shape(first) or ""
  return { what = "values", different = d.different, numel = d.numel, max_abs = d.max_abs, max_rel = d.max_rel, first = first,
    text = ("%s of %s differ (%s), max abs %s, max rel %s%s"):format(listing.grouped(d.different),
      listing.counted(d.numel, "element"), listing.percent(d.different, d.numel), number_text(d.max_abs), number_text(d.max_rel), place) }
end

local function compare_tensors(a, b, args)
  local shape_a, shape_b = extents.shape(a:shape()), extents.shape(b:shape())
  if shape_a ~= shape_b then return { what = "shape", a = shape_a, b = shape_b, text = ("shape %s, %s"):format(shape_a, shape_b) } end
  if a.dtype ~= b.dtype then
    local complex_only_one = (a.dtype:find "^complex" == nil) ~= (b.dtype:find "^complex" == nil)
    if not args.ignore_dtype or complex_only_one then
      return { what = "dtype", a = a.dtype, b = b.dtype, text = ("dtype %s, %s"):format(a.dtype, b.dtype) }
    end
  end
  if args.keys_only then return nil end
  return compare_elements(a, b, args)
end

local NUMBERS = { int = true, float = true }

local function same_number(a, b, args)
  if not (NUMBERS[cbk.kind(a)] and NUMBERS[cbk.kind(b)]) then return false end
  a, b = tonumber(a.value), tonumber(b.value)
  if not a or not b then return false end
  if a == b or (a ~= a and b ~= b) then return true end
  return math.abs(a - b) <= args.atol + args.rtol * math.abs(b)
end

local compare_values

--- Leaves by key, and the keys in order. A key that occurs twice ({"a.b": 1, "a": {"b": 2}}) is told by its number.
local function leaves_of(tree)
  local by_key, order = {}, {}
  for path, value in cbk.raw_leaves(tree) do
    local key, times = path, 1
    while by_key[key] ~= nil do
      times = times + 1
      key = ("%s (%d)"):format(path, times)
    end
    by_key[key] = value
    order[#order + 1] = key
  end
  return by_key, order
end

--- Objects are the same if what they consist of is: tensors from two files are never the same objects.
local function compare_objects(a, b, args)
  local parts_a, order_a = leaves_of(a.state)
  local parts_b, order_b = leaves_of(b.state)
  if a.type ~= b.type or a.repr ~= b.repr or #order_a ~= #order_b then return false end
  for _, key in ipairs(order_a) do
    if parts_b[key] == nil or compare_values(parts_a[key], parts_b[key], args) then return false end
  end
  return true
end

local function have_parts(a, b)
  return cbk.kind(a) == "object" and cbk.kind(b) == "object" and cbk.kind(a.state) == "dict" and cbk.kind(b.state) == "dict"
end

function compare_values(a, b, args)
  local kind_a, kind_b = cbk.kind(a), cbk.kind(b)
  if TENSORS[kind_a] and TENSORS[kind_b] then return compare_tensors(a, b, args) end
  local numbers = NUMBERS[kind_a] and NUMBERS[kind_b]
  if kind_a ~= kind_b and not (numbers and args.ignore_dtype) then
    return { what = "kind", a = kind_a, b = kind_b, text = ("%s, %s"):format(kind_a, kind_b) }
  end
  if args.keys_only then return nil end
  if kind_a == "object" and a.type == b.type and a.type:find "^safetensors%." then
    return { what = "value", a = a.repr, b = b.repr, text = ("%s: elements smaller than a byte are not compared"):format(a.repr) }
  end
  if cbk.equal(a, b) or same_number(a, b, args) then return nil end
  if have_parts(a, b) and compare_objects(a, b, args) then return nil end
  local text_a, text_b = listing.value_text(a), listing.value_text(b)
  return { what = "value", a = text_a, b = text_b, text = ("%s, %s"):format(text_a, text_b) }
end

-- --- the trees

local function compare(args)
  local a, order_a = leaves_of(cli.open(args.a, args):raw_root())
  local b, order_b = leaves_of(cli.open(args.b, args):raw_root())
  local result = { only_a = {}, only_b = {}, different = {}, same = 0 }
  for _, key in ipairs(order_a) do
    if b[key] == nil then
      table.insert(result.only_a, key)
    else
      local ok, difference = pcall(compare_values, a[key], b[key], args)
      if not ok then
        if type(difference) == "table" and difference.code ~= "interrupted" then
          difference.message = ("%s: %s"):format(cbk.quote(key), difference.message)
        end
        error(difference, 0)
      end
      if difference then
        difference.key = key
        table.insert(result.different, difference)
      else
        result.same = result.same + 1
      end
    end
  end
  for _, key in ipairs(order_b) do
    if a[key] == nil then table.insert(result.only_b, key) end
  end
  result.equal = #result.only_a + #result.only_b + #result.different == 0
  return result
end

-- --- results

local function print_list(title, list, args, text_of)
  if #list == 0 then return end
  print(("%s (%s):"):format(title, listing.grouped(#list)))
  local shown = args.all and #list or math.min(#list, LISTED)
  for i = 1, shown do print("  " .. text_of(list[i])) end
  if shown < #list then print(("  … and %s more (--all lists them)"):format(listing.grouped(#list - shown))) end
end

local function print_text(result, args)
  print_list("only in " .. cbk.shown(args.a), result.only_a, args, cbk.shown)
  print_list("only in " .. cbk.shown(args.b), result.only_b, args, cbk.shown)
  print_list("different", result.different, args, function(d) return ("%s: %s"):format(cbk.shown(d.key), cbk.shown(d.text)) end)
  local compared = args.keys_only and " (without values)" or ""
  print(result.equal and ("the same: %s%s"):format(listing.counted(result.same, "value"), compared)
    or ("%s the same%s"):format(listing.counted(result.same, "value"), compared))
end

local function print_json(result)
  local different = cbk.list()
  for i, d in ipairs(result.different) do
    local entry = cbk.dict { { "key", d.key }, { "what", d.what } }
    if d.what == "values" then
      entry.different, entry.numel, entry.first = d.different, d.numel, cbk.list(d.first)
      entry.max_abs, entry.max_rel = listing.json_number(d.max_abs), listing.json_number(d.max_rel)
    else
      entry.a, entry.b = d.a, d.b
    end
    different[i] = entry
  end
  cli.print_json(cbk.dict { { "equal", result.equal }, { "same", result.same }, { "only_a", cbk.list(result.only_a) },
    { "only_b", cbk.list(result.only_b) }, { "different", different } })
end

-- Trouble is told apart from a difference by its exit code.
local args = parser:parse()
local ok, result = pcall(compare, args)
if not ok then
  if type(result) == "table" and result.code ~= "interrupted" then result.exit_code = TROUBLE end
  error(result, 0)
end
if args.json then print_json(result) else print_text(result, args) end
if not io.stdout:flush() then os.exit(TROUBLE) end
return result.equal and SAME or DIFFERENT
