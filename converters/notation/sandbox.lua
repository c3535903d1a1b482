-- The environment of a sandboxed converter: tables, strings, arithmetic and the converter modules. Nothing that it can reach opens
-- files, starts programs, loads code or looks into memory, not even through the objects that its functions get.

local cbk = require "cbk"
local border = require "converters.notation.border"
local limits = require "cbk.limits"
local naming = require "cbk.naming"
local position = require "converters.notation.position"

local sandbox = {}

local set = naming.set

local FUNCTIONS = set "assert error select tonumber tostring" -- besides those that know views (border.functions)

local LIBRARIES = {
  string = set "byte char find format gmatch gsub len lower match rep reverse sub upper",
  math = set [[abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 max min modf pi pow rad sin sinh
    sqrt tan tanh]],
  bit = set "arshift band bnot bor bswap bxor lshift rol ror rshift tobit tohex",
}

local CBK = set [[bytes cat complex copy deep_copy dict dtype equal exact fail find float format_size full glob hex insert int items json
  key_text keys kind leaf_rows leaves list nearest null parse_size quote rand randn raw raw_items raw_leaves remove set shown stack
  tensor tensors totable tril tuple version warn]]

--- The modules that a file may require, besides `cbk` and whatever only describes models: with the names that are not for files, and
--- those of functions that change what they are given.
local MODULES = {
  ["converters.engine.class"] = { hidden = "", changing = "free unused may_lack optional module deciding" },
  ["converters.engine.fields"] = { hidden = "", changing = "fill" },
  ["converters.engine.kinds"] = { hidden = "check_root differ facts", changing = "" },
  ["converters.engine.rules"] = { hidden = "other text named strict map expand reads_all", changing = "" },
  ["converters.engine.wrap"] = { hidden = "", changing = "" },
}
local FOLDERS = set "classes shared vocabulary"
local PLAIN = { hidden = "", changing = "" } -- of modules whose functions take no `at`

--- Whether a name exists outside the sandbox. Nothing is loaded for it.
local function exists_outside(whole, name)
  if rawget(whole, name) ~= nil then return true end
  for _, known in ipairs(whole == cbk and cbk.help.names() or {}) do
    if known == "cbk." .. tostring(name) then return true end
  end
  return false
end

--- A read-only table that raises an error for unknown names: with advice if they exist outside, else as a misspelt name.
---@param names table
---@param what string   before its names in messages
---@param whole table   what has these names outside
local function strict(names, what, whole)
  setmetatable(names, { __index = function(_, name)
    local source, line = position.here(3)
    if exists_outside(whole, name) then
      position.fail(source, line, "a sandboxed converter has no '%s%s'; if you trust the file, pass --no-sandbox to `cbk rules`, or leave "
        .. "out --sandbox elsewhere", what, tostring(name))
    end
    local known = {}
    for one in pairs(names) do known[#known + 1] = one end
    table.sort(known)
    local near = cbk.nearest(tostring(name), known, 1)[1]
    position.fail(source, line, "there is no %s'%s%s'%s", what == "" and "global " or "", what, tostring(name),
      naming.suggestion(near and what .. near))
  end })
  return setmetatable({}, { __index = names, __newindex = function(_, name)
    local source, line = position.here(3)
    position.fail(source, line, "cannot assign to '%s%s', which is not the converter's own; is a 'local' missing?", what, tostring(name))
  end })
end

local function chosen(library, names, what)
  local out = {}
  for name in pairs(names) do out[name] = library[name] end
  return strict(out, what, library)
end

local MOST_SAID = 2 ^ 20 -- bytes of a program's warnings
local said = 0

local function warn(text)
  said = said + #tostring(text)
  if said > MOST_SAID then cbk.fail("converter", "the converter warns of more than fits on a screen") end
  cbk.warn(text)
end

local function own_cbk()
  local out = {}
  for name in pairs(CBK) do
    local value = cbk[name]
    out[name] = type(value) == "function" and border.native(value) or value
  end
  out.warn = border.native(warn)
  return strict(out, "cbk.", cbk)
end

---Whether cbk has such a module for converters. A script may have a file of that name beside it, which would get all rights.
local function is_available(name)
  if not (MODULES[name] or type(name) == "string" and FOLDERS[name:match "^converters%.(%l+)%.[%w_.]+$"]) then return false end
  return package.searchpath(name, position.root .. "?.lua") ~= nil
end

local function required(own)
  return function(name)
    if name == "cbk" then return own end
    if not is_available(name) then
      local source, line = position.here(3)
      position.fail(source, line, "module '%s' is not available: a sandboxed converter can only require cbk and the converter modules",
        tostring(name))
    end
    local limits_of = MODULES[name] or not name:find "^converters%.vocabulary%." and PLAIN or nil
    return border.module(require(name), limits_of)
  end
end

--- Removes unsafe functions for the whole program: any object of their type would give access to them.
local function take_away()
  rawset(string, "dump", nil)
  debug.getmetatable(cbk.full({}, 0)).methods.ptr = nil
end

---The file as a function in the sandbox, which gives plain data. From here on, the program runs within limits of time and memory.
---@param path string
---@return function|nil chunk, string|nil problem
function sandbox.load(path)
  take_away()
  border.forget()
  limits.start(path)
  local names = {}
  for name in pairs(FUNCTIONS) do names[name] = _G[name] end
  for name, f in pairs(border.functions) do names[name] = f end
  for name, inner in pairs(LIBRARIES) do names[name] = chosen(require(name), inner, name .. ".") end
  names.table = strict(border.table_functions, "table.", table)
  names.cbk = own_cbk()
  names.require = required(names.cbk)
  local chunk, why = loadfile(path, "t", strict(names, "", _G))
  return chunk and border.guard(chunk), why
end

return sandbox
