-- The functions that an inferred converter defines for itself, as source text, and the value of an expression that uses them. The text
-- that is tried on the tensors is the text that is written.

local definitions = {}

---The modules that an inferred converter may use, in the order of its file.
definitions.modules = {
  { "cbk", "cbk" }, { "rules", "converters.engine.rules" }, { "fields", "converters.engine.fields" },
  { "actions", "converters.vocabulary.actions" }, { "heads", "converters.vocabulary.heads" },
  { "rotary", "converters.vocabulary.rotary" }, { "values", "converters.vocabulary.values" }, { "kinds", "converters.engine.kinds" },
}

-- --- definitions that a file contains if it uses them

---@type table<string, { needs?: string[], text: string }>
definitions.texts_by_name = {
  transposed = { text = [[
---The right is transposed after an action.
local function transposed(action)
  return actions.pair(action.name, function(t, at) return action.forward(t, at):transpose(0, 1) end,
    function(t, at) return action.backward(t:transpose(0, 1), at) end)
end]] },

  reversed = { text = [[
---An action for the other direction.
local function reversed(action) return actions.pair(action.name, action.backward, action.forward) end]] },

  cast = { text = [[
---The left has one dtype, the right another; with an action as well, that one first. A third dtype is refused.
local function cast(left, right, action)
  local function one_as(t, dtype)
    if t.dtype ~= left and t.dtype ~= right then
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
  return actions.pair("cast", function(value, at)
    if action then value = action.forward(value, at) end
    return all(value, right)
  end, function(value, at)
    if action then value = action.backward(all(value, right), at) end
    return all(value, left)
  end, { parts = action and action.parts or nil })
end]] },

  lacks = { text = [[
---What the pair has, nothing explains, and no rule writes: a warning.
local function lacks(keys)
  return function() cbk.warn(("the output lacks %s, which cbk infer could not explain: add a rule that writes it"):format(keys)) end
end]] },

  plus = { text = [[
---The right is the left and a number.
local function plus(term)
  return actions.pair("plus", function(t) return t + term end, function(t) return t - term end, { parts = 1 })
end]] },

  times = { text = [[
---The right is the left times a number.
local function times(factor)
  return actions.pair("times", function(t) return t * factor end, function(t) return t / factor end, { parts = 1 })
end]] },

  rotary_rows = { text = [[
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

---Each a number, or a function of `at`; without `dim`, all rows of a head are rotated.
local function rotary_rows(size, dim)
  local function number(n, at) return type(n) == "function" and n(at) or n end
  local function rotated(t, at, to_pairs)
    local rows = number(size, at)
    return interleaved(t, rows, number(dim or rows, at), to_pairs)
  end
  return actions.pair("rotary rows", function(t, at) return rotated(t, at, true) end, function(t, at) return rotated(t, at, false) end)
end]] },

  by_side = { text = [[
---A number of the config that is read.
local function by_side(left, right)
  return function(at)
    if at.side == "left" then return left(at) end
    return right(at)
  end
end]] },

  agreed = { text = [[
---A number that several fields gave in the pair. If they differ, it is unknown which of them counts: keep the right one.
local function agreed(first, ...)
  for _, other in ipairs { ... } do
    if other ~= first then
      cbk.fail("config", ("fields that gave one number in the pair that the converter was inferred from give %g and %g here: keep the "
        .. "right one in the converter"):format(first, other))
    end
  end
  return first
end

---The rows of a head: the width of the model by its number of heads. A config that says another size of heads means that one.
local function rows_agreed(config, width, heads)
  for _, name in ipairs { "head_dim", "d_kv", "head_size", "d_head", "kv_channels", "attention_head_dim", "size_per_head" } do
    if type(config[name]) == "number" then agreed(width / heads, config[name]) end
  end
  local inner = config.attention_inner_dim -- the width of all heads, where it is another one
  if type(inner) == "number" then agreed(width / heads, inner / heads) end
  return width / heads
end]] },

  fused = { needs = { "rotary_rows" }, text = [[
---One tensor on the left, several on the right, by rows; by columns with `columns`, or with `transposed` by columns that are rows on
---the right. `per` has the share of each part. Without `groups` and `size` the parts are below each other. With one of these they
---alternate, in that many groups or in heads of that many rows. `rotary`: size and rotated rows of a head, in the first `rotated` parts,
---by default two; the left has halves and the right pairs, or the left has pairs with `pairs_left`. Numbers are also functions of
---`at`.
local function fused(options)
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
end]] },

  swapped_rows = { text = [[
---Rows in blocks of `inner` on the left; on the right the first rows of all blocks, then the second ones. `size`: the same within
---every so many rows.
local function swapped_rows(inner, size)
  local function swapped(t, is_forward)
    local shape = t:shape()
    local block = size or shape[1]
    if block % inner ~= 0 or shape[1] % block ~= 0 then cbk.fail("shape", ("%d rows are not blocks of %d"):format(shape[1], inner)) end
    local count = block / inner
    local order = is_forward and { shape[1] / block, count, inner, -1 } or { shape[1] / block, inner, count, -1 }
    return t:reshape(order):permute({ 0, 2, 1, 3 }):reshape(shape)
  end
  return actions.pair("swapped rows", function(t) return swapped(t, true) end, function(t) return swapped(t, false) end)
end]] },

  stacked_rotary = { text = [[
---One Linear with q, k and v below each other; queries and keys have interleaved rows on the right.
local stacked_rotary = actions.pair("stacked qkv + rotary", function(t, at)
  local q, k, v = unpack(actions.qkv.stacked.forward(t, at))
  return { actions.rotary.queries.forward(q, at), actions.rotary.keys.forward(k, at), v }
end, function(parts, at)
  local q, k, v = unpack(parts)
  return actions.qkv.stacked.backward({ actions.rotary.queries.backward(q, at), actions.rotary.keys.backward(k, at), v }, at)
end, { parts = 3 })]] },

  first_row_last = { text = [[
---The first row of the left is the last one of the right. `dims`: of the left, with leading dims of 1.
local function first_row_last(dims)
  return actions.pair("first row last", function(t)
    local shape = t:shape()
    t = t:reshape { shape[dims - 1], shape[dims] }
    return cbk.cat({ t:slice(0, 1, shape[dims - 1]), t:slice(0, 0, 1) }, 0)
  end, function(t)
    local rows, shape = t:shape()[1], { t:shape()[1], t:shape()[2] }
    for _ = 3, dims do table.insert(shape, 1, 1) end
    return cbk.cat({ t:slice(0, rows - 1, rows), t:slice(0, 0, rows - 1) }, 0):reshape(shape)
  end)
end]] },

  stacked = { text = [[
---Several tensors on the left are one on the right, in a dimension of its own.
local function stacked(dim, transposed)
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
end]] },

  joined = { text = [[
---Several tensors on the left are one on the right, one behind the other in a dimension; `count` of them.
local function joined(dim, count)
  return actions.pair("joined", function(parts) return cbk.cat(parts, dim) end, function(t, at)
    return t:split(t:shape()[dim + 1] / count(at), dim)
  end)
end]] },
}

