-- What an entry of a table of keys may say.

local cbk = require "cbk"
local choices = require "converters.engine.choices"
local naming = require "converters.engine.naming"

local entries = {}

---@return table|nil   a list, also of one
function entries.list(value)
  if value == nil or value == false then return nil end
  return type(value) == "table" and value or { value }
end

local list = entries.list

---What a rule may say beside its two names and its action.
entries.options = {
  when = "function", also_left = true, also_right = true, tied_left = true, number = "table", why = "string", needed = true, count = true,
  biases = true,
}

---What a table of rules may say for all of them.
entries.inherited = { needed = true, count = true, biases = true }

local needs = { [true] = true, [false] = true, told = true }

local function check_needs(entry, fail)
  for _, name in ipairs { "needed", "biases" } do
    local value = entry[name]
    if value ~= nil and type(value) ~= "function" and not needs[value] then
      fail("'%s' is true, false, 'told', or a function that gives one of these, not %s", name,
        type(value) == "string" and "'" .. value .. "'" or tostring(value))
    end
  end
end

---A side of several keys is a list of tensors, which an action makes; one that says of how many is held to it.
local function check_counts(entry, action, fail)
  local left, right = list(entry[1]), list(entry[2] or entry[1])
  if #left == 1 and #right == 1 and not (left.each or right.each) then
    if not action or (action.parts or 1) == 1 then return end
  end
  if not action then fail "a list of keys needs an action, which makes them of one tensor" end
  if action.parts and (#left > 1 or left.each or right.each or #right ~= action.parts) then
    if action.parts == 1 then fail("'%s' is for one key on each side", action.name) end
    fail("'%s' is for one key on the left and %d on the right", action.name, action.parts)
  end
end

---A table of rules stands below two names, and has few options of its own.
local function check_below(entry, fail)
  for name in pairs(entry) do
    if type(name) == "string" and not entries.inherited[name] then fail("'%s' is no option of a table of rules", name) end
  end
  for i, prefix in ipairs { entry[1], entry[2] } do
    local mistake = type(prefix) ~= "string" and "a table of rules stands below names" or prefix ~= "" and choices.mistake(prefix)
    if mistake then fail("side %d: %s", i, mistake) end
  end
end

---Refuses an entry that says what no rule can say, with the place of its table.
---@param entry any
---@param place integer   in its table
---@param source string
---@param line integer
function entries.check(entry, place, source, line)
  local function fail(message, ...)
    cbk.fail("converter", ("%s:%d: entry %d of this table of keys: %s"):format(source, line, place, message:format(...)))
  end
  if type(entry) ~= "table" then fail("a rule is { left, right, action }, not %s", tostring(entry)) end
  if entry.is_rules or entry.kind then return end
  for name, value in pairs(entry) do
    local wanted = type(name) == "number" or entries.options[name]
    if not wanted then
      fail("a rule has no option '%s'; there are %s", tostring(name), table.concat(naming.sorted(entries.options), ", "))
    end
    if type(wanted) == "string" and type(value) ~= wanted then fail("'%s' must be a %s", name, wanted) end
  end
  check_needs(entry, fail)
  for i = 1, 2 do
    if entry[i] ~= nil and type(entry[i]) ~= "string" and type(entry[i]) ~= "table" then fail("side %d is no pattern", i) end
  end
  if not entry[1] then fail "the left side is missing; for keys of one side, there is rules.only" end
  if entry.tied_left and (type(entry[1]) ~= "string" or entry[1]:find "%f[%w_*][%u*]%f[^%w_*]") then
    fail "tied_left is for one key that has no letters"
  end
  for _, counter in pairs(type(entry.count) == "table" and entry.count or { entry.count }) do
    local kind = type(counter)
    if kind ~= "string" and kind ~= "function" then fail("'count' is a field, a function, or these by letters: { E = … }") end
  end
  for _, name in ipairs { "also_left", "also_right" } do
    for _, extra in ipairs(list(entry[name]) or {}) do
      local pattern, make = extra, nil
      if type(extra) == "table" then pattern, make = extra[1], extra[2] end
      if type(pattern) ~= "string" or make ~= nil and type(make) ~= "function" then
        fail("'%s' holds patterns or { pattern, function }", name)
      end
    end
  end
  local action = entry[3]
  if type(action) == "table" and action.is_rules then return check_below(entry, fail) end
  if type(action) == "function" then fail "the third place holds a function: is it one that makes an action, and to be called?" end
  local is_action = type(action) == "table" and type(action.forward) == "function" and type(action.backward) == "function"
  if action ~= nil and not is_action then
    fail("the third place holds an action (a pair of functions, forward and backward) or a table of rules, not %s", tostring(action))
  end
  check_counts(entry, action, fail)
end

return entries
