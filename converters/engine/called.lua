-- Calls of a converter's functions on configs. Where one computes with null, the error names the field.

local cbk = require "cbk"
local errors = require "cbk.errors"
local field_kinds = require "converters.engine.field_kinds"
local fields = require "converters.engine.fields"
local naming = require "cbk.naming"

local called = {}

---Whether an error is one of Lua or of an argument, not one that a function raises to refuse a config.
local function is_of_lua(problem) return type(problem) == "string" or type(problem) == "table" and problem.code == "usage" end

---@param config Dict
---@return string[]
local function null_fields(config)
  local out = {}
  for name in cbk.items(config) do
    if config[name] == cbk.null then out[#out + 1] = tostring(name) end
  end
  return out
end

---Calls a function with a config, or with the value of one field.
---@param config Dict           that is read
---@param known KnownFields     of its side
---@param name? string          the field whose value the function gets
---@param f function
---@return any
function called.with(config, known, name, f, ...)
  local fine, result = pcall(f, ...)
  if fine then return result end
  local nulls = is_of_lua(result) and null_fields(config) or {}
  if #nulls > 0 and name and config[name] == cbk.null then
    fields.refuse(name, cbk.null, field_kinds.says(known[name]) or "a value that is not null")
  elseif #nulls > 0 then
    cbk.fail("config", ("cannot convert the config: a function of the converter fails (%s), and null is the value of %s; give these fields "
      .. "values if it computes with them"):format(errors.text(result), naming.listed(nulls, 5)))
  end
  error(result, 0)
end

return called
