-- Kinds of values in configs and checkpoints.

local cbk = require "cbk"
local extents = require "cbk.extents"
local tensor_kinds = require "cbk.tensor_kinds"

local kinds = {}

---Whether a value is nil or null.
---@param value any
function kinds.absent(value) return value == nil or value == cbk.null end

---Whether a value is neither nil nor null.
---@param value any
function kinds.present(value) return value ~= nil and value ~= cbk.null end

local function kind_of(value, key)
  local kind = type(value) == "userdata" and cbk.kind(value) or ""
  if key == nil then return kind end
  local takes_key = type(key) == "number" and kind == "list" or kind:find "dict"
  return takes_key and value[key] ~= nil and cbk.kind(value, key) or ""
end

---Whether a value, or `value[key]`, is a map.
---@param value any
---@param key? any
---@return boolean
function kinds.is_dict(value, key) return kind_of(value, key):find "dict" ~= nil end

---Fails if the root of a checkpoint is not a dict.
---@param root any
---@private
function kinds.check_root(root)
  if not kinds.is_dict(root) then
    local kind = tostring(cbk.kind(root))
    local what = kind == "object" and "an object of the class " .. cbk.shown(root.type) or ("a root of the kind '%s'"):format(kind)
    cbk.fail("checkpoint", "expected a checkpoint with a dict of tensors, found " .. what)
  end
end

---Whether a value, or `value[key]`, is a list.
---@param value any
---@param key? any
---@return boolean
function kinds.is_list(value, key) return kind_of(value, key) == "list" end

---Whether `value[key]` is a tuple.
---@param value Dict
---@param key any
---@return boolean
function kinds.is_tuple(value, key) return kind_of(value, key) == "tuple" end

---Whether `value[key]` is a list or a tuple.
---@param value Dict
---@param key any
---@return boolean
function kinds.is_sequence(value, key) return kinds.is_list(value, key) or kinds.is_tuple(value, key) end

local TENSORS = tensor_kinds.ALL

---Whether a value is a tensor.
---@param value any
---@return boolean
function kinds.is_tensor(value) return tensor_kinds.is_tensor(value) end

---Whether two tensors have different values. Reads the values, unless both are the same tensor.
---@param a any
---@param b any
---@private
function kinds.differ(a, b)
  if not (kinds.is_tensor(a) and kinds.is_tensor(b)) or a:same(b) then return false end
  local fine, found = pcall(a.compare, a, b) -- dtypes that cannot be compared differ
  return not fine or extents.shape(a:shape()) ~= extents.shape(b:shape()) or found.different > 0
end

---Dtype and shape of a tensor; the kind of any other value.
---@param value any
---@return string|nil
---@private
function kinds.facts(value)
  if value == nil then return nil end
  if value == cbk.null then return "null" end
  if type(value) == "table" then
    local first = kinds.facts(value[1])
    return first and ("%d x %s"):format(#value, first)
  end
  local kind = cbk.kind(value)
  if not TENSORS[kind] then return kind end
  return ("%s %s"):format(value.dtype, extents.shape(value:shape()))
end

local CONTAINERS = { dict = true, ordereddict = true, list = true, tuple = true }

---@private
---A copy of a Dict or List, which somebody else may have as well; other values as they are.
function kinds.own(value)
  return type(value) == "userdata" and CONTAINERS[cbk.kind(value)] and cbk.deep_copy(value) or value
end

return kinds