definitions.texts_by_name.counted = { text = [[
---For rules.each: how many keys a layer has. Those with 0, 1, 2, … between what `own` catches are counted; where the one tensor is read,
---it is the extent in a dimension. All layers have as many. `digits`: that a number has at least.
local function counted(side, own, dim, digits)
  local run, known, expected
  local function count_keys(at)
    local before, after = at.key:match(own)
    local id = before .. " " .. after
    if not known[id] then
      local count, form = 0, "%0" .. (digits or 1) .. "d"
      while at:source(before .. form:format(count) .. after) do count = count + 1 end
      known[id] = count
    end
    return known[id]
  end
  return function(at)
    if not at.key then return 0 end -- only the configs were read so far
    if at ~= run then run, known, expected = at, {}, nil end
    local count = at.side == side and count_keys(at) or at:source(at.key):shape()[dim + 1]
    expected = expected or count
    if count ~= expected then
      cbk.fail("key", ("the layers have different numbers of such keys, %d and %d; is the checkpoint complete?"):format(expected, count))
    end
    return count
  end
end]] }

-- Definitions for the numbers of layers.
definitions.texts_by_name.shifted = { text = [[
---The right counts layers from another number.
local function shifted(by)
  return { forward = function(n) return n + by end, backward = function(n) return n - by end }
end]] }

