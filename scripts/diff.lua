-- cbk diff: compare two checkpoints

local cbk = require "cbk"
local cli = require "cbk.cli"
local extents = require "cbk.extents"
local fold = require "cbk.fold"
local listing = require "cbk.listing"
local numbers = require "cbk.numbers"

local parser = cli.parser("diff", "Compare two checkpoints of any formats: keys, shapes, dtypes, values.", [[
Values are compared by their dotted keys. The order of keys and the kinds of containers (dict or
OrderedDict, tensor or parameter) are not compared, since not every format has them. Elements agree
when |a - b| <= T + R * |b|, or when both are NaN. Tensors are read in blocks;
memory stays small.

Exit code: 0 the same, 1 different, 2 an error.

examples:
  cbk diff model.bin model.safetensors
  cbk diff old.mdl new.mdl --rtol 1e-3 --ignore-dtype]])
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
  if type(number) ~= "number" or number % 1 == 0 and number < 2 ^ 53 then return numbers.whole_text(number) end
  return (("%.4g"):format(number))
end

local function compare_elements(a, b, args)
  local d = a:compare(b, { rtol = args.rtol, atol = args.atol })
  if d.different == 0 then return nil end
  local first = position(d.first, a:shape())
  local place = #first > 0 and ", first at " .. extents.shape(first) or ""
  return { what = "values", different = d.different, numel = d.numel, max_abs = d.max_abs, max_rel = d.max_rel, first = first,
    text = ("%s of %s differ (%s), max abs %s, max rel %s%s"):format(numbers.grouped(d.different),
      numbers.counted(d.numel, "element"), numbers.percent(d.different, d.numel), number_text(d.max_abs), number_text(d.max_rel), place) }
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

--- A function that gives the row of `b` with the key of row `i` of `a`, or nil. A key that occurs twice
--- ({"a.b": 1, "a": {"b": 2}}) is counted. As long as keys are in one order, no index of them is needed.
local function matcher(a, b)
  local alike = 0
  while alike < #a and alike < #b and a:path(alike + 1) == b:path(alike + 1) do alike = alike + 1 end
  return function(i)
    if i <= alike then return i end
    return b:find(a:path(i), a:earlier(i))
  end
end

--- Objects are the same if what they consist of is: tensors from two files are never the same objects.
local function compare_objects(a, b, args)
  local parts_a, parts_b = cbk.leaf_rows(a.state), cbk.leaf_rows(b.state)
  if a.type ~= b.type or a.repr ~= b.repr or #parts_a ~= #parts_b then return false end
  local counterpart = matcher(parts_a, parts_b)
  for i = 1, #parts_a do
    local k = counterpart(i)
    if not k or compare_values(parts_a:raw(i), parts_b:raw(k), args) then return false end
  end
  return true
end

local function have_parts(a, b)
  return cbk.kind(a) == "object" and cbk.kind(b) == "object" and cbk.kind(a.state) == "dict" and cbk.kind(b.state) == "dict"
end

function compare_values(a, b, args)
  local kind_a, kind_b = cbk.kind(a), cbk.kind(b)
  if TENSORS[kind_a] and TENSORS[kind_b] then return compare_tensors(a, b, args) end
  local are_numbers = NUMBERS[kind_a] and NUMBERS[kind_b]
  if kind_a ~= kind_b and not (are_numbers and args.ignore_dtype) then
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

--- Where and how two rows differ, or nil.
local function compare_rows(a, i, b, k, args)
  local ok, difference = pcall(compare_values, a:raw(i), b:raw(k), args)
  if ok then return difference end
  if type(difference) == "table" and difference.code ~= "interrupted" then
    difference.message = ("%s: %s"):format(cbk.quote(a:path(i)), difference.message)
  end
  error(difference, 0)
end

---@class Comparison
---@field a LeafRows
---@field b LeafRows
---@field in_b fun(i: integer): integer|nil  the row of `b` for one of `a`
---@field only_a integer[]      rows of `a`
---@field only_b integer[]      rows of `b`
---@field different integer[]   rows of `a`
---@field tensors table<integer, table>  of those the differences of tensors, which took a while to find
---@field same integer

