-- The config that comes back from a round trip: which fields are lost or changed.

local cbk = require "cbk"
local fields = require "converters.engine.fields"
local kinds = require "converters.engine.kinds"
local pretrained = require "converters.engine.pretrained"
local rules = require "converters.engine.rules"
local trainer = require "converters.modelzoo.trainer"

local configs = {}

local function is_map(value) return type(value) == "userdata" and kinds.is_dict(value) end

---The model's fields of a config file.
local function section_of(config) return trainer.is_file(config) and trainer.model(config) or config end

---The names and the default of each field, by its class: Transformers reads several names as one. Fields of a part are below its name.
---@param converter Converter
---@param side Side
---@param class Class|nil   of a model that is no composite
---@return table<string, { names: string[], default: any }>
local function aliases_of(converter, side, class)
  local out = {}
  local function add(own, place)
    for name, field in pairs(own and own.fields or {}) do
      local one = { names = { name, unpack(field.aliases) }, default = field.default }
      for _, alias in ipairs(one.names) do out[place .. alias] = one end
    end
  end
  add(class, "")
  for _, part in ipairs(converter.components or {}) do add((part.classes or {})[side], part[side] .. ".") end
  return out
end

---The fields of a side that have no place on the other one, as the table says: those that functions read, constants, and dropped ones.
---@param converter Converter
---@param side Side
---@return table<string, true>
local function one_sided(converter, side)
  local out, paired = {}, {}
  local function add(own, place)
    for _, rule in ipairs(own.config or {}) do
      local name, is_pair = rule[side], rule.kind == "pair" and rule[rules.other[side]] ~= nil
      if name and is_pair then paired[place .. name] = true elseif name then out[place .. name] = true end
    end
  end
  add(converter, "")
  for _, part in ipairs(converter.components or {}) do add(part, part[side] .. ".") end
  for name in pairs(paired) do out[name] = nil end
  return out
end

---@class FieldsToCompare
---@field aliases table<string, { names: string[], default: any }>
---@field one_sided table<string, true>
---@field add fun(path: string, text: string)

---The value of a field that came back, maybe under another name, or the class's default.
local function value_back(back, name, path, known)
  local own = known.aliases[path]
  if kinds.present(back[name]) or not own then return back[name] end
  for _, alias in ipairs(own.names) do
    if kinds.present(back[alias]) then return back[alias] end
  end
  return own.default
end

---Adds the fields that do not come back, by their dotted names. Absent, null and the class's default are one.
---@param known FieldsToCompare
local function compare_fields(read, back, place, known)
  for name, value in cbk.items(read) do
    local path = place .. tostring(name)
    local found = value_back(back, name, path, known)
    local is_meant = kinds.absent(value) or known.one_sided[path] or place ~= "" and name == "model_type" -- which its place says
    if not is_meant and is_map(value) and is_map(found) then
      compare_fields(value, found, path .. ".", known)
    elseif not is_meant and kinds.absent(found) then
      if not pretrained.goes_without_saying(tostring(name), value) then
        known.add(path, ("does not come back: it was %s"):format(fields.shown(value)))
      end
    elseif not (is_meant or fields.same(value, found)) then
      known.add(path, ("comes back as %s, not %s"):format(fields.shown(found), fields.shown(value)))
    end
  end
end

---Compares the config that came back with the one that was read.
---@param one RoundTrip
---@param made Trip
---@param class Class|nil   of the side that is read
---@param add fun(name: string, text: string)   gets each field that is lost or changed
function configs.compare(one, made, class, add)
  if not (one.config and made.config) then return end
  local converter = made.there.configs[1].converter
  compare_fields(section_of(one.config), section_of(made.config), "", {
    aliases = aliases_of(converter, one.side, class), one_sided = one_sided(converter, one.side),
    add = add,
  })
end

return configs
