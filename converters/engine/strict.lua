-- Tables whose unknown names are errors, so that a misspelt name in a converter is not a silent nil.

local cbk = require "cbk"
local naming = require "cbk.naming"
local position = require "converters.notation.position"

---Makes unknown names of a table errors that suggest the nearest name.
---@generic T
---@param library T
---@param what string      "action"
---@param prefix? string   what is written before its names in a message
---@param meant? fun(name: string): string|nil   a better guess than the nearest name
---@return T
local function strict(library, what, prefix, meant)
  local call = (getmetatable(library) or {}).__call
  return setmetatable(library, { __call = call, __index = function(_, name)
    local names, source, line = naming.sorted(library), position.here(3)
    local near = cbk.nearest(tostring(name), names)[1]
    near = meant and meant(tostring(name)) or near and (prefix or "") .. near
    position.fail(source, line, "there is no %s '%s%s'; %s", what, prefix or "", tostring(name),
      naming.question(near) or "there are " .. table.concat(names, ", "))
  end })
end

return strict
