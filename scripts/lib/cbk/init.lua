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

-- Lua's own loops take cbk's containers, too.
local function items_of(value)
  local kind = cbk.kind(value)
  if kind == "Checkpoint" then return value:leaves() end
  return cbk.items(kind == "Output" and value:root() or value)
end

--- A loop that takes what a table's metatable has for it, which LuaJIT does not ask for by itself, and cbk's containers.
local function loop(name, loop_of_table)
  return function(value)
    local metatable = getmetatable(value)
    if metatable == nil then return loop_of_table(value) end
    if type(value) == "userdata" then return items_of(value) end
    local own = type(value) == "table" and type(metatable) == "table" and rawget(metatable, name)
    return (own or loop_of_table)(value)
  end
end

rawset(_G, "pairs", loop("__pairs", pairs))
rawset(_G, "ipairs", loop("__ipairs", ipairs))

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