-- Definitions for config fields.
definitions.texts_by_name.in_map = { text = [[
---A map on the right; of each entry its name, and the field of the left that it is, or a value that it always has.
local function in_map(entries)
  return {
    forward = function(_, at)
      local map = cbk.dict()
      for _, one in ipairs(entries) do
        local entry = one[1]
        if one.field then map[entry] = cbk.raw(at.from, one.field) else map[entry] = one.value end
      end
      return map
    end,
    backward = function(map, at)
      for _, one in ipairs(entries) do
        if one.field then at:set(one.field, cbk.raw(map, one[1])) end
      end
    end,
  }
end]] }
definitions.texts_by_name.times_field = { text = [[
---The right is the left times another field.
local function times_field(of_left, of_right)
  return {
    forward = function(value, at) return value * at.from[of_left] end,
    backward = function(value, at) return value / at.from[of_right] end,
  }
end]] }

definitions.texts_by_name.in_no_section = { text = [[
---The right config has no section for these parts: they get an empty one while rules run.
local function in_no_section(parts)
  return {
    read = function(config)
      for _, part in ipairs(parts) do config[part] = config[part] or cbk.dict() end
      return config
    end,
    write = function(config)
      for _, part in ipairs(parts) do config[part] = nil end
      return config
    end,
  }
end]] }

