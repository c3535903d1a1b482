-- Where warnings go: `cbk.warn` is `report.warn`, and what runs inside of a report's `run` warns there.

local native = require "cbk.native"

local report = {}

---@class Report
---@field warnings string[]              what was kept
---@field print? fun(warning: string)   prints at once instead
local Report = {}
Report.__index = Report

---A report that keeps its warnings.
---@return Report
function report.new() return setmetatable({ warnings = {} }, Report) end

--- The program's own report, which prints; --quiet and --json change how.
report.main = setmetatable({ warnings = {}, print = native.warn }, Report)

local current = report.main

---Adds a warning to the report of what is running.
---@param warning string
function report.warn(warning)
  if current.print then return current.print(warning) end
  current.warnings[#current.warnings + 1] = warning
end

local function leave(outer, ...)
  current = outer
  return ...
end

---Runs `f`, with its warnings into this report.
---@return boolean fine, any ...   as pcall has them
function Report:run(f, ...)
  local outer = current
  current = self
  return leave(outer, pcall(f, ...))
end

---The warnings so far, which are then forgotten.
---@return string[]
function Report:take()
  local warnings = self.warnings
  self.warnings = {}
  return warnings
end

---Runs `f` without its warnings.
---@return boolean fine, any ...   as pcall has them
function report.quietly(f, ...) return report.new():run(f, ...) end

return report
