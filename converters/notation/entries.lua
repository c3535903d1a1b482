-- Checks of the entries in tables of keys and of config fields.

local cbk = require "cbk"
local choices = require "converters.notation.choices"
local naming = require "cbk.naming"
local position = require "converters.notation.position"
local shapes = require "converters.notation.shapes"

local entries = {}

---@return table|nil   a list, maybe of one value
function entries.list(value)
  if value == nil or value == false then return nil end
  return type(value) == "table" and value or { value }
end

local list = entries.list
local text, func, either = shapes.text, shapes.func, shapes.either

local extra = either(text, shapes.record("{ pattern, function }", { text, func }, { 1 }))
local extras = either(text, shapes.list(extra, "a list of patterns or { pattern, function }"))

-- --- what an entry may have

---@class KeyOptions
---@field when? fun(at: At): boolean   `function(at)`: the rule is used only if it returns true.
---@field also_left? table      Further keys that are written on that side: a pattern, or a list of patterns and
---                             `{ pattern, function(at, tensor) }`. A function that returns nil writes none. They are not read.
---@field also_right? table     The same for the right side.
---@field number? FieldAction   A pair `{ forward = …, backward = … }` over the numbers in a key, for layers 0, 2, 4 that become 0, 1, 2.
---@field read_only? string     The key of one side is read and never written, because an earlier rule writes that tensor. The text says
---                             which files have it. Also of a table of rules.

---The options of a key rule, besides its two names and its action.
---@type table<string, Shape>
entries.options = {
  when = func, also_left = extras, also_right = extras, read_only = shapes.named("a string that says which files have it", text),
  number = shapes.record("a pair of functions, forward and backward", { forward = func, backward = func }, { "forward", "backward" }),
}

local pair_of_functions = shapes.record("a pair of functions", { forward = func, backward = func, further_names = shapes.table })

