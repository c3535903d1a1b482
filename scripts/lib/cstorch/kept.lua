-- What a recorded step keeps: values that its body used. A later change has no effect on the step, so it is warned about.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local text = require "cstorch.text"

local is_tensor = cbk.compute.is_tensor

local kept = {}

---@class cstorch.Kept   `owner[key]` as the step used it.
---@field owner any
---@field key any
---@field value any
---@field items? any[]   those of a list: another list with the same items is no change
---@field name string

--- The items of a list; nil for other things.
local function items_of(value)
  local is_list = type(value) == "table" and getmetatable(value) == nil and (#value > 0 or next(value) == nil)
  if not is_list then return nil end
  local items = {}
  for i, item in ipairs(value) do items[i] = item end
  return items
end

---Keeps the present value of `owner[key]`.
---@param trace cstorch.Trace
---@param owner any
---@param key any
---@param name string   what it is, for the warning: "SGD.param_groups[1].lr"
function kept.note(trace, owner, key, name)
  local value = owner[key]
  trace.kept[#trace.kept + 1] = { owner = owner, key = key, value = value, items = items_of(value), name = name }
end

---Keeps the public fields of an object.
---@param trace cstorch.Trace
---@param object cstorch.Class
---@param with_tables? boolean   also plain tables; those of a script's own classes may be notes that it adds to
function kept.note_fields(trace, object, with_tables)
  local counts = object.class.counts or {} -- what changes in each step by itself
  for key, value in pairs(object) do
    local is_public = type(key) == "string" and not key:find "^_" and not counts[key]
    if is_public and (with_tables or type(value) ~= "table") then kept.note(trace, object, key, object.class.name .. "." .. key) end
  end
end

---Whether the step did not use `object` before.
---@param trace cstorch.Trace
---@param object table
---@return boolean
function kept.is_first(trace, object)
  local is_first = not trace.used[object]
  trace.used[object] = true
  return is_first
end

local function is_same(one, value)
  local items = one.items
  if not items or type(value) ~= "table" then return rawequal(value, one.value) end
  for i = 1, math.max(#items, #value) do
    if not rawequal(value[i], items[i]) then return false end
  end
  return true
end

local function change_of(one, value)
  local before = one.items or one.value
  if is_tensor(before) and is_tensor(value) then return "replaced by another tensor" end
  if not one.items then
    local is_object = type(before) == type(value) and (type(value) == "table" or type(value) == "function")
    if is_object then return "replaced by another " .. type(value) end
    return ("changed from %s to %s"):format(errors.show(before), errors.show(value))
  end
  if type(value) == "table" and type(before[1] or value[1]) ~= "number" then return "changed" end
  return ("changed from %s to %s"):format(text.value(before), type(value) == "table" and text.value(value) or errors.show(value))
end

---Warns once about each value that was changed since the step was recorded.
---@param trace cstorch.Trace
function kept.check(trace)
  local list, i = trace.kept, 1
  while i <= #list do
    local one = list[i]
    local value = one.owner[one.key]
    if is_same(one, value) then
      i = i + 1
    else
      table.remove(list, i)
      errors.warn(("%s was %s, but a recorded step keeps what it was recorded with; make another step for it, with compile_step; for "
        .. "values that change, use a schedule, or write into a tensor: t:copy_(…)"):format(one.name, change_of(one, value)))
    end
  end
end

return kept
