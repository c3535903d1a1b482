-- The difference between two values: kinds, shapes, dtypes, elements.

local cbk = require "cbk"
local extents = require "cbk.extents"
local listing = require "cbk.listing"
local numbers = require "cbk.numbers"
local placed = require "cbk.placed"
local unpaired = require "cbk.unpaired"

local values = {}

local TENSORS = require("cbk.tensor_kinds").ALL
local LARGEST = 3 -- differences of a tensor whose places are kept

---@class ValueDifference
---@field what "kind"|"value"|"shape"|"dtype"|"values"
---@field text string
---@field a? string
---@field b? string
---@field short_a? string      of what = "kind" and "value": for people
---@field short_b? string
---@field different? integer
---@field numel? integer
---@field first? integer[]
---@field max_abs? number
---@field max_rel? number
---@field rel_norm? number     the norm of a - b over that of b
---@field cosine? number
---@field nan_a? integer       elements that are NaN in A only
---@field nan_b? integer
---@field infinite? integer    elements with an infinity on one side, and another number on the other
---@field largest? { position: integer[], a: any, b: any }[]
---@field shape? string
---@field dtype? string

---@class DiffOptions
---@field rtol number
---@field atol number
---@field keys_only? boolean
---@field ignore_dtype? boolean
---@field known? table<string, { difference: ValueDifference|nil, a: Tensor, b: Tensor }>   large tensors that were compared, by place

--- The position of element `index` (C order) in a shape.
local function position(index, shape)
  local out = {}
  for dim = #shape, 1, -1 do
    local extent = tonumber(shape[dim]) -- may be an int64
    out[dim] = index % extent
    index = math.floor(index / extent)
  end
  return out
end

local function number_text(number)
  if type(number) ~= "number" or number % 1 == 0 and math.abs(number) < 2 ^ 53 then return numbers.whole_text(number) end
  return (("%.4g"):format(number))
end

local function element(tensor, at)
  for _, index in ipairs(at) do tensor = tensor:slice(0, index, index + 1):reshape { unpack(tensor:shape(), 2) } end
  return tensor:item()
end

---The text of an element, which may be complex.
---@param value any         of Tensor:item
---@param digits? integer   default 7
---@return string
function values.element_text(value, digits)
  digits = digits or 7
  if type(value) == "boolean" then return tostring(value) end
  if type(value) == "table" then return ("%%.%dg%%+.%dgi"):format(digits, digits):format(value[1], value[2]) end
  return type(value) == "number" and ("%%.%dg"):format(digits):format(value) or numbers.whole_text(value)
end

---Two elements as texts, with enough digits to show that they differ.
---@return string, string
function values.pair_texts(a, b)
  local text_a, text_b
  for _, digits in ipairs { 7, 9, 17 } do
    text_a, text_b = values.element_text(a, digits), values.element_text(b, digits)
    if text_a ~= text_b then break end
  end
  return text_a, text_b
end

local function places_of(a, b, indices, shape)
  local out = {}
  for i, index in ipairs(indices) do
    local at = position(index, shape)
    out[i] = { position = at, a = element(a, at), b = element(b, at) }
  end
  return out
end

---How far apart the elements are, for people.
---@param d ValueDifference
---@return string
local function distance_text(d)
  local text = ("max abs %s, max rel %s"):format(number_text(d.max_abs), number_text(d.max_rel))
  if d.rel_norm then text = ("%s, rel norm %s"):format(text, number_text(d.rel_norm)) end
  if d.cosine then text = ("%s, cosine %.6g"):format(text, d.cosine) end
  local others = unpaired(d)
  return others == "" and text or text .. ", " .. others
end

local function compare_elements(a, b, options)
  local d = a:compare(b, { rtol = options.rtol, atol = options.atol, largest = LARGEST })
  if d.different == 0 then return nil end
  local shape = a:shape()
  local out = { what = "values", different = d.different, numel = d.numel, max_abs = d.max_abs, max_rel = d.max_rel, rel_norm = d.rel_norm,
    cosine = d.cosine, nan_a = d.nan_a, nan_b = d.nan_b, infinite = d.infinite,
    first = position(d.first, shape), largest = places_of(a, b, d.largest, shape), shape = extents.shape(shape),
    dtype = a.dtype == b.dtype and a.dtype or a.dtype .. ", " .. b.dtype }
  local place, largest = "", out.largest[1]
  if #out.first > 0 then place = ", first at " .. extents.shape(out.first) end
  if largest and #shape > 0 then
    local text_a, text_b = values.pair_texts(largest.a, largest.b)
    place = ("%s, largest at %s: %s, %s"):format(place, extents.shape(largest.position), text_a, text_b)
  end
  out.text = ("%s of %s differ (%s), %s%s"):format(numbers.grouped(d.different), numbers.counted(d.numel, "element"),
    numbers.percent(d.different, d.numel), distance_text(out), place)
  return out
end

local SMALL = 65536 -- bytes: those are compared again under each of their names

