-- Refuses what a tokenizer.json has and this library does not know, by its name.

local cbk = require "cbk"

local known = {}

---@param what string    "pre_tokenizer 'Split'"
---@param field string
---@param value any
function known.refuse(what, field, value)
  local shown = cbk.json(value, { shown = true, limit = 2 ^ 20 })
  cbk.fail("unsupported", ("%s: %s = %s is not known"):format(what, field, shown), { field = field })
end

---The value of a field; nil for null.
---@param table any
---@param field string
---@return any
function known.get(table, field)
  local value = table[field]
  if value ~= cbk.null then return value end
end

---Fails if a table has fields other than these.
---@param what string
---@param table any
---@param fields string[]
function known.fields(what, table, fields)
  local is_known = { type = true }
  for _, name in ipairs(fields) do is_known[name] = true end
  for name, value in cbk.items(table) do
    if not is_known[name] then known.refuse(what, name, value) end
  end
end

---Fails unless a field is absent, null or one of these values.
---@param what string
---@param table any
---@param field string
function known.one_of(what, table, field, ...)
  local value = known.get(table, field)
  if value == nil then return end
  for _, other in ipairs { ... } do
    if value == other then return end
  end
  known.refuse(what, field, value)
end

---Makes a part of a tokenizer, such as a decoder, by its type.
---@param part string                            "decoder"
---@param makers table<string, fun(spec): any>   by type
---@param spec any
---@return any
function known.make(part, makers, spec)
  local maker = makers[spec.type]
  if not maker then known.refuse("tokenizer.json", part, spec.type) end
  return maker(spec)
end

return known
