-- The environment of a sandboxed converter: tables, strings, arithmetic and the converter modules. Nothing that it can reach opens
-- files, starts programs, loads code or looks into memory, not even through the objects that its functions get.

local cbk = require "cbk"
local position = require "converters.notation.position"

local sandbox = {}

local function set(names)
  local out = {}
  for name in names:gmatch "%S+" do out[name] = true end
  return out
end

local FUNCTIONS = set "assert error ipairs next pairs pcall select tonumber tostring type unpack"

local LIBRARIES = {
  string = set "byte char find format gmatch gsub len lower match rep reverse sub upper",
  table = set "concat insert maxn remove sort",
  math = set [[abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 max min modf pi pow rad sin sinh
    sqrt tan tanh]],
  bit = set "arshift band bnot bor bswap bxor lshift rol ror rshift tobit tohex",
}

local CBK = set [[bytes cat complex copy deep_copy dict dtype equal exact fail find float format_size full glob hex insert int items json
  key_text keys kind leaf_rows leaves list nearest null parse_size quote rand randn raw raw_items raw_leaves remove set shown stack
  tensor tensors totable tril tuple version warn]]

--- The modules that a file may require, besides `cbk` and whatever only describes models.
local MODULES = set [[
  converters.engine.class converters.engine.fields converters.engine.kinds converters.engine.rules converters.engine.wrap]]
local FOLDERS = set "classes shared vocabulary"

--- Whether a name exists outside the sandbox. Nothing is loaded for it.
local function exists_outside(whole, name)
  if rawget(whole, name) ~= nil then return true end
  for _, known in ipairs(whole == cbk and cbk.help.names() or {}) do
    if known == "cbk." .. tostring(name) then return true end
  end
  return false
end

--- A table that raises an error for unknown names: with advice if they exist outside, else as a misspelt name.
---@param whole table   what has these names outside
local function strict(names, what, whole)
  return setmetatable(names, {
    __index = function(_, name)
      local source, line = position.here(3)
      if exists_outside(whole, name) then
        cbk.fail("converter", ("%s:%d: a sandboxed converter has no '%s%s'; if you trust the file, pass --no-sandbox to `cbk rules`, or "
          .. "leave out --sandbox elsewhere"):format(source, line, what, tostring(name)))
      end
      local known = {}
      for one in pairs(names) do known[#known + 1] = one end
      table.sort(known)
      local near = cbk.nearest(tostring(name), known, 1)[1]
      cbk.fail("converter", ("%s:%d: there is no %s'%s%s'%s"):format(source, line, what == "" and "global " or "", what, tostring(name),
        near and ("; did you mean %s%s?"):format(what, near) or ""))
    end,
    __newindex = function(_, name)
      cbk.fail("converter", ("cannot assign to '%s%s', which is not the converter's own; is a 'local' missing?"):format(what,
        tostring(name)))
    end,
  })
end

local function chosen(library, names, what)
  local out = {}
  for name in pairs(names) do out[name] = library[name] end
  return strict(out, what, library)
end

--- Whether a table has functions by name, maybe in several levels; actions and lists are no libraries.
local function is_library(value)
  if type(value) ~= "table" or rawget(value, "forward") ~= nil or rawget(value, 1) ~= nil then return false end
  for _, inner in pairs(value) do
    if type(inner) == "function" or inner ~= value and is_library(inner) then return true end -- a class is its own __index
  end
  return false
end

--- A copy of a module, so that a converter cannot change the original. Other objects stay the same, because they are compared.
local function view(value, copies)
  if not is_library(value) then return value end
  if not copies[value] then
    copies[value] = {}
    for name, inner in pairs(value) do copies[value][name] = view(inner, copies) end
    setmetatable(copies[value], getmetatable(value))
  end
  return copies[value]
end

local function required(own_cbk)
  local copies = {}
  return function(name)
    if name == "cbk" then return own_cbk end
    if not (MODULES[name] or type(name) == "string" and FOLDERS[name:match "^converters%.(%l+)%.[%w_.]+$"]) then
      error(("module '%s' is not available: a sandboxed converter can only require cbk and the converter modules"):format(
        tostring(name)), 2)
    end
    return view(require(name), copies)
  end
end

--- Removes unsafe functions for the whole program: any object of their type would give access to them.
local function take_away()
  rawset(string, "dump", nil)
  debug.getmetatable(cbk.full({}, 0)).methods.ptr = nil
end

local MOST_SECONDS, MOST_MEMORY = 60, 64 * 1024 -- of processor time; KiB of Lua

---Ends the program if the code from now on takes too much time or memory. An error is not enough, because a file could catch it.
---@param fail fun(why: string)   prints why
function sandbox.limit(fail)
  local start = os.clock()
  debug.sethook(function()
    if collectgarbage "count" > MOST_MEMORY then collectgarbage() end
    local why = collectgarbage "count" > MOST_MEMORY and ("more than %d MiB of memory"):format(MOST_MEMORY / 1024)
      or os.clock() - start > MOST_SECONDS and ("more than %d seconds"):format(MOST_SECONDS)
    if not why then return end
    fail(("the sandboxed converter takes %s; if you trust the file, pass --no-sandbox"):format(why))
    os.exit(1)
  end, "", 1e6)
end

---The file as a function in the sandbox.
---@param path string
---@return function|nil chunk, string|nil problem
function sandbox.load(path)
  take_away()
  local env = {}
  for name in pairs(FUNCTIONS) do env[name] = _G[name] end
  for name, names in pairs(LIBRARIES) do env[name] = chosen(require(name), names, name .. ".") end
  env.cbk = chosen(cbk, CBK, "cbk.")
  env.require = required(env.cbk)
  return loadfile(path, "t", strict(env, "", _G))
end

return sandbox
