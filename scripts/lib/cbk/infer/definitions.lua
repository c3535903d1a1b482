-- The functions that an inferred converter defines for itself, as source text, and what an expression with them gives. What is tried on
-- the tensors is what is written.

local definitions = {}

---The modules that an inferred converter may use, in the order of its file.
definitions.modules = {
  { "cbk", "cbk" }, { "rules", "converters.engine.rules" }, { "fields", "converters.engine.fields" },
  { "actions", "converters.vocabulary.actions" }, { "heads", "converters.vocabulary.heads" },
  { "rotary", "converters.vocabulary.rotary" }, { "values", "converters.vocabulary.values" },
}

-- --- definitions that a file gets if it uses them

---@type table<string, { needs?: string[], text: string }>
definitions.texts_by_name = {
  reversed = { text = [[
---An action for the other direction.
local function reversed(action) return actions.pair(action.name, action.backward, action.forward) end]] },

  cast = { text = [[
---The left has one dtype, the right another; with an action as well, that one first.
local function cast(left, right, action)
  local function all(value, dtype)
    if type(value) ~= "table" then return value:to(dtype) end
    local out = {}
    for i, one in ipairs(value) do out[i] = one:to(dtype) end
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

local function rotary_rows(size, dim)
  return actions.pair("rotary rows", function(t) return interleaved(t, size, dim, true) end,
    function(t) return interleaved(t, size, dim, false) end)
end]] },

  fused = { needs = { "rotary_rows" }, text = [[
---One tensor on the left, several on the right, by rows; by columns with `columns`, or with `transposed` by columns that are rows on
---the right. `per` has the share of each part. Without `groups` and `size` the parts are below each other. With one of these they
---alternate, in that many groups or in heads of that many rows. `rotary`: size and rotated rows of a head, of the first two parts.
local function fused(options)
  local per, all, dim = options.per, 0, options.rotary
  for _, share in ipairs(per) do all = all + share end
  local function turned(t) return (options.transposed or options.columns) and t:dim() == 2 and t:transpose(0, 1) or t end
  local function turned_part(t) return options.columns and turned(t) or t end
  local function rotated(t, i, to_pairs) return dim and i < 3 and interleaved(t, dim[1], dim[2], to_pairs) or t end
  local function groups_of(rows) return options.groups or options.size and rows / (all * options.size) or 1 end
  return actions.pair("fused", function(t)
    t = turned(t)
    local shape, out, from = t:shape(), {}, 0
    local groups = groups_of(shape[1])
    local rows = shape[1] / groups / all
    if rows % 1 ~= 0 then cbk.fail("shape", ("%d rows do not split into %d parts"):format(shape[1], groups * all)) end
    local view = t:reshape { groups, shape[1] / groups, t:numel() / shape[1] }
    for i, share in ipairs(per) do
      local part = view:slice(1, from * rows, (from + share) * rows)
      out[i] = turned_part(rotated(part:reshape(#shape == 1 and { -1 } or { groups * share * rows, shape[2] }), i, true))
      from = from + share
    end
    return out
  end, function(given)
    local parts, rows, views = {}, 0, {}
    for i, part in ipairs(given) do
      parts[i] = turned_part(part)
      rows = rows + parts[i]:shape()[1]
    end
    local groups, shape = groups_of(rows), parts[1]:shape()
    for i, part in ipairs(parts) do
      views[i] = rotated(part, i, false):reshape { groups, part:shape()[1] / groups, part:numel() / part:shape()[1] }
    end
    return turned(cbk.cat(views, 1):reshape(#shape == 1 and { -1 } or { rows, shape[2] }))
  end, { parts = #per })
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

-- … for config fields.
definitions.texts_by_name.in_map = { text = [[
---Fields of the left that are entries of a map on the right, { num_experts = "num_local_experts" }; and further entries of it.
local function in_map(entries, others)
  return {
    forward = function(_, at)
      local map = cbk.dict()
      for entry, field in pairs(entries) do map[entry] = cbk.raw(at.from, field) end
      for entry, value in pairs(others) do map[entry] = value end
      return map
    end,
    backward = function(map, at)
      for entry, field in pairs(entries) do at:set(field, cbk.raw(map, entry)) end
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

---The texts of some definitions, with what they need.
---@param wanted string[]
---@return string[]
function definitions.texts(wanted) return with_needs(wanted, {}) end

local prelude

---An expression as what it gives in a converter's file.
---@param choice Choice
---@return Action
function definitions.evaluate(choice)
  if not prelude then
    prelude = {}
    for i, module in ipairs(definitions.modules) do prelude[i] = ('local %s = require "%s"'):format(module[1], module[2]) end
    prelude = table.concat(prelude, "\n") .. "\n"
  end
  local text = prelude .. table.concat(definitions.texts(choice.needs or {}), "\n") .. "\nreturn " .. choice.text
  return assert(loadstring(text, "=" .. choice.text))()
end

return definitions
