-- Layouts of tensors that are no family's own: numbers of rows and heads, orders, shares. `cbk infer` finds these, and the converters
-- that it writes name them.

local cbk = require "cbk"
local actions = require "converters.vocabulary.actions"
local matrix = require "converters.vocabulary.matrix"
local narrow = require "converters.engine.narrow"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"

local layouts = {}

---@class FusedOptions
---@field per number[]|fun(at: At): number[]            the share of each part
---@field groups? integer|fun(at: At): integer          parts alternate in so many groups
---@field size? integer|fun(at: At): integer            parts alternate in heads of so many rows
---@field rotary? integer[]|fun(at: At): integer[]      the size of a head, and its rotated rows
---@field rotated? integer                              the parts with rotated rows come first; their number
---@field pairs_left? boolean                           the left has rotated pairs, the right halves
---@field transposed? boolean                           columns of the left are rows of the right
---@field columns? boolean                              parts are columns
---@field parts? integer                                the number of parts, if `per` is a function

---The right is transposed after an action, as by `actions.transpose`.
---@param action Action
---@return Action
function layouts.transposed(action)
  return actions.pair(action.name, function(t, at) return matrix.transposed(action.forward(t, at)) end,
    function(t, at) return action.backward(matrix.transposed(t), at) end)
end

---An action for the other direction. One that splits a tensor of the left then joins several of the left.
---@param action Action
---@return Action
function layouts.reversed(action)
  return actions.pair(action.name, action.backward, action.forward,
    { parts = action.parts and (action.left_parts or 1), left_parts = action.parts })
end

---The dtype in which an action between two others loses the least: the wider float, float32 for two of 16 bits.
local function wide(left, right)
  local a, b = cbk.dtype(left), cbk.dtype(right)
  if not (a.floating and b.floating) then return nil end
  if a.size == b.size then return a.size < 4 and "float32" or left end
  return a.size > b.size and left or right
end

---The left has one dtype, the right another; with an action as well, it computes in the wider one. A third dtype is refused.
---@param left string     a dtype
---@param right string
---@param action? Action
---@return Action
function layouts.cast(left, right, action)
  left, right = cbk.dtype(left).name, cbk.dtype(right).name
  local between = wide(left, right)
  local function one_as(t, dtype)
    if t.dtype ~= left and t.dtype ~= right and t.dtype ~= between then
      cbk.fail("dtype", ("expected %s or %s, found %s"):format(left, right, t.dtype))
    end
    return t:to(dtype)
  end
  local function all(value, dtype)
    if type(value) ~= "table" then return one_as(value, dtype) end
    local out = {}
    for i, one in ipairs(value) do out[i] = one_as(one, dtype) end
    return out
  end
  local function through(value, at, apply, to)
    if not apply then return all(value, to) end
    return all(apply(all(value, between or to), at), to)
  end
  return actions.pair("cast", function(value, at) return through(value, at, action and action.forward, right) end,
    function(value, at) return through(value, at, action and action.backward, left) end,
    action and { parts = action.parts, left_parts = action.left_parts })
end

---The right is the left and a number. Sums in 16 bits are rounded, with a warning.
---@param term number
---@return Action
function layouts.plus(term)
  local function added(t, number, at)
    if narrow.is(t.dtype) then at:warn(narrow.text(("a number is added to weights such as '%s'"):format(at.key), t.dtype)) end
    return t + number
  end
  return actions.pair("plus", function(t, at) return added(t, term, at) end, function(t, at) return added(t, -term, at) end, { parts = 1 })
end

---The right is the left times a number. Products in 16 bits are rounded, with a warning, unless the number is a power of two.
---@param factor number
---@return Action
function layouts.times(factor)
  local function checked(t, at)
    if narrow.rounds(t.dtype, factor) then at:warn(narrow.text(("weights such as '%s' are multiplied"):format(at.key), t.dtype)) end
    return t
  end
  return actions.pair("times", function(t, at) return checked(t, at) * factor end, function(t, at) return checked(t, at) / factor end,
    { parts = 1 })
end

---The mistake in the size of a head and the number of its rotated rows, or nil.
---@return string|nil
local function mistake_in_head(size, dim)
  local mistake = shapes.size.mistake(size, "the size of a head") or shapes.size.mistake(dim, "the number of rotated rows")
  if mistake then return mistake end
  if dim % 2 ~= 0 or dim > size then
    return ("the number of rotated rows must be an even number, at most the head's size %g, not %g"):format(size, dim)
  end
