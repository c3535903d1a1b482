-- Finds mistakes in a converter's config rules: rules that no field reaches, fields that become one field, misspelt fields. It converts
-- nothing.

local cbk = require "cbk"
local errors = require "cbk.errors"
local fields = require "converters.engine.fields"
local naming = require "cbk.naming"
local pretrained = require "converters.engine.pretrained"
local rules = require "converters.engine.rules"
local sections = require "converters.engine.sections"
local visible = require "converters.notation.visible"

local check_config = {}

local towards = { left = "left to right", right = "right to left" }

---The fields that a config of a side may have; nil if it may have any.
---@param classes? table<Side, Class>   of the model, if the table has none of its own
local function fields_of(own, side, classes)
  local class = (own.classes or classes or {})[side]
  local out = class and class:by_name() or {}
  for _, rule in ipairs(own.config or {}) do
    if rule[side] == "*" then return nil end
    if rule[side] then out[rule[side]] = true end
  end
  return out
end

local function field_text(rule)
  local kind = rule.kind ~= "pair" and (rule.is_written and "fixed" or rule.kind) .. " " or ""
  if not (rule.left and rule.right) then return kind .. "'" .. tostring(rule.left or rule.right) .. "'" end
  return kind .. "'" .. rule.left .. (rule.left == rule.right and "" or "' <-> '" .. rule.right) .. "'"
end

---Config rules that no field reaches, and fields that become one field.
---@param set table[]   of fields.config
---@return { kind: string, text: string }[]
function check_config.fields(set)
  local findings, reached = {}, {}
  for _, side in ipairs { "left", "right" } do
    local taken, target_of, rest = {}, {}, nil
    for _, rule in ipairs(set) do
      local name, target = rule[side], rule.kind == "pair" and rule[rules.other[side]]
      if name and not taken[name] and not rest then
        reached[rule] = true
        if name == "*" then rest = rule else taken[name] = rule end
        local earlier = target and target_of[target]
        if earlier and not (earlier.action or rule.action) then
          findings[#findings + 1] = { kind = "collision", rule = rule,
            text = ("%s, the fields '%s' and '%s' both become '%s'"):format(towards[side], earlier[side], name, target) }
        end
        if target and target ~= "*" then target_of[target] = target_of[target] or rule end
      end
    end
  end
  local fixed = { left = {}, right = {} }
  for _, rule in ipairs(set) do
    local side, is_fixed = rule.left and "left" or "right", rule.kind == "must" and rule.is_written
    local first = is_fixed and fixed[side][rule[side]]
    if is_fixed then fixed[side][rule[side]] = first or rule end
    if first and not fields.same(first.value, rule.value) then
      findings[#findings + 1] = { kind = "collision", rule = rule,
        text = ("two rules write '%s', as %s and as %s"):format(rule[side], fields.shown(first.value), fields.shown(rule.value)) }
    elseif not (reached[rule] or rule.is_written) then
      findings[#findings + 1] = { kind = "unreachable", rule = rule,
        text = ("no field reaches the config rule %s: an earlier one takes it"):format(field_text(rule)) }
    end
  end
  return findings
end

---Fields that any config may have.
local function is_common(side, name)
  if side == "right" then return name == "name" end
  return name == "model_type" or pretrained.is_common(name)
end

