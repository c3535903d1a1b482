-- Arguments of the functions that tables of keys and of config fields are written with.

local shapes = require "converters.notation.shapes"

local named, maybe, text, func = shapes.named, shapes.maybe, shapes.text, shapes.func

---@param mark string   the field that marks such a table
local function made_by(maker, mark)
  return shapes.of("made by " .. maker, function(value) return type(value) == "table" and value[mark] == true end)
end

local arguments = {}

---@type table<string, Shape>
arguments.made_by = { keys = made_by("rules.keys", "is_rules"), config = made_by("fields.config", "is_fields") }

-- --- rules

local pattern, why = named("a pattern", text), named("the reason", text)
local formats, converter = named("formats", text), named("a converter", shapes.table)
local changes = maybe(named("fields that differ", shapes.table))

---@type table<string, Shape[]>
arguments.rules = {
  each = { named("a pattern or several", shapes.either(text, shapes.list(text, "a list of patterns"))),
    named("one of its letters", text), named("a field or a function", shapes.either(text, func)) },
  variant = { converter, changes }, between = { formats, formats, converter, changes },
}

-- --- fields

---Names alone, or with something.
---@param value Shape
local function names_or(value, says)
  return { says = says, what = says, mistake = function(map, name)
    if type(map) ~= "table" then return shapes.table.mistake(map, name) end
    for key, own in pairs(map) do
      local mistake = (type(key) == "number" and text or value).mistake(own, type(key) == "number" and "a name" or key)
      if mistake then return mistake end
    end
  end }
end

local values = named("fields and their values", shapes.map(text, shapes.any, "fields and their values: { norm_type = \"rmsnorm\" }"))
local names = names_or(shapes.any, "names of fields, or fields and their values")
local config, list = named("config rules", arguments.made_by.config), named("a list of fields", shapes.list(text, "a list of strings"))
local defaults = named("defaults", shapes.table)

---@type table<string, Shape[]>
arguments.fields = {
  without = { config, list }, with = { defaults, named("more of them", shapes.table), maybe(list) }, same_as = { named("a field", text) },
}

for _, side in ipairs { "left", "right" } do
  arguments.rules["only." .. side] = { pattern, why, maybe(named("the pattern of what it is a copy of", text)) }
  for _, kind in ipairs { "drop.", "refuse." } do arguments.rules[kind .. side] = { pattern, why, maybe(named("a condition", func)) } end
  for _, kind in ipairs { "must.", "fixed.", "written." } do arguments.fields[kind .. side] = { values } end
  arguments.fields["used." .. side], arguments.fields["drop." .. side] = { list }, { names }
end

return arguments
