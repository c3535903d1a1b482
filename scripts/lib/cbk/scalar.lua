-- Numbers of a checkpoint. They are stored as numbers or as tensors with one element.

local cbk = require "cbk"

local scalar = {}

---@param kind string   of cbk.kind
function scalar.is_tensor(kind) return kind == "tensor" or kind == "parameter" or kind == "ndarray" or kind == "np_scalar" end

---The number in an entry; nil for anything else.
---@param container Dict|List
---@param key any
---@return number|integer|nil   an int64 beyond 2^53 stays exact
function scalar.of(container, key)
  local kind = cbk.kind(container, key)
  if kind == "int" or kind == "float" then
    local value = container[key]
    return type(value) == "cdata" and value or tonumber(tostring(value))
  end
  if not scalar.is_tensor(kind or "") or container[key]:numel() ~= 1 then return nil end
  local value = container[key]:reshape {}:item()
  return type(value) == "cdata" and value or tonumber(value)
end

---Whether two numbers are equal; one may be an int64.
function scalar.equal(a, b) return a == b and tonumber(a) == tonumber(b) end

---@param number number|integer
function scalar.is_whole(number)
  return type(number) == "cdata" or number % 1 == 0 and number >= -2 ^ 63 and number < 2 ^ 63
end

return scalar