-- Definitions for facts that are known only from the pair.
definitions.texts_by_name.as_in_pair = { text = [[
-- The pair that this converter was inferred from shows numbers such as the size of a head, but not whether other checkpoints have the
-- same ones. A wrong number would go unnoticed, so other shapes are refused where one counts. If your checkpoints have the same numbers,
-- set this to true (`cbk infer --same-sizes` does). If not, infer the converter again, with configs that give them.
local has_same_sizes = false

---@param what string    the numbers
---@param known string   the shapes in the pair
---@param found string
---@param key? string     of the tensor with these shapes, if it is not the one at hand
---@param has_configs? boolean   the pair's configs did not tell the numbers
local function check_known(what, known, found, key, has_configs)
  if has_same_sizes or ("; " .. known .. ";"):find("; " .. found .. ";", 1, true) then return end
  cbk.fail("shape", ("the pair that the converter was inferred from has %s, with the shape %s %s; with %s, these numbers may be others: "
    .. "if they are the same, set has_same_sizes = true in the converter, else infer it again, %s")
    :format(what, known, key and "of " .. cbk.quote(key) or "here", found, has_configs and "from a pair with other numbers"
      or "with --src-config and --tgt-config that give these numbers"))
end

---The shape of a tensor, or those of a list: "32x32 + 16x32", "3 of 4x3".
local function shapes_of(value)
  local shapes = {}
  for i, t in ipairs(type(value) == "table" and value or { value }) do shapes[i] = table.concat(cbk.totable(t:shape()), "x") end
  for _, one in ipairs(shapes) do
    if one ~= shapes[1] then return table.concat(shapes, " + ") end
  end
  return (#shapes > 1 and #shapes .. " of " or "") .. shapes[1]
end

---The same for numbers of the pair's config, with which tensors of one shape may be something else.
local function check_numbers(what, numbers, config)
  local names = {}
  for name in pairs(has_same_sizes and {} or numbers) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local number = numbers[name]
    local fine, found = pcall(function() return config[name] end)
    if not fine then found = nil end
    if type(number) == "table" then
      check_numbers(what, number, found)
    elseif found ~= number then
      cbk.fail("config", ("the pair that the converter was inferred from has %s, and %s = %s in the config; here it is %s, with which "
        .. "these numbers may be others: infer the converter again, from a pair with this number")
        :format(what, cbk.shown(tostring(name)), cbk.shown(tostring(number)), found == nil and "missing" or cbk.shown(tostring(found))))
    end
  end
end

---The same for a table of numbers, of the side that is read.
---@param counts_layers boolean   also numbers of layers
local function check_all_numbers(what, numbers, at, counts_layers)
  check_numbers(what, numbers[at.side], at[at.side])
  if counts_layers then check_numbers(what, numbers.layers[at.side], at[at.side]) end
end

---An action with numbers of the pair, for tensors with the shapes that they have there, and configs with the same `numbers`.
local function as_in_pair(what, left, right, action, numbers, counts_layers)
  local function checked(apply, known)
    return function(value, at)
      check_known(what, known, shapes_of(value), nil, numbers ~= nil)
      if numbers then check_all_numbers(what, numbers, at, counts_layers) end
      return apply(value, at)
    end
  end
  return actions.pair(action.name, checked(action.forward, left), checked(action.backward, right), { parts = action.parts })
end]] }
definitions.texts_by_name.flags_as_in_pair = { needs = { "as_in_pair" }, text = [[
---Refuses a config with other strings and booleans than those of the pair: the order of a weight's elements may depend on them. Take a
---field out of the table if none does.
local function flags_as_in_pair(flags)
  local function check(config, known, place)
    for name, value in pairs(known) do
      local found = config[name]
      if type(value) == "table" then
        if cbk.kind(config, name) == "dict" then check(found, value, place .. tostring(name) .. ".") end
      elseif found ~= nil and found ~= cbk.null and not fields.same(found, value) then
        cbk.fail("config", ("the pair that the converter was inferred from has %s = %s in the config; here it is %s, with which the "
          .. "elements of weights may be in another order: infer the converter again, from a pair with this value, or take the field "
          .. "out of 'flags' in the converter if no weight depends on it")
          :format(cbk.shown(place .. tostring(name)), fields.shown(value), fields.shown(found)))
      end
    end
  end
  return function(config)
    if not has_same_sizes then check(config, flags, "") end
  end
end]] }
definitions.texts_by_name.only_with = { text = [[
---Several actions do the same with this number, which the right config of the pair gives. With another one they differ, and which of
---them is right is unknown.
local function only_with(what, number_of, number, action)
  local function checked(apply)
    return function(value, at)
      local found = number_of(at.right)
      if found == number then return apply(value, at) end
      cbk.fail("config", ("the pair that the converter was inferred from has %s = %g, with which several actions do the same; here it is "
        .. "%s: infer the converter from a pair with a larger one"):format(what, number, tostring(found)))
    end
  end
  local function plain(value) return value end
  return actions.pair(action and action.name or "copy", checked(action and action.forward or plain),
    checked(action and action.backward or plain), { parts = action and action.parts or nil })
end]] }
definitions.texts_by_name.made_in_pair = { needs = { "as_in_pair" }, text = [[
---A function that makes a tensor with numbers of the pair; other tensors of the checkpoint have the shapes that they have there.
local function made_in_pair(what, witnesses, make, numbers, counts_layers)
  return function(at, value)
    if numbers then check_all_numbers(what, numbers, at, counts_layers) end
    for key, known in pairs(witnesses) do
      local t = at:source(key)
      check_known(what, known, t and shapes_of(t) or "none", key)
    end
    return make(at, value)
  end
end]] }
definitions.texts_by_name.differs_from = { text = [[
---Whether the tensor at hand, a further name of another one, has other values. They would be lost. `original`: its key, with the numbers
---that `own` catches.
local function differs_from(own, original, is_transposed)
  return function(at)
    local numbers = { at.key:match(own) }
    for i, digits in ipairs(numbers) do numbers[i] = tonumber(digits) or digits end
    local t = at:source(original:format(unpack(numbers)))
    if not t then return true end
    return kinds.differ(at:source(at.key), is_transposed and t:transpose(0, 1) or t)
  end
end]] }
definitions.texts_by_name.unlike = { text = [[
---Whether the tensor at hand has other values than those that are made on the way back.
local function unlike(make)
  return function(at)
    local t = at:source(at.key)
    return kinds.differ(t, make(t, at))
  end
end]] }
definitions.texts_by_name.as_many_layers = { text = [[
---An action for a key whose number is another one on the other side. What it is in a model with more or fewer layers is unknown.
local function as_many_layers(keys, action)
  local function checked(apply)
    return function(value, at)
      local own = keys[at.side]
      if own and (not at:source(own.last) or at:source(own.beyond)) then
        cbk.fail("key", ("its number is another one on the other side; the pair that the converter was inferred from has layers up to "
          .. "'%s', and with more or fewer the number may differ"):format(own.last))
      end
      if apply then return apply(value, at) end
      return value
    end
  end
  return actions.pair(action and action.name or "copy", checked(action and action.forward), checked(action and action.backward),
    { parts = action and action.parts or nil })
end]] }
definitions.texts_by_name.only_equal = { text = [[
---All elements were equal in the pair, so nothing is known of their order.
local function only_equal(action)
  local function checked(value, apply, at)
    for _, t in ipairs(type(value) == "table" and value or { value }) do
      local n = t:numel()
      local flat = t:reshape { -1 }
      if n > 1 and kinds.differ(flat:slice(0, 1, n), flat:slice(0, 0, n - 1)) then
        cbk.fail("shape", "all its elements were equal in the pair that the converter was inferred from, so their order in the other "
          .. "layout is unknown; infer it from a pair with other values")
      end
    end
    if apply then return apply(value, at) end
    return value
  end
  return actions.pair("equal elements", function(value, at) return checked(value, action and action.forward, at) end,
    function(value, at) return checked(value, action and action.backward, at) end, { parts = action and action.parts or nil })
end]] }

-- Definitions for buffers.
definitions.texts_by_name.rows_of = { text = [[
---The rows of another tensor of the checkpoint that is read.
local function rows_of(at, key)
  local t = at:source(key)
  if not t then cbk.fail("key", ("'%s' is missing; the size of another tensor follows from its rows"):format(key)) end
  return t:shape()[1]
end]] }
definitions.texts_by_name.triangle = { text = [[
---Square matrices with one number on the diagonal and below it, and another one above; with `is_upper`, on the diagonal and above it, and
---another one below.
local function triangle(shape, inside, outside, dtype, is_upper)
  local ones = cbk.tril(shape, { dtype = "float64" })
  if is_upper then ones = ones:transpose(#shape - 2, #shape - 1) end
  local out = ones:affine(inside - outside, outside)
  if math.abs(outside) == 1 / 0 then out = ((ones - 1) * -outside):replace_nan(inside) end -- 0 times infinity is NaN
  if math.abs(inside) == 1 / 0 then out = (ones * inside):replace_nan(outside) end
  return out:to(dtype)
end]] }
definitions.texts_by_name.identity = { text = [[
---Ones on the diagonal, zeros elsewhere.
local function identity(shape, dtype)
  local ones = cbk.tril(shape, { dtype = "float64" })
  return (ones + ones:transpose(#shape - 2, #shape - 1) - 1):to(dtype)
end]] }
definitions.texts_by_name.rotary_frequencies = { text = [[
---1 / base^(2i / dim) as PyTorch computes it: each step is rounded to float32. `scaling`: rope_scaling of a config, whose types "linear"
---and "llama3" change the frequencies themselves.
local function rotary_frequencies(base, dim, scaling)
  if dim > 2 ^ 16 then cbk.fail("shape", ("expected at most %d rotated rows, found %.0f"):format(2 ^ 16, dim)) end
  local function rounded(number_at)
    local out = {}
    for i = 1, dim / 2 do out[i] = number_at(i) end
    return cbk.tensor(out, { dtype = "float32" }):tolist()
  end
  local exponents = rounded(function(i) return 2 * (i - 1) / dim end)
  local powers = rounded(function(i) return base ^ exponents[i] end)
  local out = rounded(function(i) return 1 / powers[i] end)
  local kind = scaling and scaling ~= cbk.null and (scaling.rope_type or scaling.type)
  if kind == "linear" or kind == "llama3" then
    local plain = out
    local slow = rounded(function(i) return plain[i] / scaling.factor end)
    out = slow
    if kind == "llama3" then
      local least, most = scaling.low_freq_factor, scaling.high_freq_factor
      local length = scaling.original_max_position_embeddings
      local waves = rounded(function(i) return 2 * math.pi / plain[i] end)
      local turns = rounded(function(i) return length / waves[i] end)
      local above = rounded(function(i) return turns[i] - least end)
      local smooth = rounded(function(i) return above[i] / (most - least) end)
      local rest = rounded(function(i) return 1 - smooth[i] end)
      local low = rounded(function(i) return rest[i] * slow[i] end)
      local high = rounded(function(i) return smooth[i] * plain[i] end)
      out = rounded(function(i)
        if waves[i] > length / least then return slow[i] end
        return waves[i] < length / most and plain[i] or low[i] + high[i]
      end)
    end
  elseif kind and kind ~= "default" and kind ~= "dynamic" then
    cbk.fail("config", ("rotary frequencies of type '%s' are unknown"):format(tostring(kind)))
  end
  return cbk.tensor(out, { dtype = "float32" })
end]] }
definitions.texts_by_name.slopes_of = { text = [[
---The slopes of ALiBi positions for n heads.
local function slopes_of(n, shape, dtype)
  local at = { right = { position_embedding_type = "alibi", num_heads = n } }
  return actions.buffer.alibi_slopes(at):reshape(shape):to(dtype)
end]] }
definitions.texts_by_name.numbered = { text = [[
---0, 1, 2, …
local function numbered(shape, dtype)
  local out, count = {}, 1
  for _, extent in ipairs(shape) do count = count * extent end
  if count > 2 ^ 20 then cbk.fail("shape", ("expected at most %d positions, found %.0f"):format(2 ^ 20, count)) end
  for i = 1, count do out[i] = i - 1 end
  return cbk.tensor(out, { dtype = dtype, shape = shape })
end]] }

local function with_needs(wanted, out)
  for _, name in ipairs(wanted) do
    with_needs(definitions.texts_by_name[name].needs or {}, out)
    if not out[name] then
      out[name] = true
      out[#out + 1] = definitions.texts_by_name[name].text
    end
  end
  return out
end

---The texts of some definitions and of those that they need.
---@param wanted string[]
---@return string[]
function definitions.texts(wanted) return with_needs(wanted, {}) end

local prelude
local MOST_EVALUATED = 512
local evaluated, evaluated_count = {}, 0 -- a cache: the same few expressions are tried on many tensors

---The value of an expression in a converter's file.
---@param choice Choice
---@return Action
function definitions.evaluate(choice)
  if not prelude then
    prelude = {}
    for i, module in ipairs(definitions.modules) do prelude[i] = ('local %s = require "%s"'):format(module[1], module[2]) end
    prelude = table.concat(prelude, "\n") .. "\n"
  end
  local id = table.concat(choice.needs or {}, " ") .. "\n" .. choice.text
  if evaluated[id] == nil then
    local text = prelude .. table.concat(definitions.texts(choice.needs or {}), "\n") .. "\nreturn " .. choice.text
    if evaluated_count == MOST_EVALUATED then evaluated, evaluated_count = {}, 0 end
    evaluated[id], evaluated_count = assert(loadstring(text, "=" .. choice.text))() or false, evaluated_count + 1
  end
  return evaluated[id] or nil
end

return definitions
