-- Layouts of tensors that are no family's own: numbers of rows and heads, orders, shares. `cbk infer` finds these, and the converters
-- that it writes name them.

local cbk = require "cbk"
local actions = require "converters.vocabulary.actions"
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

---The right is transposed after an action.
---@param action Action
---@return Action
function layouts.transposed(action)
  return actions.pair(action.name, function(t, at) return action.forward(t, at):transpose(0, 1) end,
    function(t, at) return action.backward(t:transpose(0, 1), at) end)
end

---An action for the other direction.
---@param action Action
---@return Action
function layouts.reversed(action) return actions.pair(action.name, action.backward, action.forward) end

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
    function(value, at) return through(value, at, action and action.backward, left) end, { parts = action and action.parts or nil })
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

---Heads of `size` rows: the first `dim` of each from two halves into pairs, or back.
local function interleaved(t, size, dim, to_pairs)
  local shape = t:shape()
  local count = shape[1] / size
  if count % 1 ~= 0 then cbk.fail("shape", ("expected heads of %d rows, found %d rows"):format(size, shape[1])) end
  local view = t:reshape { count, size, t:numel() / shape[1] }
  local halves = to_pairs and { count, 2, dim / 2, -1 } or { count, dim / 2, 2, -1 }
  local rows = view:slice(1, 0, dim):reshape(halves):permute({ 0, 2, 1, 3 }):reshape { count, dim, -1 }
  if dim < size then rows = cbk.cat({ rows, view:slice(1, dim, size) }, 1) end
  return rows:reshape(shape)
end

---Heads of `size` rows. The first `dim` of each are rotated: two halves on the left, pairs on the right. Without `dim`, all rows are.
---@param size integer|fun(at: At): integer
---@param dim? integer|fun(at: At): integer
---@return Action
function layouts.rotary_rows(size, dim)
  local function number(n, at) return type(n) == "function" and n(at) or n end
  local function rotated(t, at, to_pairs)
    local rows = number(size, at)
    return interleaved(t, rows, number(dim or rows, at), to_pairs)
  end
  return actions.pair("rotary rows", function(t, at) return rotated(t, at, true) end, function(t, at) return rotated(t, at, false) end)
end

---One tensor on the left, several on the right, by rows; by columns with `columns`, or with `transposed` by columns that are rows on
---the right. `per` has the share of each part. Without `groups` and `size` the parts are below each other. With one of these they
---alternate, in that many groups or in heads of that many rows. `rotary`: size and rotated rows of a head, in the first `rotated` parts,
---by default two; the left has halves and the right pairs, or the left has pairs with `pairs_left`. Numbers are also functions of
---`at`.
---@param options FusedOptions
---@return Action
function layouts.fused(options)
  local function given(name, at)
    local value = options[name]
    return type(value) == "function" and value(at) or value
  end
  local function turned(t) return (options.transposed or options.columns) and t:dim() == 2 and t:transpose(0, 1) or t end
  local function turned_part(t) return options.columns and turned(t) or t end
  local function rotated(t, i, at, to_pairs)
    local dim = given("rotary", at)
    if not dim or i > (options.rotated or 2) then return t end
    if options.pairs_left then to_pairs = not to_pairs end
    return interleaved(t, dim[1], dim[2], to_pairs)
  end
  ---The rows of each part in a group, and how many groups.
  local function layout(rows, at)
    local per, all, size = given("per", at), 0, given("size", at)
    for _, share in ipairs(per) do all = all + share end
    local groups, own = given("groups", at) or size and rows / (all * size) or 1, {}
    for i, share in ipairs(per) do
      own[i] = rows * share / (all * groups)
      if groups % 1 ~= 0 or own[i] % 1 ~= 0 then
        cbk.fail("shape", ("%d rows do not split into %g groups of %g parts"):format(rows, groups, all))
      end
    end
    return own, groups
  end
  return actions.pair("fused", function(t, at)
    t = turned(t)
    local shape, out, from = t:shape(), {}, 0
    local own, groups = layout(shape[1], at)
    local view = t:reshape { groups, shape[1] / groups, t:numel() / shape[1] }
    for i, rows in ipairs(own) do
      local part = view:slice(1, from, from + rows)
      out[i] = turned_part(rotated(part:reshape(#shape == 1 and { -1 } or { groups * rows, shape[2] }), i, at, true))
      from = from + rows
    end
    return out
  end, function(list, at)
    local parts, all, views = {}, 0, {}
    for i, part in ipairs(list) do
      parts[i] = turned_part(part)
      all = all + parts[i]:shape()[1]
    end
    local own, groups = layout(all, at)
    local shape = parts[1]:shape()
    for i, part in ipairs(parts) do
      local found, wanted = part:shape()[1], groups * own[i]
      if found ~= wanted then cbk.fail("shape", ("expected %g rows in part %d, found %d"):format(wanted, i, found)) end
      views[i] = rotated(part, i, at, false):reshape { groups, found / groups, part:numel() / found }
    end
    return turned(cbk.cat(views, 1):reshape(#shape == 1 and { -1 } or { all, shape[2] }))
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
  return actions.pair("first row last", function(t)
    local shape = t:shape()
    t = t:reshape { shape[dims - 1], shape[dims] }
    return cbk.cat({ t:slice(0, 1, shape[dims - 1]), t:slice(0, 0, 1) }, 0)
  end, function(t)
    local rows, shape = t:shape()[1], { t:shape()[1], t:shape()[2] }
    for _ = 3, dims do table.insert(shape, 1, 1) end
    return cbk.cat({ t:slice(0, rows - 1, rows), t:slice(0, 0, rows - 1) }, 0):reshape(shape)
  end)
end

---Several tensors on the left are one on the right, in a dimension of its own.
---@param dim integer           of the right, from 0
---@param transposed? boolean   the parts are transposed on the right
---@return Action
function layouts.stacked(dim, transposed)
  local function turned(t) return transposed and t:transpose(0, 1) or t end
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

-- --- what constructors take

local action, maybe, size, number = shapes.table, shapes.maybe, shapes.size, shapes.number
local of_at = shapes.either(size, shapes.func)

local of_head = shapes.of("a list of a head's size and its rotated rows, or a function", function(value)
  return type(value) == "function" or type(value) == "table" and type(value[1]) == "number" and type(value[2]) == "number"
end)
local options = shapes.record("a table of options", {
  per = shapes.either(shapes.list(number, "a list of numbers"), shapes.func), parts = size, groups = of_at, size = of_at,
  rotary = of_head, rotated = size, pairs_left = shapes.flag, transposed = shapes.flag, columns = shapes.flag,
}, { "per" })
local fused = shapes.named(options.says, options)
function fused.mistake(value, name)
  local mistake = options.mistake(value, name)
  for one, other in pairs(mistake and {} or { groups = "size", columns = "transposed" }) do
    if value[one] and value[other] then mistake = ("%s has '%s' and '%s': only one is used"):format(options.says, one, other) end
  end
  return mistake
end

shapes.guard(layouts, "layouts", {
  transposed = { shapes.named("an action", action) }, reversed = { shapes.named("an action", action) },
  cast = { shapes.named("a dtype", shapes.text), shapes.named("a dtype", shapes.text), maybe(action) },
  plus = { number }, times = { number }, rotary_rows = { of_at, maybe(of_at) },
  fused = { fused }, swapped_rows = { size, maybe(size) }, first_row_last = { size },
  stacked = { number, maybe(shapes.flag) },
  joined = { number, shapes.named("a function that counts the parts", shapes.func) },
})

return rules.strict(layouts, "layout")
