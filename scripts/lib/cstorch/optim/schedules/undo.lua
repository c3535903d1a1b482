-- Undoes changes of schedules after an error.

local tensors = require "cstorch.tensors"

local undo = {}

local function value_of(value)
  return tensors.is_tensor(value) and tensors.no_grad(function() return value:detach():clone() end) or nil
end

--- The entries of a table, and the values of its tensors.
local function snapshot(object)
  local entries, values = {}, {}
  for name, value in pairs(object) do entries[name], values[name] = value, value_of(value) end
  return { object = object, entries = entries, values = values }
end

local function restore(saved)
  for name in pairs(saved.object) do
    if saved.entries[name] == nil then rawset(saved.object, name, nil) end
  end
  for name, value in pairs(saved.entries) do
    rawset(saved.object, name, value)
    if saved.values[name] then tensors.no_grad(value.copy_, value, saved.values[name]) end
  end
end

--- Adds the schedule and those that it is made of.
local function add(list, schedule)
  list[#list + 1] = snapshot(schedule)
  for _, member in ipairs(rawget(schedule, "schedulers") or { rawget(schedule, "scheduler") }) do add(list, member) end
end

local function finish(list, fine, ...)
  if fine then return ... end
  for _, saved in ipairs(list) do restore(saved) end
  error((...), 0)
end

---Calls `fn(schedule, ...)`. After an error the schedule, its members and its values in groups are restored.
---@param schedule cstorch.optim.Scheduler
---@param fn function
function undo.after_error(schedule, fn, ...)
  local list = {}
  add(list, schedule)
  for _, group in ipairs(schedule.optimizer.param_groups) do list[#list + 1] = snapshot(group) end
  return finish(list, pcall(fn, schedule, ...))
end

return undo
