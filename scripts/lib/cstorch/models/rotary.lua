-- The frequencies of rotary positions, also where a longer context stretches them.

local errors = require "cstorch.errors"
local positions = require "cstorch.nn.positions"
local tensors = require "cstorch.tensors"

local rotary = {}

---@class cstorch.models.Rotary
---@field frequencies number[]                                   one for each pair of a head; a step makes a tensor of them
---@field long? { from: integer, frequencies: number[] }         those of inputs of more positions than `from`
---@field factor number                                          of cosines and sines
---@field halves boolean                                         element i belongs to i + width/2, not 2i to 2i + 1

---@class cstorch.models.RotaryScaling   What a config says, by the names of rope_scaling.
---@field rope_type string
---@field factor? number
---@field long_from? integer   longrope: inputs of more positions rotate by the long factors; default: the original length

---How far each pair is from `low` to `high`, in [0, 1].
local function ramp(count, low, high)
  if low == high then high = high + 0.001 end
  return ((tensors.arange(count) - low) / (high - low)):clamp(0, 1)
end

---LLaMA 3: slow rotations are stretched, fast ones are not, those between partly. Source: _compute_llama3_parameters in
---modeling_rope_utils.py of transformers 4.48.
local function llama3(plain, said)
  local turns = plain * (said.original_max_position_embeddings / (2 * math.pi))
  local share = ((turns - said.low_freq_factor) / (said.high_freq_factor - said.low_freq_factor)):clamp(0, 1)
  return plain * (share + (1 - share) / said.factor)
end

---YaRN (Peng et al. 2023), with the factor of cosines and sines.
local function yarn(plain, said, theta)
  local width = 2 * plain:numel()
  local function pair_with(rotations)
    return width * math.log(said.original_max_position_embeddings / (rotations * 2 * math.pi)) / (2 * math.log(theta))
  end
  local low, high = pair_with(said.beta_fast or 32), pair_with(said.beta_slow or 1)
  local share = 1 - ramp(plain:numel(), math.max(math.floor(low), 0), math.min(math.ceil(high), width - 1))
  return plain * (share + (1 - share) / said.factor), said.factor > 1 and 0.1 * math.log(said.factor) + 1 or 1
end

local function divided(plain, factors)
  local numbers = {}
  for i = 1, #factors do numbers[i] = tonumber(factors[i]) end
  errors.check(#numbers == plain:numel(), "value", "longrope: expected %d factors, one for each pair of a head, found %d",
    plain:numel(), #numbers)
  return plain / tensors.tensor(numbers)
end

---@param theta number
---@param width integer    rotated elements of a head
---@param halves boolean
---@param said? cstorch.models.RotaryScaling
---@return cstorch.models.Rotary
function rotary.new(theta, width, halves, said)
  local plain, kind = positions.frequencies(width, theta), said and said.rope_type or "default"
  local out = { frequencies = plain, factor = 1, halves = halves }
  if kind == "linear" then
    out.frequencies = plain / said.factor
  elseif kind == "llama3" then
    out.frequencies = llama3(plain, said)
  elseif kind == "yarn" then
    out.frequencies, out.factor = yarn(plain, said, theta)
  elseif kind == "longrope" then
    -- Source: _compute_longrope_parameters in modeling_rope_utils.py of transformers 4.53
    local original = said.original_max_position_embeddings
    local usual = said.factor > 1 and math.sqrt(1 + math.log(said.factor) / math.log(original)) or 1
    out.factor = said.attention_factor or usual
    out.frequencies = divided(plain, said.short_factor)
    out.long = { from = said.long_from or original, frequencies = divided(plain, said.long_factor) }
  else
    errors.check(kind == "default", "value", "rotary positions of type '%s' are not known here; known: linear, llama3, yarn, longrope",
      kind)
  end
  out.frequencies = out.frequencies:tolist()
  if out.long then out.long.frequencies = out.long.frequencies:tolist() end
  return out
end

---@param own cstorch.models.Rotary
---@param first integer   position
---@param count integer   of positions
---@return cstorch.Turns
function rotary.turns(own, first, count)
  local is_long = own.long and first + count > own.long.from
  return positions.turns(tensors.tensor(is_long and own.long.frequencies or own.frequencies), first, count, own.factor)
end

return rotary