end

---Heads of `size` rows: the first `dim` of each from two halves into pairs, or back.
local function interleaved(t, size, dim, to_pairs)
  local count = matrix.rows(t)
  if count % size ~= 0 then cbk.fail("shape", ("expected heads of %g rows, found %d rows"):format(size, count)) end
  return matrix.interleaved(t, count / size, dim, to_pairs)
end

---Heads of `size` rows. The first `dim` of each are rotated: two halves on the left, pairs on the right. Without `dim`, all rows are.
---@param size integer|fun(at: At): integer
---@param dim? integer|fun(at: At): integer
---@return Action
function layouts.rotary_rows(size, dim)
  local function number(n, at)
    if type(n) == "function" then return n(at) end
    return n
  end
  local function rotated(t, at, to_pairs)
    local rows = number(size, at)
    local own = number(dim or rows, at)
    local mistake = mistake_in_head(rows, own)
    if mistake then cbk.fail("converter", "a function of the converter gives a wrong number: " .. mistake) end
    return interleaved(t, rows, own, to_pairs)
  end
  return actions.pair("rotary rows", function(t, at) return rotated(t, at, true) end, function(t, at) return rotated(t, at, false) end)
end

local of_shares = shapes.list(shapes.of("a number above 0", function(value)
  return type(value) == "number" and value > 0 and value < math.huge
end), "a list of numbers")

---What the author of rotated heads gives: the size of a head, and how many of its rows are rotated.
local of_head = { says = "a list of a head's size and its rotated rows" }
function of_head.mistake(value, name)
  local is_list = type(value) == "table" and #value == 2
  if not is_list then return ("%s must be %s"):format(name, of_head.says) end
  return mistake_in_head(value[1], value[2])
end

---The value of an option that may be a function of `at`.
---@param shape Shape
local function option_at(options, name, at, shape)
  local value = options[name]
  if type(value) ~= "function" then return value end
  value = value(at)
  local mistake = shape.mistake(value, name)
  if mistake then cbk.fail("converter", "a function of the converter gives a wrong value: " .. mistake) end
  return value
end

