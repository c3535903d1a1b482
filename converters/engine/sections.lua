-- Runs config rules over one model section, in one direction. The section is `model` of a CS config, or a whole config.json.

local cbk = require "cbk"
local called = require "converters.engine.called"
local errors = require "cbk.errors"
local field_kinds = require "converters.engine.field_kinds"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local naming = require "cbk.naming"
local rules = require "converters.engine.rules"
local visible = require "converters.notation.visible"

local sections = {}

---@class FieldAt   What a function on a config value can ask for and do.
---@field field string  The name of the field that is read.
---@field from Dict     The config that is read, with defaults.
---@field to Dict       The config that is written.
local FieldAt = {}
FieldAt.__index = FieldAt
visible.show(FieldAt, "field from to set leave_out leave_out_others refuse")

---@param name any
local function check_name(name)
  if type(name) ~= "string" then cbk.fail("converter", ("expected the name of a field, found a %s"):format(type(name))) end
end

---Where a value comes from, for messages: a field of the config, its default, or a function.
local function said(at, name)
  if name == nil then return "a function" end
  return ("the field '%s'%s"):format(tostring(name), at.given[name] == nil and " (by its default)" or "")
end

---Fails on NaN, and on infinite numbers that a function made of others.
local function check_number(at, target, value)
  if type(value) ~= "number" or value - value == 0 or value == at.from[at.field] then return end
  cbk.fail("config", ("cannot convert the config with %s=%s: %s would be %s, which must be a finite number"):format(at.field,
    fields.shown(at.from[at.field]), tostring(target), fields.shown(value)))
end

---Gives a field of the config that is written its value. Another value from another field's rule or function is an error.
---@param target any
---@param value any
local function give(at, target, value)
  check_number(at, target, value)
  local maker, before = at.made[target], at.to[target]
  at.to[target], at.made[target], at.values[target] = value, at.field, value
  if before ~= nil and maker ~= at.field and not fields.same(before, at.to[target]) then
    cbk.fail("config", ("%s and %s both give '%s', with the values %s and %s: only one can be kept; remove the wrong one"):format(
      said(at, maker), said(at, at.field), tostring(target), fields.shown(before), fields.shown(at.to[target])))
  end
end

---Sets another field of the config that is written.
function FieldAt:set(name, value)
  check_name(name)
  give(self, name, value)
end

