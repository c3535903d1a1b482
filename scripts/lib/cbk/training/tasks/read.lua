-- Fields of a model section that a task reads.

local kinds = require "converters.engine.kinds"
local params = require "cbk.training.params"

local read = {}

---@param section Dict
---@param refuse fun(field: string, problem: string)
---@param field string
---@param default number
---@param least? number   default: any number that is finite
---@param most? number
---@return number
function read.number(section, refuse, field, default, least, most)
  local value = section[field]
  if kinds.absent(value) then return default end
  local fits = type(value) == "number" and math.abs(value) < math.huge and value >= (least or value) and value <= (most or value)
  if not fits then
    local bounds = (least and (" from %g"):format(least) or "") .. (most and (" to %g"):format(most) or "")
    refuse(field, ("expected a number%s, found %s"):format(bounds, params.shown(value)))
  end
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
