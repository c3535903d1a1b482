-- A field of a model class in a config: where it is, and its value.

local cbk = require "cbk"
local field_kinds = require "converters.engine.field_kinds"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"

local class_field = {}

---The map that a field is in: "attn_config.alibi" may be a field of a section, or, while rules run, a field of that name.
---@param config Dict
---@param name string
---@return Dict map, string name
function class_field.place_of(config, name)
  local section, inner = name:match "^(.-)%.(.*)$"
  if config[name] == nil and section and kinds.is_dict(config, section) then return config[section], inner end
  return config, name
end

---Whether a config lacks a field under all of its names.
function class_field.is_absent(config, name, field)
  for _, key in ipairs { name, unpack(field.aliases) } do
    local map, inner = class_field.place_of(config, key)
    if map[inner] ~= nil then return false end
  end
  return true
end

---The value of a config field: nil if it is null, the default if it is absent.
---@param config Dict
---@param name string
---@param field ClassField
function class_field.read(config, name, field)
  local names = { name, unpack(field.aliases) }
  for _, key in ipairs(names) do
    local map, inner = class_field.place_of(config, key)
    local value = map[inner]
    local wanted = value ~= nil and field_kinds.mistake(field, value, cbk.kind(map, inner))
    if wanted then fields.refuse(key, value, wanted) end
    if value == cbk.null then return nil end
    if value ~= nil then return field_kinds.read(field, value) end
  end
  return kinds.own(field.default)
end

return class_field
