-- The module `cbk`: the native part, and the Lua parts that load when they are first used (`cbk.inspect`, `cbk.cli`, …).
local cbk = require "cbk.native"

local loading = {}

--- A field that the native part does not have is the library module of that name, if there is one.
setmetatable(cbk, {
  __index = function(_, name)
    if type(name) ~= "string" or loading[name] then return nil end
    local module = "cbk." .. name
    if not package.loaded[module] and not package.searchpath(module, package.path) then return nil end
    loading[name] = true
    local ok, value = pcall(require, module)
    loading[name] = nil
    if not ok then error(value, 0) end
    rawset(cbk, name, value)
    return value
  end,
})

return cbk