---@return Comparison
local function compare(args)
  local a = cbk.leaf_rows(cli.open(args.a, args):raw_root())
  local b = cbk.leaf_rows(cli.open(args.b, args):raw_root())
  local in_b, in_a = matcher(a, b), matcher(b, a)
  local result = { a = a, b = b, in_b = in_b, only_a = {}, only_b = {}, different = {}, tensors = {}, same = 0 }
  for i = 1, #a do
    local k = in_b(i)
    local difference = k and compare_rows(a, i, b, k, args)
    if not k then
      table.insert(result.only_a, i)
    elseif difference then
      table.insert(result.different, i)
      if difference.what == "values" then result.tensors[i] = difference end
    else
      result.same = result.same + 1
    end
  end
  for k = 1, #b do
    if not in_a(k) then table.insert(result.only_b, k) end
  end
  result.equal = #result.only_a + #result.only_b + #result.different == 0
  return result
end

--- "a.b"; "a.b (2)" of the second one with this key.
local function key_of(rows, i)
  local earlier = rows:earlier(i)
  return earlier == 0 and rows:path(i) or ("%s (%d)"):format(rows:path(i), earlier + 1)
end

--- The `n`th difference, with its key.
local function difference_at(result, n, args)
  local i = result.different[n]
  local difference = result.tensors[i] or compare_rows(result.a, i, result.b, result.in_b(i), args)
  difference.key = key_of(result.a, i)
  return difference
end

-- --- results

local function print_list(title, count, args, text_at)
  if count == 0 then return end
  print(("%s (%s):"):format(title, numbers.grouped(count)))
  local shown = args.all and count or math.min(count, LISTED)
  for i = 1, shown do print("  " .. text_at(i)) end
  if shown < count then print(("  … and %s more (--all lists them)"):format(numbers.grouped(count - shown))) end
end

local function print_text(result, args)
  local function keys(rows, list)
    return function(i) return fold.shown(key_of(rows, list[i])) end
  end
  print_list("only in " .. cbk.shown(args.a), #result.only_a, args, keys(result.a, result.only_a))
  print_list("only in " .. cbk.shown(args.b), #result.only_b, args, keys(result.b, result.only_b))
  print_list("different", #result.different, args, function(n)
    local d = difference_at(result, n, args)
    return ("%s: %s"):format(fold.shown(d.key), cbk.shown(d.text))
  end)
  local compared = args.keys_only and " (without values)" or ""
  print(result.equal and ("the same: %s%s"):format(numbers.counted(result.same, "value"), compared)
    or ("%s the same%s"):format(numbers.counted(result.same, "value"), compared))
end

local function json_of(d)
  local entry = cbk.dict { { "key", d.key }, { "what", d.what } }
  if d.what == "values" then
    entry.different, entry.numel, entry.first = d.different, d.numel, cbk.list(d.first)
    entry.max_abs, entry.max_rel = numbers.json_number(d.max_abs), numbers.json_number(d.max_rel)
  else
    entry.a, entry.b = d.a, d.b
  end
  return entry
end

local function print_json(result, args)
  local function keys(name, rows, list)
    return { name, count = #list, item = function(i) return key_of(rows, list[i]) end }
  end
  cli.print_json_object { { "equal", result.equal }, { "same", result.same }, keys("only_a", result.a, result.only_a),
    keys("only_b", result.b, result.only_b),
    { "different", count = #result.different, item = function(n) return json_of(difference_at(result, n, args)) end } }
end

-- Trouble has an exit code of its own.
local args = parser:parse()
local ok, result = pcall(compare, args)
if not ok then
  if type(result) == "table" and result.code ~= "interrupted" then result.exit_code = TROUBLE end
  error(result, 0)
end
if args.json then print_json(result, args) else print_text(result, args) end
if not io.stdout:flush() then os.exit(TROUBLE) end
return result.equal and SAME or DIFFERENT
