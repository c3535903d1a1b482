-- Makes Lua's loops over a loader an error: a loader is not a list, and `ipairs` would silently find nothing.

local errors = require "cstorch.errors"

local no_list = {}

---Raises an error that says how to loop over an object.
---@param object table   of a class with `noun`
function no_list.refuse(object)
  local class = object.class
  errors.raise("type", "a %s is looped over with 'for i, batch in %s:iter() do'", class.name, class.noun)
end

---Gives an object one item that `ipairs` and `pairs` find. Any use of the item is that error.
---@param object table
function no_list.mark(object)
  local function refuse() no_list.refuse(object) end
  rawset(object, 1, setmetatable({}, { __index = refuse, __newindex = refuse, __call = refuse, __tostring = refuse, __concat = refuse }))
end

return no_list
