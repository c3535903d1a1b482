-- Batches: a tensor, or nested tables of tensors.

local errors = require "cstorch.errors"
local nested = require "cstorch.nested"
local tensors = require "cstorch.tensors"

local batches = {}

---The first extent of the batch's tensors. Different ones are an error with `is_strict`, else a warning.
---@param batch any
---@param expected? integer   the size of the batches before
---@param is_strict boolean
---@return integer
function batches.size(batch, expected, is_strict)
  local size = expected
  local found
  nested.each(batch, function(t)
    found = t:dim() == 0 and 1 or t:size(0)
    if size == nil then size = found end
    if found ~= size then
      local text = ("the batch size changes from %d to %d; drop the last incomplete batch"):format(size, found)
      if is_strict then errors.raise("runtime", text) end
      errors.warn(text)
    end
  end)
  if not found then errors.raise("runtime", "expected a batch of tensors, found %s without any", errors.show(batch)) end
  return size
end

---The parts of one batch, joined along their first dim.
---@param parts any[]
---@return any
function batches.join(parts)
  local first = parts[1]
  if parts[2] == nil then return first end
  if tensors.is_tensor(first) then return tensors.cat(parts, 0) end
  if type(first) ~= "table" then return first end
  local joined = {}
  for key in pairs(first) do
    local items = {}
    for i, part in ipairs(parts) do
      local has_key = type(part) == "table" and part[key] ~= nil
      errors.check(has_key, "runtime", "the workers' batches differ: '%s' is missing in one", tostring(key))
      items[i] = part[key]
    end
    joined[key] = batches.join(items)
  end
  return joined
end

return batches
