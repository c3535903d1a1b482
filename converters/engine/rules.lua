-- Tables of key rules, and what each of their rules means (notation/entries.lua: what one may write; patterns.lua: what a pattern is).

local cbk = require "cbk"
local choices = require "converters.notation.choices"
local naming = require "cbk.naming"
local arguments = require "converters.notation.arguments"
local entries = require "converters.notation.entries"
local position = require "converters.notation.position"
local strict = require "converters.engine.strict"
local shapes = require "converters.notation.shapes"

local rules = {}

---@alias Side "left"|"right"
---@class Rule
---@field left? string[]     patterns; several when one tensor on the other side is made of them
---@field right? string[]
---@field action? Action
---@field when? fun(at: At): boolean      the rule is used only if this returns true
---@field also table<Side, { [1]: string, [2]: fun(at: At, value: any): any }[]>  further keys written on that side
---@field number? { forward: fun(n: integer): integer, backward: fun(n: integer): integer }   renumbers keys for the other side
---@field kind? "only"|"drop"|"refuse"   of a rule for one side: what becomes of such a key
---@field why? string        of such a rule
---@field read_only? string  which files have its key on the side where it is read and never written
---@field copy_of? string    for `only`: the pattern of the key with the same values
---@field origin Origin
---@field below? { [1]: Rule, [2]: table|nil }   the two prefixes that the rule was put below, and any earlier ones

---@class Origin   Where a rule was written.
---@field source string    the file
---@field line integer     of the table that it is in
---@field place integer    its place in that table
---@field names string[]   its patterns as written

---@private
rules.other = { left = "right", right = "left" }

-- --- rules in messages

---A rule as its author wrote it: its names with their choices.
---@param rule Rule
---@return string
---@private
function rules.text(rule)
  rule = rule.base or rule
  local function side(list)
    if not list then return nil end
    return #list == 1 and list[1] or "{ " .. table.concat(list, ", ") .. " }"
  end
  local left, right = side(rule.left), side(rule.right)
  if not (left and right) then return (rule.kind or "only") .. "." .. (left and "left " or "right ") .. (left or right) end
  return left == right and left or left .. " <-> " .. right
end

