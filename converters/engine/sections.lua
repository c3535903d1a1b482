-- Runs config rules over one model section, in one direction: over what a CS config has under `model`, or a whole config.json.

local cbk = require "cbk"
local demands = require "converters.engine.demands"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local rules = require "converters.engine.rules"

local sections = {}

---@class FieldAt   Where a field's action stands.
---@field field string  the field that is read
---@field from Dict     the whole model section that is read, with defaults
---@field to Dict       the model section that is being written
local FieldAt = {}
FieldAt.__index = FieldAt

---Sets another field of the target.
function FieldAt:set(name, value) self.to[name], self.made[name] = value, self.field end

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

function FieldAt:refuse(value, supported) fields.refuse(self.field, value, supported) end

-- --- what fields must be

---@alias Asked table<string, string>   what fields of one side must be (Demand), by their names

---What the fields of one side must be.
---@param set table[]   of fields.config
---@param side Side
---@return Asked
function sections.asked(set, side)
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
function sections.check(config, asked, place)
  for name in cbk.items(config) do
    local demand, may_be_null = demands.find(asked[name] or "")
    local value = config[name]
    local is_fine = not demand or may_be_null and value == cbk.null or demands.holds(demand, value, cbk.kind(config, name))
    if not is_fine then fields.refuse((place or "") .. tostring(name), value, demand.says) end
  end
  check_heads(config, asked)
end

---Has each value as rules and functions know it; of a config that holds what it must (check).
---@param config Dict   changed in place
---@param asked Asked
---@return Dict
function sections.plain(config, asked)
  for _, name in ipairs(cbk.keys(config)) do
    local demand = demands.find(asked[name] or "")
    if demand and demand.plain and kinds.present(config[name]) then config[name] = demand.plain(config[name]) end
  end
  return config
end

