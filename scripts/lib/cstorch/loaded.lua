-- Values of a state dict, which may come from a file: tensors that are not read yet, numbers, 0-dim tensors.

local cbk = require "cbk"
local quantised = require "cbk.quantised"
local errors = require "cstorch.errors"
local keywords = require "cstorch.keywords"
local ordered_map = require "cstorch.ordered_map"
local shapes = require "cstorch.shapes"
local tensors = require "cstorch.tensors"

local check, show = errors.check, errors.show

local loaded = {}

--- The kinds of cbk's tensors, which are not read yet.
local UNREAD = require("cbk.tensor_kinds").ALL

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

---Whether it is a list, of Lua or of cbk. An empty map is one, too: files have empty tables of Lua as maps.
---@param value any
---@return boolean
function loaded.is_list(value)
  if keywords.is_map(value) and ordered_map.items(value)() == nil then return true end
  if type(value) == "userdata" then return cbk.kind(value) == "list" or cbk.kind(value) == "tuple" end
  return type(value) == "table" and getmetatable(value) == nil
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

---Raises an error for a key that is not a name: a dict of a file may have any keys.
---@param map table
---@param where string   what it is, for messages
function loaded.check_names(map, where)
  local is_plain = type(map) == "table" and not ordered_map.is(map)
  for key in (is_plain and pairs or ordered_map.items)(map) do
    check(type(key) == "string", "type", "%s: expected names as keys, found %s; remove it", where, show(key))
  end
end

local COMPUTED = {}
for _, name in ipairs { "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool" } do COMPUTED[name] = true end

---Fails if a value is not a tensor of a dtype that can be computed with. The value is not read.
---@param value any
---@param where string   what it is, for messages
function loaded.check_tensor(value, where)
  check(loaded.is_tensor(value), "type", "%s: expected a tensor, found %s", where, show(value))
  check(COMPUTED[value.dtype], "type", "%s: cannot compute with dtype %s; cast it before it is loaded%s", where, show(value.dtype),
    quantised.is_narrow(value.dtype) and ", unless it holds the codes of quantised weights" or "")
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
  loaded.check_tensor(value, where)
  check(shapes.same(target, value), "value", "%s: expected shape %s, found %s", where, shapes.text(target), shapes.text(value))
  return function() target:copy_(tensors.to_device(loaded.tensor(value):to(target.dtype))) end
end

---Checks a tensor, without reading it.
---@param value any
---@param where string   what it is, for messages
---@return fun(): cstorch.Tensor copy   a copy on the device
function loaded.copier(value, where)
  loaded.check_tensor(value, where)
  return function() return tensors.to_device(loaded.tensor(value):clone()) end
end

---Writes a tensor or a number into the tensor `target`.
---@param target any
---@param value any
---@param where string   what it is, for messages
function loaded.write(target, value, where) loaded.writer(target, value, where)() end

return loaded
