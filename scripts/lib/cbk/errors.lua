-- Errors as values: tables with a code and the parts of their text (cbk.fail). Programs decide by these, never by the text.

local cbk = require "cbk"

local errors = {}

---The text of whatever was raised: an error of cbk, a string (Lua's own errors in plain words), any other value of a converter or script.
---@param problem any   as pcall gives it
---@return string
function errors.text(problem)
  if type(problem) == "string" then return require "cbk.mistakes"(problem) end
  return cbk.problem_text(problem)
end

---Fails like cbk.fail, with the findings as values, so that callers with more context can improve the text (`errors.with`).
---@param code string
---@param problem string
---@param found table<string, any>
function errors.fail_with(code, problem, found)
  local _, made = pcall(cbk.fail, code, problem)
  error(errors.with(made, found), 0)
end

---Puts a context in front of an error: "cannot compare through a converter". Strings, and errors that stop the program, stay unchanged.
---@param problem any    as returned by pcall; an error of cbk is changed
---@param context string
---@return any problem
function errors.put_in(problem, context)
  local is_ours = type(problem) == "table" and rawget(problem, "problem") ~= nil and problem.code ~= "interrupted"
  if is_ours then problem.context = { context, unpack(problem.context or {}) } end
  return problem
end

local function finish(context, fine, ...)
  if fine then return ... end
  error(errors.put_in((...), type(context) == "function" and context() or context), 0)
end

---Calls `f` and adds a context to its errors.
---@param context string|fun(): string
---@param f function
---@return any ...
function errors.within(context, f, ...) return finish(context, pcall(f, ...)) end

---The error without its outermost context, if that is `context`: for messages that say the same already.
---@param problem any
---@param context? string   default: any
---@return any
function errors.outside(problem, context)
  local own = type(problem) == "table" and problem.context
  local is_said = own and own[1] ~= nil and (context == nil or own[1] == context)
  return is_said and errors.with(problem, { context = { unpack(own, 2) } }) or problem
end

---A copy of an error of cbk with some parts replaced, such as `advice`.
---@param problem any
---@param parts table<string, any>
---@return any   strings are returned unchanged
function errors.with(problem, parts)
  if type(problem) ~= "table" then return problem end
  local out = setmetatable({}, getmetatable(problem))
  for name, part in pairs(problem) do out[name] = part end
  for name, part in pairs(parts) do out[name] = part end
  return out
end

return errors
