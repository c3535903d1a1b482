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

---The rules of a side without choices, in groups that write the same key (`target`), by which they are found, too: one of a group is
---enough. A table that copies whatever there is needs nothing.
---@return Rule[][]
local function groups(set, side)
  local out = {}
  if rules.reads_all(set, side) then return out end
  for _, rule in ipairs(set) do
    for _, one in ipairs(rule.kind == nil and rules.expand(rule) or {}) do
      local target = table.concat(one[rules.other[side]], " ")
      if not out[target] then
        out[target] = { target = target }
        out[#out + 1] = out[target]
      end
      table.insert(out[target], one)
    end
  end
  return out
end

---The letters of the keys that a rule reads, but one that counts the parts of a tensor; nil, with a warning, where the config does
---not say how many values one has.
---@param told table<string, boolean>   warnings that were given
---@return Letter[]|nil
local function letters_of(rule, at, told)
  local letters = keys.letters(rule, at)
  for _, one in ipairs(letters) do
    if not one.count then
      local why = one.field and ("'%s', which counts '%s', is %s"):format(one.field, one.letter, fields.shown(at.right[one.field]))
        or "nothing counts " .. one.letter
      if not told[why] then
        cbk.warn(("%s: whether the checkpoint has all of '%s' is not checked"):format(why, rule[at.side][1]))
      end
      told[why] = true
      return nil
    end
  end
  return letters
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

---The keys that a rule reads for these values: all parts of a tensor.
---@param at At
local function keys_of(rule, values, at)
  local backward, own, out = at.side == "left" and rule.number and rule.number.backward, rule[at.side], {}
  local each, part = own.each, nil
  local function text(letter)
    if each and letter == each.letter then return tostring(part) end
    local n = values[letter]
    return ("%d"):format(backward and backward(n) or n)
  end
  for i = 1, each and keys.count(each, rule, at) or #own do
    part = i - 1
    out[i] = patterns.fill(own[each and 1 or i], text)
  end
  return out
end

---The keys of a module's biases, by those of its weights.
local function biases_of(weights)
  local out = {}
  for i, key in ipairs(weights) do out[i] = key:gsub("%.weight$", ".bias"):gsub("%.gamma$", ".beta") end
  return out
end

local function is_bias(group) return group[1].left[1]:find "%.bias$" or group[1].right[1]:find "%.bias$" end

---A weight is needed unless its rule says otherwise; a bias, where another layer has it.
---@param present integer   how many there are
---@return Needed
local function is_needed(group, at, present)
  for _, rule in ipairs(group) do
    local needed = rule.needed
    if type(needed) == "function" then needed = needed(at, present) end
    if needed == false or needed == "told" and not is_bias(group) then return needed end
  end
  return present > 0 or not is_bias(group)
end

---The group of the weights whose modules have these biases, where such modules always have one.
---@param group Rule[]
---@param by_target table<string, Rule[]>
---@return Rule[]|nil weights, Needed|nil   what a bias is where its weight is there
local function weights_of(group, by_target, at)
  local biases = group[1].biases
  if type(biases) == "function" then biases = biases(at) end
  if not biases or not is_bias(group) then return nil end
  return by_target[group.target:gsub("%.bias%f[%s%z]", ".weight")], biases
end

---The number that only a default says, though the config says others, as "num_hidden_layers=32".
---@param letters Letter[]
---@return string|nil
local function unsaid_of(letters, at)
  for _, one in ipairs(letters) do
    if at.assumed[one.field or ""] == "alone" then return ("%s=%d"):format(one.field, one.count) end
  end
end

---The numbers of a key that only a default says there are.
---@param letters Letter[]
---@param values table<string, integer>
---@return string
local function assumed_of(letters, values, at)
  local out = {}
  for _, one in ipairs(letters) do
    if at.assumed[one.field or ""] then out[#out + 1] = values[one.letter] end
  end
  return table.concat(out, " ")
end

local function warn(message, list)
  if list.count > 0 then cbk.warn(message:format(list.count, list.count == 1 and "" or "s", naming.first(list))) end
end

---Keys that the model needs and the checkpoint lacks. Where only a default says how many there are, and the checkpoint has none of
---that number, they are told in a warning. (keys.lua: what lies beyond those that the config counts.)
---@param set Rule[]
---@param at At   with `assumed`: the fields that defaults say, not the file
---@return { count: integer, told: { count: integer } }   and the first of them; those that it may lack, as they are only told
function complete.lacking(set, at)
  local out, doubtful, told, seen, uncounted = { count = 0 }, { count = 0 }, { count = 0 }, {}, {}
  local function find(group, values)
    for _, rule in ipairs(group or {}) do
      for _, part in ipairs(keys_of(rule, values, at)) do
        if at:source(part) ~= nil then return rule end
      end
      if keys.tied_to(rule, at) then return rule end
    end
  end
  local function add_parts(missing, rule, values, assumed) -- that a tensor is made of
    local parts = keys_of(rule, values, at)
    for _, part in ipairs(#parts > 1 and parts or {}) do
      if at:source(part) == nil then missing[#missing + 1] = { part, assumed } end
    end
  end
  local function add(list, key)
    if seen[key] then return end
    seen[key], list.count = true, list.count + 1
    if list.count <= 20 then list[list.count] = key end
  end
  local all = groups(set, at.side)
  local function look(group, letters)
    local missing, present, there = {}, 0, {} -- `there`: the assumed numbers of which something is
    local weights, due = weights_of(group, all, at)
    for_all(letters, function(values)
      local assumed = assumed_of(letters, values, at)
      local rule = find(group, values)
      if rule then
        present, there[assumed] = present + 1, true
        return add_parts(missing, rule, values, assumed)
      end
      local module = find(weights, values)
      for _, key in ipairs(module and biases_of(keys_of(module, values, at)) or keys_of(group[1], values, at)) do
        missing[#missing + 1] = { key, assumed, module and due }
      end
      if #missing > MOST_MISSING then fail(("more than %d keys of '%s' are missing"):format(MOST_MISSING, group[1][at.side][1])) end
    end)
    local needed, unsaid = #missing > 0 and is_needed(group, at, present), unsaid_of(letters, at)
    for _, one in ipairs(missing) do
      local key, assumed, own = unpack(one)
      own = needed ~= true and own or needed
      if own == true and unsaid and not there[assumed] then
        fail(("the checkpoint has fewer than %s, the default, which the config does not say: it lacks %s; add the number to the config")
          :format(unsaid, key))
      end
      if own then add(own == "told" and told or (assumed == "" or there[assumed]) and out or doubtful, key) end
    end
  end
  for _, group in ipairs(all) do
    local letters = letters_of(group[1], at, uncounted)
    if letters then look(group, letters) end
  end
  warn("the config does not say how many layers there are; of as many as are usual, the checkpoint lacks %d weight%s: %s", doubtful)
  warn("the checkpoint lacks %d weight%s that the model needs, and so does what is written: %s", told)
  out.told = told
  return out
end

return complete
