-- Parameters of a merge, as mergekit reads them: a number, a list that is a gradient over the layers, or a list of { filter, value }.
-- Rules: mergekit/config.py (evaluate_setting, ConfigReader.parameter).

local cbk = require "cbk"
local naming = require "cbk.naming"

local parameters = {}

---@class MergeSetting   One of the three.
---@field value? number
---@field gradient? number[]
---@field choices? { filter: string|nil, setting: MergeSetting }[]

---@class MergeParameter
---@field is_flag? boolean
---@field least? number

-- Those of all methods.
---@type table<string, MergeParameter>
parameters.KNOWN = {
  weight = {}, scale = {}, t = {}, density = { least = 0 }, lambda = {},
  normalize = { is_flag = true }, rescale = { is_flag = true }, int8_mask = { is_flag = true },
}

---@param place string   of the setting: "models[1].parameters.weight"
local function refuse(place, message, ...) cbk.fail("config", ("%s: " .. message):format(place, ...), { field = place }) end

---A number of the config. PyYAML reads 1e-3 as a text, which mergekit makes a number again.
---@return number|nil
local function number_of(value)
  if type(value) == "boolean" then return value and 1 or 0 end
  local number = (type(value) == "number" or type(value) == "string") and tonumber(value) or nil
  return number and number == number and math.abs(number) < math.huge and number or nil
end

---@param parameter MergeParameter
---@return number
local function checked_number(place, value, parameter)
  local number = number_of(value)
  if not number then
    refuse(place, "expected %s, a list of them or a list of { filter, value }, found %s",
      parameter.is_flag and "true or false" or "a number", cbk.quote(cbk.json(value), 40))
  end
  if parameter.least and number < parameter.least then refuse(place, "expected at least %g, found %g", parameter.least, number) end
  return number
end

---@return MergeSetting
local function parsed(place, value, parameter, is_inner)
  if cbk.kind(value) ~= "list" then return { value = checked_number(place, value, parameter) } end
  if cbk.count(value) == 0 then refuse(place, "expected a number, found an empty list") end
  local choices, gradient = {}, {}
  for i, item in cbk.items(value) do
    local at = ("%s[%d]"):format(place, i)
    if cbk.kind(item) == "dict" and not is_inner then
      for key in cbk.items(item) do
        if key ~= "filter" and key ~= "value" then refuse(at, "unknown field '%s'; known: filter, value", tostring(key)) end
      end
      if item.value == nil then refuse(at, "value is missing") end
      local filter = item.filter
      if filter ~= nil and filter ~= cbk.null and type(filter) ~= "string" then refuse(at, "filter: expected a part of tensors' names") end
      local inner = parsed(at .. ".value", item.value, parameter, true)
      choices[#choices + 1] = { filter = type(filter) == "string" and filter or nil, setting = inner }
    else
      gradient[#gradient + 1] = checked_number(at, item, parameter)
    end
  end
  if #choices > 0 and #gradient > 0 then refuse(place, "numbers and { filter, value } cannot be mixed in one list") end
  return #choices > 0 and { choices = choices } or { gradient = gradient }
end

---The settings of a `parameters` section; empty if there is none.
---@param section any
---@param place string
---@return table<string, MergeSetting>
function parameters.parse(section, place)
  local out = {}
  if section == nil or section == cbk.null then return out end
  if cbk.kind(section) ~= "dict" then refuse(place, "expected a map of parameters") end
  for name, value in cbk.items(section) do
    local known = parameters.KNOWN[name]
    if not known then
      local names = naming.sorted(parameters.KNOWN)
      refuse(place, "unknown parameter '%s'%s known: %s", tostring(name),
        naming.suggestion(cbk.nearest(tostring(name), names, 1)[1] or names[1]), table.concat(names, ", "))
    end
    out[name] = parsed(("%s.%s"):format(place, name), value, known)
  end
  return out
end

---The value of a setting for one tensor; nil if no filter fits.
---@param setting MergeSetting
---@param tensor string   its name
---@param t number        the place of its layer in the slice, from 0 to 1
---@return number|nil
function parameters.value(setting, tensor, t)
  if setting.value then return setting.value end
  if setting.gradient then
    local list = setting.gradient
    local scaled = t * (#list - 1)
    local before = math.floor(scaled)
    local after, share = math.min(#list - 1, before + 1), scaled - before
    return (1 - share) * list[before + 1] + share * list[after + 1]
  end
  for _, choice in ipairs(setting.choices) do
    local filter = choice.filter
    if not filter or filter == "*" or tensor:find(filter, 1, true) then return parameters.value(choice.setting, tensor, t) end
  end
end

---The first value that these sections give for a tensor.
---@param sections table<string, MergeSetting>[]
---@param name string
---@param tensor string
---@param t number
---@return number|nil
function parameters.first(sections, name, tensor, t)
  for _, section in ipairs(sections) do
    local value = section[name] and parameters.value(section[name], tensor, t)
    if value then return value end
  end
end

return parameters
