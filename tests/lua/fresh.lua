-- `fresh(body)`: a test that begins and ends with the training API as it is at the start of a process.

local cstorch = require "cstorch"

---@param body fun()
---@return fun()
return function(body)
  return function()
    cstorch.testing.reset()
    local fine, problem = pcall(body)
    cstorch.testing.reset()
    if not fine then error(problem, 0) end
  end
end
