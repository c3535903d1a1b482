-- The position of a token in attention: rotated queries and keys, or a penalty for distance.

local tensors = require "cstorch.tensors"

local positions = {}

---theta^(-2i/width): by how much each pair of elements turns from one position to the next (Su et al. 2021).
---@param width integer   how many elements of a head are rotated
---@param theta number
---@return cstorch.Tensor   # [width / 2]
function positions.frequencies(width, theta) return (tensors.arange(0, width, 2) * (-math.log(theta) / width)):exp() end

---@class cstorch.Turns   Cosines and sines of the angles of positions: [positions, width / 2].
---@field cos cstorch.Tensor
---@field sin cstorch.Tensor

---@param frequencies cstorch.Tensor   [width / 2]
---@param first integer    the first position
---@param count integer    of positions
---@param factor? number   of cosines and sines
---@return cstorch.Turns
function positions.turns(frequencies, first, count, factor)
  local angles = tensors.arange(first, first + count):unsqueeze(1) * frequencies
  local cos, sin = angles:cos(), angles:sin()
  if factor and factor ~= 1 then cos, sin = cos * factor, sin * factor end
  return { cos = cos, sin = sin }
end

local function turned(a, b, turns) return a * turns.cos - b * turns.sin, b * turns.cos + a * turns.sin end

---Rotates pairs of the first elements of each head; the others stay. A pair is two neighbours (x[2i], x[2i+1]), or with `halves`
---(x[i], x[i + width/2]).
---@param x cstorch.Tensor      [..., positions, head width]
---@param turns cstorch.Turns
---@param halves? boolean
---@return cstorch.Tensor
function positions.rotate(x, turns, halves)
  local dims, half = x:shape(), turns.cos:size(-1)
  local head, width = dims[#dims], 2 * half
  local rotated
  if halves then
    local a, b = turned(x:slice(-1, 0, half), x:slice(-1, half, width), turns)
    rotated = tensors.cat({ a, b }, -1)
  else
    local a, b = turned(x:slice(-1, 0, width, 2), x:slice(-1, 1, width, 2), turns)
    dims[#dims] = width
    rotated = tensors.stack({ a, b }, -1):reshape(dims)
  end
  rotated = rotated:to(x.dtype) -- the angles are float32
  if width == head then return rotated end
  return tensors.cat({ rotated, x:slice(-1, width, head) }, -1)
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
