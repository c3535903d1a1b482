-- Where warnings go: `cbk.warn` is `warnings.warn`. Code that a list of warnings runs warns there.

local native = require "cbk.native"

local warnings = {}

---@class Warnings
---@field list string[]                  what was collected
---@field print? fun(warning: string)   prints at once instead
---@field is_once? boolean               a warning like the one before is not printed: a command may read a config twice
---@field last? string                   what was printed last
local Warnings = {}
Warnings.__index = Warnings

---Warnings that are collected.
---@return Warnings
function warnings.new() return setmetatable({ list = {} }, Warnings) end

--- The program's own, which prints. --quiet and --json change how.
warnings.main = setmetatable({ list = {}, print = native.warn }, Warnings)

local current = warnings.main

---@param warning string
function warnings.warn(warning)
  if current.print then
    local is_again = current.is_once and warning == current.last
    current.last = warning
    return not is_again and current.print(warning) or nil
  end
  current.list[#current.list + 1] = warning
end

local function leave(outer, ...)
  current = outer
  return ...
end

---Runs `f` and collects its warnings here.
---@return boolean fine, any ...   as returned by pcall
function Warnings:run(f, ...)
  local outer = current
  current = self
  return leave(outer, pcall(f, ...))
end

---Returns the collected warnings and clears them.
---@return string[]
function Warnings:take()
  local list = self.list
  self.list = {}
  return list
end

---Runs `f` without its warnings.
---@return boolean fine, any ...   as returned by pcall
function warnings.quietly(f, ...) return warnings.new():run(f, ...) end

return warnings