local function compare_tensors(a, b, options)
  local shape_a, shape_b = extents.shape(a:shape()), extents.shape(b:shape())
  if shape_a ~= shape_b then return { what = "shape", a = shape_a, b = shape_b, text = ("shape %s, %s"):format(shape_a, shape_b) } end
  if a.dtype ~= b.dtype then
    local complex_only_one = (a.dtype:find "^complex" == nil) ~= (b.dtype:find "^complex" == nil)
    if not options.ignore_dtype or complex_only_one then
      return { what = "dtype", a = a.dtype, b = b.dtype, text = ("dtype %s, %s"):format(a.dtype, b.dtype) }
    end
  end
  if options.keys_only then return nil end
  local place = options.known and a:nbytes() > SMALL and placed.all_at { a, b }
  if not place then return compare_elements(a, b, options) end
  local known = options.known[place] or { difference = compare_elements(a, b, options), a = a, b = b }
  options.known[place] = known
  return known.difference
end

local NUMBERS = { int = true, float = true }
local PLAIN = { none = true, bool = true, int = true, float = true, str = true }

local function same_number(a, b, options)
  if not (NUMBERS[cbk.kind(a)] and NUMBERS[cbk.kind(b)]) then return false end
  a, b = tonumber(a.value), tonumber(b.value)
  if not a or not b then return false end
  if a == b or (a ~= a and b ~= b) then return true end
  return math.abs(a - b) <= options.atol + options.rtol * math.abs(b)
end

---A function that returns the row of `b` with the key of row `i` of `a`, or nil. If a key occurs several times
---({"a.b": 1, "a": {"b": 2}}), its occurrences are matched in order. No index is built as long as the keys are in the same order.
---@param a LeafRows
---@param b LeafRows
---@return fun(i: integer): integer|nil
function values.matcher(a, b)
  local alike = 0
  while alike < #a and alike < #b and a:path(alike + 1) == b:path(alike + 1) do alike = alike + 1 end
  return function(i)
    if i <= alike then return i end
    return b:find(a:path(i), a:earlier(i))
  end
end

---Whether two objects have equal content: tensors from two files are never the same objects.
local function compare_objects(a, b, options)
  local parts_a, parts_b = cbk.leaf_rows(a.state), cbk.leaf_rows(b.state)
  if a.type ~= b.type or a.repr ~= b.repr or #parts_a ~= #parts_b then return false end
  local counterpart = values.matcher(parts_a, parts_b)
  for i = 1, #parts_a do
    local k = counterpart(i)
    if not k or values.compare(parts_a:raw(i), parts_b:raw(k), options) then return false end
  end
  return true
end

local function have_parts(a, b)
  return cbk.kind(a) == "object" and cbk.kind(b) == "object" and cbk.kind(a.state) == "dict" and cbk.kind(b.state) == "dict"
end

---Two values of different kinds as texts: "null" and "0.5", "2 (int)" and "2 (float)", "1" and "a tensor", "null" and "torch.float32".
local function texts_of_kinds(a, b)
  local kinds, texts = { cbk.kind(a), cbk.kind(b) }, {}
  for i, value in ipairs { a, b } do
    local has_text = PLAIN[kinds[i]] or kinds[i] == "object"
    texts[i] = has_text and listing.value_text(value) or (kinds[i]:find "^[aeiou]" and "an " or "a ") .. kinds[i]
  end
  if texts[1] ~= texts[2] then return texts[1], texts[2] end
  return ("%s (%s)"):format(texts[1], kinds[1]), ("%s (%s)"):format(texts[2], kinds[2])
end

---How two values differ; nil if they are equal.
---@param options DiffOptions
---@return ValueDifference|nil
function values.compare(a, b, options)
  local kind_a, kind_b = cbk.kind(a), cbk.kind(b)
  if TENSORS[kind_a] and TENSORS[kind_b] then return compare_tensors(a, b, options) end
  local are_numbers = NUMBERS[kind_a] and NUMBERS[kind_b]
  if kind_a ~= kind_b and not (are_numbers and options.ignore_dtype) then
    local short_a, short_b = texts_of_kinds(a, b)
    return { what = "kind", a = kind_a, b = kind_b, short_a = short_a, short_b = short_b, text = ("%s, %s"):format(kind_a, kind_b) }
  end
  if options.keys_only then return nil end
  if kind_a == "object" and a.type == b.type and a.type:find "^safetensors%." then
    return { what = "value", a = a.repr, b = b.repr, text = ("%s: elements smaller than a byte are not compared"):format(a.repr) }
  end
  if cbk.equal(a, b) or same_number(a, b, options) then return nil end
  if have_parts(a, b) and compare_objects(a, b, options) then return nil end
  local short_a, short_b = listing.pair_texts(a, b)
  return { what = "value", a = listing.value_text(a, true), b = listing.value_text(b, true), short_a = short_a, short_b = short_b,
    text = ("%s, %s"):format(short_a, short_b) }
end

return values
