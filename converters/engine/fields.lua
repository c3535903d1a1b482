-- Config rules: pairs of fields, values that must hold, defaults. One table for both directions.

local cbk = require "cbk"
local demands = require "converters.engine.demands"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"

local fields = {}

---@class FieldAt   Where a field's action stands.
---@field field string  the field that is read
---@field from Dict     the whole model section that is read, with defaults
---@field to Dict       the model section that is being written
local FieldAt = {}
FieldAt.__index = FieldAt

---Sets another field of the target.
function FieldAt:set(name, value) self.to[name] = value end

---Says that something has no place on the other side; a warning names it.
function FieldAt:leave_out(name) self.dropped[#self.dropped + 1] = name end

---Names what a map holds beside `known`.
---@param map Dict
---@param known table<string, any>|Dict
function FieldAt:leave_out_others(map, known)
  for name in cbk.items(map) do
    if known[name] == nil and kinds.present(map[name]) then self:leave_out(("%s.%s"):format(self.field, tostring(name))) end
  end
end

---@class FieldAction   An invertible pair on values; nil means that nothing is written.
---@field forward fun(value: any, at: FieldAt): any
---@field backward fun(value: any, at: FieldAt): any
---@field is? table<Side, string>   what the values must be (Demand), where the rule does not say

---How a config value is shown in a message.
local function shown(value)
  if value == nil or value == cbk.null then return "null" end
  if type(value) == "table" and value.any_of then
    local out = {}
    for i, one in ipairs(value.any_of) do out[i] = shown(one) end
    return table.concat(out, " or ")
  end
  local kind = type(value)
  if kind == "string" then return "'" .. value .. "'" end
  if kind == "number" or kind == "boolean" then return tostring(value) end
  local ok, text = pcall(cbk.json, value)
  return ok and text or tostring(value)
end
fields.shown = shown

---@param supported any  what the other side can express
---@param advice? string   the end of the message
function fields.refuse(field, value, supported, advice)
  local what = type(supported) == "string" and supported or shown(supported)
  cbk.fail("config", ("cannot convert the config with %s=%s: only %s is supported%s"):format(field, shown(value), what, advice or ""))
end

---@alias Asked table<string, string>   what fields of one side must be (Demand), by their names

---What the fields of one side must be.
---@param set table[]   of fields.config
---@param side Side
---@return Asked
function fields.asked(set, side)
  local out = {}
  for _, rule in ipairs(set) do
    local name = rule[side]
    if name and rule.is and not out[name] then out[name] = rule.is[side] end
  end
  return out
end

local function names_of(asked, word, config)
  local out = {}
  for name, is in pairs(asked) do
    if is:gsub("%?$", "") == word and kinds.present(config[name]) then out[#out + 1] = name end
  end
  return out
end

---No head is wider than another, unless the config says itself how wide they are.
local function check_heads(config, asked)
  if names_of(asked, "inner", config)[1] then return end
  local width = names_of(asked, "width", config)[1]
  for _, name in ipairs(width and names_of(asked, "heads", config) or {}) do
    if config[width] % config[name] ~= 0 then
      fields.refuse(name, config[name], ("a divisor of %s (%d)"):format(width, config[width]))
    end
  end
end

---Refuses a value that is not what the field's rule asks for, and heads that do not share the width.
---@param config Dict
---@param asked Asked
---@param place? string   what stands before the names in messages
function fields.check(config, asked, place)
  for name in cbk.items(config) do
    local demand, may_be_null = demands.find(asked[name] or "")
    local value = config[name]
    local is_fine = not demand or may_be_null and value == cbk.null or demands.holds(demand, value, cbk.kind(config, name))
    if not is_fine then fields.refuse((place or "") .. tostring(name), value, demand.says) end
  end
  check_heads(config, asked)
end

local function tell_of_quoted(config, asked)
  local names = {}
  for name in cbk.items(config) do
    local demand = demands.find(asked[name] or "")
    if demand and demands.is_quoted(demand, config[name]) then names[#names + 1] = ("%s=%s"):format(name, shown(config[name])) end
  end
  if #names > 0 then cbk.warn("numbers in quotes stay so, though not every program reads them: " .. table.concat(names, ", ")) end
end

---Without a size, which nothing else gave the other side, no model is described.
local function check_missing(config, to, by_name, side)
  local missing = {}
  for name, rule in pairs(by_name) do
    local target = rule.kind == "pair" and rule[rules.other[side]]
    local demand, may_be_null = demands.find(rule.is and rule.is[side] or "")
    if target and demand and demand.needed and not may_be_null and config[name] == nil and to[target] == nil then
      missing[#missing + 1] = "'" .. name .. "'"
    end
  end
  table.sort(missing)
  if #missing > 0 then cbk.fail("config", "the config has no " .. table.concat(missing, ", ")) end
end

function FieldAt:refuse(value, supported) fields.refuse(self.field, value, supported) end

local function plain(value)
  if value == true then return 1 end
  if value == false then return 0 end
  return value
end

---Equality as the target programs see it: true is 1, false is 0; `b` may be one of several.
local function same(a, b)
  if type(b) == "table" and b.any_of then
    for _, one in ipairs(b.any_of) do
      if same(a, one) then return true end
    end
    return false
  end
  a, b = plain(a), plain(b)
  return a == b or (type(a) == type(b) and type(a) ~= "number" and cbk.equal(a, b))
end
fields.same = same

-- --- writing tables

local function per_side(make)
  return { left = function(t) return make("left", t) end, right = function(t) return make("right", t) end }
end

---`must.right { norm_type = "rmsnorm" }`: the field exists on the right only and has one value that the left can express.
fields.must = per_side(function(side, values)
  local out = { is_fields = true }
  for name, value in pairs(values) do
    out[#out + 1] = { [side] = name, kind = "must", value = value, side = side, name = name }
  end
  return out
end)

---What a rule asks for, by sides; `is` is one word for both, or a table of them.
local function sides_of(is, name)
  if is == nil then return nil end
  local out = type(is) == "table" and is or { left = is, right = is }
  for side, word in pairs(out) do
    if not rules.other[side] then
      cbk.fail("converter", ("the rule of the config field '%s' has is.%s; the sides are left and right"):format(name, tostring(side)))
    elseif type(word) ~= "string" or not demands.find(word) then
      cbk.fail("converter", ("the rule of the config field '%s' has is = %s; a field is one of %s"):format(name, shown(word),
        table.concat(demands.words(), ", ")))
    end
  end
  return out
end

---`told.right { "a", b = "size" }`: fields of the right that other rules or functions of the table read, and what they must be.
fields.told = per_side(function(side, names)
  local out = { is_fields = true }
  for key, value in pairs(names) do
    local is_name = type(key) == "number"
    local name = is_name and value or key
    out[#out + 1] = { [side] = name, kind = "told", is = not is_name and sides_of(value, name) or nil }
  end
  return out
end)

---`drop.right { "a", b = false }`: fields of the right that have no place on the left. A warning names them, unless they are null
---or have the value that goes without saying.
fields.drop = per_side(function(side, names)
  local out = { is_fields = true }
  for name, value in pairs(names) do
    local rule = type(name) == "number" and { [side] = value, kind = "drop" } or { [side] = name, kind = "drop", value = value }
    out[#out + 1] = rule
  end
  return out
end)

---One of several values, in `must`.
function fields.any_of(...) return { any_of = { ... } } end

local function check_words(entry)
  for word in pairs(entry) do
    if type(word) == "string" and word ~= "is" then
      cbk.fail("converter", ("the rule of the config field '%s' has no '%s'; there is 'is'"):format(tostring(entry[1] or entry[2]), word))
    end
  end
end

local function check_action(left, right, action)
  if action == nil then return end
  local is_pair = type(action) == "table" and (not left or action.forward) and (not right or action.backward)
  if not is_pair then cbk.fail("converter", ("the rule of the config field '%s' has no pair of functions"):format(left or right)) end
end

---A table of config rules: `{ left, right, action }`; one name alone stands for both sides; "*" copies what no rule names. What the
---value must be, `is` says: `is = "size"`, or of each side `is = { left = "number", right = "size" }`.
function fields.config(entries)
  local out = { is_fields = true }
  for _, entry in ipairs(entries) do
    if entry.is_fields then
      for _, rule in ipairs(entry) do out[#out + 1] = rule end
    elseif entry.kind then
      out[#out + 1] = entry
    else
      local left, right, action = entry[1], entry[2], entry[3]
      if right == nil then right = left end
      check_words(entry)
      check_action(left, right, action)
      out[#out + 1] = { left = left or nil, right = right or nil, action = action, kind = "pair",
        is = sides_of(entry.is or action and action.is, left or right) }
    end
  end
  return out
end

---The rules that name none of the given fields: how an older release is told from its successor.
function fields.without(base, names)
  local gone, out = {}, { is_fields = true }
  for _, name in ipairs(names) do gone[name] = true end
  for _, rule in ipairs(base) do
    if not (gone[rule.left or ""] or gone[rule.right or ""]) then out[#out + 1] = rule end
  end
  return out
end

---A set of defaults with some more and without others.
function fields.with(base, more, names)
  local out = rules.variant(base, more)
  for _, name in ipairs(names or {}) do out[name] = nil end
  return out
end

-- --- running

local function compile(set, side)
  local by_name, rest = {}, nil
  for _, rule in ipairs(set) do
    local name = rule[side]
    if rule.kind == "must" and rule.side ~= side then name = rule.name end
    if name == "*" then
      rest = rest or rule
    elseif name and not by_name[name] and not rest then
      by_name[name] = rule
    end
  end
  return by_name, rest
end

---@return boolean|nil is_lost   the field says something that the other side has no place for
local function convert_field(rule, side, at)
  local name = at.field
  if rule.kind == "told" then return end
  if rule.kind == "drop" then return kinds.present(at.from[name]) and (rule.value == nil or not same(at.from[name], rule.value)) end
  if rule.kind == "must" then
    if rule.side ~= side then
      cbk.fail("config", ("the config field '%s' (=%s) should not appear in the config of this side"):format(name, shown(at.from[name])))
    end
    if not same(at.from[name], rule.value) then at:refuse(at.from[name], rule.value) end
    return
  end
  local target = rule[rules.other[side]]
  if target == "*" then target = name end
  if not rule.action then
    at.to[target] = cbk.raw(at.from, name)
  else
    local value = rule.action[side == "left" and "forward" or "backward"](at.from[name], at)
    if value == nil or not target then return end
    at.to[target] = value
  end
  if at.moves and target ~= name then at.moves[#at.moves + 1] = { tostring(name), target } end
end

local function is_table(value) return type(value) == "table" and getmetatable(value) == nil end

local function tree(value)
  if not is_table(value) then return value end
  return value[1] ~= nil and cbk.list(value) or cbk.dict(value)
end

---A default that repeats another field, also where the file says null.
---@param other string
function fields.same_as(other)
  return function(config) return config[other] ~= nil and cbk.raw(config, other) or nil end
end

---Adds the missing fields, those last that functions make of the others; dicts are filled one level deep.
---@param defaults? table<string, any>   a function is one over the config
function fields.fill(config, defaults)
  local names, made = {}, {}
  for name, value in pairs(defaults or {}) do
    local list = type(value) == "function" and made or names
    list[#list + 1] = name
  end
  table.sort(names)
  table.sort(made)
  for _, name in ipairs(made) do names[#names + 1] = name end
  for _, name in ipairs(names) do
    local value = defaults[name]
    if type(value) == "function" then
      if kinds.absent(config[name]) then config[name] = value(config) end
    elseif config[name] == nil then
      config[name] = tree(value)
    elseif is_table(value) and kinds.is_dict(config, name) then
      config[name] = fields.fill(cbk.copy(config[name]), value)
    end
  end
  return config
end

---The fields of sections under the dotted names that the rules have for them; a copy.
local function flatten(config, sections)
  local out = cbk.copy(config)
  for _, section in ipairs(sections or {}) do
    local inner = config[section]
    out[section] = nil
    if kinds.present(inner) then
      if not kinds.is_dict(inner) then fields.refuse(section, inner, "a map of fields") end
      for name in cbk.items(inner) do out[section .. "." .. tostring(name)] = cbk.raw(inner, name) end
    end
  end
  return out
end

---Fields with dotted names back in their sections, in place.
local function nest(config, sections)
  for _, section in ipairs(sections or {}) do
    local inner = cbk.dict()
    for _, name in ipairs(cbk.keys(config)) do
      local own = type(name) == "string" and name:sub(1, #section + 1) == section .. "." and name:sub(#section + 2)
      if own then
        inner[own] = cbk.raw(config, name)
        config[name] = nil
      end
    end
    if #inner > 0 then config[section] = inner end
  end
end

---The part of a composite that stands under `name` on the side that is read.
local function component(step, side, name)
  for _, part in ipairs(step.components or {}) do
    if part[side] == name then return part end
  end
end

---Moves what `names` says from one section into another.
local function move(names, from, to)
  for _, name in ipairs(names or {}) do
    if from[name] ~= nil then
      to[name] = cbk.raw(from, name)
      from[name] = nil
    end
  end
end

local function convert_component(part, side, at, dropped, assumed)
  local name, other = at.field, rules.other[side]
  local to, complete, gone, own = fields.convert(part, side, at.from[name])
  assumed[part.right] = own
  if other == "right" then move(part.beside, to, at.to) end
  at.from[name], at.to[part[other]] = complete, to
  for _, one in ipairs(gone) do dropped[#dropped + 1] = name .. "." .. one end
end

---Each part has its section, with what stands beside it on the right.
local function prepare_components(step, side, from)
  for _, part in ipairs(step.components or {}) do
    local name = part[side]
    if not kinds.is_dict(from, name) then cbk.fail("config", ("the config has no section '%s'"):format(name)) end
    if side == "right" and part.beside then
      from[name] = cbk.copy(from[name])
      move(part.beside, from, from[name])
    end
  end
end

---Converts one model section.
---@param step Converter
---@param side Side      the side that `from` is
---@param from Dict
---@param moves? Moves   fields that get another name are added
---@param known? Asked   what else is known of the fields, where the table copies what it does not name
---@return Dict to, Dict from   `from` is complete with its defaults
---@return string[] dropped     fields of the file that have no place on the other side
---@return table assumed        fields of the right that defaults say, not the file; of a part, a table of its own
function fields.convert(step, side, from, moves, known)
  local other, nested = rules.other[side], step.nested or {}
  local by_name, rest = compile(step.config, side)
  local given = flatten(from, nested[side])
  local defaults = step.before and step.before[side] or {}
  from = fields.fill(cbk.copy(given), defaults)
  local asked = fields.asked(step.config, side)
  for name, is in pairs(known or {}) do asked[name] = asked[name] or is end
  fields.check(from, asked)
  if not rest then tell_of_quoted(from, asked) end -- a table that copies every field leaves all as they are
  if step.prepare and step.prepare[side] then
    from = step.prepare[side](from) or from
    fields.check(from, asked)
  end
  prepare_components(step, side, from)
  local dropped, assumed = {}, {}
  local at = setmetatable({ from = from, to = cbk.dict(), dropped = dropped, moves = moves }, FieldAt)
  for _, name in ipairs(cbk.keys(from)) do
    local rule, part = by_name[name] or rest, component(step, side, name)
    at.field = name
    if rule and rule.right and given[name] == nil and type(defaults[name]) ~= "function" then assumed[rule.right] = true end
    if part then
      convert_component(part, side, at, dropped, assumed)
    elseif (not rule or convert_field(rule, side, at)) and kinds.present(given[name]) then
      dropped[#dropped + 1] = tostring(name)
    end
  end
  fields.fill(at.to, step.after and step.after[other])
  nest(at.to, nested[other])
  if not rest then check_missing(from, at.to, by_name, side) end
  if step.finish and step.finish[other] then at.to = step.finish[other](at.to, from) or at.to end
  return at.to, from, dropped, assumed
end

---What of a model section a table refuses, field by field: "norm_type='layernorm' (not rmsnorm)". What is missing does not count.
---@param step Converter
---@param side Side
---@param config Dict
---@return string[]
function fields.refused(step, side, config)
  local by_name, rest = compile(step.config, side)
  local defaults, out = {}, {}
  for name, value in pairs(step.before and step.before[side] or {}) do
    if type(value) ~= "function" then defaults[name] = value end
  end
  local from = fields.fill(flatten(config, (step.nested or {})[side]), defaults)
  local at = setmetatable({ from = from, to = cbk.dict(), dropped = {} }, FieldAt)
  for _, name in ipairs(cbk.keys(from)) do
    at.field = name
    local rule = by_name[name] or rest
    local fine, problem = pcall(convert_field, rule or { kind = "told" }, side, at)
    local what, instead = tostring(not fine and problem.message):match "^cannot convert the config with (.*): only (.*) is supported"
    if what then out[#out + 1] = ("%s (not %s)"):format(what, instead) end
  end
  return out
end

return rules.strict(fields, "function", "fields.")
