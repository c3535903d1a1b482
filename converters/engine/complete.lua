-- What a checkpoint must hold: a key for every weight that the rules write, in every layer that the config counts.

local cbk = require "cbk"
local keys = require "converters.engine.keys"
local patterns = require "converters.engine.patterns"
local rules = require "converters.engine.rules"
local demands = require "converters.engine.demands"

local complete = {}

local function fail(message) cbk.fail("convert", message) end

---The rules of a side without choices, in groups that write the same key: one of a group is enough. A table that copies whatever
---there is needs nothing.
---@return Rule[][]
local function groups(set, side)
  local out = {}
  for _, rule in ipairs(set) do
    for _, one in ipairs(rule.kind == nil and patterns.expand(rule) or {}) do
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

---The keys that a rule reads in a layer, as this side counts them.
local function keys_of(rule, side, layer)
  local number = side == "left" and rule.number and rule.number.backward
  local own, out = rule[side], {}
  for i, pattern in ipairs(own) do
    local key = pattern:gsub("%.N%f[.%z]", "." .. (number and number(layer) or layer), 1)
    out[i] = own.each and key:gsub("%." .. own.each.letter .. "%f[.%z]", ".0") or key
  end
  return out
end

local function is_counted(rule, side) return rule[side][1]:find "%.N%f[.%z]" ~= nil end

---How many layers a rule is about, and the field that says so; a key without a number is one layer.
local function layers_of(rule, at)
  if not is_counted(rule, at.side) then return 1 end
  local count = rule.count or "num_hidden_layers"
  if type(count) == "function" then return count(at) or 0 end
  return demands.is_depth(at.right[count]) and at.right[count] or 0, count
end

---A weight is needed unless its rule says otherwise; a bias, where another layer has it or its rule says so.
---@param present integer   how many layers have it
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

---Says that there are more layers than the config counts.
local function tell_of_more(field, layers, key, say)
  say(("the checkpoint has more layers than %s: %s and what follows"):format(
    field and ("%s=%d"):format(field, layers) or ("the %d that the config says"):format(layers), key))
end

local function warn(message, list)
  if list.count > 0 then cbk.warn(message:format(list.count, keys.named(list))) end
end

---Keys that the model needs and the checkpoint lacks. Where only a default says how many layers there are, they are told in a
---warning; layers beyond those that the config counts are an error.
---@param set Rule[]
---@param at At   with `assumed`: the fields that defaults say, not the file
---@return { count: integer }   and the first of them
function complete.lacking(set, at)
  local out, doubtful, told, seen = { count = 0 }, { count = 0 }, { count = 0 }, {}
  local function there(group, layer)
    for _, rule in ipairs(group) do
      local key = keys_of(rule, at.side, layer)[1]
      if at:source(key) ~= nil or keys.tied_to(rule, at) then return key end
    end
  end
  local function add(list, key)
    if seen[key] then return end
    seen[key], list.count = true, list.count + 1
    if list.count <= 20 then list[list.count] = key end
  end
  for _, group in ipairs(groups(set, at.side)) do
    local layers, field = layers_of(group[1], at)
    local list, missing = at.assumed[field or ""] and doubtful or out, {}
    for layer = 0, layers - 1 do
      if not there(group, layer) then missing[#missing + 1] = layer end
    end
    local more = layers > 0 and is_counted(group[1], at.side) and there(group, layers)
    if more then tell_of_more(field, layers, more, list == doubtful and cbk.warn or fail) end
    local needed = #missing > 0 and is_needed(group, at, layers - #missing)
    if needed == "told" then list = told end
    for _, layer in ipairs(needed and missing or {}) do
      for _, key in ipairs(keys_of(group[1], at.side, layer)) do add(list, key) end
    end
  end
  warn("the config does not say how many layers there are; of as many as are usual, the checkpoint lacks %d weights: %s", doubtful)
  warn("the checkpoint lacks %d weights that the model needs, and so does what is written: %s", told)
  return out
end

return complete
