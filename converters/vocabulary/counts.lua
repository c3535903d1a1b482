-- Numbers that a conversion needs, from configs and keys: rows of heads, layers, parts.

local cbk = require "cbk"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"

local counts = {}

---A number of the config that is read.
---@param left fun(at: At): number
---@param right fun(at: At): number
---@return fun(at: At): number
function counts.by_side(left, right)
  return function(at)
    if at.side == "left" then return left(at) end
    return right(at)
  end
end

---A number that several fields gave in the pair. If they differ, it is unknown which of them counts: keep the right one.
---@param first number
---@param ... number
---@return number
function counts.agreed(first, ...)
  for _, other in ipairs { ... } do
    if other ~= first then
      cbk.fail("config", ("fields that gave one number in the pair that the converter was inferred from give %g and %g here: keep the "
        .. "right one in the converter"):format(first, other))
    end
  end
  return first
end

---The one number of a list, such as one for each layer. If they differ, layers differ: rules are for all of them.
---@param list List
---@return number
function counts.same(list)
  if type(list) == "number" then return list end
  for i = 2, #list do
    if list[i] ~= list[1] then
      cbk.fail("config", ("a list of one number in the pair that the converter was inferred from has %g and %g here: a rule reads it as "
        .. "one number for all"):format(list[1], list[i]))
    end
  end
  return list[1]
end

---The rows of a head: the width of the model by its number of heads. A config that says another size of heads means that one.
---@param config Dict
---@param width number
---@param heads number
---@return number
function counts.rows_agreed(config, width, heads)
  for _, name in ipairs { "head_dim", "d_kv", "head_size", "d_head", "kv_channels", "attention_head_dim", "size_per_head" } do
    if type(config[name]) == "number" then counts.agreed(width / heads, config[name]) end
  end
  local inner = config.attention_inner_dim -- the width of all heads, where it is another one
  if type(inner) == "number" then counts.agreed(width / heads, inner / heads) end
  return width / heads
end

---For rules.each: how many keys a layer has. Those with 0, 1, 2, … between what `own` catches are counted; where the one tensor is read,
---it is the extent in a dimension. All layers have as many. `digits`: that a number has at least.
---@param side "left"|"right"   that has the keys
---@param own string|string[]   a Lua pattern for each of the rule's, with two captures: what is before and behind the number
---@param dim integer         from 0
---@param digits? integer
---@return fun(at: At): integer
function counts.counted(side, own, dim, digits)
  local run, known, expected
  local owns = type(own) == "table" and own or { own }
  local function count_keys(at)
    local before, after
    for _, one in ipairs(owns) do
      if not before then before, after = at.key:match(one) end
    end
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
end

---The rows of another tensor of the checkpoint that is read.
---@param at At
---@param key string
---@return integer
function counts.rows_of(at, key)
  local t = at:source(key)
  if not t then cbk.fail("key", ("'%s' is missing; the size of another tensor follows from its rows"):format(key)) end
  return t:shape()[1]
end

---The right counts layers from another number.
---@param by integer
---@return { forward: fun(n: integer): integer, backward: fun(n: integer): integer }
function counts.shifted(by)
  return { forward = function(n) return n + by end, backward = function(n) return n - by end }
end

local whole = shapes.of("a whole number", function(value) return type(value) == "number" and value % 1 == 0 end)
shapes.guard(counts, "counts", {
  by_side = { shapes.func, shapes.func }, shifted = { whole },
  counted = { shapes.one_of { "left", "right" }, shapes.either(shapes.text, shapes.list(shapes.text, "a list of patterns")),
    shapes.index, shapes.maybe(shapes.size) },
})

return rules.strict(counts, "count")
