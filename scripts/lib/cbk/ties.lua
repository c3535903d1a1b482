-- Which tensors see the same bytes.

local extents = require "cbk.extents"

local ties = {}

---The storage of a tensor and the part that it sees, as a text; nil if the tensor is computed.
---@param tensor Tensor
---@return string|nil
function ties.view_id(tensor)
  local storage = tensor:storage()
  if not storage then return nil end
  return ("%d %d %s %s %s"):format(storage.id, storage.offset, tensor.dtype, extents.joined(tensor:shape(), ","),
    extents.joined(storage.stride, ","))
end

return ties
