-- Which functions LuaJIT's compiler takes: those of users' scripts and of `cstorch`, unless they loop over `pairs` or `next`.
--
-- The LuaJIT of Debian 12 (2.1.0-beta3 of March 2022) ends such a loop early, or gives values as keys, where it has compiled the loop and
-- takes the interpreter again (issue 827 of LuaJIT; another such fault was found in 2026, issue 1510). Interpreted, they are right.
-- What reads and converts checkpoints is many short functions over tables: compiled, it is no faster, and often slower.

local util = require "jit.util"

jit.off(true, true) -- this file was read before anything is chosen

local compiler = {}

---The operations of a function or prototype, in their order.
---@return fun(): integer|nil
local function operations(code)
  local at = 0
  return function()
    at = at + 1
    local instruction = util.funcbc(code, at)
    return instruction and bit.band(instruction, 0xff)
  end
end

---The operation that begins a loop over `pairs` or `next`, and no other: where two functions that differ in this alone do so first.
local function of_pairs()
  local plain = operations(function(t) for _ in ipairs(t) do end end)
  for operation in operations(function(t) for _ in pairs(t) do end end) do
    if operation ~= plain() then return operation end
  end
end

local LOOP = of_pairs()

---@param code any   a prototype
local function loops_over_pairs(code)
  for operation in operations(code) do
    if operation == LOOP then return true end
  end
  return false
end

local ROOT = debug.getinfo(1, "S").source:match "^@(.*)scripts/lib/cbk/[^/]*$"

---Whether a file is of what reads and converts checkpoints.
---@param source string   "@file"
local function is_of_library(source)
  local path = source:sub(1, #ROOT + 1) == "@" .. ROOT and source:sub(#ROOT + 2)
  return path and (path:find "^converters/" or path:find "^scripts/lib/cbk/") ~= nil
end

---Called with every function that is read from source.
local function choose(code)
  if is_of_library(util.funcinfo(code).source) or loops_over_pairs(code) then jit.off(code) end
end

---Turns the compiler on. Called before any other Lua is read.
function compiler.start()
  jit.attach(choose, "bc")
  jit.on()
end

return compiler
