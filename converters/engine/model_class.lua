-- A model class over a config: the values of its fields, and what the Model Zoo's releases refuse of them.

local cbk = require "cbk"
local border = require "converters.notation.border"
local class_field = require "converters.engine.class_field"
local class_tensors = require "converters.engine.class_tensors"
local extent = require "converters.engine.extent"
local fields = require "converters.engine.fields"
local naming = require "cbk.naming"
local releases = require "converters.engine.releases"
local visible = require "converters.notation.visible"

---@class Class: ClassTable
---@field name string                        "LlamaForCausalLM"
---@field field_names string[]               sorted, so that of several mistakes always the same one is reported
---@field nodes fun(c: table, since: fun(release: string): boolean): TensorNode   `tensors` of the ClassTable
local Class = {}
Class.__index = Class
border.allow(Class)
visible.show(Class, "name fields field_names since history removed refused renamed derived nodes by_name")

---A class cannot be changed once it is made: several families may share it.
function Class:__newindex(name) cbk.fail("converter", ("the class %s has no '%s', and gets none"):format(self.name, tostring(name))) end

---The fields by all names under which the class reads them.
---@return table<string, ClassField>
function Class:by_name()
  local out = {}
  for _, name in ipairs(self.field_names) do
    local field = self.fields[name]
    out[name] = field
    for _, alias in ipairs(field.aliases) do out[alias] = out[alias] or field end
  end
  return out
end

---The class's field with this name or alias. The name may be one that Transformers gives to every class (attribute_map).
---@param of Class
---@param name string
local function standard_field(of, name)
  for own, field in pairs(of.fields) do
    for _, one in ipairs { own, unpack(field.aliases) } do
      if one == name then return own, field end
    end
  end
end

---Fails if a config lacks the number of heads and its width is not the default: no shape would show that the default is wrong.
---@param of Class
---@param given Dict
local function check_heads(of, given)
  for _, place in ipairs { "", "vision_config." } do
    local heads, count = standard_field(of, place .. "num_attention_heads")
    local width, size = standard_field(of, place .. "hidden_size")
    local is_unsure = heads and width and class_field.is_absent(given, heads, count)
      and class_field.read(given, width, size) ~= size.default
    if is_unsure then
      cbk.fail("config", ("the config has no '%s', and the default %s belongs to a %s of %s (not %s); add it"):format(heads,
        fields.shown(count.default), width, fields.shown(size.default), fields.shown(class_field.read(given, width, size))))
    end
  end
end

---Whether a config leaves a field to the class's default.
---@param config Dict
---@param name string
---@return boolean
function Class:leaves_out(config, name) return self.fields[name] ~= nil and class_field.is_absent(config, name, self.fields[name]) end

---Fails if a config's numbers are inconsistent, such as a number of heads that does not divide the width.
---@param config Dict
---@param given? Dict   the config without its defaults
function Class:check(config, given)
  if given then check_heads(self, given) end
  local values, texts = self:values(config)
  local said = {}
  local function is_default(name) return given ~= nil and self:leaves_out(given, name) end
  for name, field in pairs(self.fields) do said[name] = not class_field.is_absent(config, name, field) and values[name] or nil end
  for _, name in ipairs(naming.sorted(texts)) do
    if rawget(values, name) == nil and extent.knows(said, texts, texts[name]) then extent.value(texts[name], values, is_default) end
  end
end

---@param first string|nil   the release since which they are refused
local function warn_of_refused(self, names, first)
  if #names == 0 then return end
  cbk.warn(("the config has %s, which the Model Zoo's %s refuses since %s: remove %s to train"):format(table.concat(names, " and "),
    self.name, first, #names == 1 and "this line" or "these lines"))
end

---Removes the fields that the programs of a release refuse, and warns about refused fields that are written all the same.
---@param config Dict       changed in place
---@param release string|nil
function Class:remove_refused(config, release)
  if not release then return end
  for name, first in pairs(self.removed or {}) do
    if releases.since(release, first) then config[name] = nil end
  end
  local found, first = {}, nil
  for _, name in ipairs(naming.sorted(self.refused or {})) do
    if config[name] ~= nil and releases.since(release, self.refused[name]) then found[#found + 1], first = name, self.refused[name] end
  end
  warn_of_refused(self, found, first)
end

---Warns about fields that a newer release refuses. Fails if the model computes something else without them.
---@param config Dict       of the older release, with all of its fields
---@param from string       that release
---@param release string
function Class:check_newer(config, from, release)
  local found, first = {}, nil
  local function find(list, check)
    for _, name in ipairs(naming.sorted(list or {})) do
      if config[name] ~= nil and releases.since(release, list[name]) and not releases.since(from, list[name]) then
        found[#found + 1], first = name, list[name]
        check(self.fields[name], name)
      end
    end
  end
  find(self.removed, function(field, name)
    if not field or field.default == nil or fields.same(config[name], field.default) then return end
    fields.refuse(name, config[name], ("%s, since release %s,"):format(fields.shown(field.default), first))
  end)
  find(self.refused, function() end)
  warn_of_refused(self, found, first)
end

local derived_texts = setmetatable({}, { __mode = "k" }) -- of Values: the extents that their class derives

local Values = { __index = function(values, name)
  local text = derived_texts[values] and derived_texts[values][name]
  return text and extent.value(text, values)
end }
visible.show_data(Values)

---The values that the class's tensors depend on. Values that the class derives are computed when they are used.
---@param config Dict
---@param instead? table<string, any>   values in place of what the config says
---@return table<string, any> values
---@return table<string, string> texts   the extents that the class derives; of a number, the fields it is computed from
function Class:values(config, instead)
  local out, texts = {}, {}
  for _, name in ipairs(self.field_names) do out[name] = class_field.read(config, name, self.fields[name]) end
  for name, value in pairs(instead or {}) do out[name] = value end
  for name, value in pairs(self.derived and self.derived(out) or {}) do
    if type(value) == "table" then
      out[name], texts[name] = value[1], table.concat(value, " ", 2)
    elseif type(value) == "string" then
      out[name], texts[name] = nil, value
    else
      out[name] = value
    end
  end
  derived_texts[out] = texts
  return setmetatable(out, Values), texts
end

---The tensors for a config.
---@param config Dict      a config.json, or the model section of a Model Zoo config
---@param options? ClassOptions
---@return ClassTensors
function Class:tensors(config, options) return class_tensors.of(self, config, options) end

return Class
