-- The module `cbk`: the native part, and the Lua parts that load when they are first used (`cbk.inspect`, `cbk.cli`, …).
-- A name that neither has is an error.
local cbk = require "cbk.native"
local report = require "cbk.report"

cbk.warn = report.warn

---Fails, and names what looks like `name` among what `owner` ("cbk", "cbk.fs") has.
local function fail_unknown(owner, name)
  local names, member = {}, "^" .. owner:gsub("%.", "%%.") .. "%.([%w_]+)$"
  for _, known in ipairs(cbk.help.names()) do names[#names + 1] = known:match(member) end
  local near = cbk.nearest(name, names, 1)[1]
  cbk.fail("key", ("%s has no %s%s"):format(owner, cbk.quote(name), near and ("; did you mean %s.%s?"):format(owner, near) or ""))
end

for group, functions in pairs(cbk) do
  if type(functions) == "table" then
    setmetatable(functions, { __index = function(_, name) fail_unknown("cbk." .. group, tostring(name)) end })
  end
end

local loading = {}

--- A field that the native part does not have is the library module of that name, if there is one.
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
