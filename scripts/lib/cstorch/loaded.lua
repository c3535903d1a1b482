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

local COMPUTED = {}
for _, name in ipairs { "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool" } do COMPUTED[name] = true end

--- Raises what is wrong with a value for a tensor, without reading it.
local function check_tensor(value, where)
  check(loaded.is_tensor(value), "type", "%s: expected a tensor, found %s", where, show(value))
  check(COMPUTED[value.dtype], "type", "%s: cannot compute with dtype %s", where, show(value.dtype))
end

---Checks a tensor or a number for the tensor `target`, without reading it.
---@param target any
---@param value any
---@param where string   what it is, for messages
---@return fun() write   writes it into `target`
function loaded.writer(target, value, where)
  if type(value) == "number" or type(value) == "cdata" then
    check(target:dim() == 0, "value", "%s: expected a tensor of shape %s, found a number", where, shapes.text(target))
    return function() target:fill_(tonumber(value)) end
  end
  check_tensor(value, where)
  check(shapes.same(target, value), "value", "%s: expected shape %s, found %s", where, shapes.text(target), shapes.text(value))
  return function() target:copy_(tensors.to_device(loaded.tensor(value):to(target.dtype))) end
end

---Checks a tensor, without reading it.
---@param value any
---@param where string   what it is, for messages
---@return fun(): cstorch.Tensor copy   a copy on the device
function loaded.copier(value, where)
  check_tensor(value, where)
  return function() return tensors.to_device(loaded.tensor(value):clone()) end
end

---Writes a tensor or a number into the tensor `target`.
---@param target any
---@param value any
---@param where string   what it is, for messages
function loaded.write(target, value, where) loaded.writer(target, value, where)() end

return loaded