---Reports defaults of fields that no config rule names: they are misspelt, or the other direction cannot read what this one writes.
---@param own Converter
---@param classes? table<Side, Class>   of the model
---@return { kind: string, text: string }[]
function check_config.defaults(own, classes)
  local findings = {}
  for _, side in ipairs { "left", "right" } do
    local known = fields_of(own, side, classes)
    local names = {}
    for name in pairs(known and own.defaults and own.defaults[side] or {}) do
      if not (known[name] or is_common(side, name)) then names[#names + 1] = "'" .. name .. "'" end
    end
    table.sort(names)
    if #names > 0 then
      findings[#findings + 1] = { kind = "unknown field",
        text = ("defaults.%s has %s, which no config rule names; use fields.drop.%s or fields.used.%s for fields without a counterpart")
          :format(side, table.concat(names, ", "), side, side) }
    end
  end
  return findings
end

---Whether two names differ in one place, by at most two characters.
local function is_slip(one, other)
  local shorter, longer = math.min(#one, #other), math.max(#one, #other)
  local first, last = 0, 0
  while first < shorter and one:byte(first + 1) == other:byte(first + 1) do first = first + 1 end
  while last < shorter - first and one:byte(-last - 1) == other:byte(-last - 1) do last = last + 1 end
  return longer - first - last <= 2
end

---Reports fields that rules write but the class does not have. The Model Zoo refuses them. A Hugging Face config may have any field, so
---only names that nearly match a field are reported there.
---@param own Converter
---@param classes? table<Side, Class>   of the model
---@param is_strict? boolean   for a user's converter; cbk's own families write what the reference writes
---@return { kind: string, text: string, rule: table, side: Side }[]
function check_config.names(own, classes, is_strict)
  local findings = {}
  for _, side in ipairs { "left", "right" } do
    local class = (own.classes or classes or {})[side]
    local known = class and class:by_name() or {}
    for _, rule in ipairs(class and own.config or {}) do
      local name = rule[side]
      local is_written = rule.is_written or rule.kind == "pair" and rule[rules.other[side]]
      local is_nested = name and name:find(".", 1, true) -- classes describe the first level
      local is_strange = name and name ~= "*" and is_written and not (is_nested or known[name] or is_common(side, name))
      local near = is_strange and cbk.nearest(name, naming.sorted(known))[1]
      if is_strange and (is_strict and side == "right" or near and is_slip(name, near)) then
        findings[#findings + 1] = { kind = "unknown field", rule = rule, side = side,
          text = ("the config rule %s writes a field that %s does not have%s"):format(field_text(rule), class.name,
            naming.suggestion(near)) }
      end
    end
  end
  return findings
end

---Reports fields without a rule that compute another value on the other side, unless a function may write them.
---@param own Converter
---@param classes? table<Side, Class>   of the model
---@return { kind: string, text: string }[]
function check_config.unlike(own, classes)
  local findings = {}
  for _, one in ipairs(sections.unlike_defaults(own, classes)) do
    if not own.finish then findings[#findings + 1] = { kind = "unlike defaults", text = one.text .. "; add a rule for it" } end
  end
  return findings
end

local reads = setmetatable({}, { __mode = "k" }) -- of empty configs: the names of the fields that were asked for
local Recorder = { __index = function(config, name) reads[config][tostring(name)] = true end }
visible.show_data(Recorder)

---The fields that a condition reads of each side's config, where they are all absent.
---@param when fun(at: At): boolean
---@return table<Side, table<string, true>>
local function fields_read(when)
  local seen = { left = {}, right = {} }
  local function config(side)
    local out = setmetatable({}, Recorder)
    reads[out] = seen[side]
    return out
  end
  local function none() return nil end
  for side in pairs(seen) do
    pcall(when, { left = config "left", right = config "right", side = side, key = "", source = none, is_stored = none })
  end
  return seen
end

---Reports conditions of key rules on fields that the class of their side does not have.
---@param own Converter
---@param classes? table<Side, Class>   of the model
---@return { kind: string, text: string, rule: Rule }[]
function check_config.conditions(own, classes)
  local findings, seen = {}, {}
  for _, rule in ipairs(own.keys or {}) do
    local read = rule.when and not seen[rule.when] and fields_read(rule.when) or {}
    seen[rule.when or ""] = true
    for _, side in ipairs { "left", "right" } do
      local class, known = (own.classes or classes or {})[side], fields_of(own, side, classes)
      for _, section in ipairs(known and (own.nested or {})[side] or {}) do known[section] = true end
      for _, name in ipairs(naming.sorted(class and known and read[side] or {})) do
        if not (known[name] or is_common(side, name)) then
          local near = cbk.nearest(name, naming.sorted(known))[1]
          findings[#findings + 1] = { kind = "unknown field", rule = rule,
            text = ("its condition reads '%s', which is no field of %s%s"):format(name, class.name,
              naming.suggestion(near)) }
        end
      end
    end
  end
  return findings
end

---The mistakes in a table's config rules.
---@param own Converter
---@param classes? table<Side, Class>   of the model
---@param is_strict? boolean   of check_config.names
---@return { kind: string, text: string, rule?: table }[]
function check_config.table(own, classes, is_strict)
  local out = {}
  for _, findings in ipairs { check_config.fields(own.config), check_config.defaults(own, classes),
    check_config.names(own, classes, is_strict), is_strict and check_config.unlike(own, classes) or {},
    check_config.conditions(own, classes) } do
    for _, finding in ipairs(findings) do out[#out + 1] = finding end
  end
  return out
end

---Reports extents that are not fields, among the tensors that a class has with its defaults.
---@param model Model
---@return { kind: string, text: string }[]
function check_config.classes(model)
  local findings, classes = {}, model.classes or {}
  for _, class in ipairs { classes.left or false, classes.right ~= classes.left and classes.right or false } do
    local fine, problem = pcall(function() return class and class:tensors(cbk.dict()) end)
    -- Other errors come from fields without a default.
    if not fine and type(problem) == "table" and problem.code == "converter" then
      findings[#findings + 1] = { kind = "class", text = errors.text(problem) }
    end
  end
  return findings
end

---The fields of all tables of a converter; nil if one of them copies any field, or belongs to another model.
local function fields_of_all(model, side)
  local out, is_open = {}, false
  local function look(own)
    local known = own.config and fields_of(own, side)
    is_open = is_open or own.wrap ~= nil
    for name in pairs(known or {}) do out[name] = true end
    for _, variant in pairs(own.variants or {}) do look(variant) end
    for _, part in ipairs(own.components or {}) do out[part[side]] = true end
  end
  for _, converter in ipairs(model) do look(converter) end
  return not is_open and out or nil
end

---Reports fields that are in `history` but in no config rule.
---@param model Model
---@return { kind: string, text: string }[]
function check_config.history(model)
  local findings, known = {}, model.history and fields_of_all(model, "left")
  for name in pairs(known and model.history or {}) do
    if not known[name] then
      findings[#findings + 1] = { kind = "unknown field",
        text = ("history of %s has '%s', which no config rule names"):format(model.model, name) }
    end
  end
  return findings
end

return check_config
