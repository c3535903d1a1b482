-- What is tried and may say nothing.

local cbk = require "cbk"

---Runs `f` without its warnings.
---@return boolean fine, any ...   as pcall has them
return function(f, ...)
  local warn = cbk.warn
  cbk.warn = function() end -- luacheck: ignore
  local out = { pcall(f, ...) }
  cbk.warn = warn -- luacheck: ignore
  return unpack(out, 1, table.maxn(out))
end
