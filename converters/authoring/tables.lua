-- The tables of a family's models, each with its name.

local catalogue = require "converters.engine.catalogue"
local fields = require "converters.engine.fields"
local naming = require "cbk.naming"
local rules = require "converters.engine.rules"

local tables = {}

---@class Table
---@field model Model
---@field converter Converter   the converter with this table
---@field own Converter         the table's own converter: itself, a variant, a part, or that of a model inside
---@field variant? Converter    set if `own` is a variant
---@field part? Component       set if `own` is a part of a composite
---@field inside? Wrap          set if `own` belongs to a model inside another one
---@field held? string          the name of the model inside
---@field keys Rule[]
---@field config? table[]
---@field title string          "llama: hf <-> cs-2.1 .. cs-2.9"

---@param models Model[]
---@param only? string   the name of one model, which may be inside another
---@return Table[]
function tables.of(models, only)
  local out = {}
  local add_own
  local function add(model, converter, own, title, more)
    local is_wanted = not only or model.model == only or (model.aliases or {})[only] or more and more.held == only
    if own.keys and is_wanted then
      local one = { model = model, converter = converter, own = own, keys = own.keys, config = own.config, title = title }
      for name, value in pairs(more or {}) do one[name] = value end
      out[#out + 1] = one
    end
  end
  ---Adds a converter's tables: its own, those of its variants and parts, and those of models that may be inside.
  function add_own(model, converter, own, title, more)
    add(model, converter, own, title, more)
    for _, name in ipairs(naming.sorted(own.variants or {})) do
      local variant = own.variants[name]
      add(model, converter, variant, title .. ", " .. name, fields.with({ variant = variant }, more or {}))
    end
    for _, part in ipairs(own.components or {}) do
      add(model, converter, part, ("%s, %s"):format(title, part.right), { part = part })
    end
    for _, name in ipairs(own.wrap and own.wrap.models or {}) do
      local held = catalogue.find(name)
      local step = held and catalogue.newest_step(held, "left")
      if step then add_own(model, converter, step.converter, ("%s, of %s"):format(title, name), { inside = own.wrap, held = name }) end
    end
  end
  for _, model in ipairs(models) do
    catalogue.describe(model)
    for _, converter in ipairs(model) do
      local title = ("%s: %s <-> %s"):format(model.model, converter[1], converter[2])
      add_own(model, converter, converter, title)
    end
  end
  return out
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
