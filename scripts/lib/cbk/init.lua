-- The module `cbk`: the native part, and the Lua parts, which are loaded on first use (`cbk.inspect`, `cbk.cli`, …).
-- Unknown names are errors.
local cbk = require "cbk.native"
local warnings = require "cbk.warnings"

cbk.warn = warnings.warn

---Fails, and suggests similar names of `owner` ("cbk", "cbk.fs").
local function fail_unknown(owner, name)
  local names, member = {}, "^" .. owner:gsub("%.", "%%.") .. "%.([%w_]+)$"
  for _, known in ipairs(cbk.help.names()) do names[#names + 1] = known:match(member) end
  local near = cbk.nearest(name, names, 1)[1]
  cbk.fail("key", ("%s has no %s%s"):format(owner, cbk.quote(name), cbk.naming.suggestion(near and owner .. "." .. near)))
end

for group, functions in pairs(cbk) do
  if type(functions) == "table" then
    setmetatable(functions, { __index = function(_, name) fail_unknown("cbk." .. group, tostring(name)) end })
  end
end

local loading = {}

--- A field that the native part does not have is the library module with that name, if there is one.
setmetatable(cbk, {
  __index = function(_, name)
    if type(name) ~= "string" or loading[name] then return nil end
    local module = "cbk." .. name
    if not package.loaded[module] and not package.searchpath(module, package.path) then fail_unknown("cbk", name) end
    loading[name] = true
    local ok, value = pcall(require, module)
    loading[name] = nil
    if not ok then error(value, 0) end
    rawset(cbk, name, value)
    return value
  end,
})

return cbk
