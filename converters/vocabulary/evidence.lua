-- What `cbk infer` knows of a layout only from the pair that it was inferred from: checks that refuse what may be otherwise elsewhere.

local cbk = require "cbk"
local extents = require "cbk.extents"
local actions = require "converters.vocabulary.actions"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local rules = require "converters.engine.rules"
local shapes = require "converters.notation.shapes"

local evidence = {}

---How many keys an action needs on each side, for actions.pair.
---@param action? Action
local function parts_of(action) return action and { parts = action.parts, left_parts = action.left_parts } end

---What the pair has, nothing explains, and no rule writes: a warning.
---@param keys string
---@return fun()
function evidence.lacks(keys)
  return function() cbk.warn(("the output lacks %s, which cbk infer could not explain: add a rule that writes it"):format(keys)) end
end

---Several actions do the same with this number, which the right config of the pair gives. With another one they differ, and which of
---them is right is unknown.
---@param what string                        the number, for messages
---@param number_of fun(config: Dict): number
---@param number number
---@param action? Action
---@return Action
function evidence.only_with(what, number_of, number, action)
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
    checked(action and action.backward or plain), parts_of(action))
end

---Whether the tensor at hand, a further name of another one, has other values. They would be lost. `original`: its key, with the numbers
---that `own` catches.
---@param own string            a pattern that catches the numbers in the key
---@param original string       "layers.%d.weight"
---@param is_transposed? boolean
---@return fun(at: At): boolean
function evidence.differs_from(own, original, is_transposed)
  return function(at)
    local numbers = { at.key:match(own) }
    for i, digits in ipairs(numbers) do numbers[i] = tonumber(digits) or digits end
    local t = at:source(original:format(unpack(numbers)))
    if not t then return true end
    return kinds.differ(at:source(at.key), is_transposed and t:transpose(0, 1) or t)
  end
end

---Whether the tensor at hand has other values than those that are made on the way back.
---@param make fun(t: Tensor, at: At): Tensor
---@return fun(at: At): boolean
function evidence.unlike(make)
  return function(at)
    local t = at:source(at.key)
    return kinds.differ(t, make(t, at))
  end
end

-- How far two programs' float32 values of one formula may be apart, relative to the value: each step of a formula is rounded, and exponents
-- make an error larger.
local ROUNDING = 2 ^ -20

---Whether a tensor has the values of a formula, in its own dtype: those of float32, rounded in another order.
---@param t Tensor
---@param made Tensor   in float32, or finer
---@return boolean
function evidence.is_rounded(t, made)
  if extents.shape(t:shape()) ~= extents.shape(made:shape()) then return false end
  local values, wanted = t:to("float64"):tolist(), made:to "float64"
  local function bound(sign) return (wanted * (1 + sign * ROUNDING)):to(t.dtype):to("float64"):tolist() end
  local function is_between(value, one, other)
    if type(value) ~= "table" then return value >= math.min(one, other) and value <= math.max(one, other) end
    for i = 1, #value do
      if not is_between(value[i], one[i], other[i]) then return false end
    end
    return true
  end
  return is_between(values, bound(-1), bound(1))
end

---Whether the tensor at hand has other values than those that are made on the way back, not only other rounding: programs compute
---formulas in different orders and dtypes.
---@param make fun(t: Tensor, at: At): Tensor
---@return fun(at: At): boolean
function evidence.beyond_rounding(make)
  return function(at)
    local t = at:source(at.key)
    return not evidence.is_rounded(t, make(t, at))
  end
end

---An action for a key whose number is another one on the other side. What it is in a model with more or fewer layers is unknown.
---@param keys table<"left"|"right", { last: string, beyond: string }>   the last key in the pair, and the one after it
---@param action? Action
---@return Action
function evidence.as_many_layers(keys, action)
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
    parts_of(action))
end

---All elements were equal in the pair, so nothing is known of their order.
---@param action? Action
---@return Action
function evidence.only_equal(action)
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
    function(value, at) return checked(value, action and action.backward, at) end, parts_of(action))
end

-- --- numbers of the pair

---The first number of the pair's config that a config does not have.
---@param known table   fields and their numbers; sections and lists are tables
---@param config Dict
---@return string|nil name
local function other_number(known, config)
  for _, name in ipairs(naming.sorted(known)) do
    local number, kind = known[name], cbk.kind(config, name)
    if kind == "dict" and type(number) == "table" then
      local found = other_number(number, config[name])
      if found then return ("%s.%s"):format(name, found) end
    elseif kind == "list" and type(number) == "table" then
      if #config[name] ~= table.maxn(number) or other_number(number, config[name]) then return name end
    elseif config[name] ~= number then
      return name
    end
  end
end

