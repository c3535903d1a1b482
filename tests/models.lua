-- Writes converters/MODELS.md, the table of models, from the converters: cbk run tests/models.lua

local cbk = require "cbk"
local converters = require "cbk.converters"
local fields = require "converters.engine.fields"
local inexpressible = require "converters.shared.inexpressible"
local list = require "cbk.converters.list"
local naming = require "cbk.naming"
local sections = require "converters.engine.sections"

local models = {}

local root = debug.getinfo(1, "S").source:match "^@(.*)tests/models%.lua$" or ""

local HEAD = [[
<!-- Written by `cbk run tests/models.lua` from the converters. Change those, not this file. -->

# Models

Every model that `cbk convert` knows, with its classes and formats. `cbk list` prints the same for the command line.
Fields that the other side cannot express must have the values that are named below; other values are refused.
They are those of the newest release with a table of its own.

| model | other names | Hugging Face | Model Zoo | formats |
|---|---|---|---|---|
]]

---The newest table of a model to Hugging Face, and its variants or parts.
---@param model Model
---@return Converter[]
local function newest(model)
  local step = converters.catalogue.newest_step(model, "left")
  local converter = step and step.converter
  if not converter then return {} end
  if converter.components then return converter.components end
  local out = {}
  for _, name in ipairs(naming.sorted(converter.variants or {})) do out[#out + 1] = converter.variants[name] end
  return #out > 0 and out or { converter }
end

---@param model Model
---@param side Side
---@return string   names of classes
local function classes_of(model, side)
  local names, seen = {}, {}
  local function add(classes)
    local class = classes and classes[side]
    if class and not seen[class.name] then names[#names + 1], seen[class.name] = "`" .. class.name .. "`", true end
  end
  add(model.classes)
  if #names == 0 or side == "left" then
    for _, converter in ipairs(newest(model)) do add(converter.classes) end
  end
  return table.concat(names, ", ")
end

local function row(model)
  local aliases = {}
  for _, name in ipairs(naming.sorted(model.aliases or {})) do aliases[#aliases + 1] = "`" .. name .. "`" end
  return ("| `%s` | %s | %s | %s | %s |\n"):format(model.model, table.concat(aliases, ", "), classes_of(model, "left"),
    classes_of(model, "right"), list.formats_text(model))
end

---@param limits table<string, any>
local function limits_text(limits)
  local out = {}
  for _, name in ipairs(naming.sorted(limits)) do
    if name ~= "model_type" then out[#out + 1] = ("`%s=%s`"):format(name, fields.shown(limits[name])) end
  end
  return table.concat(out, ", ")
end

---What the other side cannot express, of each side. Headless models have the limits of the whole ones.
---@param model Model
local function limits_of(model)
  local out = {}
  for _, side in ipairs { "left", "right" } do
    local all = {}
    for i, converter in ipairs(newest(model)) do
      local limits = converter.config and sections.limits(converter, side) or {}
      for name, value in pairs(limits) do
        if i == 1 or converter.left then all[name] = value end
      end
      for name in pairs(not converter.left and all or {}) do -- what all variants have in common
        if limits[name] == nil or not fields.same(limits[name], all[name]) then all[name] = nil end
      end
    end
    local text = limits_text(all)
    if text ~= "" then out[#out + 1] = ("- %s: %s\n"):format(side == "left" and "Hugging Face" or "Model Zoo", text) end
  end
  return #out > 0 and ("\n## %s\n\n%s"):format(model.model, table.concat(out)) or ""
end

---The page.
---@return string
function models.text()
  converters.load()
  local rows, limits, seen = { HEAD }, {}, {}
  for _, name in ipairs(converters.catalogue.names()) do
    local model = converters.catalogue.find(name)
    if not seen[model] then
      seen[model] = true
      rows[#rows + 1] = row(model)
      if not model.model:find "%-headless$" then limits[#limits + 1] = limits_of(model) end
    end
  end
  local none = {}
  for _, kind in ipairs(naming.sorted(inexpressible.models)) do
    none[#none + 1] = ("- `%s`: %s.\n"):format(kind, inexpressible.models[kind])
  end
  return table.concat(rows) .. "\n## Models that the Model Zoo cannot compute\n\n" .. table.concat(none) .. table.concat(limits)
end

if ... ~= "models" then
  cbk.fs.write(root .. "converters/MODELS.md", models.text(), { overwrite = true })
  print("converters/MODELS.md is written")
end

return models
