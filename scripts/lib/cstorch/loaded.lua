-- Values of a state dict, which may come from a file: tensors that are not read yet, numbers, 0-dim tensors.

local cbk = require "cbk"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

local loaded = {}

--- The kinds of cbk's tensors, which are not read yet.
local UNREAD = { tensor = true, parameter = true, ndarray = true, np_scalar = true }

---Whether it is a tensor, of cstorch or of cbk.
---@param value any
---@return boolean
function loaded.is_tensor(value)
  return tensors.is_tensor(value) or type(value) == "userdata" and UNREAD[cbk.kind(value)] or false
end

---The value as a tensor that computes; nil for other things.
---@param value any
---@return any?
function loaded.tensor(value)
  if tensors.is_tensor(value) then return value end
  return loaded.is_tensor(value) and tensors.tensor(value) or nil
end

---Plain Lua values in the place of cbk's containers and of tensors without dims.
---@param value any
---@return any
function loaded.plain(value)
  value = keywords.plain(value)
  local tensor = loaded.tensor(value)
  if tensor then return tensor:dim() == 0 and tensor:item() or tensor end
  if type(value) == "table" and getmetatable(value) == nil then
    for key, item in pairs(value) do value[key] = loaded.plain(item) end
  end
  return value
end

---Writes a tensor or a number into the tensor `target`.
---@param target any
---@param value any
---@param where string   what it is, for messages
function loaded.write(target, value, where)
  if type(value) == "number" or type(value) == "cdata" then
    check(target:dim() == 0, "value", "%s: expected a tensor of shape %s, found a number", where, shapes.text(target))
    return target:fill_(tonumber(value))
  end
  local tensor = loaded.tensor(value)
  check(tensor, "type", "%s: expected a tensor, found %s", where, show(value))
  check(shapes.same(target, tensor), "value", "%s: expected shape %s, found %s", where, shapes.text(target), shapes.text(tensor))
  return target:copy_(tensors.to_device(tensor:to(target.dtype)))
end

return loaded
