-- Finds tensors that share the same bytes.

local cbk = require "cbk"
local extents = require "cbk.extents"
local tensor_kinds = require "cbk.tensor_kinds"

local ties = {}

---The storage of a tensor and its part of it, as a text; nil if the tensor is computed.
---@param tensor Tensor
---@return string|nil
function ties.view_id(tensor)
  local storage = tensor:storage()
  if not storage then return nil end
  return ("%d %d %s %s %s"):format(storage.id, storage.offset, tensor.dtype, extents.joined(tensor:shape(), ","),
    extents.joined(storage.stride, ","))
end

---The names of a state dict that see the same part of a storage, by that part.
---@param tensors Dict
---@return table<string, string[]>   by `view_id`; in the order of the state dict
function ties.groups(tensors)
  local out = {}
  for key, value in cbk.items(tensors) do
    local id = tensor_kinds.is_tensor(value) and ties.view_id(value)
    if id then
      out[id] = out[id] or {}
      table.insert(out[id], key)
    end
  end
  return out
end

---A function that casts floating tensors. Those that see the same part of a storage are cast once, and share the result.
---@param dtype string
---@return fun(tensor: Tensor): Tensor
function ties.caster(dtype)
  local casts = {}
  return function(tensor)
    if not cbk.dtype(tensor.dtype).floating or tensor.dtype == dtype then return tensor end
    local id = ties.view_id(tensor) or tensor
    casts[id] = casts[id] or tensor:to(dtype)
    return casts[id]
  end
end

return ties
