-- Matrices and other tensors by their rows: counted, transposed, interleaved.

local cbk = require "cbk"

local matrix = {}

---The number of rows of a tensor.
---@param t Tensor
---@return integer
function matrix.rows(t) return t:shape()[1] or cbk.fail("shape", "a scalar has no rows") end

---A matrix transposed; a vector as it is. A tensor with more dimensions is an error: which two of them change places is unknown.
---@param t Tensor
---@return Tensor
function matrix.transposed(t)
  if t:dim() > 2 then cbk.fail("shape", ("expected a matrix to transpose, found a tensor of %d dimensions"):format(t:dim())) end
  return t:dim() == 2 and t:transpose(0, 1) or t
end

---A shape with another number of rows.
---@param shape integer[]
---@param count number
---@return number[]
function matrix.with_rows(shape, count)
  local out = { unpack(shape) }
  out[1] = count
  return out
end

---Puts the first `dim` rows of each head from two halves (a…, b…) into pairs (a0, b0, a1, b1, …), or back.
---@param t Tensor
---@param heads number
---@param dim number
---@param to_pairs boolean
---@return Tensor
function matrix.interleaved(t, heads, dim, to_pairs)
  local shape, count = t:shape(), matrix.rows(t)
  if heads < 1 or heads % 1 ~= 0 or count % heads ~= 0 then
    cbk.fail("shape", ("%d rows do not split into %g heads"):format(count, heads))
  end
  local size = count / heads
  if dim < 2 or dim % 2 ~= 0 or dim > size then
    cbk.fail("shape", ("expected an even number of rotated rows in a head, at most its %d rows, found %g"):format(size, dim))
  end
  local view = t:reshape { heads, size, t:numel() / count }
  local turning = dim == size and view or view:slice(1, 0, dim)
  local halves = to_pairs and { heads, 2, dim / 2, -1 } or { heads, dim / 2, 2, -1 }
  local turned = turning:reshape(halves):permute { 0, 2, 1, 3 }:reshape { heads, dim, -1 }
  if dim ~= size then turned = cbk.cat({ turned, view:slice(1, dim, size) }, 1) end
  return turned:reshape(shape)
end

return matrix
