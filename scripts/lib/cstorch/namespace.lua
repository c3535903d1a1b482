-- Tables in which unknown names are errors.

local errors = require "cstorch.errors"

---Makes indexing `members` with an unknown name an error that suggests similar names.
---@param name string                 "cstorch.optim"
---@param members table
---@param parts? table<string, string>   members that load when they are first used: name to "module", or to "module:member" of it
---@return table members
return function(name, members, parts)
  return setmetatable(members, {
    namespace = name, parts = parts,
    __tostring = function() return "module " .. name end,
    __index = function(_, key)
      if parts and parts[key] then
        local module, member = parts[key]:match "^([^:]+):?(.*)$"
        local part = require(module)
        if member ~= "" then part = part[member] end
        rawset(members, key, part)
        return part
      end
      local names = {}
      for known in pairs(members) do names[#names + 1] = known end
      for known in pairs(parts or {}) do names[#names + 1] = known end
      errors.raise("value", "%s has no '%s'%s", name, tostring(key), errors.suggestion(key, names))
    end,
  })
end
