-- Fields of a model section that a task reads.

local cbk = require "cbk"
local kinds = require "converters.engine.kinds"

local read = {}

---@param section Dict
---@param refuse fun(field: string, problem: string)
---@param field string
---@param default number
---@return number
function read.number(section, refuse, field, default)
  local value = section[field]
  if kinds.absent(value) then return default end
  if type(value) ~= "number" then refuse(field, ("expected a number, found %s"):format(cbk.json(value))) end
  return value
end

---@param section Dict
---@param refuse fun(field: string, problem: string)
---@param field string
---@param known string[]   the first is the default
---@return string
function read.choice(section, refuse, field, known)
  local value = section[field]
  if kinds.absent(value) then return known[1] end
  for _, one in ipairs(known) do
    if tostring(value):lower() == one then return one end
  end
  local others = known[2] and table.concat(known, ", ", 1, #known - 1) .. " or " or ""
  refuse(field, ("expected %s%s, found %s"):format(others, known[#known], tostring(value)))
end

---@param section Dict
---@param field string
---@return boolean
function read.is_on(section, field) return section[field] == true or section[field] == 1 end

return read
