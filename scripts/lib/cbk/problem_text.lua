-- The text of whatever was raised as an error: cbk's own errors have it as `message`, and converters may raise anything.

---@param problem any   as pcall gives it
---@return string
return function(problem)
  if type(problem) ~= "table" then return tostring(problem) end
  local message = rawget(problem, "message")
  return type(message) == "string" and message or "an error without a text was raised (a table): raise a string, or use cbk.fail"
end