local function tell_of_quoted(config, asked)
  local names = {}
  for name in cbk.items(config) do
    local demand = demands.find(asked[name] or "")
    if demand and demands.is_quoted(demand, config[name]) then names[#names + 1] = ("%s=%s"):format(name, fields.shown(config[name])) end
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
  local place = side == "right" and " in its model section; add it there" or ""
  if #missing > 0 then cbk.fail("config", "the config has no " .. table.concat(missing, ", ") .. place) end
end

-- --- running

---The rules of a side by the names of its fields. A field that must have one value on the other side is a mistake on this one, where
---no rule of this side names it.
local function compile(set, side)
  local by_name, mistakes, rest = {}, {}, nil
  for _, rule in ipairs(set) do
    local name = rule[side]
    if name == "*" then
      rest = rule
      break
    elseif name then
      by_name[name] = by_name[name] or rule
    elseif rule.kind == "must" then
      mistakes[rule[rules.other[side]]] = rule
    end
  end
  for name, rule in pairs(mistakes) do by_name[name] = by_name[name] or rule end
  return by_name, rest
end

---Whether anything that is written comes from a field.
local function has_set(at, name)
  for _, source in pairs(at.made) do
    if source == name then return true end
  end
  return false
end

---@return boolean|nil is_lost   the field says something that the other side has no place for
local function convert_field(rule, side, at)
  local name = at.field
  if rule.kind == "told" then return end
  if rule.kind == "drop" then return kinds.present(at.from[name]) and (rule.value == nil or not fields.same(at.from[name], rule.value)) end
  if rule.kind == "must" then
    if not rule[side] then
      cbk.fail("config", ("the config field '%s' (=%s) should not appear in the config of this side: it is the other side's, where only "
        .. "%s is supported; take it out if that is meant"):format(name, fields.shown(at.from[name]), fields.shown(rule.value)))
    end
    if not fields.same(at.from[name], rule.value) then at:refuse(at.from[name], rule.value) end
    return
  end
  local target = rule[rules.other[side]]
  if target == "*" then target = name end
  if not rule.action then
    at.to[target] = cbk.raw(at.from, name)
  else
    local dropped = #at.dropped
    local value = rule.action[side == "left" and "forward" or "backward"](at.from[name], at)
    if not target and value ~= nil then
      cbk.fail("converter", ("the function of the config field '%s' gives %s, but its rule has no name on the other side"):format(name,
        fields.shown(value)))
    end
    if not target then return end
    if value == nil then return kinds.present(at.from[name]) and #at.dropped == dropped and not has_set(at, name) end
    at.to[target] = value
  end
  at.made[target] = name
  if at.moves and target ~= name then at.moves[#at.moves + 1] = { tostring(name), target } end
end

---Refuses what a rule made of a value, where that is not what a field of the other side must be.
---@param to Dict
---@param asked Asked                  of the side that is written
---@param at FieldAt
local function check_made(to, asked, at)
  for name in cbk.items(to) do
    local demand, may_be_null = demands.find(asked[name] or "")
    local value, source = to[name], at.made[name]
    local is_fine = not demand or may_be_null and value == cbk.null or demands.holds(demand, value, cbk.kind(to, name))
    if not is_fine then
      local cause = source and source ~= name and (" with %s=%s"):format(source, fields.shown(at.from[source])) or ""
      cbk.fail("config", ("cannot convert the config%s: %s would be %s, which must be %s"):format(cause, name, fields.shown(value),
        demand.says))
    end
  end
end

---The fields of sections under the dotted names that the rules have for them; a copy.
local function flatten(config, nested)
  local out = cbk.copy(config)
  for _, section in ipairs(nested or {}) do
    local inner = config[section]
    out[section] = nil
    if kinds.present(inner) then
      if not kinds.is_dict(inner) then fields.refuse(section, inner, "a map of fields") end
      for name in cbk.items(inner) do out[section .. "." .. tostring(name)] = cbk.raw(inner, name) end
    end
  end
  return out
end

---Fields that are there under another name of theirs get the name that the rules have. Where both are there, Hugging Face's classes
---set the own one first, and the other one over it (PretrainedConfig.attribute_map).
---@param config Dict   changed in place
local function use_own_names(config, set, side)
  for _, rule in ipairs(set) do
    local name, alias = rule[side], rule.alias and rule.alias[side]
    if alias and config[alias] ~= nil then
      local value = config[alias]
      if kinds.present(value) then
        sections.check(cbk.dict { [alias] = value }, { [alias] = rule.is and rule.is[side] })
        if kinds.present(config[name]) and not fields.same(config[name], value) then
          cbk.warn(("the config has %s=%s and %s=%s, which are two names of one field; the latter holds, as Hugging Face reads it"):format(
            name, fields.shown(config[name]), alias, fields.shown(value)))
        end
        config[name] = cbk.raw(config, alias)
      end
      config[alias] = nil
    end
  end
end

---The fields of a model section by the names that the rules have for them.
local function named(step, side, config)
  local out = flatten(config, (step.nested or {})[side])
  use_own_names(out, step.config, side)
  return out
end

---Fields with dotted names back in their sections, in place.
local function nest(config, nested)
  for _, section in ipairs(nested or {}) do
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

---Moves what `names` says from one section into another.
local function move(names, from, to)
  for _, name in ipairs(names or {}) do
    if from[name] ~= nil then
      to[name] = cbk.raw(from, name)
      from[name] = nil
    end
  end
end

---A part of a composite as a rule: its section is converted by its own table.
local function rule_of(part, side)
  local function convert(section, at)
    local to, complete, dropped, assumed, unsaid = sections.convert(part, side, section)
    at.from[at.field], at.assumed[part.right] = complete, assumed
    if side == "left" then move(part.beside, to, at.to) end
    for _, name in ipairs(dropped) do at:leave_out(at.field .. "." .. name) end
    for _, name in ipairs(unsaid) do at.unsaid[#at.unsaid + 1] = at.field .. "." .. name end
    return to
  end
  return { left = part.left, right = part.right, kind = "pair", action = { forward = convert, backward = convert } }
end

---Each part has its section, with what stands beside it on the right, and a rule.
local function prepare_components(step, side, from, by_name)
  for _, part in ipairs(step.components or {}) do
    local name = part[side]
    by_name[name] = rule_of(part, side)
    if not kinds.is_dict(from, name) then cbk.fail("config", ("the config has no section '%s'"):format(name)) end
    if side == "right" and part.beside then
      from[name] = cbk.copy(from[name])
      move(part.beside, from, from[name])
    end
  end
end

local says_size = { width = true, heads = true, inner = true, size = true }

---A config without the number of layers that says another size is incomplete; one that says none may be all defaults.
---@param assumed table<string, true|"alone">   changed: "alone" for such numbers
---@param asked Asked
local function mark_depth(assumed, asked, given, by_name)
  local says_any = false
  for name, is in pairs(asked) do says_any = says_any or says_size[is] and given[name] ~= nil end
  for name, is in pairs(says_any and asked or {}) do
    local rule = is == "depth" and by_name[name]
    if rule and assumed[rule.right or ""] then assumed[rule.right] = "alone" end
  end
end

---@class Read   The checkpoint that a config is converted with; without one (convert-config) nothing is known of it.
---@field source? Dict      its tree
---@field hf_config? Dict   what it keeps of a Hugging Face config

---Converts one model section.
---@param step Converter
---@param side Side      the side that `from` is
---@param from Dict
---@param moves? Moves   fields that get another name are added
---@param known? Asked   what else is known of the fields, where the table copies what it does not name
---@param read? Read     the checkpoint of that config
---@return Dict to, Dict from   `from` is complete with its defaults
---@return string[] dropped     fields of the file that have no place on the other side
---@return table assumed        fields of the right that defaults say, not the file ("alone": mark_depth); of a part, a table of its own
---@return string[] unsaid      further fields without a place on the other side, which nobody misses: null, the usual value, or told
function sections.convert(step, side, from, moves, known, read)
  local other, nested = rules.other[side], step.nested or {}
  local by_name, rest = compile(step.config, side)
  local given = named(step, side, from)
  local defaults = step.before and step.before[side] or {}
  from = fields.fill(cbk.copy(given), defaults)
  local asked = sections.asked(step.config, side)
  for name, is in pairs(known or {}) do asked[name] = asked[name] or is end
  sections.check(from, asked)
  sections.plain(from, asked)
  if not rest then tell_of_quoted(from, asked) end -- a table that copies every field leaves all as they are
  if step.prepare and step.prepare[side] then
    from = step.prepare[side](from, given, read or {}) or from
    sections.check(from, asked)
  end
  prepare_components(step, side, from, by_name)
  local dropped, assumed, unsaid = {}, {}, {}
  local at = setmetatable({
    from = from, to = cbk.dict(), made = {}, dropped = dropped, assumed = assumed, unsaid = unsaid, moves = moves,
  }, FieldAt)
  for _, name in ipairs(cbk.keys(from)) do
    local rule = by_name[name] or rest
    at.field = name
    if rule and rule.right and given[name] == nil and type(defaults[name]) ~= "function" then assumed[rule.right] = true end
    local is_lost = not rule or convert_field(rule, side, at)
    if given[name] ~= nil and (is_lost or rule.kind == "drop" or rule.kind == "told") then
      local list = is_lost and kinds.present(given[name]) and dropped or unsaid
      list[#list + 1] = tostring(name)
    end
  end
  mark_depth(assumed, asked, given, by_name)
  fields.fill(at.to, step.after and step.after[other])
  nest(at.to, nested[other])
  if not rest then check_missing(from, at.to, by_name, side) end
  if step.finish and step.finish[other] then at.to = step.finish[other](at.to, from, read or {}) or at.to end
  check_made(flatten(at.to, nested[other]), sections.asked(step.config, other), at)
  return at.to, from, dropped, assumed, unsaid
end

---Whether a rule makes, reads or checks a field of a side; of a part's section by its dotted name.
---@param step Converter
---@param side Side
---@return fun(name: string): boolean
function sections.known(step, side)
  local by_name, parts = compile(step.config, side), {}
  for _, rule in ipairs(step.config) do
    local alias = rule.alias and rule.alias[side]
    if alias then by_name[alias] = rule end
  end
  for _, part in ipairs(step.components or {}) do parts[part[side]] = sections.known(part, side) end
  return function(name)
    local section, rest = name:match "^([^.]*)%.(.*)$"
    if parts[section] then return parts[section](rest) end
    return parts[name] ~= nil or by_name[name] ~= nil and by_name[name].kind ~= "drop"
  end
end

---@class Refused   A field of a model section that a table refuses.
---@field field string
---@field text string   "norm_type='layernorm' (not rmsnorm)"

---What of a model section a table refuses, field by field. What is missing does not count.
---@param step Converter
---@param side Side
---@param config Dict
---@return Refused[]
function sections.refused(step, side, config)
  local by_name, rest = compile(step.config, side)
  local defaults, out = {}, {}
  for name, value in pairs(step.before and step.before[side] or {}) do
    if type(value) ~= "function" then defaults[name] = value end
  end
  local from = fields.fill(named(step, side, config), defaults)
  local at = setmetatable({ from = from, to = cbk.dict(), made = {}, dropped = {}, unsaid = {} }, FieldAt)
  for _, name in ipairs(cbk.keys(from)) do
    at.field = name
    local rule = by_name[name] or rest
    local fine, problem = pcall(convert_field, rule or { kind = "told" }, side, at)
    local what, instead = tostring(not fine and problem.message):match "^cannot convert the config with (.*): only (.*) is supported"
    if what then out[#out + 1] = { field = name, text = ("%s (not %s)"):format(what, instead) } end
  end
  return out
end

return sections
