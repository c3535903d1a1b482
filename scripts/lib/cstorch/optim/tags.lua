-- Tags of parameter groups, and the groups that a list of tags selects.

local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"

local tags = {}

---A tag or a list of tags as a list; nil for no tags.
---@param value? string|string[]
---@return any[]?
function tags.normalize(value)
  if value == nil then return nil end
  if type(value) == "string" then return { value } end
  errors.check(type(value) == "table", "type", "expected a tag or a list of tags, found %s", errors.show(value))
  local list, seen = {}, {}
  for _, tag in ipairs(value == keywords.UNTAGGED and { value } or value) do
    errors.check(type(tag) == "string" or tag == keywords.UNTAGGED, "type", "expected a string as tag, found %s", errors.show(tag))
    if not seen[tag] then list[#list + 1] = tag end
    seen[tag] = true
  end
  return list
end

---A schedule's `param_group_tags`: as `normalize`, but a tag may occur only once.
---@param value? string|string[]
---@return any[]?
function tags.wanted(value)
  local list = tags.normalize(value)
  local is_list = type(value) == "table" and value ~= keywords.UNTAGGED
  errors.check(not is_list or #list == #value, "value", "param_group_tags: a tag occurs twice in %s", is_list and tags.text(value) or "")
  return list
end

---Whether a group with the tags `own` is selected by `wanted`. Without wanted tags every group is.
---@param own? string[]
---@param wanted? any[]
---@return boolean
function tags.match(own, wanted)
  if wanted == nil then return true end
  for _, tag in ipairs(wanted) do
    if tag == keywords.UNTAGGED and (own == nil or own[1] == nil) then return true end
    for _, one in ipairs(own or {}) do
      if one == tag then return true end
    end
  end
  return false
end

---A list of tags for messages.
---@param list any[]
---@return string
function tags.text(list)
  local names = {}
  for i, tag in ipairs(list) do names[i] = type(tag) == "string" and ("'%s'"):format(tag) or tostring(tag) end
  return "{ " .. table.concat(names, ", ") .. " }"
end

---All tags of an optimizer's groups, for messages.
---@param groups table[]
---@return string
function tags.available(groups)
  local list, seen = {}, {}
  for _, group in ipairs(groups) do
    local own = group.tags or {}
    for _, tag in ipairs(own[1] == nil and { keywords.UNTAGGED } or own) do
      if not seen[tag] then list[#list + 1] = tag end
      seen[tag] = true
    end
  end
  return tags.text(list)
end

return tags