---Reports a mistake in an entry with its place: the first line with its names from that of the table on.
---@param what string      "keys"
---@param entry any
---@param place integer    in its table
---@param source string
---@param line integer     of the table
local function fail(mistake, what, entry, place, source, line)
  local names = {}
  for i = 1, 2 do names[#names + 1] = type(entry) == "table" and type(entry[i]) == "string" and entry[i] or nil end
  cbk.fail("converter", ("entry %d of this table of %s: %s"):format(place, what, mistake),
    { context = { position.of_entry(source, line, names) } })
end

---A mistake in an entry's options.
---@param options table<string, Shape>
---@return string|nil
local function mistake_in_options(entry, options)
  for name, value in pairs(entry) do
    local wanted = options[name]
    if wanted then
      local mistake = wanted.mistake(value, name)
      if mistake then return mistake end
    elseif type(name) ~= "number" then
      local known = naming.sorted(options)
      return ("a rule has no option '%s'%s"):format(tostring(name), #known > 0 and "; known: " .. table.concat(known, ", ") or "")
    end
  end
end

-- --- keys

---Several keys on a side are a list of tensors, which needs an action; an action with `parts` needs that many on the right, and
---`left_parts` (by default one) on the left.
local function mistake_in_counts(entry, action)
  local left, right = list(entry[1]), list(entry[2] or entry[1])
  local has_lists = #left > 1 or #right > 1 or left.each or right.each
  if not action then return has_lists and "a list of keys needs an action that splits and joins tensors" or nil end
  local wanted = action.left_parts or 1
  if not action.parts or #left == wanted and #right == action.parts and not (left.each or right.each) then return nil end
  if wanted == 1 and action.parts == 1 then return ("'%s' needs one key on each side"):format(action.name) end
  return ("'%s' needs %s on the left and %s on the right"):format(action.name, wanted == 1 and "one key" or wanted .. " keys",
    action.parts == 1 and "one" or tostring(action.parts))
end

---A table of rules goes below two prefixes, and has one option, `read_only`.
local function mistake_below(entry)
  for name, value in pairs(entry) do
    if name == "read_only" then
      local mistake = entries.options.read_only.mistake(value, name)
      if mistake then return mistake end
    elseif type(name) ~= "number" then
      return ("a table of rules has no option '%s'"):format(name)
    end
  end
  for i, prefix in ipairs { entry[1], entry[2] } do
    local mistake = type(prefix) ~= "string" and "a table of rules needs a name on each side" or prefix ~= "" and choices.mistake(prefix)
    if mistake then return ("side %d: %s"):format(i, mistake) end
  end
end

local MORE = "a rule has three places at most: { left, right, action }; the fourth is %s"

---A mistake in an entry of a table of keys.
---@return string|nil
local function mistake_in(entry)
  if type(entry) == "string" then
    return ('a rule is { left, right, action }; with one name for both sides, write { "%s" }'):format(entry)
  end
  if type(entry) ~= "table" then return "a rule is { left, right, action }, not " .. shapes.shown(entry) end
  if entry.is_rules or entry.kind then return nil end
  if table.maxn(entry) > 3 then return MORE:format(shapes.shown(entry[4])) end
  for i = 1, 2 do
    if entry[i] and type(entry[i]) ~= "string" and type(entry[i]) ~= "table" then return ("side %d must be a pattern"):format(i) end
    for _, pattern in ipairs(list(entry[i]) or {}) do
      if type(pattern) ~= "string" then
        return ("side %d is a list of patterns, and one of them is %s; keys of rules.each are a side alone"):format(i,
          shapes.shown(pattern))
      end
    end
  end
  if not entry[1] or entry[2] == false then
    local side = entry[1] and "left" or "right"
    return ("the other side is missing; for keys of the %s only, use rules.only.%s, rules.drop.%s or rules.refuse.%s")
      :format(side, side, side, side)
  end
  local action = entry[3]
  if type(action) == "table" and action.is_rules then return mistake_below(entry) end
  if type(action) == "function" then return "the third place is a function; if it makes an action, call it" end
  local is_action = type(action) == "table" and type(action.forward) == "function" and type(action.backward) == "function"
  if action ~= nil and not is_action then
    return "the third place must be an action (a pair of functions, forward and backward) or a table of rules, not " .. shapes.shown(action)
  end
  return mistake_in_counts(entry, action)
end

---Refuses a wrong entry of a table of keys, with its place.
---@param entry any
---@param place integer   in its table
---@param source string
---@param line integer
function entries.check(entry, place, source, line)
  local mistake = type(entry) == "table" and not entry.is_rules and not entry.kind and mistake_in_options(entry, entries.options)
    or mistake_in(entry)
  if mistake then fail(mistake, "keys", entry, place, source, line) end
end

-- --- config fields

local one_sided_rules = "without the other side a rule needs a pair of functions; or use fields.used.%s, fields.fixed.%s or fields.drop.%s"

---A mistake in an entry of a table of config fields.
---@return string|nil
local function mistake_in_field(entry)
  if type(entry) == "string" then return ('a rule is { left, right, pair }; with one name for both sides, write { "%s" }'):format(entry) end
  if type(entry) ~= "table" then return "a rule is { left, right, pair }, not " .. shapes.shown(entry) end
  if table.maxn(entry) > 3 then return MORE:format(shapes.shown(entry[4])) end
  local left, right, pair = entry[1], entry[2], entry[3]
  if right == nil then right = left end
  if left and type(left) ~= "string" then return "the name on the left is missing: { left, right, pair }" end
  if right and type(right) ~= "string" then return ("the name on the right is missing: { \"%s\", \"%s\", … }"):format(left, left) end
  if not left and not right then return "it names no field" end
  if pair ~= nil then
    local mistake = pair_of_functions.mistake(pair, "the third place")
    if mistake then return mistake end
  elseif not (left and right) then
    return (one_sided_rules:gsub("%%s", left and "left" or "right"))
  end
  local missing = pair and (left and not pair.forward and "forward" or right and not pair.backward and "backward")
  if missing then return ("its pair of functions has no '%s'"):format(missing) end
  return mistake_in_options(entry, {})
end

---Refuses a wrong entry of a table of config fields, with its place.
---@param entry any
---@param place integer   in its table
---@param source string
---@param line integer
function entries.check_field(entry, place, source, line)
  local mistake = mistake_in_field(entry)
  if mistake then fail(mistake, "config fields", entry, place, source, line) end
end

return entries
