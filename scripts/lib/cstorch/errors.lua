-- Errors and warnings of the training API. An error is a table { kind, message, where } with a __tostring.

local cbk = require "cbk"
local naming = require "cbk.naming"
local session = require "cstorch.session"

local errors = {}

---@alias cstorch.ErrorKind "value"|"type"|"runtime"|"assertion"

---@class cstorch.Error
---@field kind cstorch.ErrorKind
---@field message string
---@field where? string    the script's file and line
---@field value? any       of a config, which is not known
---@field field? string    of a config, which is the reason: "moe_params.top_k"
---@field reason? string   the message without the field
---@field argument? string of a config, which `of` does not have
---@field of? string
local Error = {}
Error.__index = Error

function Error:__tostring() return self.where and ("%s (%s)"):format(self.message, self.where) or self.message end

local LIBRARY = debug.getinfo(1, "S").source:match "^(.*)errors%.lua$"

---Whether a function's source, as debug.getinfo has it, is a file of this library.
---@param source string
---@return boolean
function errors.is_library(source) return source:sub(1, #LIBRARY) == LIBRARY end

--- The nearest caller outside of this library.
local function outside()
  local level = 3
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then return nil end
    if info.currentline > 0 and not errors.is_library(info.source) then return ("%s:%d"):format(info.short_src, info.currentline) end
    level = level + 1
  end
end

---Raises an error.
---@param kind cstorch.ErrorKind
---@param format string   as in string.format, with the values after it
function errors.raise(kind, format, ...)
  local message = select("#", ...) > 0 and format:format(...) or format
  error(setmetatable({ kind = kind, message = message, where = outside() }, Error), 0)
end

---Raises an error because of a part of a config, for callers that know where the part is.
---@param parts { kind: cstorch.ErrorKind, value: any, field: string, reason: string, argument: string, of: string }   kind: or "value"
---@param message string
function errors.refuse(parts, message)
  error(setmetatable({ kind = parts.kind or "value", message = message, where = outside(), value = parts.value, field = parts.field,
    reason = parts.reason, argument = parts.argument, of = parts.of }, Error), 0)
end

---Raises an error because of a config's field when `condition` is false or nil.
---@param condition any
---@param field string
---@param format string   with the values after it
function errors.check_field(condition, field, format, ...)
  if condition then return end
  local problem = format:format(...)
  errors.refuse({ field = field, reason = problem }, ("%s: %s"):format(field, problem))
end

---Raises an error when `condition` is false or nil; returns it otherwise.
---@param condition any
---@param kind cstorch.ErrorKind
---@param format string
function errors.check(condition, kind, format, ...)
  if not condition then errors.raise(kind, format, ...) end
  return condition
end

local KINDS = { value = true, type = true, runtime = true, assertion = true }

---`errors.check` for scripts, whose kind and format may be wrong themselves.
---@param condition any
---@param kind cstorch.ErrorKind
---@param format string
function errors.public_check(condition, kind, format, ...)
  if condition then return condition end
  errors.check(KINDS[kind], "type", 'check: expected "value", "type", "runtime" or "assertion" as kind, found %s', errors.show(kind))
  errors.check(type(format) == "string", "type", "check: expected a text as message, found %s", errors.show(format))
  local fine, message = pcall(string.format, format, ...)
  errors.raise(kind, "%s", fine and message or format)
end

--- The kind for each code of cbk's errors.
local KIND_OF_CODE = { usage = "type", dtype = "type", value = "value", key = "value" }

local function finish_call(fine, ...)
  if fine then return ... end
  local problem = ...
  local is_of_cbk = type(problem) == "table" and problem.code and not problem.kind
  if is_of_cbk then errors.raise(KIND_OF_CODE[problem.code] or "runtime", "%s", cbk.problem_text(problem)) end
  error(problem, 0)
end

---Calls a function of cbk; its errors become those of this library.
---@param fn function
function errors.of_cbk(fn, ...) return finish_call(pcall(fn, ...)) end

---A value as messages show it: strings in quotes, other things by what they are.
---@return string
function errors.show(value)
  local kind = type(value)
  if kind == "string" then return ("'%s'"):format(value) end
  if kind == "number" then return ("%.14g"):format(value) end
  if kind == "nil" or kind == "boolean" then return tostring(value) end
  if value == cbk.null then return "null" end
  local metatable = kind == "table" and getmetatable(value)
  local class = type(metatable) == "table" and metatable.class
  if class then return "a " .. class.name end
  if kind == "userdata" and cbk.compute.is_tensor(value) then return "a tensor" end
  return "a " .. (kind == "userdata" and cbk.kind(value) or kind)
end

---"; did you mean 'lr'?" when one of `names` looks like `name`, else an empty text.
---@param name any
---@param names string[]
---@return string
function errors.suggestion(name, names)
  return naming.suggestion(type(name) == "string" and cbk.nearest(name, names, 1))
end

---Warns once for each text.
---@param message string
---@param info? table   details for the sink: `unused` is a sorted list of names
function errors.warn(message, info)
  if session.warned[message] then return end
  session.warned[message] = true
  local sink = session.sink or cbk.warn
  sink(message, info)
end

---Sets where warnings go. Without a function: back to stderr.
---@param sink? fun(message: string, info?: table)
---@return fun(message: string, info?: table)? before
function errors.on_warning(sink)
  errors.check(sink == nil or type(sink) == "function", "type", "on_warning: expected a function, found %s", errors.show(sink))
  local before = session.sink
  session.sink = sink
  return before
end

return errors
