-- The tables of a family's models, each with its name.

local cbk = require "cbk"
local rules = require "converters.engine.rules"

local tables = {}

---@class Table
---@field model Model
---@field converter Converter   that has it
---@field variant? Converter    … or rather this variant of it
---@field part? Component       … or this part of a composite
---@field keys Rule[]
---@field config? table[]
---@field title string          "llama: hf <-> cs-2.1 .. cs-2.9"

---@param models Model[]
---@param only? string   one model
---@return Table[]
function tables.of(models, only)
  local out = {}
  local function add(model, converter, own, title, more)
    if own.keys then
      local one = { model = model, converter = converter, keys = own.keys, config = own.config, title = title }
      for name, value in pairs(more or {}) do one[name] = value end
      out[#out + 1] = one
    end
  end
  for _, model in ipairs(models) do
    for _, converter in ipairs(only and model.model ~= only and not (model.aliases or {})[only] and {} or model) do
      local title = ("%s: %s <-> %s"):format(model.model, converter[1], converter[2])
      add(model, converter, converter, title)
      local names = {}
      for name in pairs(converter.variants or {}) do names[#names + 1] = name end
      table.sort(names)
      for _, name in ipairs(names) do
        local variant = converter.variants[name]
        add(model, converter, variant, title .. ", " .. name, { variant = variant })
      end
      for _, part in ipairs(converter.components or {}) do
        add(model, converter, part, ("%s, %s"):format(title, part.right), { part = part })
      end
    end
  end
  return out
end

---A family's file as its models.
---@param path string
---@return Model[]
function tables.load(path)
  local chunk, why = loadfile(path)
  if not chunk then cbk.fail("converter", ("cannot read the converter '%s': %s"):format(path, why)) end
  local models = chunk()
  if type(models) ~= "table" or type(models[1]) ~= "table" or type(models[1].model) ~= "string" then
    cbk.fail("converter", ("'%s' does not return a list of models (see converters/README.md)"):format(path))
  end
  return models
end

---"left to right", or "hf to cs-2.1 .. cs-2.9".
---@param one Table
---@param side Side
function tables.direction(one, side)
  local first, second = one.converter[1], one.converter[2]
  if side == rules.other.left then first, second = second, first end
  return ("%s to %s"):format(first, second)
end

return tables