---For `finish`: sizes of the config that is written, which no field of the other side gives. They are written where the config that is read
---has the numbers of the pair; else a warning names them.
---@param known table   the numbers of the config that is read
---@param sizes table   fields of the one that is written
---@param finish? fun(to: Dict, from: Dict)   what is done besides
---@return fun(to: Dict, from: Dict)
function evidence.sizes(known, sizes, finish)
  return function(to, from)
    if finish then finish(to, from) end
    local other, lacking = other_number(known, from), {}
    for _, name in ipairs(naming.sorted(sizes)) do
      local size = type(sizes[name]) == "table" and cbk.list(sizes[name]) or sizes[name]
      if to[name] == nil and other then
        lacking[#lacking + 1] = ("%s (%s in the pair)"):format(name, fields.shown(size))
      elseif to[name] == nil then -- else a rule gives it
        to[name] = size
      end
    end
    if #lacking == 0 then return end
    cbk.warn(("the config that is written lacks %s: cbk infer found no field that gives it, and %s is another number than in the pair; "
      .. "set it, or add a rule"):format(naming.listed(lacking), other))
  end
end

---@alias PairNumbers { left: table, right: table, layers: { left: table, right: table } }   of configs: fields and their numbers

---@class Known   What takes numbers from the pair. Where they may be others, it is refused.
local unknown = {}

---@param what string    the numbers
---@param known string   the shapes in the pair
---@param found string
---@param key? string     of the tensor with these shapes, if it is not the one at hand
---@param has_configs? boolean   the pair's configs did not tell the numbers
local function check_known(what, known, found, key, has_configs)
  if ("; " .. known .. ";"):find("; " .. found .. ";", 1, true) then return end
  cbk.fail("shape", ("the pair that the converter was inferred from has %s, with the shape %s %s; with %s, these numbers may be others: "
    .. "if they are the same, set has_same_sizes = true in the converter, else infer it again, %s")
    :format(what, known, key and "of " .. cbk.quote(key) or "here", found, has_configs and "from a pair with other numbers"
      or "with --src-config and --tgt-config that give these numbers"))
end

---The shape of a tensor, or those of a list: "32x32 + 16x32", "3 of 4x3".
local function shapes_of(value)
  local texts = {}
  for i, t in ipairs(type(value) == "table" and value or { value }) do texts[i] = table.concat(cbk.totable(t:shape()), "x") end
  for _, one in ipairs(texts) do
    if one ~= texts[1] then return table.concat(texts, " + ") end
  end
  return (#texts > 1 and #texts .. " of " or "") .. texts[1]
end

---The same for numbers of the pair's config, with which tensors of one shape may be something else.
local function check_numbers(what, numbers, config)
  local names = {}
  for name in pairs(numbers) do names[#names + 1] = name end
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
---@param what string             the numbers, for messages
---@param left string             shapes
---@param right string
---@param action Action
---@param numbers? PairNumbers
---@param counts_layers? boolean
---@return Action
function unknown.action(what, left, right, action, numbers, counts_layers)
  local function checked(apply, known)
    return function(value, at)
      check_known(what, known, shapes_of(value), nil, numbers ~= nil)
      if numbers then check_all_numbers(what, numbers, at, counts_layers) end
      return apply(value, at)
    end
  end
  return actions.pair(action.name, checked(action.forward, left), checked(action.backward, right), parts_of(action))
end

---Refuses a config with other strings and booleans than those of the pair: the order of a weight's elements may depend on them. Take a
---field out of the table if none does.
---@param flags table   fields and their values; sections are tables
---@return fun(config: Dict)
function unknown.flags(flags)
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
    check(config, flags, "")
  end
end

---A function that makes a tensor with numbers of the pair; other tensors of the checkpoint have the shapes that they have there.
---@param what string
---@param witnesses table<string, string>   shapes by key
---@param make fun(at: At, value: Tensor): Tensor
---@param numbers? PairNumbers
---@param counts_layers? boolean
---@return fun(at: At, value: Tensor): Tensor
function unknown.made(what, witnesses, make, numbers, counts_layers)
  return function(at, value)
    if numbers then check_all_numbers(what, numbers, at, counts_layers) end
    for key, known in pairs(witnesses) do
      local t = at:source(key)
      check_known(what, known, t and shapes_of(t) or "none", key)
    end
    return make(at, value)
  end
end

-- the same, where other checkpoints have the numbers of the pair
local known = {
  action = function(_, _, _, action) return action end, flags = function() return function() end end,
  made = function(_, _, make) return make end,
}

---The functions that take numbers from the pair: `action`, `made` and `flags`.
---@param has_same_sizes boolean   other checkpoints have the same numbers
---@return Known
function evidence.known(has_same_sizes) return has_same_sizes and known or unknown end

local action, maybe = shapes.named("an action", shapes.table), shapes.maybe

shapes.guard(evidence, "evidence", {
  lacks = { shapes.text }, only_with = { shapes.text, shapes.func, shapes.number, maybe(action) },
  differs_from = { shapes.text, shapes.text, maybe(shapes.flag) }, unlike = { shapes.func },
  beyond_rounding = { shapes.func },
  as_many_layers = { shapes.table, maybe(action) }, only_equal = { maybe(action) },
  sizes = { shapes.table, shapes.table, maybe(shapes.func) }, known = { maybe(shapes.flag) },
})

return rules.strict(evidence, "evidence")