---Reports a field that has no place on the other side.
function FieldAt:leave_out(name)
  check_name(name)
  self.dropped[#self.dropped + 1] = name
end

---Reports all entries of a map as left out, except those in `known`.
---@param map Dict
---@param known table<string, any>|Dict
function FieldAt:leave_out_others(map, known)
  for name in cbk.items(map) do
    if known[name] == nil and kinds.present(map[name]) then self:leave_out(("%s.%s"):format(self.field, tostring(name))) end
  end
end

---The error for a value that cannot be converted. `supported` is what can be: a value, or a text.
function FieldAt:refuse(value, supported) fields.refuse(self.field, value, supported) end

-- --- what fields may be

---@alias KnownFields table<string, ClassField>   of one side, by all names under which its class reads them

---The fields of a side's class, by all their names.
---@param step Converter
---@param side Side
---@return KnownFields
function sections.known_fields(step, side)
  local class = step.classes and step.classes[side]
  return class and class:by_name() or {}
end

---Fails if a value is not of its field's kind.
---@param config Dict
---@param known KnownFields
---@param place? string   what is before the names in messages
function sections.check(config, known, place)
  for name in cbk.items(config) do
    local wanted = field_kinds.mistake(known[name], config[name], cbk.kind(config, name))
    if wanted then fields.refuse((place or "") .. tostring(name), config[name], wanted) end
  end
end

---Normalises values (1 becomes true). The values must be valid (`check`).
---@param config Dict   changed in place
---@param known KnownFields
---@return Dict
function sections.plain(config, known)
  for _, name in ipairs(cbk.keys(config)) do
    local plain = field_kinds.plain(known[name], config[name])
    if plain ~= config[name] then config[name] = plain end
  end
  return config
end

local function warn_of_quoted(config, known)
  local names = {}
  for name in cbk.items(config) do
    if field_kinds.is_quoted(known[name], config[name]) then names[#names + 1] = ("%s=%s"):format(name, fields.shown(config[name])) end
  end
  if #names > 0 then cbk.warn("numbers in quotes are kept as text, which not every program reads: " .. table.concat(names, ", ")) end
end

---Fails if the config lacks a required size that no other field supplied.
---@param known KnownFields
local function check_missing(config, to, by_name, side, known)
  local missing = {}
  for name, rule in pairs(by_name) do
    local target = rule.kind == "pair" and rule[rules.other[side]]
    if target and field_kinds.is_needed(known[name]) and config[name] == nil and to[target] == nil then
      missing[#missing + 1] = name
    end
  end
  table.sort(missing)
  local place = side == "right" and " in its model section; add it there" or ""
  if #missing == 0 then return end
  errors.fail_with("config", ("the config has no '%s'%s"):format(table.concat(missing, "', '"), place),
    { field = missing[1], found = "nothing", fields = missing })
end

---The result of a converter's function: a config, or nil. Anything else is an error.
---@param name string   of the function
---@return Dict|nil
local function config_of(name, made)
  if made == nil or kinds.is_dict(made) then return made end
  if type(made) == "table" and made[1] == nil then return cbk.dict(made) end
  cbk.fail("converter", ("%s must return a config, or nothing; it returned %s"):format(name, fields.shown(made)))
end

-- --- layouts of files

---@param made any   of a function of `layout`
---@return Dict
local function layout_of(name, side, made)
  local where = ("layout.%s.%s"):format(side, name)
  return config_of(where, made) or cbk.fail("converter", where .. " must return a config; it returned nothing")
end

---A model section of a file, in the layout of the rules.
---@param step Converter
---@param side Side
---@param section Dict
---@return Dict
function sections.of_file(step, side, section)
  local layout = step.layout and step.layout[side]
  return layout and layout_of("read", side, layout.read(cbk.copy(section))) or section
end

---The inverse of `of_file`: a model section in the layout of files.
function sections.for_file(step, side, section)
  local layout = step.layout and step.layout[side]
  return layout and layout_of("write", side, layout.write(cbk.copy(section))) or section
end

-- --- running

---Rules for the fields of a class that no rule names: they must have their defaults.
---@param class Class|nil
---@param is_named fun(name: string): boolean
---@return table<string, table>   rules by the names of fields
local function usual_values(class, side, is_named)
  local out = {}
  for name, field in pairs(class and class.fields or {}) do
    local names, is_free = { name, unpack(field.aliases) }, field.free or field.kind == "rate"
    for _, one in ipairs(names) do is_free = is_free or is_named(one) end
    local value = field.default
    if value == nil then value = cbk.null end
    if type(value) == "string" then value = fields.any_of(value) end -- which messages quote
    for _, one in ipairs(is_free and {} or names) do
      out[one] = { [side] = one, kind = "must", value = value, unused = field.unused, is_usual = true }
    end
  end
  return out
end

---@param names table<string, any>   of one side
local function has_any(names, name, field)
  for _, one in ipairs { name, unpack(field.aliases) } do
    if names[one] then return true end
  end
  return false
end

---@class UnlikeDefault   A field of both classes that no rule names, with the names and defaults of each side.
---@field left string
---@field right string
---@field text string

---The fields that both classes have with different defaults and that no rule names: what is written computes with another value.
---@param step Converter
---@param classes? table<Side, Class>   of the model, if the converter has none of its own
---@return UnlikeDefault[]
function sections.unlike_defaults(step, classes)
  classes = step.classes or classes or {}
  local named, out = { left = {}, right = {} }, {}
  for _, rule in ipairs(step.config or {}) do
    for side, names in pairs(named) do names[rule[side] or ""] = true end
  end
  if not (classes.left and classes.right) then return out end
  local who = named.left["*"] and "only the rule { \"*\" } has" or "no rule names"
  for _, name in ipairs(classes.left.field_names) do
    local own = classes.left.fields[name]
    for _, other in ipairs(classes.right.field_names) do
      local far = classes.right.fields[other]
      local is_one = has_any({ [name] = true }, other, far) or has_any({ [other] = true }, name, own)
      local is_checked = not (own.free or far.free or own.kind == "rate" or own.default == nil or far.default == nil)
      local is_named = has_any(named.left, name, own) or has_any(named.right, other, far)
      if is_one and is_checked and not is_named and not fields.same(own.default, far.default) then
        local text = ("%s the field '%s', whose default is %s in %s and %s in %s"):format(who, name, fields.shown(own.default),
          classes.left.name, fields.shown(far.default), classes.right.name)
        out[#out + 1] = { left = name, right = other, text = text }
      end
    end
  end
  return out
end

---The rules of a side by the names of its fields. A field that only the other side has is an error.
---@param step Converter
---@param side Side
---@return table<string, table> by_name, table|nil rest
---@return table<string, table[]> further   later pairs of the same fields, with other names on the other side
local function compile(step, side)
  local by_name, foreign, further, other = {}, {}, {}, rules.other[side]
  for _, rule in ipairs(step.config) do
    local name = rule[side]
    if name == "*" then return by_name, rule, further end
    if name and by_name[name] and rule.kind == "pair" then
      further[name] = further[name] or {}
      table.insert(further[name], rule)
    elseif name then
      by_name[name] = by_name[name] or rule
    end
    if rule[other] then foreign[rule[other]] = rule end
  end
  local classes = step.classes or {}
  for name, rule in pairs(usual_values(classes[side], side, function(name) return by_name[name] ~= nil end)) do by_name[name] = rule end
  for name, rule in pairs(usual_values(classes[other], other, function(name) return foreign[name] ~= nil end)) do foreign[name] = rule end
  local known = sections.known_fields(step, side)
  for name, rule in pairs(foreign) do
    if rule.kind == "must" and not known[name] then by_name[name] = by_name[name] or rule end
  end
  return by_name, nil, further
end

---The fields of a side that must have one value each, because the other side cannot express others.
---@param step Converter
---@param side Side
---@return table<string, any>   values by the names of fields
function sections.limits(step, side)
  local out, known = {}, (step.classes or {})[side]
  local by_name, rest = compile(step, side)
  for name, rule in pairs(rest and {} or by_name) do
    local is_own = rule[side] and (not rule.is_usual or known.fields[name])
    if is_own and rule.kind == "must" then out[name] = rule.value end
  end
  return out
end

---Whether a field that is written was made from this field.
local function has_set(at, name)
  for _, source in pairs(at.made) do
    if source == name then return true end
  end
  return false
end

---The required value for `fields.refuse`, which would show a plain string without quotes.
local function quoted(value) return type(value) == "string" and fields.any_of(value) or value end

---The value of a section's field by its dotted name.
local function value_at(config, name)
  local section, inner = name:match "^(.-)%.(.*)$"
  if config[name] ~= nil or not section or not kinds.is_dict(config, section) then return config[name] end
  return value_at(config[section], inner)
end

---For a name on the left that the way back cannot restore: the checkpoint keeps it. It is used again if the right still has its value.
---@param value any   the field's new value
---@return any
local function with_kept_name(rule, side, at, value)
  local further, own = rule.action.further_names, at.from[at.field]
  if side == "left" then
    if further[own] ~= nil then at.unsaid[#at.unsaid + 1] = at.field end
    return value
  end
  local kept = at.kept and rule.left and value_at(at.kept, rule.left)
  return kept ~= nil and further[kept] == own and kept or value
end

---Whether a field has another value than the one that its rule demands.
---@param from Dict   the config
local function is_refused(rule, value, from)
  local is_unused = rule.unused and kinds.present(value) and rule.unused(value, from)
    or rule.is_usual and rule.value ~= true and value == cbk.null
  return not is_unused and not fields.same(value, rule.value)
end

---@return boolean|nil is_lost   the value is lost: the other side has no place for it
local function convert_field(rule, side, at)
  local name = at.field
  if rule.kind == "used" then
    if rule.check then rule.check(at.from[name], at) end
    return
  end
  if rule.kind == "drop" then return kinds.present(at.from[name]) and (rule.value == nil or not fields.same(at.from[name], rule.value)) end
  if rule.kind == "must" then
    if not rule[side] then
      cbk.fail("config", ("the config field '%s' (=%s) should not appear in the config, because it is a field of the other format; remove "
        .. "it if %s is meant, the only value that is supported there"):format(name, fields.shown(at.from[name]), fields.shown(rule.value)))
    end
    local value = at.from[name]
    local advice = rule.is_usual and at.own_file
      and ("no rule of '%s' names this field, so it must have its default: add a rule for it"):format(at.own_file)
    if is_refused(rule, value, at.from) then fields.refuse(name, value, quoted(rule.value), advice) end
    return
  end
  local target = rule[rules.other[side]]
  if target == "*" then target = name end
  if not rule.action then
    give(at, target, cbk.raw(at.from, name))
  else
    local dropped = #at.dropped
    local convert = rule.action[side == "left" and "forward" or "backward"]
    local value = called.with(at.from, at.known, name, convert, at.from[name], at)
    if rule.action.further_names then value = with_kept_name(rule, side, at, value) end
    if not target and value ~= nil then
      cbk.fail("converter", ("the function of the config field '%s' gives %s, but its rule has no name on the other side"):format(name,
        fields.shown(value)))
    end
    if not target then return end
    if value == nil then return kinds.present(at.from[name]) and #at.dropped == dropped and not has_set(at, name) end
    give(at, target, value)
  end
  if at.moves and target ~= name then at.moves[#at.moves + 1] = { tostring(name), target } end
end

---Converts a field by each of its rules.
---@param is_fixed boolean   a default of the field is not computed from others
---@return boolean|nil is_lost   no rule has a place for the value
local function convert_by_all(list, side, at, is_fixed)
  local is_lost = true
  for _, rule in ipairs(list) do
    if rule.right and at.given[at.field] == nil and is_fixed then at.assumed[rule.right] = true end
    is_lost = convert_field(rule, side, at) and is_lost
  end
  return is_lost
end

---Fails if a function changed a field that another rule gives, or a rule gives a field that must have one value another one.
---@param at FieldAt
local function check_kept(step, other, at)
  local targets = {}
  for target in pairs(at.made) do targets[#targets + 1] = target end
  table.sort(targets, function(a, b) return tostring(a) < tostring(b) end)
  for _, target in ipairs(targets) do
    local source = at.made[target]
    if not fields.same(at.to[target], at.values[target]) then
      cbk.fail("converter", ("a function changes '%s' to %s, but %s gives it the value %s"):format(tostring(target),
        fields.shown(at.to[target]), said(at, source), fields.shown(at.values[target])))
    end
  end
  for _, rule in ipairs(step.config) do
    local own = rule.kind == "must" and rule.is_written and rule[other]
    if own and at.made[own] ~= nil and not fields.same(at.to[own], rule.value) then
      cbk.fail("converter", ("%s gives '%s' the value %s, but a rule demands %s"):format(said(at, at.made[own]), own,
        fields.shown(at.to[own]), fields.shown(rule.value)))
    end
  end
end

---Fails if a rule made a value that is invalid for the field it is written to.
---@param to Dict
---@param known KnownFields   of the side that is written
---@param at FieldAt
local function check_made(to, known, at)
  for name in cbk.items(to) do
    local value, source = to[name], at.made[name]
    local wanted = field_kinds.mistake(known[name], value, cbk.kind(to, name))
    if wanted then
      local cause = source and source ~= name and (" with %s=%s"):format(source, fields.shown(at.from[source])) or ""
      cbk.fail("config", ("cannot convert the config%s: %s would be %s, which must be %s"):format(cause, name, fields.shown(value),
        wanted))
    end
  end
end

---A copy of a config with the fields of sections under the dotted names that rules use.
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

---Renames a field from an alias to its own name. If both are present, the alias wins, as in Hugging Face's classes
---(PretrainedConfig.attribute_map).
---@param config Dict   changed in place
---@param field ClassField
local function use_own_name(config, name, alias, field)
  local value = config[alias]
  if kinds.present(value) then
    sections.check(cbk.dict { [alias] = value }, { [alias] = field })
    if kinds.present(config[name]) and not fields.same(config[name], value) then
      cbk.warn(("the config has %s=%s and %s=%s, which are two names of one field; the latter is used, as in the model's own class"):format(
        name, fields.shown(config[name]), alias, fields.shown(value)))
    end
    config[name] = cbk.raw(config, alias)
  end
  config[alias] = nil
end

---The fields of a model section under the names that rules use.
local function named(step, side, config)
  local out, is_rule = flatten(config, (step.nested or {})[side]), {}
  for _, rule in ipairs(step.config) do is_rule[rule[side] or ""] = true end
  local class = not is_rule["*"] and step.classes and step.classes[side]
  local own = class and class.fields or {}
  for _, first in ipairs(naming.sorted(own)) do
    local names, name = { first, unpack(own[first].aliases) }, nil
    for _, one in ipairs(names) do name = name or is_rule[one] and one or nil end
    for _, alias in ipairs(name and names or {}) do
      if out[alias] ~= nil and not is_rule[alias] then use_own_name(out, name, alias, own[first]) end
    end
  end
  return out
end

---Moves fields with dotted names back into their sections, in place.
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
    if cbk.count(inner) > 0 then
      if kinds.present(config[section]) then
        cbk.fail("converter", ("a rule gives the config field '%s', and others its fields %s: only one can be kept"):format(section,
          naming.listed(cbk.keys(inner))))
      end
      config[section] = inner
    end
  end
end

---A config that rules have read, with its sections again.
---@param step Converter
---@param side Side
---@param config Dict   fields of sections have dotted names
---@return Dict
function sections.nested(step, side, config)
  local out = cbk.copy(config)
  nest(out, (step.nested or {})[side])
  return out
end

---Moves the fields `names` from one section to another.
---@param names? string[]
---@param from Dict   changed in place, as `to`
---@param to Dict
function sections.move(names, from, to)
  for _, name in ipairs(names or {}) do
    if from[name] ~= nil then
      to[name] = cbk.raw(from, name)
      from[name] = nil
    end
  end
end

---The rule for a part of a composite: it converts the part's section with the part's own table.
local function rule_of(part, side)
  local function convert(section, at)
    local kept = at.kept and kinds.is_dict(at.kept, part.left) and at.kept[part.left] or nil
    local to, complete, dropped, assumed, unsaid = sections.convert(part, side, section, nil, nil, { hf_config = kept })
    at.from[at.field], at.assumed[part.right] = complete, assumed
    for _, name in ipairs(side == "left" and part.beside or {}) do
      if to[name] ~= nil then at:set(name, cbk.raw(to, name)) end
      to[name] = nil
    end
    for _, name in ipairs(dropped) do at:leave_out(at.field .. "." .. name) end
    for _, name in ipairs(unsaid) do at.unsaid[#at.unsaid + 1] = at.field .. "." .. name end
    return to
  end
  return { left = part.left, right = part.right, kind = "pair", action = { forward = convert, backward = convert } }
end

---Adds a rule for each part's section. On the right, the fields beside a section are moved into it.
local function prepare_components(step, side, from, by_name)
  for _, part in ipairs(step.components or {}) do
    local name = part[side]
    by_name[name] = rule_of(part, side)
    if not kinds.is_dict(from, name) then cbk.fail("config", ("the config has no section '%s'"):format(name)) end
    if side == "right" and part.beside then
      from[name] = cbk.copy(from[name])
      sections.move(part.beside, from, from[name])
    end
  end
end

---The fields of a side that do not depend on the other: fixed values, and the name of the class.
---@param step Converter
---@param side Side
---@return table<string, any>
function sections.constants(step, side)
  local out = {}
  for _, rule in ipairs(step.config or {}) do
    if rule.is_written and rule[side] and out[rule[side]] == nil then out[rule[side]] = cbk.deep_copy(rule.value) end
  end
  local class = side == "left" and step.classes and step.classes.left
  if class and out.architectures == nil then out.architectures = { class.name } end
  return out
end

---Whether a rule uses the class's default if a config leaves the field out. A Model Zoo config must have its sizes. A rate is used only
---in training, so it is checked only if it is present.
---@param rule table|nil
---@param field ClassField
local function reads_default(rule, side, field)
  if field.default == nil or not rule or not rule[side] or rule.is_usual then return false end
  if rule.kind == "must" then return field.kind ~= "rate" end
  return (rule.kind == "pair" or rule.kind == "used") and not (side == "right" and field_kinds.is_needed(field))
end

---The default of a field that both sides leave out, if the other side's default differs: then it must be written.
---@param step Converter
---@param side Side
---@param rule table|nil
---@param name string
local function default_to_say(step, side, rule, name)
  local other = rule and rule.kind == "pair" and not rule.action and rule[rules.other[side]]
  local own, far = sections.known_fields(step, side)[name], sections.known_fields(step, rules.other[side])[other or ""]
  if not own or own.kind == "rate" or own.default == nil or not far or far.default == nil then return nil end
  return not fields.same(own.default, far.default) and own.default or nil
end

---The values of fields that a config leaves out: the defaults of its class, or the converter's own.
---@param step Converter
---@param side Side
---@param by_name table<string, table>   rules by the names of fields
---@return table<string, any>
local function defaults_of(step, side, by_name)
  local out = {}
  for name, field in pairs(sections.known_fields(step, side)) do
    if reads_default(by_name[name], side, field) then
      out[name] = field.kind == "rate" and cbk.float(field.default) or field.default
    end
  end
  for name, value in pairs(step.defaults and step.defaults[side] or {}) do
    if value == fields.none then out[name] = default_to_say(step, side, by_name[name], name) else out[name] = value end
  end
  return out
end

---The fields of a side without a config: the defaults of the converter, and of its class.
---@param step Converter
---@param side Side
---@return Dict
function sections.of_defaults(step, side) return fields.fill(cbk.dict(), defaults_of(step, side, (compile(step, side)))) end

---@class Read   The checkpoint that a config is converted with. It is empty without one (convert-config).
---@field source? Dict      The checkpoint's tree of tensors.
---@field hf_config? Dict   What the checkpoint keeps of a Hugging Face config.
---@field file? Dict        The whole file, of a Model Zoo config on the way to Hugging Face.

---Converts one model section.
---@param step Converter
---@param side Side      the side that `from` is
---@param from Dict
---@param moves? Moves   fields that get another name are added
---@param class? Class   the class of both sides, if the table copies fields that it does not name
---@param read? Read     the checkpoint of that config
---@return Dict to, Dict from   `from` is complete with its defaults
---@return string[] dropped     fields of the file that have no place on the other side
---@return table assumed        fields of the right that come from defaults, not the file; a part has its own table
---@return string[] unsaid      further fields without a place on the other side that need no warning: null, the usual value, or used
function sections.convert(step, side, from, moves, class, read)
  local other, nested = rules.other[side], step.nested or {}
  local by_name, rest, further = compile(step, side)
  local given = named(step, side, from)
  local defaults = rest and (step.defaults or {})[side] or defaults_of(step, side, by_name)
  class = class or step.classes and step.classes[side]
  local known = class and class:by_name() or {}
  from = fields.fill(cbk.copy(given), defaults)
  sections.check(from, known)
  sections.plain(from, known)
  if class then class:check(from, given) end
  if not rest then warn_of_quoted(from, known) end -- a table that copies every field leaves all as they are
  if step.prepare and step.prepare[side] then
    from = config_of("prepare." .. side, called.with(from, known, nil, step.prepare[side], from, given, read or {})) or from
    sections.check(from, known)
  end
  prepare_components(step, side, from, by_name)
  local dropped, assumed, unsaid = {}, {}, {}
  local at = setmetatable({
    from = from, given = given, known = known,
    to = cbk.dict(), made = {}, values = cbk.dict(), dropped = dropped, assumed = assumed, unsaid = unsaid, moves = moves,
    own_file = step.own_file, kept = read and read.hf_config,
  }, FieldAt)
  for _, name in ipairs(cbk.keys(from)) do
    local rule = by_name[name] or rest
    at.field = name
    local is_lost = not rule or convert_by_all({ rule, unpack(further[name] or {}) }, side, at, type(defaults[name]) ~= "function")
    if given[name] ~= nil and (is_lost or rule.kind == "drop" or rule.kind == "used") then
      local list = is_lost and kinds.present(given[name]) and dropped or unsaid
      list[#list + 1] = tostring(name)
    end
  end
  check_kept(step, other, at)
  fields.fill(at.to, sections.constants(step, other))
  nest(at.to, nested[other])
  if not rest then check_missing(from, at.to, by_name, side, sections.known_fields(step, side)) end
  if step.finish and step.finish[other] then
    at.to = config_of("finish." .. other, called.with(from, known, nil, step.finish[other], at.to, from, read or {})) or at.to
  end
  local to = cbk.deep_copy(at.to) -- a converter that keeps at.to cannot change what is checked here
  local flat = flatten(to, nested[other])
  check_made(flat, sections.known_fields(step, other), at)
  for _, one in ipairs(step.own_file and sections.unlike_defaults(step) or {}) do
    if flat[one[other]] == nil then
      cbk.warn(one.text .. ": the output computes with its own; add a rule for it")
    end
  end
  return to, from, dropped, assumed, unsaid
end

---A function that returns whether a rule writes, reads or checks a field of a side. Fields of a part have dotted names.
---@param step Converter
---@param side Side
---@return fun(name: string): boolean
function sections.known(step, side)
  local by_name, parts = compile(step, side), {}
  for name, field in pairs(step.classes and step.classes[side] and step.classes[side].fields or {}) do
    for _, alias in ipairs(field.aliases) do by_name[alias] = by_name[alias] or by_name[name] end
  end
  for _, part in ipairs(step.components or {}) do parts[part[side]] = sections.known(part, side) end
  return function(name)
    local section, rest = name:match "^([^.]*)%.(.*)$"
    if parts[section] then return parts[section](rest) end
    return parts[name] ~= nil or by_name[name] ~= nil and by_name[name].kind ~= "drop"
  end
end

---Whether a table copies every field of a side, whatever its name.
---@param step Converter
---@param side Side
function sections.takes_any(step, side) return select(2, compile(step, side)) ~= nil end

---@class Refused   A field of a model section that a table refuses.
---@field field string
---@field text string   "norm_type='layernorm' (not rmsnorm)"

---The fields of a model section that a table refuses. Missing fields do not count.
---@param step Converter
---@param side Side
---@param config Dict
---@return Refused[]
function sections.refused(step, side, config)
  local by_name, rest = compile(step, side)
  local defaults, out = {}, {}
  for name, value in pairs(defaults_of(step, side, by_name)) do
    if type(value) ~= "function" then defaults[name] = value end
  end
  local from = fields.fill(named(step, side, config), defaults)
  local at = setmetatable({
    from = from, given = config, known = {}, to = cbk.dict(), made = {}, values = cbk.dict(), dropped = {}, unsaid = {},
  }, FieldAt)
  for _, name in ipairs(cbk.keys(from)) do
    at.field = name
    local rule = by_name[name] or rest
    local fine, problem = pcall(convert_field, rule or { kind = "used" }, side, at)
    if not fine and problem.supported then
      out[#out + 1] = { field = name, text = ("%s=%s (not %s)"):format(problem.field, problem.found, problem.supported) }
    end
  end
  return out
end

---How far a config is from a table: the number of fields with other values than the table requires, and of copied fields that the config
---lacks, but for those that it may leave out. Of two tables that may accept a config, the one with fewer is nearer.
---@param step Converter
---@param side Side
---@param config Dict
---@return integer refused, integer lacking
function sections.distance(step, side, config)
  local refused, lacking, defaults = 0, 0, (step.defaults or {})[side] or {}
  for name, rule in pairs((compile(step, side))) do
    local value = config[name]
    if rule.kind == "pair" and value == nil and defaults[name] ~= fields.none then lacking = lacking + 1 end
    if rule.kind == "must" and rule[side] and value ~= nil and is_refused(rule, value, config) then refused = refused + 1 end
  end
  return refused, lacking
end

return sections
