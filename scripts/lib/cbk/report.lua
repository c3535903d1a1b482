-- The destination of warnings: `cbk.warn` is `report.warn`. Code inside a report's `run` warns there.

local native = require "cbk.native"

local report = {}

---@class Report
---@field warnings string[]              the collected warnings
---@field print? fun(warning: string)   prints at once instead
local Report = {}
Report.__index = Report

---A report that collects its warnings.
---@return Report
function report.new() return setmetatable({ warnings = {} }, Report) end

--- The program's own report, which prints. --quiet and --json change how.
report.main = setmetatable({ warnings = {}, print = native.warn }, Report)

local current = report.main

---Adds a warning to the current report.
---@param warning string
function report.warn(warning)
  if current.print then return current.print(warning) end
  current.warnings[#current.warnings + 1] = warning
end

local function leave(outer, ...)
  current = outer
  return ...
end

---Runs `f` and collects its warnings in this report.
---@return boolean fine, any ...   as returned by pcall
function Report:run(f, ...)
  local outer = current
  current = self
  return leave(outer, pcall(f, ...))
end

---Returns the collected warnings and clears them.
---@return string[]
function Report:take()
  local warnings = self.warnings
  self.warnings = {}
  return warnings
end

---Runs `f` without its warnings.
---@return boolean fine, any ...   as returned by pcall
function report.quietly(f, ...) return report.new():run(f, ...) end

return report
