-- Values and objects in the syntax of scripts.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local naming = require "cbk.naming"

local text = {}

---A value in the syntax of scripts.
---@param value any
---@return string
function text.value(value)
  if value == keywords.REQUIRED then return "required" end
  if value == keywords.OPTIONAL then return "nil" end
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) == "userdata" then
    local is_readable, shown = pcall(tostring, value)
    return is_readable and shown or errors.show(value)
  end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return tostring(value) end
  local items = {}
  for i, item in ipairs(value) do items[i] = text.value(item) end
  return "{ " .. table.concat(items, ", ") .. " }"
end

---"'a', 'b', … and 7 more": the first few of many names.
---@param names string[]
---@return string
function text.some(names)
  local quoted = { count = #names }
  for i = 1, math.min(#names, 5) do quoted[i] = "'" .. names[i] .. "'" end
  return naming.listed(quoted)
end

---"lr = 0.1, momentum = 0.9": the declared names that `object` has as fields.
---@param declared table<string, any>
---@param object table
---@return string
function text.fields(declared, object)
  local out = {}
  for _, name in ipairs(keywords.names(declared)) do
    local value = rawget(object, name)
    if value ~= nil then out[#out + 1] = ("%s = %s"):format(name, text.value(value)) end
  end
  return table.concat(out, ", ")
end

return text
