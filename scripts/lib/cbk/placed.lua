-- Where the elements of tensors are. A small file may have one large tensor under many names, and reading it for each of them would take
-- any time.

local placed = {}

---A text that is the same for tensors with the same elements at the same place of one file; nil for tensors that are computed. It holds
---as long as the tensor is kept: another one may be at that place in memory later.
---@param tensor Tensor
---@return string|nil
function placed.at(tensor)
  local storage = tensor:storage()
  if not storage then return nil end
  return ("%.0f %.0f %s %s %s"):format(storage.id, storage.offset, tensor.dtype, table.concat(tensor:shape(), "x"),
    table.concat(storage.stride, "x"))
end

---The same for a list of tensors.
---@param list Tensor[]
---@return string|nil
function placed.all_at(list)
  local out = {}
  for i, tensor in ipairs(list) do
    out[i] = placed.at(tensor)
    if not out[i] then return nil end
  end
  return table.concat(out, ", ")
end

return placed