---Several names as one, with their common text written once: "proj_{q,k,v}_dense_layer.weight".
---@param list string[]
---@return string
local function joined(list)
  local start, ending = #list[1], #list[1]
  for _, name in ipairs(list) do
    while name:sub(1, start) ~= list[1]:sub(1, start) do start = start - 1 end
    while ending > 0 and name:sub(-ending) ~= list[1]:sub(-ending) do ending = ending - 1 end
  end
  local middle = {}
  for i, name in ipairs(list) do
    if start + ending >= #name or start == 0 then return "{ " .. table.concat(list, ", ") .. " }" end
    middle[i] = name:sub(start + 1, #name - ending)
  end
  return ("%s{%s}%s"):format(list[1]:sub(1, start), table.concat(middle, ","), ending > 0 and list[1]:sub(-ending) or "")
end

---A rule with its place, for messages.
---@param rule Rule
---@return string
---@private
function rules.named(rule)
  local text = rules.text(rule)
  for _, side in ipairs { "left", "right" } do
    local list = (rule.base or rule)[side]
    if list and #list > 1 then
      local from, to = text:find("{ " .. table.concat(list, ", ") .. " }", 1, true)
      text = from and text:sub(1, from - 1) .. joined(list) .. text:sub(to + 1) or text
    end
  end
  return ("rule '%s' at %s"):format(text, position.of(rule))
end

-- --- writing tables

local list = entries.list

local function also(entry)
  local out = {}
  for i, one in ipairs(list(entry) or {}) do
    if type(one) ~= "table" then one = { one } end
    out[i] = { one[1], one[2] or function(_, value) return value end, is_copy = one[2] == nil }
  end
  return out
end

---The shortest name in the vocabularies that has all words of an unknown name: "rotary.set_dim" for "set_rotary_dim".
---@param name string
---@return string|nil
local function by_words(name)
  local found
  local function look(library, path)
    for own, inner in pairs(library) do
      local inside, has_all = path .. "." .. own, name ~= ""
      local words = "_" .. inside:gsub("%.", "_") .. "_"
      for word in name:gmatch "[^_]+" do has_all = has_all and words:find("_" .. word .. "_", 1, true) ~= nil end
      if has_all and (not found or #inside < #found or #inside == #found and inside < found) then found = inside end
      if type(inner) == "table" and getmetatable(inner) then look(inner, inside) end
    end
  end
  for _, one in ipairs { "actions", "rotary", "values" } do
    local vocabulary = package.loaded["converters.vocabulary." .. one]
    if type(vocabulary) == "table" then look(vocabulary, one) end -- else it is not loaded yet
  end
  return found
end

---Makes unknown names of a library errors. A misspelt action would be nil, and its rule a plain copy.
---@generic T
---@param library T
---@param what string    "action"
---@return T
---@private
function rules.strict(library, what, prefix)
  prefix = prefix or ""
  for name, inner in pairs(library) do
    local kind = type(inner) == "table" and inner.forward == nil and type(select(2, next(inner))) -- else it is plain data
    if kind == "function" or kind == "table" then rules.strict(inner, what, prefix .. name .. ".") end
  end
  return strict(library, what, prefix, function(name)
    local near = cbk.nearest(name, naming.sorted(library))[1]
    return by_words(name) or near and prefix .. near
  end)
end

local function changed(patterns, change)
  if not patterns then return nil end
  local out = { each = patterns.each }
  for i, pattern in ipairs(patterns) do out[i] = change(pattern) end
  return out
end

local function changed_extras(patterns, change)
  local out = {}
  for i, extra in ipairs(patterns) do out[i] = { change(extra[1]), extra[2], is_copy = extra.is_copy } end
  return out
end

---A copy of `rule` with every pattern of each side passed through the side's function.
---@param rule Rule
---@param change table<Side, fun(pattern: string): string>
---@return Rule
---@private
function rules.map(rule, change)
  local out = {}
  for name, value in pairs(rule) do out[name] = value end
  out.left, out.right = changed(rule.left, change.left), changed(rule.right, change.right)
  out.also = { left = changed_extras(rule.also.left, change.left), right = changed_extras(rule.also.right, change.right) }
  if rule.copy_of then out.copy_of = change[rule.left and "left" or "right"](rule.copy_of) end
  return out
end

---The patterns of a rule, in an order of their own.
---@return string[]
local function patterns_of(rule)
  local out = {}
  for _, side in ipairs { "left", "right" } do
    for _, pattern in ipairs(rule[side] or {}) do out[#out + 1] = pattern end
    for _, extra in ipairs(rule.also[side]) do out[#out + 1] = extra[1] end
  end
  out[#out + 1] = rule.copy_of
  return out
end

-- --- choices

---The same function for both sides, for `rules.map`.
local function on_both(change) return { left = change, right = change } end

---The first choice of a rule, and the pattern that has it.
---@return Choice|nil, string
local function first_choice(rule)
  for _, pattern in ipairs(patterns_of(rule)) do
    local choice = choices.of(pattern)[1]
    if choice then return choice, pattern end
  end
end

local function expand(rule, out)
  local first, where = first_choice(rule)
  if not first then
    out[#out + 1] = rule
    return
  end
  local function own_choice(pattern, is_needed)
    local own, second = unpack(choices.partners(pattern, first, where))
    if second or is_needed and not own then
      cbk.fail("converter", ("%s: the choices in '%s' and '%s' do not correspond%s"):format(rules.named(rule), where, pattern,
        second and (": '%s' may go with '%s' or '%s'"):format(first.words, own.words, second.words) or ""))
    end
    return own
  end
  for side in pairs(rules.other) do
    for _, pattern in ipairs(rule[side] or {}) do own_choice(pattern, first.kind ~= "[") end
  end
  for i = 1, #first.texts do
    local one = rules.map(rule, on_both(function(pattern)
      local own = own_choice(pattern)
      return own and choices.take(pattern, own, i) or pattern
    end))
    one.base = rule.base or rule
    expand(one, out)
  end
end

---A rule without choices for each choice of a rule. `{…}` goes with the `{…}` of the other side that has the same text, else with the one
---of as many options. `[…]` goes with `[…]`, which one side may lack. The field `base` keeps the original rule.
---@param rule Rule
---@return Rule[]
---@private
function rules.expand(rule)
  local out = {}
  expand(rule, out)
  return out
end

---Whether all patterns of a rule have one choice, with the same texts: these correspond.
---@param all string[]   the patterns
local function has_one_choice(all)
  local words = (choices.of(all[1])[1] or {}).words
  for _, pattern in ipairs(all) do
    local own = choices.of(pattern)
    if #own ~= 1 or own[1].words ~= words then return false end
  end
  return true
end

---Fails on invalid patterns, and on choices that do not correspond.
---@return Rule
local function checked(rule)
  local has_choices, all = false, patterns_of(rule)
  for _, pattern in ipairs(all) do
    local mistake = choices.mistake(pattern)
    if mistake then cbk.fail("converter", ("%s: %s"):format(rules.named(rule), mistake)) end
    has_choices = has_choices or #choices.of(pattern) > 0
  end
  if has_choices and not has_one_choice(all) then rules.expand(rule) end
  return rule
end

-- --- tables

---Whether a table copies all keys of a side.
---@param set Rule[]
---@param side Side
---@private
function rules.reads_all(set, side)
  for _, rule in ipairs(set) do
    if rule.kind == nil and rule[side] and rule[side][1]:find("*", 1, true) then return true end
  end
  return false
end

local function below(prefix)
  return function(pattern) return prefix == "" and pattern or prefix .. "." .. pattern end
end

local function variant(base, change)
  local out = {}
  for key, value in pairs(base) do out[key] = value end
  for key, value in pairs(change or {}) do out[key] = value end
  return out
end

---`rules.keys { { left, right, action }, … }`: a table of key rules. A key without a partner has the same name on both sides. A table
---of rules in the third place applies below the two names. `false` in place of a rule is skipped.
---@return Rule[]
function rules.keys(written)
  local out, source, line = { is_rules = true }, position.here(3)
  local function add(rule) out[#out + 1] = rule end
  local function origin(place, ...) return { source = source, line = line, place = place, names = { ... } } end
  for name in pairs(written) do
    if type(name) ~= "number" then position.fail(source, line, "a table of keys has no option '%s'", name) end
  end
  for place = 1, table.maxn(written) do
    local entry = written[place] or { is_rules = true }
    entries.check(entry, place, source, line)
    local left, right, inner = list(entry[1]), list(entry[2] or entry[1]), entry[3]
    if entry.is_rules then
      for _, rule in ipairs(entry) do add(rule) end
    elseif entry.kind then
      add(entry)
    elseif type(inner) == "table" and inner.is_rules then
      local change, has_choices = { left = below(left[1]), right = below(right[1]) }, (left[1] .. right[1]):find "[%[{]"
      local names = { left = left, right = right, also = { left = {}, right = {} }, origin = origin(place, left[1], right[1]) }
      for _, rule in ipairs(inner) do
        local one = rules.map(rule, change)
        if has_choices then checked(one) end
        one.below = { names, rule.below }
        one.read_only = not one.kind and entry.read_only or one.read_only
        add(one)
      end
    else
      add(checked {
        left = left, right = right, action = inner, when = entry.when, number = entry.number, read_only = entry.read_only,
        also = { left = also(entry.also_left), right = also(entry.also_right) },
        origin = origin(place, left[1], right[1]),
      })
    end
  end
  return out
end

local function one_sided(kind)
  local make = {}
  for side in pairs(rules.other) do
    make[side] = function(pattern, why, last)
      local source, line = position.here(3)
      return checked {
        [side] = { pattern }, kind = kind, why = why, also = { left = {}, right = {} },
        copy_of = kind == "only" and last or nil, when = kind ~= "only" and last or nil,
        origin = { source = source, line = line, place = 1, names = { pattern } },
      }
    end
  end
  return setmetatable(make, { __call = function()
    local source, line = position.here(3)
    position.fail(source, line, "which side has the key? Write rules.%s.left(...) or rules.%s.right(...)", kind, kind)
  end })
end

---`rules.only.left(pattern, why, copy_of)`: only that side has the key, and the other side does not need it. `copy_of` is the pattern
---of a key with the same values; if that key is missing or differs, a warning names both.
rules.only = one_sided "only"
---`rules.drop.left(pattern, why, when)`: the key has no place on the other side. A warning names it.
rules.drop = one_sided "drop"
---`rules.refuse.left(pattern, why, when)`: such a key is an error.
rules.refuse = one_sided "refuse"

---@class Each
---@field letter string
---@field count string|fun(at: At): integer   how many values it has: a field of the right config, or a function
---@field place? integer                      the letter's index among the captures
---@field itself? table<string, string>       the letter as its own value, to name all keys at once

---A list of keys, one for each value of a capital letter: `rules.each("experts.E.w1.weight", "E", "num_experts")`. Of several patterns,
---all keys of the first one come first.
---@param pattern string|string[]
---@param letter string
---@param count string|fun(at: At): integer   a field of the right config, or `function(at)`
function rules.each(pattern, letter, count)
  local out = { each = { letter = letter, count = count } }
  for i, one in ipairs(type(pattern) == "table" and pattern or { pattern }) do
    if not (("." .. one .. "."):find("." .. letter .. ".", 1, true) or one:find("{" .. letter .. "[:}]")) then
      local source, line = position.here(3)
      position.fail(source, line, "rules.each: '%s' has no letter '%s'", one, letter)
    end
    out[i] = one
  end
  return out
end

---A copy of a converter with other values for some fields. `false` removes a field.
---@param converter Converter
---@param change? table
---@return Converter
function rules.variant(converter, change) return variant(converter, change) end

---A copy of a converter for these two formats: `rules.between("cs-2.0", "cs-2.1", decoder.to_2_1)`.
---@param left string
---@param right string
---@param converter Converter
---@param change? table
---@return Converter
function rules.between(left, right, converter, change)
  local out = variant(converter, change)
  out[1], out[2] = left, right
  return out
end

shapes.guard(rules, "rules", arguments.rules)

return rules.strict(rules, "function", "rules.")
