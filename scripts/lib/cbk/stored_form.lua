-- Elements as they are stored, for programs with the dtypes of NumPy: bits of narrow floats, and blocks of quantised elements.

local stored_form = {}

---Whether NumPy and CSV lack the dtype.
---@param name string
---@return boolean
function stored_form.is_narrow(name) return name == "bfloat16" or name:find "^float8" ~= nil end

---The blocks of quantised elements as bytes: the last dim becomes that of the blocks of a row.
---@param tensor Tensor
---@return Tensor|nil   nil if its elements are not stored in blocks
function stored_form.blocks(tensor)
  local blocks, shape = tensor:blocks(), tensor:shape()
  if not blocks or #shape == 0 then return blocks end
  local rows = 1
  for dim = 1, #shape - 1 do rows = rows * shape[dim] end
  shape[#shape] = rows > 0 and blocks:numel() / rows or 0
  return blocks:reshape(shape)
end

---The tensor in a dtype that NumPy has, as it is stored: blocks, bits of narrow floats, or itself.
---@param tensor Tensor
---@return Tensor
function stored_form.of(tensor)
  return stored_form.blocks(tensor) or stored_form.is_narrow(tensor.dtype) and tensor:bits() or tensor
end

return stored_form