---The rows of each part of a fused tensor in a group, and how many groups.
---@param options FusedOptions
---@param rows integer   of the whole
---@return number[] own, number groups
local function rows_of_parts(options, rows, at)
  local per, all, size = option_at(options, "per", at, of_shares), 0, option_at(options, "size", at, shapes.size)
  if options.parts and #per ~= options.parts then
    cbk.fail("converter", ("per has %d shares for %d parts"):format(#per, options.parts))
  end
  for _, share in ipairs(per) do all = all + share end
  local groups, own = option_at(options, "groups", at, shapes.size) or size and rows / (all * size) or 1, {}
  for i, share in ipairs(per) do
    own[i] = rows * share / (all * groups)
    if groups % 1 ~= 0 or own[i] % 1 ~= 0 then
      cbk.fail("shape", ("%d rows do not split into %g groups of %g parts"):format(rows, groups, all))
    end
  end
  return own, groups
end

---One tensor on the left, several on the right, by rows; by columns with `columns`, or with `transposed` by columns that are rows on
---the right. `per` has the share of each part. Without `groups` and `size` the parts are below each other. With one of these they
---alternate, in that many groups or in heads of that many rows. `rotary`: size and rotated rows of a head, in the first `rotated` parts,
---by default two; the left has halves and the right pairs, or the left has pairs with `pairs_left`. Numbers are also functions of
---`at`. With `columns` and `transposed`, a tensor of three dimensions or more is refused.
---@param options FusedOptions
---@return Action
function layouts.fused(options)
  local function turned(t) return (options.transposed or options.columns) and matrix.transposed(t) or t end
  local function turned_part(t) return options.columns and turned(t) or t end
  local function rotated(t, i, at, to_pairs)
    local head = option_at(options, "rotary", at, of_head)
    if not head or i > (options.rotated or 2) then return t end
    if options.pairs_left then to_pairs = not to_pairs end
    return interleaved(t, head[1], head[2], to_pairs)
  end
  return actions.pair("fused", function(t, at)
    t = turned(t)
    local shape, out, from = t:shape(), {}, 0
    local own, groups = rows_of_parts(options, matrix.rows(t), at)
    local view = t:reshape { groups, shape[1] / groups, t:numel() / shape[1] }
    for i, rows in ipairs(own) do
      local part = view:slice(1, from, from + rows):reshape(matrix.with_rows(shape, groups * rows))
      out[i] = turned_part(rotated(part, i, at, true))
      from = from + rows
    end
    return out
  end, function(list, at)
    local parts, all, views = {}, 0, {}
    for i, part in ipairs(list) do
      parts[i] = turned_part(part)
      all = all + matrix.rows(parts[i])
    end
    local own, groups = rows_of_parts(options, all, at)
    for i, part in ipairs(parts) do
      local found, wanted = matrix.rows(part), groups * own[i]
      if found ~= wanted then cbk.fail("shape", ("expected %g rows in part %d, found %d"):format(wanted, i, found)) end
      views[i] = rotated(part, i, at, false):reshape { groups, found / groups, part:numel() / found }
    end
    return turned(cbk.cat(views, 1):reshape(matrix.with_rows(parts[1]:shape(), all)))
  end, { parts = options.parts or #options.per })
end

---Rows in blocks of `inner` on the left; on the right the first rows of all blocks, then the second ones. `size`: the same within
---every so many rows.
---@param inner integer
---@param size? integer
---@return Action
function layouts.swapped_rows(inner, size)
  local function swapped(t, is_forward)
    local shape = t:shape()
    local block = size or shape[1]
    if block % inner ~= 0 or shape[1] % block ~= 0 then cbk.fail("shape", ("%d rows are not blocks of %d"):format(shape[1], inner)) end
    local count = block / inner
    local order = is_forward and { shape[1] / block, count, inner, -1 } or { shape[1] / block, inner, count, -1 }
    return t:reshape(order):permute({ 0, 2, 1, 3 }):reshape(shape)
  end
  return actions.pair("swapped rows", function(t) return swapped(t, true) end, function(t) return swapped(t, false) end)
end

---One Linear with q, k and v below each other; queries and keys have interleaved rows on the right.
layouts.stacked_rotary = actions.pair("stacked qkv + rotary", function(t, at)
  local q, k, v = unpack(actions.qkv.stacked.forward(t, at))
  return { actions.rotary.queries.forward(q, at), actions.rotary.keys.forward(k, at), v }
end, function(parts, at)
  local q, k, v = unpack(parts)
  return actions.qkv.stacked.backward({ actions.rotary.queries.backward(q, at), actions.rotary.keys.backward(k, at), v }, at)
end, { parts = 3 })

---The first row of the left is the last one of the right. `dims`: of the left, with leading dims of 1.
---@param dims integer
---@return Action
function layouts.first_row_last(dims)
  local function check(t, wanted)
    if t:dim() ~= wanted then cbk.fail("shape", ("expected a tensor of %d dimensions, found %d"):format(wanted, t:dim())) end
  end
  return actions.pair("first row last", function(t)
    check(t, dims)
    local shape = t:shape()
    t = t:reshape { shape[dims - 1], shape[dims] }
    return cbk.cat({ t:slice(0, 1, shape[dims - 1]), t:slice(0, 0, 1) }, 0)
  end, function(t)
    check(t, 2)
    local rows, shape = t:shape()[1], t:shape()
    for _ = 3, dims do table.insert(shape, 1, 1) end
    return cbk.cat({ t:slice(0, rows - 1, rows), t:slice(0, 0, rows - 1) }, 0):reshape(shape)
  end)
end

---Several tensors on the left are one on the right, in a dimension of its own.
---@param dim integer           of the right, from 0
---@param transposed? boolean   the parts are transposed on the right
---@return Action
function layouts.stacked(dim, transposed)
  local function turned(t) return transposed and matrix.transposed(t) or t end
  return actions.pair("stacked", function(parts)
    local out = {}
    for i, part in ipairs(parts) do out[i] = turned(part) end
    return cbk.stack(out, dim)
  end, function(t)
    local out = {}
    for i = 1, t:shape()[dim + 1] do out[i] = turned(t:select(dim, i - 1)) end
    return out
  end)
end

---Several tensors on the left, of one size in a dimension, are one on the right, one behind the other. `count(at)` is their number.
---@param dim integer                    from 0
---@param count fun(at: At): integer
---@return Action
function layouts.joined(dim, count)
  return actions.pair("joined", function(parts)
    for i, part in ipairs(parts) do
      local own, first = part:shape()[dim + 1], parts[1]:shape()[dim + 1]
      if own ~= first then
        cbk.fail("shape", ("expected parts of one size in dimension %d, found %s (part 0) and %s (part %d)"):format(dim, first, own, i - 1))
      end
    end
    return cbk.cat(parts, dim)
  end, function(t, at)
    local extent, number = t:shape()[dim + 1] or 0, count(at)
    if extent % number ~= 0 then cbk.fail("shape", ("%d in dimension %d do not split into %d parts"):format(extent, dim, number)) end
    return t:split(extent / number, dim)
  end)
end

---Stacks on the left, of `rules.each` with several patterns, are one tensor on the right: its first dimension has the keys, and the
---stacks are behind each other in another one, as experts are in "gate_up_proj".
---@param parts integer         patterns; all tensors have one shape
---@param dim integer           of the right, in which the stacks are joined, from 0
---@param transposed? boolean   the tensors of the left are transposed on the right
---@return Action
function layouts.joined_stacks(parts, dim, transposed)
  local stacked = layouts.stacked(0, transposed)
  return actions.pair("joined stacks", function(tensors, at)
    local count, stacks = #tensors / parts, {}
    for k = 1, parts do
      local own = {}
      for i = 1, count do own[i] = tensors[(k - 1) * count + i] end
      stacks[k] = stacked.forward(own, at)
    end
    return cbk.cat(stacks, dim)
  end, function(t, at)
    local extent, out = t:shape()[dim + 1] or 0, {}
    if extent % parts ~= 0 then cbk.fail("shape", ("%d in dimension %d do not split into %d parts"):format(extent, dim, parts)) end
    for _, stack in ipairs(t:split(extent / parts, dim)) do
      for _, one in ipairs(stacked.backward(stack, at)) do out[#out + 1] = one end
    end
    return out
  end)
end

-- --- what constructors take

local maybe, size, index, number = shapes.maybe, shapes.size, shapes.index, shapes.finite
local action = shapes.named("an action", shapes.of("an action (a pair of functions, forward and backward)", function(value)
  return type(value) == "table" and type(value.forward) == "function" and type(value.backward) == "function"
end))
local dtype, factor = shapes.named("a dtype", shapes.dtype), shapes.of("a finite number other than 0", function(value)
  return not number.mistake(value, "") and value ~= 0
end)
local of_at = shapes.either(size, shapes.func)

local options = shapes.record("a table of options", {
  per = shapes.either(shapes.func, of_shares), parts = size, groups = of_at, size = of_at,
  rotary = shapes.either(shapes.func, of_head), rotated = size, pairs_left = shapes.flag, transposed = shapes.flag, columns = shapes.flag,
}, { "per" })
local fused = shapes.named(options.says, options)
function fused.mistake(value, name)
  local mistake = options.mistake(value, name)
  for one, other in pairs(mistake and {} or { groups = "size", columns = "transposed" }) do
    if value[one] and value[other] then mistake = ("%s has '%s' and '%s': only one is used"):format(options.says, one, other) end
  end
  if mistake then return mistake end
  if type(value.per) == "function" then return not value.parts and "'per' is a function: give the number of 'parts', too" or nil end
  if value.parts and #value.per ~= value.parts then return ("'per' has %d shares for %d parts"):format(#value.per, value.parts) end
end

---The mistake in numbers of layouts.rotary_rows that are no functions.
local function of_rotary_rows(rows, dim)
  dim = dim or rows
  if type(rows) == "number" and type(dim) == "number" then return mistake_in_head(rows, dim) end
end

---One tensor is transposed, not a list of parts.
local function of_one(own)
  local has_several = (own.parts or 1) > 1 or (own.left_parts or 1) > 1
  return has_several and ("'%s' has several parts; only one can be transposed"):format(own.name) or nil
end

shapes.guard(layouts, "layouts", {
  transposed = { action, together = of_one }, reversed = { action }, cast = { dtype, dtype, maybe(action) },
  plus = { number }, times = { factor }, rotary_rows = { of_at, maybe(of_at), together = of_rotary_rows },
  fused = { fused }, swapped_rows = { size, maybe(size) }, first_row_last = { size },
  stacked = { index, maybe(shapes.flag) },
  joined_stacks = { size, index, maybe(shapes.flag) },
  joined = { index, shapes.named("a function that counts the parts", shapes.func) },
})

return rules.strict(layouts, "layout")
