-- What a checkpoint must hold: a key for every weight that the rules write, in every layer that the config counts.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local keys = require "converters.engine.keys"
local naming = require "converters.engine.naming"
local patterns = require "converters.engine.patterns"
local rules = require "converters.engine.rules"

local complete = {}

local MOST_MISSING = 1e6 -- that a config may count

local function fail(message) cbk.fail("convert", message) end

---The rules of a side without choices, in groups that write the same key: one of a group is enough. A table that copies whatever
---there is needs nothing.
---@return Rule[][]
local function groups(set, side)
  local out = {}
  for _, rule in ipairs(set) do
    for _, one in ipairs(rule.kind == nil and rules.expand(rule) or {}) do
      if one[side][1]:find("*", 1, true) then return {} end
      local target = table.concat(one[rules.other[side]], " ")
      if not out[target] then
        out[target] = {}
        out[#out + 1] = out[target]
      end
      table.insert(out[target], one)
    end
  end
  return out
end

---@class Letter   Of the keys that a rule reads.
---@field letter string
---@field count integer    how many values it has
---@field field? string    of the right config, which says so

---The letters of the keys that a rule reads, but one that counts the parts of a tensor; nil, with a warning, where the config does
---not say how many values one has.
---@param told table<string, boolean>   warnings that were given
---@return Letter[]|nil
local function letters_of(rule, at, told)
  local out, own = {}, rule[at.side]
  for _, letter in ipairs(patterns.captures(own[1])) do
    local counter = rules.counter(rule, at.side, letter)
    local field = type(counter) == "string" and counter or nil
    local count = field and at.right[field]
    if type(counter) == "function" then count = counter(at) or 0 end
    if not (own.each and own.each.letter == letter) then
      if not keys.is_count(count) then
        local why = field and ("'%s', which counts '%s', is %s"):format(field, letter, fields.shown(count)) or "nothing counts " .. letter
        if not told[why] then cbk.warn(("%s: whether the checkpoint has all of '%s' is not looked at"):format(why, own[1])) end
        told[why] = true
        return nil
      end
      out[#out + 1] = { letter = letter, count = count, field = field }
    end
  end
  return out
end

---Calls `see` with all values of the letters.
local function for_all(letters, see, i, values)
  i, values = i or 1, values or {}
  if i > #letters then return see(values) end
  for n = 0, letters[i].count - 1 do
    values[letters[i].letter] = n
    for_all(letters, see, i + 1, values)
  end
end

---The keys that a rule reads for these values, of letters that are not among them for 0.
local function keys_of(rule, side, values)
  local backward, own, out = side == "left" and rule.number and rule.number.backward, rule[side], {}
  local function text(letter)
    local n = values[letter] or 0
    return ("%d"):format(backward and backward(n) or n)
  end
  for i, pattern in ipairs(own) do out[i] = patterns.fill(pattern, text) end
  return out
end

---A weight is needed unless its rule says otherwise; a bias, where another layer has it or its rule says so.
---@param present integer   how many there are
---@return Needed
local function is_needed(group, at, present)
  local is_bias = group[1].left[1]:find "%.bias$" or group[1].right[1]:find "%.bias$"
  for _, rule in ipairs(group) do
    local needed = rule.needed
    if type(needed) == "function" then needed = needed(at, present) end
    if needed == false or needed == "with bias" or needed == "told" and not is_bias then return needed end
  end
  return present > 0 or not is_bias
end

---Says that there are more than the config counts.
---@param one Letter
local function tell_of_more(one, key, say)
  say(("the checkpoint has more layers than %s: %s and what follows"):format(
    one.field and ("%s=%d"):format(one.field, one.count) or ("the %d that the config says"):format(one.count), key))
end

local function warn(message, list)
  if list.count > 0 then cbk.warn(message:format(list.count, list.count == 1 and "" or "s", naming.first(list))) end
end

---Keys that the model needs and the checkpoint lacks. Where only a default says how many layers there are, they are told in a
---warning; layers beyond those that the config counts are an error.
---@param set Rule[]
---@param at At   with `assumed`: the fields that defaults say, not the file
---@return { count: integer }   and the first of them
function complete.lacking(set, at)
  local out, doubtful, told, seen, uncounted = { count = 0 }, { count = 0 }, { count = 0 }, {}, {}
  local function there(group, values)
    for _, rule in ipairs(group) do
      local key = keys_of(rule, at.side, values)[1]
      if at:source(key) ~= nil or keys.tied_to(rule, at) then return key end
    end
  end
  local function add(list, key)
    if seen[key] then return end
    seen[key], list.count = true, list.count + 1
    if list.count <= 20 then list[list.count] = key end
  end
  local function look(group, letters)
    local list, missing, present = out, {}, 0
    for_all(letters, function(values)
      if there(group, values) then
        present = present + 1
        return
      end
      for _, key in ipairs(keys_of(group[1], at.side, values)) do missing[#missing + 1] = key end
      if #missing > MOST_MISSING then fail(("more than %d keys of '%s' are missing"):format(MOST_MISSING, group[1][at.side][1])) end
    end)
    for _, one in ipairs(letters) do
      if at.assumed[one.field or ""] then list = doubtful end
      local more = there(group, { [one.letter] = one.count })
      if more then tell_of_more(one, more, list == doubtful and cbk.warn or fail) end
    end
    local needed = #missing > 0 and is_needed(group, at, present)
    if needed == "told" then list = told end
    for _, key in ipairs(needed and missing or {}) do add(list, key) end
  end
  for _, group in ipairs(groups(set, at.side)) do
    local letters = letters_of(group[1], at, uncounted)
    if letters then look(group, letters) end
  end
  warn("the config does not say how many layers there are; of as many as are usual, the checkpoint lacks %d weight%s: %s", doubtful)
  warn("the checkpoint lacks %d weight%s that the model needs, and so does what is written: %s", told)
  return out
end

return complete
