-- Tables of names that raise an error for a name that they do not have.

local errors = require "cstorch.errors"

---Makes indexing `members` with an unknown name an error that names what looks like it.
---@param name string                 "cstorch.optim"
---@param members table
---@param parts? table<string, string>   names of members that load when they are first used, to their modules
---@return table members
return function(name, members, parts)
  return setmetatable(members, {
    __index = function(_, key)
      if parts and parts[key] then
        local part = require(parts[key])
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
