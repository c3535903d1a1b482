-- Lists of hooks: functions called in the order of their registration, each removable by its handle.

local errors = require "cstorch.errors"

local hooks = {}

---@class cstorch.HookHandle
local Handle = {}
Handle.__index = Handle

---Takes the hook off its list.
function Handle:remove()
  for i, handle in ipairs(self.list) do
    if handle == self then return table.remove(self.list, i) and nil end
  end
end

---Adds `hook` to `list`.
---@param list cstorch.HookHandle[]
---@param hook function
---@return cstorch.HookHandle
function hooks.register(list, hook)
  errors.check(type(hook) == "function", "type", "expected a function as hook, found %s", errors.show(hook))
  local handle = setmetatable({ hook = hook, list = list }, Handle)
  list[#list + 1] = handle
  return handle
end

---Calls all hooks of `list`. A result that is not nil replaces `argument`; it must have the type `allowed`.
---@param list cstorch.HookHandle[]
---@param owner table       the first argument of each hook
---@param argument any      the second
---@param allowed? string   without it the results are ignored
---@return any argument
function hooks.run(list, owner, argument, allowed)
  for _, handle in ipairs({ unpack(list) }) do
    local result = handle.hook(owner, argument)
    if allowed and result ~= nil then
      errors.check(type(result) == allowed, "runtime", "a pre hook of %s may return nil or a %s, not %s", owner.class.name, allowed,
        errors.show(result))
      argument = result
    end
  end
  return argument
end

return hooks
