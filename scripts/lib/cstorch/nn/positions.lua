-- The position of a token in attention: rotated queries and keys, or a penalty for distance.

local tensors = require "cstorch.tensors"

local positions = {}

---Rotates pairs of neighbours (x[2i], x[2i+1]) of the first `width` elements by position · theta^(-2i/width) (Su et al. 2021).
---@param x cstorch.Tensor    [..., positions, head width]
---@param width integer       how many elements of a head are rotated
---@param theta number
---@return cstorch.Tensor
function positions.rotate(x, width, theta)
  local dims, length = x:shape(), x:size(-2)
  local rates = (tensors.arange(0, width, 2) * (-math.log(theta) / width)):exp()
  local angles = tensors.arange(length):unsqueeze(1) * rates
  local cos, sin = angles:cos(), angles:sin()
  local even, odd = x:slice(-1, 0, width, 2), x:slice(-1, 1, width, 2)
  local pairs_of = tensors.stack({ even * cos - odd * sin, odd * cos + even * sin }, -1)
  local rotated_dims = { unpack(dims, 1, #dims - 1) }
  rotated_dims[#dims] = width
  local rotated = pairs_of:reshape(rotated_dims):to(x.dtype) -- the angles are float32
  if width == dims[#dims] then return rotated end
  return tensors.cat({ rotated, x:slice(-1, width, dims[#dims]) }, -1)
end

---The slopes of ALiBi (Press et al. 2021): a geometric sequence that begins with 2^(-8/n), for n heads a power of two; otherwise that of
---the next lower power, then every second one of the next higher.
---@param heads integer
---@return cstorch.Tensor   # [heads]
function positions.alibi_slopes(heads)
  local power = 2 ^ math.floor(math.log(heads) / math.log(2) + 1e-9)
  local slopes = {}
  for i = 1, power do slopes[i] = 2 ^ (-8 * i / power) end
  for i = 1, heads - power do slopes[power + i] = 2 ^ (-8 * (2 * i - 1) / (2 * power)) end
  return tensors.tensor(slopes)
end

return positions
